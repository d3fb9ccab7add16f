"""Coefficients of a layer: fixed and learned ones, where they start, their gradients, config and state."""

from __future__ import annotations

import copy
import itertools
import json
import math
import pickle

import pytest
import torch
from torch import nn

import uotpool
from tests import tolerances as tol
from uotpool import (
    AdaptiveUOTPool2d,
    BregmanADMM,
    Learned,
    Newton,
    Problem,
    SamplePrior,
    Sinkhorn,
    UOTPooling,
    param_groups,
    published,
)
from uotpool.coefficients import FLOOR, LIMIT, RATE, transformed
from uotpool.testing import check_pooling

D = 5
NAMES = ("alpha0", "alpha1", "alpha2")
SOLVERS = [Sinkhorn(3), BregmanADMM("entropic", 3), BregmanADMM("quadratic", 3)]
# Where softplus bends, where it is all but 0, and on both sides of where torch takes it for linear.
SOFTPLUS_VALUES = (-40.0, 0.1, 20.1)

each_solver = pytest.mark.parametrize("solver", SOLVERS, ids=str)


def randn(*size, seed=0, dtype=torch.float64):
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def names_of(solver):
    return (*NAMES, "rho") if solver.uses_rho else NAMES


def with_gradients(pool, X):
    """Return the output and its derivatives by X and the parameters, of a scalar that weighs entries apart."""
    X = X.detach().clone().requires_grad_()
    y = pool(X)
    return [y.detach(), *torch.autograd.grad(y, [X, *pool.parameters()], randn(*y.shape, seed=5).to(y))]


# --- What a coefficient is


def test_the_default_layer():
    pool = UOTPooling(D)
    assert [name for name, _ in pool.named_parameters()] == ["log_alpha1", "log_alpha2", "raw_scale"]
    found = {name: value.tolist() for name, value in pool.coefficients().items()}
    assert found == {"alpha0": [1.0], "alpha1": [pytest.approx(20.0)], "alpha2": [pytest.approx(5.0)]}
    assert torch.equal(pool.scales(), torch.ones(D))
    assert repr(pool) == "UOTPooling(5, Sinkhorn(K=4))"


@each_solver
@pytest.mark.parametrize("transforms", [*itertools.permutations(("fixed", "exp", "softplus")), ("exp",) * 3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_every_transform_beside_every_other(solver, transforms, dtype):
    """Each value reaches its own place, and so does its derivative, by the kernels and by the reference."""
    options, expected = {}, {}
    for i, (name, transform) in enumerate(zip(names_of(solver), (*transforms, transforms[0]), strict=False)):
        numbers = [0.3 + 0.2 * i, 2.0, 0.9]
        expected[name] = torch.tensor(numbers, dtype=torch.float64)
        per_step = [transform, i % 2 == 0]
        if transform == "fixed":
            options[name] = numbers
        elif per_step[1]:
            options[name] = Learned(numbers, transform, per_step=True)
        else:
            options[name], expected[name] = Learned(0.8, transform), torch.tensor([0.8], dtype=torch.float64)
    scale = torch.tensor([1.0, -0.5, 0.2, 0.0, 2.0], dtype=torch.float64)
    options["scale"] = Learned(scale.tolist())
    fused, reference = (
        UOTPooling(D, solver, impl=impl, dtype=dtype, **options) for impl in ("cpu", "reference")
    )
    X = randn(2, 7, D, dtype=dtype)
    y = Problem(X.double(), **expected, scale=scale).pool(solver, impl="reference")
    bound = tol.F32_RELATIVE if dtype == torch.float32 else tol.F64_GRADIENT
    assert (fused(X) - y).abs().max() <= bound * 10
    for a, b in zip(with_gradients(fused, X), with_gradients(reference, X), strict=True):
        assert (a - b).abs().max() <= bound * max(1.0, float(b.abs().max()))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@each_solver
def test_softplus_as_torch_has_it(solver, dtype):
    options = dict.fromkeys(names_of(solver), Learned(1.0, "softplus", per_step=True))
    fused, reference = (
        UOTPooling(D, solver, impl=impl, dtype=dtype, **options) for impl in ("cpu", "reference")
    )
    with torch.no_grad():
        for i, name in enumerate(names_of(solver)):
            values = torch.tensor(SOFTPLUS_VALUES, dtype=dtype).roll(i).clamp(-10, None if i else 2)
            for pool in (fused, reference):
                getattr(pool, f"raw_{name}").copy_(values)
    X = randn(3, 5, D, dtype=dtype)
    bound = tol.F32_RELATIVE if dtype == torch.float32 else tol.F64_GRADIENT
    for a, b in zip(with_gradients(fused, X), with_gradients(reference, X), strict=True):
        assert (a - b).abs().max() <= 10 * bound * max(1.0, float(b.abs().max()))


@pytest.mark.parametrize("raw", [-1e4, -1.39, 0.0, 1.39, 1e4])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["log_alpha1", "log_alpha2", "raw_scale"])
def test_no_step_of_an_optimiser_is_too_large(raw, dtype, name):
    """ln(10^6) / 10 is 1.3816: "exp" stays within its limits, without a derivative beyond."""
    pool = UOTPooling(D).to(dtype)
    with torch.no_grad():
        getattr(pool, name).fill_(raw)
    for value in with_gradients(pool, randn(2, 7, D, dtype=dtype)):
        assert value.isfinite().all()
    if name != "raw_scale":
        value = pool.coefficients()[name.removeprefix("log_")].detach()
        assert 0.98 / LIMIT <= float(value) <= 1.02 * LIMIT
        pool(randn(2, 7, D, dtype=dtype)).float().square().sum().backward()
        assert bool(getattr(pool, name).grad == 0) == (abs(raw) > 1.385)


@pytest.mark.parametrize("solver", [*SOLVERS, Newton(tol=1e-13, max_iter=500)], ids=str)
def test_gradcheck(solver):
    """Of the whole layer, through the unrolled steps and through the optimum."""
    pool = UOTPooling(D, solver, alpha1=1.0, alpha2=Learned(0.7)).double()

    def run(X, raw):
        return torch.func.functional_call(pool, {"log_alpha2": raw}, (X,))

    X, raw = randn(2, 4, D).requires_grad_(), torch.full((1,), 0.03, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(run, (X, raw), eps=1e-5, atol=tol.IMPLICIT)


def test_adam_moves_a_scale_and_a_logarithm_by_ten_rates_a_step():
    pool = UOTPooling(D)
    optimizer = torch.optim.Adam(pool.parameters(), lr=0.01)
    pool(randn(3, 7, D, dtype=torch.float32)).sum().backward()
    optimizer.step()
    torch.testing.assert_close(
        (pool.scales() - 1.0).abs(), torch.full((D,), 0.01 * RATE), rtol=tol.SLOPE, atol=0.0
    )
    for name, start in (("alpha1", 20.0), ("alpha2", 5.0)):
        moved = (pool.coefficients()[name] / start).log().abs()
        torch.testing.assert_close(moved, torch.tensor([0.01 * RATE]), rtol=tol.SLOPE, atol=0.0)


def test_weight_decay_leaves_coefficients_alone():
    pool = UOTPooling(D, alpha1=Learned(transform="softplus"))
    rest, raw = param_groups(nn.Sequential(nn.Linear(D, D), pool), weight_decay=0.1)
    assert {id(p) for p in raw["params"]} == {id(pool.raw_scale), id(pool.raw_alpha1), id(pool.log_alpha2)}
    assert (raw["weight_decay"], rest["weight_decay"]) == (0.0, 0.1)


# --- Where it starts


@pytest.mark.parametrize("value", [1e-5, 0.3, 1.0, 40.0, 5e5])
@pytest.mark.parametrize("transform", ["exp", "softplus"])
def test_init_gives_this_value_and_reset_brings_it_back(value, transform):
    pool = UOTPooling(
        D, "badmm-q", **dict.fromkeys((*NAMES, "rho"), Learned(value, transform)), dtype=torch.float64
    )
    with torch.no_grad():
        for parameter in pool.parameters():
            parameter.add_(0.3)
    pool.reset_parameters()
    for found in pool.coefficients().values():
        torch.testing.assert_close(found, torch.tensor([value], dtype=torch.float64), rtol=tol.INIT, atol=0.0)


@pytest.mark.parametrize(
    "solver", ["sinkhorn", "badmm-e", "badmm-q", published.Sinkhorn(), published.BregmanADMM()]
)
@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_a_scale_of_0_is_mean_pooling_and_learns(solver, impl):
    X, mask = randn(3, 7, D), torch.arange(7) < torch.tensor([[7], [4], [1]])
    pool = UOTPooling(D, solver, scale=Learned(0.0), impl=impl, dtype=torch.float64)
    y = pool(X, mask=mask)
    mean = torch.stack([x[m].mean(0) for x, m in zip(X, mask, strict=True)])
    torch.testing.assert_close(y, mean, rtol=0, atol=tol.F64)
    y.square().sum().backward()
    assert (pool.raw_scale.grad.abs() > 1e-6).all()


@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_a_feature_goes_from_the_minimum_over_the_mean_to_the_maximum(impl):
    X, scale = randn(3, 9, D), [0.0, 1e4, -1e4, 0.0, 1e4]
    y = UOTPooling(D, scale=scale, alpha2=0.0, impl=impl).double()(X)
    expected = torch.stack([X.mean(1), X.amax(1), X.amin(1)], -1)[..., range(D), [0, 1, 2, 0, 1]]
    torch.testing.assert_close(y, expected, rtol=0, atol=tol.LIMIT_F64)


def test_without_a_step_there_is_nothing_to_learn():
    pool = UOTPooling(D, Sinkhorn(0))
    assert list(pool.parameters()) == []
    X = randn(2, 5, D)
    torch.testing.assert_close(pool(X), X.mean(1), rtol=0, atol=tol.F64)


def test_fixed_coefficients_keep_their_precision():
    """0.1 is another number in float32, 1e10 infinite in float16; they are options, and in no state."""
    pool = UOTPooling(D, Sinkhorn(2), alpha0=0.1, alpha1=[1e10, 1e-10], alpha2=1e10, scale=1.0)
    assert not pool.state_dict()
    X = randn(2, 5, D)
    expected = Problem(X, alpha0=0.1, alpha1=[1e10, 1e-10], alpha2=1e10).pool(Sinkhorn(2))
    assert torch.equal(copy.deepcopy(pool).half().double()(X), expected)
    assert pool.half()(X.half()).isfinite().all()


# --- Config, copies, state

LAYERS = {
    "default": lambda: UOTPooling(D),
    "mean": lambda: UOTPooling.mean(D, solver="badmm-e"),
    "max": lambda: UOTPooling.max(D, temperature=0.01),
    "attention": lambda: UOTPooling.attention(D, hidden=3),
    "published": lambda: UOTPooling.published(D, "badmm-q", K=2, output="code"),
    "badmm-q": lambda: UOTPooling(
        D, BregmanADMM("quadratic", K=2), alpha0=Learned([0.3, 0.4], per_step=True), rho=[1, 2]
    ),
    "priors": lambda: UOTPooling(D, "badmm-e", p0="learned", q0=SamplePrior(D, 3), impl="reference"),
    "converged": lambda: UOTPooling(D, Newton("quadratic", tol=1e-5, max_iter=50)),
    "sum": lambda: UOTPooling(D, reduce="sum", scale=Learned(0.0)),
    "no steps": lambda: UOTPooling(D, Sinkhorn(0)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_keeps_the_promises_of_a_pooling(name):
    check_pooling(UOTPooling(D, Newton()) if name == "converged" else LAYERS[name](), D)


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_comes_back_from_json(name):
    layer = LAYERS[name]()
    config = json.loads(json.dumps(layer.get_config()))
    twin = UOTPooling.from_config(config)
    assert twin.get_config() == layer.get_config() == config
    assert repr(twin) == repr(layer)
    twin.load_state_dict(layer.state_dict())
    X = randn(3, 5, D, dtype=torch.float32)
    for again in (twin, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(again(X), layer(X))
    for pool in (twin, layer):
        torch.manual_seed(1)
        pool.reset_parameters()
    assert torch.equal(twin(X), layer(X))


def test_every_option_is_named_and_survives_another_default(monkeypatch):
    config = UOTPooling(D).get_config()
    assert set(config) == {"dim", "solver", *NAMES, "rho", "scale", "p0", "q0", "reduce", "impl"}
    monkeypatch.setitem(UOTPooling.__init__.__kwdefaults__, "alpha1", 123.0)
    assert UOTPooling.from_config(config).get_config() == config


def test_a_module_of_ones_own_cannot_go_into_a_config():
    pool = UOTPooling(D, q0=nn.Linear(D, 1))
    with pytest.raises(ValueError, match=r"^q0: "):
        pool.get_config()


@pytest.mark.parametrize(
    ("into", "state"),
    [
        (UOTPooling(D), UOTPooling(D, alpha2=Learned(transform="softplus"))),
        (UOTPooling(D), UOTPooling(D, alpha1=0.7, alpha2=0.7)),
        (UOTPooling(D, alpha1=0.7), UOTPooling(D)),
        (AdaptiveUOTPool2d(D), AdaptiveUOTPool2d(D, scale=1.0)),
    ],
)
def test_a_state_of_another_form_does_not_load(into, state):
    with pytest.raises(RuntimeError, match="state_dict"):
        into.load_state_dict(state.state_dict())


def test_a_parameter_of_another_shape_is_refused():
    pool = UOTPooling(D)
    pool.log_alpha2 = nn.Parameter(torch.zeros(3))
    with pytest.raises(ValueError, match=r"^log_alpha2: "):
        pool(randn(2, 3, D).float())


def test_a_layer_that_was_used_in_inference_mode_can_learn():
    """Encoders evaluate in that mode, whose tensors no backward pass may keep."""
    pool, X = UOTPooling(D), randn(2, 3, D, dtype=torch.float32)
    with torch.inference_mode():
        before = pool(X)
    after = pool(X)
    after.sum().backward()
    assert torch.equal(after, before)
    assert pool.raw_scale.grad.abs().sum() > 0


def test_a_parametrization_counts():
    pool, X = UOTPooling(D).double(), randn(2, 3, D)
    expected = UOTPooling(D, alpha2=Learned(5.0 * math.e)).double()(X)

    class Shifted(nn.Module):
        def forward(self, raw):
            return raw + 1.0 / RATE

    nn.utils.parametrize.register_parametrization(pool, "log_alpha2", Shifted())
    torch.testing.assert_close(pool(X), expected, rtol=tol.INIT, atol=0)


def test_diagnostics_say_how_far_the_plan_is_from_mean_pooling():
    X = randn(4, 10, D)
    padded = torch.cat([X, torch.full_like(X, torch.nan)], 1)
    mask = (torch.arange(20) < 10).expand(4, -1)
    for given in ({"X": X}, {"X": padded, "mask": mask}):  # what is absent is not read
        mean, sharp = UOTPooling.mean(D).diagnostics(**given), UOTPooling.max(D).diagnostics(**given)
        assert mean["divergence"] == pytest.approx(0.0, abs=tol.INIT)
        assert sharp["divergence"] > 2.0  # log 10 is one sample for each feature
        assert (mean["mass"], mean["spread"]) == (pytest.approx(1.0), pytest.approx(float(X.std())))
    with uotpool.check(False):
        assert UOTPooling(D).diagnostics(torch.full((1, 2, D), torch.inf))["divergence"] is None


def test_diagnostics_have_the_range_of_the_scales():
    found = UOTPooling(D, scale=Learned([-1.0, 0.0, 1.0, 2.0, 4.0])).double().diagnostics(randn(2, 5, D))
    assert found["scale"] == [-1.0, 1.0, 4.0]
    assert found["weights"]["alpha1"] == [pytest.approx(20.0)] * 4
    json.dumps(found)
    assert "scale" not in UOTPooling(D, scale=1.0).double().diagnostics(randn(2, 5, D))


# --- Refusals


def test_a_value_is_a_value():
    assert Learned([1.0, 2.0]) == Learned((1, 2))
    assert len({Learned(1.0), Learned(1), Sinkhorn(), Sinkhorn(4)}) == 2
    assert float(transformed(torch.tensor(-200.0), "softplus")) == pytest.approx(FLOOR)
