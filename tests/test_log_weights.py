"""Weights that a layer learns through their logarithm, as the default layer does alpha2."""

from __future__ import annotations

import copy
import itertools
import json
import math

import pytest
import torch

from tests import tolerances as tol
from uotpool import UOTAssignment, UOTPooling, uot_pool
from uotpool.nn.weights import LOG_START
from uotpool.problem import LOG_LIMIT, RATE

D = 5
NAMES = ("alpha0", "alpha1", "alpha2")


def randn(*size, seed=0):
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


SOME = [c for n in (1, 2, 3) for c in itertools.combinations(NAMES, n)]
WITH_RHO = [("rho",), ("alpha1", "rho"), (*NAMES, "rho")]


@pytest.mark.parametrize("impl", ["auto", "reference"])
@pytest.mark.parametrize(
    ("solver", "logs"), [*(("sinkhorn", c) for c in SOME), *(("badmm-e", c) for c in WITH_RHO)]
)
def test_is_a_power_in_its_own_row(solver, logs, impl):
    """Whichever weights are learned so, each value reaches its own place, and so does its derivative."""
    X, fixed = randn(2, 7, D), {"alpha0": 0.5, "alpha1": 3.0, "alpha2": 1.5}
    if solver == "badmm-e":
        fixed["rho"] = 1.2
    options = fixed | dict.fromkeys(logs, "log") | {"init": dict.fromkeys(logs, 0.8)}
    pool = UOTPooling(D, solver=solver, **options, scale=None, impl=impl, dtype=torch.float64)
    values = dict(fixed)
    with torch.no_grad():
        for i, name in enumerate(logs):
            getattr(pool, f"raw_log_{name}").add_(0.1 * (i + 1))
            values[name] = 0.8 * math.exp(RATE * 0.1 * (i + 1))
    leaves = {
        name: torch.full((4,), value, dtype=torch.float64, requires_grad=name in logs)
        for name, value in values.items()
    }
    y, expected = pool(X), uot_pool(X, **leaves, solver=solver, K=4, impl="reference")
    torch.testing.assert_close(y, expected, rtol=0, atol=tol.F64)
    weighting = randn(*y.shape, seed=1)
    (y * weighting).sum().backward()
    (expected * weighting).sum().backward()
    for name in logs:
        by_log = (leaves[name].grad * leaves[name].detach()).sum() * RATE
        torch.testing.assert_close(getattr(pool, f"raw_log_{name}").grad, by_log[None], rtol=1e-7, atol=tol.F64)


@pytest.mark.parametrize("solver", ["sinkhorn", "badmm-e", "badmm-q"])
@pytest.mark.parametrize("K", [1, 3, "converged"])
def test_gradcheck(solver, K):
    """The whole layer, through the unrolled modules and through the optimum."""
    precise = {"tol": 1e-13, "max_iter": 500} if K == "converged" else {}
    pool = UOTPooling(D, solver=solver, K=K, alpha1=1.0, init={"alpha2": 0.7}, **precise).double()

    def run(X, raw):
        return torch.func.functional_call(pool, {"raw_log_alpha2": raw}, (X,))

    X, raw = randn(2, 4, D).requires_grad_(), torch.full((1,), 0.03, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(run, (X, raw), eps=1e-5, atol=1e-4)


@pytest.mark.parametrize("raw", [-1e4, -1.3, 0.0, 1.3, 1e4])
@pytest.mark.parametrize("name", [*NAMES, "rho"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_extremes_are_finite(raw, name, dtype):
    """No step of an optimiser is too large: the weight stays within its limits."""
    pool = UOTPooling(D, solver="badmm-e" if name == "rho" else "sinkhorn", **{name: "log"}).to(dtype)
    parameter = getattr(pool, f"raw_log_{name}")
    with torch.no_grad():
        parameter.fill_(raw)
    X = randn(2, 7, D).to(dtype).requires_grad_()
    y = pool(X)
    y.sum().backward()
    value = getattr(pool.weights(), name)
    assert (value >= 0.99 / LOG_LIMIT).all()
    assert (value <= 1.01 * LOG_LIMIT).all()
    for found in (y, X.grad, pool.raw_scale.grad, parameter.grad):
        assert found.isfinite().all()
    assert (parameter.grad != 0).all() or raw != 0.0


def test_small_is_pooling_of_each_feature_alone():
    X, pool = randn(3, 7, D), UOTPooling(D).double()
    with torch.no_grad():
        pool.raw_log_alpha2.fill_(-2.0)
    alone = UOTPooling(D, alpha2=0.0).double()(X)
    assert (UOTPooling(D).double()(X) - alone).abs().max() > 1e-2
    torch.testing.assert_close(pool(X), alone, rtol=0, atol=1e-6)


def test_all_modules_share_one_value_and_reset_brings_it_back():
    pool = UOTPooling(D, K=7)
    assert pool.raw_log_alpha2.shape == (1,)
    start = torch.full((7,), LOG_START["alpha2"])
    torch.testing.assert_close(pool.weights().alpha2, start, rtol=tol.INIT, atol=0.0)
    with torch.no_grad():
        pool.raw_log_alpha2.fill_(0.3)
    pool.reset_parameters()
    torch.testing.assert_close(pool.weights().alpha2, start, rtol=tol.INIT, atol=0.0)


def test_goes_through_config_copy_and_state():
    pool = UOTPooling(D, init={"alpha2": 0.3}).double()
    with torch.no_grad():
        pool.raw_log_alpha2.fill_(0.2)
    X = randn(2, 6, D)
    again = UOTPooling.from_config(json.loads(json.dumps(pool.get_config()))).double()
    again.load_state_dict(pool.state_dict())
    for other in (again, copy.deepcopy(pool)):
        assert torch.equal(other(X), pool(X))
    assert pool.get_config()["alpha2"] == "log"


def test_a_state_has_the_weight_whatever_it_began_at():
    pool, other = UOTPooling(D, init={"alpha2": 0.3}), UOTPooling(D)
    other.load_state_dict(pool.state_dict())
    assert torch.equal(other.weights().alpha2, pool.weights().alpha2)


def test_a_config_says_how_a_weight_would_be_learned():
    """Also where nothing is to be learned: with other options there is."""
    assert UOTPooling.from_config(UOTPooling(D, K=0).get_config(), K=4).get_config()["alpha1"] == "log"
    by_admm = UOTPooling.from_config(UOTPooling(D).get_config(), solver="badmm-e")
    assert by_admm.raw_log_rho.shape == (1,)
    assert "rho" not in repr(UOTPooling(D))


def test_an_assignment_learns_so_too():
    pool = UOTAssignment(D, 3, 2, alpha1="log", init={"alpha1": 0.4}).double()
    pool(randn(2, 6, D)).square().sum().backward()
    assert (pool.raw_log_alpha1.grad != 0).all()
    assert "alpha1='log'" in repr(pool)
    torch.testing.assert_close(
        pool.weights().alpha1, torch.full((3,), 0.4, dtype=torch.float64), rtol=1e-6, atol=0
    )


def test_the_quadratic_plan_begins_near_the_mean():
    """A step of 5 mends what a learned step of 0.7 did: the first plans lay on few samples."""
    X = torch.rand(32, 20, 64, generator=torch.Generator().manual_seed(0))
    far, near = (
        UOTPooling(64, solver="badmm-q", **options).diagnostics(X)["divergence"]
        for options in ({"rho": 0.7}, {})
    )
    assert near < 0.1 * far


def test_a_fixed_weight_beside_it_counts_when_it_is_replaced():
    """The rows of fixed weights are kept between calls, those of learned ones are not."""
    pool, X = UOTPooling(D, dtype=torch.float64), randn(2, 6, D)
    pool(X)
    pool.alpha0 = torch.tensor(0.3, dtype=torch.float64)
    expected = UOTPooling(D, alpha0=0.3, dtype=torch.float64)(X)
    torch.testing.assert_close(pool(X), expected, rtol=0, atol=tol.F64)
    with torch.no_grad():
        pool.raw_log_alpha2.add_(0.1)
    start = pool.weights().alpha2[0].item()
    expected = UOTPooling(D, alpha0=0.3, init={"alpha2": start}, dtype=torch.float64)(X)
    torch.testing.assert_close(pool(X), expected, rtol=0, atol=tol.F64)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"alpha2": "loga"}, ["alpha2", "'loga'", 'None or "log" to learn it']),
        ({"init": {"alpha2": 0.0}}, ["init['alpha2']", "one number from 1e-06 to 1000000.0", "0.0"]),
        ({"init": {"alpha2": "x"}}, ["init['alpha2']", "one number from 1e-06 to 1000000.0", "'x'"]),
        ({"init": {"scale": 2.0}}, ["init", "'scale'", "scales start at 1"]),
        ({"init": {"alpha2": [1.0, 2.0]}}, ["init['alpha2']", "one number", "[1.0, 2.0]"]),
        ({"init": {"alpha2": 1e9}}, ["init['alpha2']", "one number from 1e-06 to 1000000.0"]),
        (
            {"init": {"alpha0": 1.0}},
            ["init", "['alpha1', 'alpha2']", "'alpha0'", 'alpha0=None and alpha0="log" learn it'],
        ),
        ({"K": 0, "init": {"alpha2": 1.0}}, ["init", "learned weights [], got 'alpha2'"]),
    ],
)
def test_refusals(options, words):
    with pytest.raises((ValueError, TypeError)) as error:
        UOTPooling(D, **options)
    for word in words:
        assert word in str(error.value)


def test_a_parameter_of_another_shape_is_refused():
    pool = UOTPooling(D)
    pool.raw_log_alpha2 = torch.nn.Parameter(torch.zeros(3))
    with pytest.raises(ValueError, match=r"raw_log_alpha2: expected a parameter of shape \(1,\)"):
        pool(randn(2, 3, D).float())


def test_second_derivatives():
    """Of the readable solver, by the parameter too."""
    pool = UOTPooling(D, K=2, alpha1=1.0, impl="reference", dtype=torch.float64)

    def run(X, raw):
        return torch.func.functional_call(pool, {"raw_log_alpha2": raw}, (X,))

    X, raw = randn(1, 3, D).requires_grad_(), torch.full((1,), 0.03, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(run, (X, raw), atol=1e-4)


def test_a_parameter_that_is_not_a_number_shows():
    pool = UOTPooling(D)
    with torch.no_grad():
        pool.raw_log_alpha2.fill_(float("nan"))
    assert pool(randn(2, 3, D).float()).isnan().all()
