"""Every tolerance of the tests, in one place."""

F64 = 1e-12  # the same computation in another layout or order, float64
F64_GRADIENT = 1e-10  # gradients of weights by the kernels and by the reference, float64
F32 = 1e-5  # the same in float32
TRITON_F32 = 1e-6  # of the largest entry: dX of the GPU kernels where the reference is better (measured 4e-7)
F32_RELATIVE = 2e-5  # of the largest entry, float32 against float64, inputs of any size (measured 3e-6)
GAP_F64 = 1e-11  # the gap of a plan that is solved to the default of 1e-12
GAP_SOLVED = 1e-9  # the gap that is promised of a solved plan
GAP_BADMM = 1e-6  # of 3,000 steps of Bregman ADMM
GAP_F32 = 1e-5  # of a float32 plan
OPTIMUM = 1e-6  # an optimum against another solver's, whose gap is of this order or whose steps have an end
FAR_F32 = 1e-4  # a float32 plan of X + 1e6
IMPLICIT = 1e-4  # derivatives of an optimum against finite differences of it
PROPOSITION = (
    1e-3  # mean, max and attention by coefficients of 1e-4 to 1e12, as the paper's propositions have it
)
MEAN_F32 = 1e-4  # the mean in float32, of the size of X
SLOPE = 1e-2  # derivatives and first steps, of their size, where a coefficient is far from its limit
STRUCTURAL_ZERO = 1e-12  # gradients below are zero by construction (measured 1e-16)
MASS_F32 = 1e-5  # mass of a float32 plan, any weights (measured 7e-7; 1e-3 is promised)
MASS_F32_LARGE = 1e-3  # what is promised: of 131,000 rows, which the reference adds up one by one (index_add)
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
KERNEL = {"value": 20.0, "X": 20.0, "p0": 2e3, "q0": 2e3, "scale": 2e3} | dict.fromkeys(
    ("alpha0", "alpha1", "alpha2", "rho"), 2e4
)
KERNEL_HARD = 5.0  # times as much for X beyond 1 by orders of magnitude (measured 1.1, for X)
KERNEL_LARGE = 40.0  # and for bags of 1e5 to 1e6 entries, as many terms of a sum (measured 16, for a weight)
# Sets that the kernels solve in double, float32 in and out: the rounding of the results, more where large terms
# of a derivative cancel (measured 8e-7, for a weight).
WIDE_F32 = 5e-6
# The pooled output in float32, of the range of a feature, whatever X, coefficients and priors are (measured
# 2e-4).
RANGE_F32 = 3e-4


def kernel(name: str, eps: float, ratio: float, slack: float = 1.0) -> float:
    """Largest relative error; `ratio` is max |scale X| / alpha0. For values in float32 1e-5 at alpha0 = 0.3."""
    return KERNEL[name] * eps * (1.0 + ratio) * slack


# Golden values, of the largest number of an array; an optimum is known to the square root of its gap.
GOLDEN = {"float64": 1e-12, "float32": 2e-6, "converged": 1e-6}

# The zoo. Loops, PyG, POT and numpy against the layers in float64 are within F64 (measured 2e-15).
# Five steps of Newton and Schulz against a true root, for a rank of 2 and 4 and eigenvalues within 20 % of each
# other (measured 2e-11 and 6e-6). A step squares an error that starts at 1 - eigenvalue / trace.
NEWTON_SCHULZ_2, NEWTON_SCHULZ_4 = 1e-9, 1e-4
ZOO_F32 = 5e-6  # float32 against float64, values and gradients, of the largest (measured 3e-7)
ZOO_ORDER = 1e-10  # rows in another order, x of 100 and its gradients, of the largest (measured 4e-12)

# Random weights of each module (tests/fuzz), in units of the rounding of a number: what the kernels may be off
# by, or so many times what the reference is off by.
FUZZ = 2e4
FUZZ_TIMES = 20.0
FUZZ_EXPONENT = 20.0  # times the largest exponent, max |X| over the smallest alpha0 or rho: it is rounded too
FUZZ_TIMES_WEIGHTS = 200.0  # derivatives by log weights, which BADMM-E eliminates a dual for (measured 120)
FUZZ_CAP = 0.1  # of the natural scale of a result: a bound above it says nothing, and is skipped and counted
# What is left of identities of the derivatives at the optimum, of the sum of their terms: a plan is good to the
# square root of its gap, 1e-12 and 1e-6.
CONVERGED = {"float64": 1e-6, "float32": 1e-3}
GAP_ROUNDING = 1e3  # a duality gap, in units of the rounding of the range of X and the weights

# Graphs. A step of AD-GCL, loss and gradients, against gather and scatter (measured 4e-13; 1e-5 is promised).
STEP_F64 = 1e-10
STEP_F32 = 1e-5
# Pooling by the largest samples of a feature, at a scale of 100 and weights of 1e4 (measured 1.2e-3), and by
# the maximum.
LARGEST_SHARE = 5e-3
