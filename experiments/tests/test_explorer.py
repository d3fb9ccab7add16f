"""The explorer without a browser: its numbers, its inputs, its server."""

from __future__ import annotations

import json
import time

import pytest
import torch
from uotpool_experiments.explorer import compute, inputs
from uotpool_experiments.explorer.compute import PRESETS, Settings, Weights

from uotpool import duality_gap, plan_stats, suggest_rho, uot_plan, uot_pool

pytest.importorskip("dash", reason="NOT RUN: needs dash")

from uotpool_experiments.explorer import callbacks, page

X = inputs.random_input(0, 10, 6).X
ALPHAS = Weights(0.5, 1.0, 2.0)


@pytest.mark.parametrize("solver", ["sinkhorn", "badmm-e", "badmm-q"])
@pytest.mark.parametrize("formulation", ["exact", "paper"])
@pytest.mark.parametrize("prior", ["uniform", "norms"])
def test_results_are_those_of_the_library(solver, formulation, prior):
    rho = None if solver == "sinkhorn" else 0.7
    found = compute.explore(X, Settings(ALPHAS, solver, formulation, 6, rho, prior, prior))
    p0, q0 = compute.prior(X, prior, 1), compute.prior(X, prior, 0)[None]
    given = {"p0": p0, "q0": q0, "K": 6, "solver": solver, "formulation": formulation}
    P = uot_plan(X[None], *ALPHAS, rho, **given)
    torch.testing.assert_close(found.P, P[0])
    torch.testing.assert_close(found.pooled, uot_pool(X[None], *ALPHAS, rho, **given)[0])
    torch.testing.assert_close(found.shares.sum(0), torch.ones(6).double())
    regularizer = "quadratic" if solver == "badmm-q" else "entropic"
    gap = float(duality_gap(X[None], P, *ALPHAS, p0=p0, q0=q0, regularizer=regularizer))
    assert found.gap == pytest.approx(gap)
    assert found.divergence == pytest.approx(float(plan_stats(P).divergence))
    assert found.mass == pytest.approx(float(P.sum()))
    best = compute.explore(X, Settings(ALPHAS, solver, p0=prior, q0=prior))
    assert -1e-12 < found.objective - best.objective <= found.gap + 1e-9


@pytest.mark.parametrize("solver", ["sinkhorn", "badmm-e", "badmm-q"])
def test_the_optimum_is_the_one_of_the_library(solver):
    found = compute.explore(X, Settings(ALPHAS, solver))
    P = uot_plan(X[None], *ALPHAS, solver=solver, K="converged")[0]
    assert found.gap < 1e-6
    torch.testing.assert_close(found.P, P, atol=3e-3, rtol=0)
    assert found.notes == []


def test_an_optimum_that_is_not_reached_is_told():
    found = compute.explore(X, Settings(Weights(1e-5, 1e6, 1e6)))
    assert found.gap > 1e-6
    assert any("not reached" in note.text for note in found.notes)


@pytest.mark.parametrize("solver", ["badmm-e", "badmm-q"])
def test_without_a_rho_it_is_the_suggested_one(solver):
    found = compute.explore(X, Settings(ALPHAS, solver, K=4))
    assert found.rho == suggest_rho(solver, *ALPHAS, spread=float(X.std(correction=0)))


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("source", ["random", "rows", "images"])
def test_the_buttons_give_mean_max_and_attention(name, source):
    makers = {"random": lambda: X, "rows": lambda: inputs.digit_rows(3, 0).X}
    samples = makers.get(source, lambda: inputs.digit_images(3, 0).X)()
    chosen = PRESETS[name]
    found = compute.explore(samples, Settings(chosen.weights, q0=chosen.q0))
    torch.testing.assert_close(found.pooled, found.others[name], atol=2e-3, rtol=0)
    expected = {"mean": samples.mean(0), "max": samples.amax(0)}
    expected["attention"] = (found.q0[:, None] * samples).sum(0) if name == "attention" else None
    torch.testing.assert_close(found.others[name], expected[name])
    others = [found.distances[other] for other in PRESETS if other != name]
    assert found.distances[name] < min(others) / 10


@pytest.mark.parametrize(
    ("weights", "K", "what"),
    [
        (Weights(1e-5, 0.0, 0.0), 1, "NaN or infinity in 59 of 60 entries of P"),
        (Weights(1e-5, 0.0, 1.0), 64, "NaN or infinity in 60 of 60 entries of P"),
        (Weights(1e-5, 0.0, 1e-5), 4, "a plan of mass 0"),
    ],
)
def test_a_published_algorithm_without_a_plan_is_told_and_nothing_is_raised(weights, K, what):
    found = compute.explore(X, Settings(weights, "sinkhorn", "paper", K))
    (note,) = found.notes
    assert note.kind == "warning"
    assert f"The published Sinkhorn gave {what} after {K} modules" in note.text
    assert compute.number(found.gap) == "none"
    pooled = uot_pool(X[None], *weights, K=K, formulation="paper")[0]
    torch.testing.assert_close(found.pooled, pooled, equal_nan=True)


def test_a_mass_that_is_not_1_is_told():
    found = compute.explore(X, Settings(Weights(1.0, 1.0, 2.0), "sinkhorn", "paper", 4))
    assert abs(found.mass - 1) > 0.01
    (note,) = found.notes
    assert f"mass {compute.number(found.mass)}, not 1" in note.text


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (5, 1)])
@pytest.mark.parametrize("value", [0.0, 3.0])
def test_degenerate_sets(shape, value):
    found = compute.explore(torch.full(shape, value).double(), Settings(ALPHAS))
    torch.testing.assert_close(found.pooled, torch.full(shape[1:], value).double())


VALUES = {
    **page.START,
    "K": 4,
    "optimum": ["yes"],
    "suggested": ["yes"],
    "solver": "sinkhorn",
    "formulation": "exact",
    "p0": "uniform",
    "q0": "uniform",
    "kind": "random",
    "seed": 0,
    "samples": 10,
    "features": 6,
    "digit": 3,
    "which": 0,
    "view": "plan",
}


def test_an_update_shows_the_result():
    shown = callbacks.update(VALUES, None, "random")
    found = compute.explore(X, Settings(Weights(0.1, 1.0, 1.0)))
    assert shown["charts"]["plan"]["data"][0]["z"] == found.P.tolist()
    assert shown["charts"]["pooled"]["data"][0]["y"] == found.pooled.tolist()
    assert shown["numbers"]["objective"] == compute.number(found.objective)
    assert shown["shown"]["alpha0"] == "0.1"
    assert shown["notes"] == []
    shares = callbacks.update(VALUES | {"view": "shares"}, None, "random")
    assert shares["charts"]["plan"]["data"][0]["z"] == found.shares.tolist()


def test_the_left_end_of_a_slider_is_0():
    assert callbacks.read_settings(VALUES | {"alpha1": page.ZERO, "alpha2": page.ZERO}).weights == (
        0.1,
        0.0,
        0.0,
    )


BAD_VALUES = [
    ("alpha0", "x"),
    ("alpha0", None),
    ("alpha0", page.ZERO),
    ("alpha1", float("nan")),
    ("alpha2", 400),
    ("solver", "evil"),
    ("solver", ["sinkhorn"]),
    ("formulation", None),
    ("kind", {"a": 1}),
    ("view", 3),
    ("seed", None),
    ("seed", -1),
    ("seed", 1e300),
    ("samples", 0),
    ("samples", 10**9),
    ("features", 2.5),
    ("features", True),
    ("q0", "<script>"),
]


@pytest.mark.parametrize(("name", "value"), BAD_VALUES)
def test_a_value_that_cannot_be_used_gives_a_message_and_leaves_the_rest(name, value):
    shown = callbacks.update(VALUES | {name: value}, None, "random")
    (note,) = shown["notes"]
    assert "expected" in note.children
    assert shown["charts"] == dict.fromkeys(callbacks.CHARTS, callbacks.no_update)


@pytest.mark.parametrize(
    ("loaded", "before"), [(3, "rows"), ({}, "rows"), ({"contents": "data:,AAAA"}, 1), (None, 7)]
)
def test_a_file_that_the_page_lost_gives_a_message(loaded, before):
    shown = callbacks.update(VALUES | {"kind": "file"}, loaded, before)
    (note,) = shown["notes"]
    assert note.className == "note error"
    assert "expected" in note.children


def test_without_a_file_the_input_stays():
    shown = callbacks.update(VALUES | {"kind": "file"}, None, "rows")
    assert shown["charts"]["input"]["data"][0]["z"] == inputs.digit_rows(3, 0).X.tolist()
    assert shown["before"] == "rows"
    assert "No file yet" in shown["notes"][0].children


def test_no_nan_is_sent_to_the_page():
    values = VALUES | {"alpha0": -5, "alpha1": page.ZERO, "alpha2": 0, "formulation": "paper", "K": 64}
    shown = callbacks.update(values, None, "random")
    assert shown["notes"][0].className == "note warning"
    assert shown["charts"]["plan"]["layout"]["annotations"][0]["text"].startswith("no plan")
    json.dumps(shown["charts"], allow_nan=False)


def test_an_update_is_fast_enough_to_drag():
    """Median of some settings at the largest size; a bound that a busy machine holds too."""
    values = VALUES | {"samples": 64, "features": 64}
    times = []
    for changes in ({}, {"alpha0": -2}, {"alpha0": -3}, {"optimum": [], "K": 64}, {"solver": "badmm-q"}):
        start = time.perf_counter()
        callbacks.update(values | changes, None, "random")
        times.append(time.perf_counter() - start)
    assert sorted(times)[len(times) // 2] < 0.5
