"""Figures are drawn, and what they measure is right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from uotpool import duality_gap, solvers, uot_plan
from uotpool.experiments import export, figures
from uotpool.experiments.data import status
from uotpool.experiments.figures import convergence, modules, plans, problems, stability
from uotpool.experiments.figures.dynamics import share_that_holds
from uotpool.experiments.figures.problems import power, problem, seeded, short
from uotpool.experiments.spec import RunSpec
from uotpool.experiments.store import Row

RESULTS = Path(__file__).parents[2] / "results"


def needs(*datasets: str) -> None:
    for name in datasets:
        if not status(name).present:
            pytest.skip(f"{name} is not at hand: {status(name).where}")


@pytest.mark.parametrize(
    ("name", "datasets"),
    [
        ("plans", []),
        ("stability", []),
        ("convergence", []),
        ("modules", []),
        ("dynamics", ["MUTAG"]),
        ("rationality", ["MUTAG", "IMDB-BINARY"]),
        ("image-plans", []),
    ],
)
def test_a_figure_is_drawn_and_drawn_again_the_same(name, datasets, tmp_path, monkeypatch):
    needs(*datasets)
    monkeypatch.setenv("UOTPOOL_CHECKPOINTS", str(tmp_path))
    monkeypatch.setenv(modules.FOLDER, str(RESULTS))
    words = figures.draw(name, tmp_path / "a", quick=True)
    assert figures.draw(name, tmp_path / "b", quick=True)[:-2] == words[:-2]
    for form in ("png", "svg"):
        first = (tmp_path / "a" / f"{name}.{form}").read_bytes()
        assert first == (tmp_path / "b" / f"{name}.{form}").read_bytes()
        assert len(first) > 10_000
    assert words[-2:] == [str(tmp_path / "a" / f"{name}.{form}") for form in ("png", "svg")]


def test_unknown_figure(tmp_path):
    with pytest.raises(ValueError, match=r"name: expected one of .*dynamics.*, got 'nine'"):
        figures.draw("nine", tmp_path)


def test_share_of_entries():
    uniform = torch.full((4, 5), 1 / 20)
    assert share_that_holds(uniform, 0.9) == pytest.approx(0.9, abs=0.051)
    single = torch.zeros(4, 5)
    single[1, 2] = 1.0
    assert share_that_holds(single, 0.9) == 1 / 20


def test_plans_of_poolings_pool_as_they_say():
    X, _, attention = problem(1, 10, 5, seeded(3))
    outputs = {name: (X * P).sum(1) * 5 for name, P in plans.true_plans(X, attention).items()}
    torch.testing.assert_close(outputs["mean"], X.mean(1))
    torch.testing.assert_close(outputs["max"], X.amax(1))
    torch.testing.assert_close(outputs["attention"], (attention[:, :, None] * X).sum(1))


def test_masses_over_the_weights():
    X = problem(1, 10, 5, seeded(1)).X.float()
    assert np.abs(stability.masses(X, "sinkhorn", "exact", (1e-5, 1e4)) - 1).max() < 1e-6
    assert not (np.abs(stability.masses(X, "sinkhorn", "paper", (1e-5, 1e4)) - 1) < 1e-3).any()


@pytest.mark.parametrize(("solver", "regularizer"), [("sinkhorn", "entropic"), ("badmm-q", "quadratic")])
def test_objective_is_least_at_the_optimum_and_within_the_gap(solver, regularizer):
    X = problem(2, 8, 5, seeded(0)).X
    weights = (0.5, 1.0, 2.0)
    best = convergence.objective(X, uot_plan(X, *weights, solver=solver, K="converged"), weights, regularizer)
    for seed in range(5):
        P = problem(2, 8, 5, seeded(seed)).X
        P = P / P.sum((1, 2), keepdim=True)
        above = convergence.objective(X, P, weights, regularizer) - best
        gap = duality_gap(X, P, *weights, regularizer=regularizer)
        assert (above > 0).all()
        assert (above <= gap).all()


def run(K: object, fold: int, accuracy: float, pooling: str = "uotp-sinkhorn", **more: object) -> Row:
    settings = more if K is None else {**more, "pool": {"K": K}}
    spec = RunSpec.make(
        settings, task="mil", dataset="musk1", pooling=pooling, protocol="fair", fold=fold, seed=0
    )
    costs: dict[str, Any] = {"seconds": 1.0, "cpu_seconds": 1.0, "peak_mib": 1.0, "parameters": 1}
    text: dict[str, Any] = {"fingerprint": "f", "status": "done", "error": None}
    return Row(spec=spec, attempts=1, metrics={"accuracy": accuracy}, details={}, **text, **costs)


def test_modules_are_compared_on_the_same_runs():
    rows = [run(None, 0, 0.5), run(None, 1, 0.7), run(None, 2, 0.1), run(8, 0, 0.6), run(8, 1, 0.8)]
    others = [run("converged", 0, 0.9), run(8, 0, 0.9, "mean"), run(None, 0, 0.9, lr=0.1)]
    ((panel, found),) = modules.by_modules(rows + others).items()
    assert panel == ("musk1", "fair", "{}")
    assert {key: (sample.mean, len(sample)) for key, sample in found.items()} == {
        ("uotp-sinkhorn", 4): (pytest.approx(0.6), 2),
        ("uotp-sinkhorn", 8): (pytest.approx(0.7), 2),
    }


def test_modules_without_runs(tmp_path, monkeypatch):
    monkeypatch.delenv(modules.FOLDER, raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"results.mil.runs\.csv .*got neither: .*UOTPOOL_RESULTS"):
        figures.draw("modules", tmp_path, quick=True)
    (tmp_path / "results" / "mil").mkdir(parents=True)
    with (tmp_path / "results" / "mil" / "runs.csv").open("w") as file:
        export.write([run(None, 0, 0.5)], file)
    with pytest.raises(ValueError, match=r"differ in pool\.K .* got none"):
        figures.draw("modules", tmp_path, quick=True)


def test_figures_know_the_solvers():
    assert solvers.REGULARIZER == problems.REGULARIZER
    assert set(problems.LABELS) == set(problems.COLOURS) == set(problems.MARKERS) == set(problems.SOLVERS)


def test_short_numbers():
    assert [power(x) for x in (0.01, 1.0, 100.0, 1e4, 1e-5)] == ["0.01", "1", "100", "1e4", "1e-5"]
    assert [short(x) for x in (2.2e-5, 49.0, float("inf"))] == ["2.2e-5", "4.9e1", "inf"]
