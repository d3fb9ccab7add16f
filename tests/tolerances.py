"""Every tolerance of the tests, in one place."""

F64 = 1e-12  # the same computation in another layout or order, float64
F32 = 1e-5  # the same in float32
F64_SOLVED = 1e-7  # two solves of one problem to the default gap: the plan is good to its square root
STRUCTURAL_ZERO = 1e-12  # gradients below are zero by construction (measured 1e-16)
MASS_F32 = 1e-5  # mass of a float32 plan, any weights (measured 7e-7; 1e-3 is promised)
GRADIENT_NOISE_F32 = 1e-3  # of the range of X: derivatives by log weights at alpha0 = 1e-5 (measured 8e-4)
F16 = 2e-3  # float16 in and out against the same in float32: the rounding of the output (5e-4) and of weights
BF16 = 2e-2  # the same for bfloat16 (rounding 4e-3)
THREADS_F64 = 1e-12  # gradients of weights for another number of threads: torch splits a sum over all entries
INIT = 1e-6  # relative: a learned weight against its `init`
LIMIT_F64 = 1e-9  # mean pooling by weights of 1e12
