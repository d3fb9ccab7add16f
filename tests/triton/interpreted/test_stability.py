"""float32 at every setting of the coefficients, half precision, NaN, and the bits of a set."""

from __future__ import annotations

import pytest
import torch

import uotpool
from tests import tolerances as tol
from tests.cases import DECADES
from tests.backends.harness import dense, ragged, randn, solved
from tests.triton.interpreted.harness import small
from uotpool import uot_plan, uot_pool
from uotpool.backends.triton import launch
from uotpool.backends.triton.ops import Arguments

pytestmark = pytest.mark.usefixtures("poisoned_memory", "small_tiles")

UNIT = dense(1, 10, 5)
INPUTS = (UNIT.X, (UNIT.X + 1e4).float().double(), (1e3 * UNIT.X).float().double())
ORDERS = 4  # of rows, in which the reference is computed: its error is a matter of luck too


@pytest.fixture
def small_tiles():
    with small():
        yield


def off(got, want):
    return float((got.double() - want).abs().max() / want.abs().max())


def reference_error(problem, weights, want):
    """Return the largest error of dX of the reference in float32 over some orders of the rows."""
    errors = []
    for turn in range(ORDERS):
        X, q0 = problem.X.roll(turn, 1), problem.q0.roll(turn, 1)
        turned = problem._replace(X=X, q0=q0).to(torch.float32)
        dX = solved(turned, weights, "sinkhorn", impl="reference")["X"]
        # The cotangent of the pooled output is the same whatever the order of rows.
        errors.append(off(dX.roll(-turn, 1), want))
    return max(errors)


def test_every_cell_of_coefficients():
    """Results are finite, and dX is as good as the reference's."""
    for i, alpha0 in enumerate(DECADES[::2]):
        for j, alpha12 in enumerate(DECADES[::2]):
            problem = UNIT._replace(X=INPUTS[(i + j) % len(INPUTS)])
            wide = [torch.full((2,), a, dtype=torch.float64) for a in (alpha0, alpha12, alpha12)]
            weights = [*(w.float() for w in wide), None]
            want = solved(problem, [*wide, None], "sinkhorn", impl="reference")["X"]
            got = solved(problem.to(torch.float32), weights, "sinkhorn", impl="triton")
            for name, value in got.items():
                assert value.isfinite().all(), (alpha0, alpha12, name)
            bound = max(2 * reference_error(problem, weights, want), tol.TRITON_F32)
            assert off(got["X"], want) <= bound, (alpha0, alpha12, (i + j) % len(INPUTS))


@pytest.mark.parametrize("alpha0", [DECADES[0], DECADES[-1]])
def test_mass_of_plans(alpha0):
    plan = uot_plan((1e3 * UNIT.X).float(), alpha0, 1.0, 1.0, K=2, impl="triton")
    assert (plan >= 0).all()
    assert abs(float(plan.double().sum()) - 1) <= tol.MASS_F32


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_read_directly(dtype):
    """The results are those of the same numbers in float32, rounded; the interpreter cuts bfloat16 off."""
    results = []
    for X in (UNIT.X.to(dtype), UNIT.X.to(dtype).float()):
        X.requires_grad_()
        y = uot_pool(X, 0.5, 1.0, 1.0, scale=torch.arange(1.0, 6.0), K=1, impl="triton")
        (dX,) = torch.autograd.grad(y, X, torch.ones_like(y))
        assert y.dtype == dX.dtype == X.dtype
        results.append((y.detach().to(dtype), dX.to(dtype)))
    eps = torch.finfo(dtype).eps
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=eps, atol=eps * float(want.abs().max()))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_spoils_its_set_alone(bad):
    """Even where the scale of its feature is 0, in values and derivatives."""
    problem = ragged("ptr", [3, 4, 12], 4)
    how = {"K": 1, "scale": torch.tensor([1.0, 0.0, -1.0, 2.0]).double(), "impl": "triton", **problem.layout}
    spoilt = problem.X.clone()
    spoilt[5, 1] = bad
    results = []
    with uotpool.check(False):
        for X in (problem.X.clone().requires_grad_(), spoilt.clone().requires_grad_()):
            y = uot_pool(X, 0.5, 1.0, 1.0, **how)
            results.append((y.detach(), torch.autograd.grad(y.sum(), X)[0]))
        plan = uot_plan(spoilt, 0.5, 1.0, 1.0, **how)
    (clean, d_clean), (got, d_got) = results
    others = [*range(3), *range(7, 19)]
    assert got[1].isnan().all()
    assert plan[3:7].isnan().all()
    assert torch.equal(got[::2], clean[::2])
    assert torch.equal(d_got[others], d_clean[others])
    assert plan[others].isfinite().all()


@pytest.mark.parametrize("run", [uot_pool, uot_plan])
def test_bits_of_a_set_alone_and_in_a_batch(run):
    """Whatever the other sets and the padding are, and if it comes by an index."""
    problem = ragged("ptr", [3, 25, 2], 6)
    part = slice(3, 28)

    def results(X, **layout):
        X = X.clone().requires_grad_()
        y = run(X, 0.5, 1.0, 0.7, K=2, scale=randn(6, seed=3), impl="triton", **layout)
        return y.detach(), torch.autograd.grad(y.sin().sum(), X)[0]

    y, dX = results(problem.X, **problem.layout)
    y_alone, dX_alone = results(problem.X[part])
    padded = torch.full((2, 30, 6), torch.nan, dtype=torch.float64)
    padded[1, :25] = problem.X[part]
    mask = torch.zeros(2, 30, dtype=torch.bool)
    mask[1, :25] = True
    y_padded, dX_padded = results(padded, mask=mask)
    places = torch.randperm(30, generator=torch.Generator().manual_seed(0))
    places = torch.cat([places[problem.set_of == b].sort()[0] for b in range(3)])  # each set keeps its order
    index, rows = torch.empty(30, dtype=torch.int64), torch.empty_like(problem.X)
    index[places], rows[places] = problem.set_of, problem.X
    y_index, dX_index = results(rows, index=index, dim_size=3)
    if run is uot_pool:
        assert torch.equal(y[1:2], y_alone)
        assert torch.equal(y_padded[1:], y_alone)
        assert torch.equal(y_index, y)
    else:
        assert torch.equal(y[part], y_alone)
        assert torch.equal(y_padded[1, :25], y_alone)
        assert torch.equal(y_index[places], y)
    assert torch.equal(dX[part], dX_alone)
    assert torch.equal(dX_padded[1, :25], dX_alone)
    assert (y_padded[0] == 0).all()
    assert (dX_padded[0] == 0).all()
    assert torch.equal(dX_index[places], dX)


def test_offsets_out_of_range_touch_no_other_memory():
    """Kernels clamp them: an assertion on a GPU reports them later. The interpreter would crash."""
    X, weights = randn(9, 4), torch.ones(3, 1, dtype=torch.float64)
    for ptr in ([-5, 4, 100], [7, 2, 9], [0, 2**40, 9]):
        p = Arguments(X, torch.tensor(ptr), None, None, 0, None, None, weights, None, 2, False)
        _, saved = launch.forward(p)
        launch.backward(torch.ones(2, 4).double(), p, saved, [True] * 5)
    order = torch.tensor([-1, 2**40, 2, 3, 4, 5, 6, 7, 8])
    launch.forward(p._replace(ptr=torch.tensor([0, 4, 9]), order=order))
