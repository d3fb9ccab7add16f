"""Every tolerance of the tests, in one place."""

F64 = 1e-12  # the same computation in another layout or order, float64
F32 = 1e-5  # the same in float32
F64_SOLVED = 1e-7  # two solves of one problem to the default gap: the plan is good to its square root
STRUCTURAL_ZERO = 1e-12  # gradients below are zero by construction (measured 1e-16)
MASS_F32 = 1e-5  # mass of a float32 plan, any weights (measured 7e-7; 1e-3 is promised)
# Of the range of X: derivatives by log weights at alpha0 = 1e-5 (measured 1.1e-3); more where exponents round.
GRADIENT_NOISE_F32 = 2e-3
F16 = 2e-3  # float16 in and out against the same in float32: the rounding of the output (5e-4) and of weights
BF16 = 2e-2  # the same for bfloat16 (rounding 4e-3)
THREADS_F64 = 1e-12  # gradients of weights for another number of threads: torch splits a sum over all entries
INIT = 1e-6  # relative: a learned weight against its `init`
LIMIT_F64 = 1e-9  # mean pooling by weights of 1e12
ONNX_F32 = 1e-5  # a model in onnxruntime against eager, which runs the kernels

# The kernels against the reference in float64, in units of the rounding error of X / alpha0. Measured: 6, 8,
# 200 and 9e3. Derivatives by priors and weights are small differences of large sums, in the reference too.
KERNEL = {"value": 20.0, "X": 20.0, "p0": 2e3, "q0": 2e3} | dict.fromkeys(
    ("alpha0", "alpha1", "alpha2", "rho"), 2e4
)
KERNEL_HARD = 5.0  # times as much for X beyond 1 by orders of magnitude (measured 1.1, for X)
KERNEL_LARGE = 40.0  # and for bags of 1e5 to 1e6 entries, as many terms of a sum (measured 16, for a weight)


def kernel(name: str, eps: float, ratio: float, slack: float = 1.0) -> float:
    """Largest relative error; `ratio` is max |X| / alpha0. For values in float32 1e-5 at alpha0 = 0.3."""
    return KERNEL[name] * eps * (1.0 + ratio) * slack
