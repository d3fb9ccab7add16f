"""The default layer, with a scale per feature, and `UOTPooling.classic`, the default of version 0.1."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests import tolerances as tol
from uotpool import CLASSIC, AdaptiveUOTPool2d, UOTPooling, param_groups, uot_plan, uot_pool
from uotpool.problem import RATE
from uotpool.zoo import build

D = 6
OLD = json.loads((Path(__file__).parent / "version_0_1.json").read_text())


def randn(*size, seed=0, dtype=torch.float64):
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def layer_with(scales, **options):
    """Return a default layer in float64 with these scales."""
    pool = UOTPooling(D, **options, dtype=torch.float64)
    with torch.no_grad():
        pool.raw_scale.copy_(scales / RATE)
    return pool


def test_is_the_function_with_a_scale():
    X, scales = randn(3, 7, D), randn(D, seed=1)
    pool = layer_with(scales)
    torch.testing.assert_close(pool.scales(), scales, rtol=0, atol=tol.F64)
    how = {"K": 4, "scale": scales}
    torch.testing.assert_close(pool(X), uot_pool(X, 1.0, 20.0, 5.0, **how), rtol=0, atol=tol.F64)
    torch.testing.assert_close(pool.plan(X), uot_plan(X, 1.0, 20.0, 5.0, **how), rtol=0, atol=tol.F64)
    assert [name for name, _ in pool.named_parameters()] == ["raw_log_alpha1", "raw_log_alpha2", "raw_scale"]
    assert torch.equal(UOTPooling(D).scales(), torch.ones(D))


@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_a_feature_goes_from_the_minimum_over_the_mean_to_the_maximum(impl):
    """Without a prior for samples each feature is pooled alone; with one, scales of 0 still give the mean."""
    X = randn(3, 9, D)
    scales = torch.tensor([0.0, 1e4, -1e4, 0.0, 1e4, -1e4], dtype=torch.float64)
    y = layer_with(scales, alpha2=0.0, impl=impl)(X)
    expected = torch.stack([X.mean(1), X.amax(1), X.amin(1)], -1)[..., [0, 1, 2, 3, 4, 5], [0, 1, 2, 0, 1, 2]]
    torch.testing.assert_close(y, expected, rtol=0, atol=tol.LIMIT_F64)
    torch.testing.assert_close(layer_with(0 * scales, impl=impl)(X), X.mean(1), rtol=0, atol=tol.F64)


@pytest.mark.parametrize("solver", ["sinkhorn", "badmm-e", "badmm-q"])
def test_begins_as_the_mean_if_asked_to_and_learns(solver):
    X = randn(3, 7, D)
    pool = UOTPooling(D, solver=solver, start="mean").double()
    y = pool(X)
    torch.testing.assert_close(y, X.mean(1), rtol=0, atol=tol.F64)
    y.square().sum().backward()
    assert (pool.raw_scale.grad.abs() > 1e-4).all()
    with torch.no_grad():
        pool.raw_scale.fill_(3.0)
    pool.reset_parameters()
    assert (pool.scales() == 0).all()


def test_adam_moves_a_scale_and_a_logarithm_by_ten_rates_a_step():
    X = randn(3, 7, D, dtype=torch.float32)
    pool = UOTPooling(D)
    optimizer = torch.optim.Adam(pool.parameters(), lr=0.01)
    pool(X).sum().backward()
    optimizer.step()
    torch.testing.assert_close((pool.scales() - 1.0).abs(), torch.full((D,), 0.1), rtol=0.01, atol=0.0)
    for value, start in ((pool.weights().alpha1, 20.0), (pool.weights().alpha2, 5.0)):
        torch.testing.assert_close((value / start).log().abs(), torch.full((4,), 0.1), rtol=0.01, atol=0.0)


def test_decay_leaves_scales_alone():
    pool = UOTPooling(D, alpha1=None)
    rest, raw = param_groups(torch.nn.Sequential(torch.nn.Linear(D, D), pool), weight_decay=0.1)
    assert {id(p) for p in raw["params"]} == {id(pool.raw_scale), id(pool.raw_alpha1), id(pool.raw_log_alpha2)}
    assert raw["weight_decay"] == 0.0
    assert rest["weight_decay"] == 0.1


def test_fixed_weights_follow_what_is_loaded_and_the_dtype():
    """The layer remembers the weights of its last call."""
    X = randn(2, 5, D)
    pool = UOTPooling(D, alpha1=0.7, alpha2=0.7).double()
    other = UOTPooling(D, alpha1=0.7, alpha2=3.0).double()
    first = pool(X)
    assert pool(X.float()).dtype == torch.float32
    pool.load_state_dict(other.state_dict())
    assert torch.equal(pool(X), other(X))
    assert not torch.equal(pool(X), first)
    pool.alpha2 = torch.tensor(0.7, dtype=torch.float64)
    assert torch.equal(pool(X), first)


def test_a_layer_that_was_used_in_inference_mode_can_learn():
    """Encoders evaluate in that mode, whose tensors no backward may keep: none stays behind in the layer."""
    pool, X = UOTPooling(D), randn(2, 3, D, dtype=torch.float32)
    with torch.inference_mode():
        before = pool(X)
    after = pool(X)
    after.sum().backward()
    assert torch.equal(after, before)
    assert pool.raw_scale.grad.abs().sum() > 0


@pytest.mark.parametrize("old", OLD, ids=[json.dumps(old["options"]) for old in OLD])
def test_a_state_of_version_0_1_gives_its_output_in_the_classic_layer(old):
    state = {name: torch.tensor(value, dtype=torch.float64) for name, value in old["state"].items()}
    X, y = (torch.tensor(old[name], dtype=torch.float64) for name in ("X", "y"))
    pool = UOTPooling.classic(3, **old["options"]).double()
    pool.load_state_dict(state)
    torch.testing.assert_close(pool(X), y, rtol=0, atol=tol.F64)


def test_a_state_of_version_0_1_is_refused_by_the_default_layer():
    state = UOTPooling.classic(D).state_dict()
    message = r"state_dict: expected raw_scale, got weights of version 0\.1.*UOTPooling\.classic\(dim, \.\.\.\)"
    with pytest.raises(RuntimeError, match=message):
        UOTPooling(D).load_state_dict(state)
    with pytest.raises(RuntimeError, match=r"expected pool\.raw_scale.*\*\*uotpool\.CLASSIC"):
        AdaptiveUOTPool2d(D).load_state_dict(AdaptiveUOTPool2d(D, **CLASSIC).state_dict(), strict=False)
    AdaptiveUOTPool2d(D).load_state_dict(AdaptiveUOTPool2d(D).state_dict())


def test_a_state_has_the_scales_whatever_they_began_at():
    X, pool, other = randn(2, 5, D), UOTPooling(D).double(), UOTPooling(D, start="mean").double()
    other.load_state_dict(pool.state_dict())
    assert torch.equal(other(X), pool(X))


@pytest.mark.parametrize(
    ("into", "state"), [("uotp", "uotp-single"), ("uotp-single", "uotp"), ("uotp-sinkhorn", "uotp")]
)
def test_a_state_of_weights_that_are_learned_otherwise_is_refused(into, state):
    """With `strict=False` a part of it would load in silence."""
    with pytest.raises(RuntimeError, match=r"state_dict: expected .*alpha1.*, got .*alpha1.*get_config"):
        build(into, D).load_state_dict(build(state, D).state_dict(), strict=False)


def test_without_a_module_there_is_no_scale():
    pool = UOTPooling(D, K=0)
    assert list(pool.parameters()) == []
    assert pool.scales() is None
    X = randn(2, 5, D, dtype=torch.float32)
    torch.testing.assert_close(pool(X), X.mean(1), rtol=0, atol=tol.F32)


def test_diagnostics_have_the_range_of_the_scales():
    pool = layer_with(torch.linspace(-1.0, 4.0, D, dtype=torch.float64))
    found = pool.diagnostics(randn(2, 5, D))
    assert found["scale"] == [-1.0, 1.0, 4.0]
    json.dumps(found)
    assert "scale" not in UOTPooling.classic(D).diagnostics(randn(2, 5, D))


def test_repr_names_what_makes_the_layer():
    assert "K=4, scale='feature', alpha0=1.0, alpha1='log', alpha2='log'" in repr(UOTPooling(D))
    assert "scale" not in repr(UOTPooling.classic(D))
    with torch.device("meta"):
        assert "alpha2=0.7" in repr(UOTPooling(D, alpha2=0.7))


def test_a_layer_made_in_inference_mode_pools():
    with torch.inference_mode():
        pool, X = UOTPooling(D), randn(2, 5, D)
        assert torch.equal(pool(X), UOTPooling(D)(X))


def test_fixed_weights_that_are_replaced_count_at_once():
    """Also where a new tensor lies in the memory of one that is gone."""
    pool, X = UOTPooling(D, scale=None), randn(2, 5, D)
    for value in (1.0, 2.0, 30.0, 0.5):
        pool.alpha0 = torch.tensor(value, dtype=torch.float64)
        pool.alpha0 = torch.tensor(value, dtype=torch.float64)
        torch.testing.assert_close(pool(X), UOTPooling(D, scale=None, alpha0=value)(X))
        pool(X)
