"""Figures are drawn, and what they measure is right."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from uotpool_experiments import figures
from uotpool_experiments.analysis import published_results
from uotpool_experiments.analysis.paired import BEST, best_others
from uotpool_experiments.analysis.samples import Sample
from uotpool_experiments.datasets import status
from uotpool_experiments.figures import (
    best_modules,
    epochs,
    forest,
    from_runs,
    measured,
    modules,
    plans,
    priors,
    problems,
    runtime,
    stability,
)
from uotpool_experiments.figures.dynamics import share_that_holds
from uotpool_experiments.figures.problems import power, problem, seeded, short
from uotpool_experiments.runs import export
from uotpool_experiments.runs.rows import Row
from uotpool_experiments.solvers import SOLVERS
from uotpool_experiments.tables.manifest import FOLDER
from uotpool_experiments.tasks.spec import RunSpec

RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture(autouse=True)
def close_figures() -> Iterator[None]:
    yield
    plt.close("all")


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
        ("runtime", []),
        ("modules", []),
        ("priors", []),
        ("best-modules", []),
        ("ranks", []),
        ("forest", []),
        ("epochs", []),
        ("dynamics", ["MUTAG"]),
        ("rationality", ["MUTAG", "IMDB-BINARY"]),
        ("image-plans", []),
    ],
)
def test_a_figure_is_drawn_and_drawn_again_the_same(name, datasets, tmp_path, monkeypatch):
    """All but bag-plans, which the demo draws (test_demo)."""
    needs(*datasets)
    monkeypatch.setenv("UOTPOOL_CHECKPOINTS", str(tmp_path))
    monkeypatch.setenv(FOLDER, str(RESULTS))
    # The pixels show all that is drawn. That vectors are written and come out the same, too, one figure shows.
    formats = figures.FORMATS if name == "plans" else figures.FORMATS[:1]
    drawn = [figures.draw(name, tmp_path / folder, quick=True, formats=formats) for folder in ("a", "b")]
    words, again = (found[: -len(formats)] for found in drawn)
    assert words == again
    for form in formats:
        first, second = ((tmp_path / folder / f"{name}.{form}").read_bytes() for folder in ("a", "b"))
        assert len(first) > 10_000
        assert first == second
    assert drawn[0][-len(formats) :] == [str(tmp_path / "a" / f"{name}.{form}") for form in formats]
    assert plt.get_fignums() == []
    if measurement := figures.FIGURES[name].measurement:  # the committed one
        assert words[-1] == (
            f"drawn from {RESULTS / 'bench' / measurement}.csv; in a checkout "
            f"`python -m bench {measurement} --renew` measures it again"
        )


def test_unknown_figure(tmp_path):
    with pytest.raises(ValueError, match=r"name: expected one of .*dynamics.*, got 'nine'"):
        figures.draw("nine", tmp_path)


def test_a_forest_of_known_differences():
    def sample(*values):
        return Sample({(seed, 0): value for seed, value in enumerate(values)})

    found = {
        ("uotp-sinkhorn", "a"): sample(0.80, 0.82, 0.80, 0.82, 0.81),
        ("uotp-sinkhorn-paper", "a"): sample(0.70, 0.71, 0.70, 0.71, 0.705),
        ("mean", "a"): sample(0.81, 0.82, 0.81, 0.82, 0.815),
        ("max", "a"): sample(0.90, 0.91, 0.90, 0.91, 0.905),
        ("uotp-sinkhorn", "b"): sample(0.60),
        ("mean", "b"): sample(0.55),
        ("uotp-badmm-e-paper", "b"): sample(0.99),
    }
    best = best_others(found)
    assert best == {(BEST, "a"): found["max", "a"]}
    compared = forest.comparisons(found)
    assert [list(by_solver) for by_solver in compared.values()] == [["sinkhorn"]] * 3
    published, mean, other = (by_solver["sinkhorn"] for by_solver in compared.values())
    assert published.each["a"].points.value == pytest.approx(10.5)
    assert published.each["a"].verdict == 1
    assert mean.each["b"].points.value == pytest.approx(5.0)
    assert mean.each["b"].verdict == 0  # one run says nothing of chance
    assert {d: round(one.points.value, 6) for d, one in other.each.items()} == {"a": -9.5}
    words = forest.in_words(compared)
    assert (
        "sinkhorn, exact less published: +10.5 points [+9.6, +11.4] over 1 data sets; 1 won, 0 lost" in words[1]
    )
    axes = forest.picture(compared).axes
    assert [label.get_text() for label in axes[0].get_yticklabels()] == ["a", "b", forest.EVERY]


def test_curves_end_where_validation_chooses():
    def lines(pooling, seed, *accuracies):
        return [
            {
                "dataset": "a",
                "pooling": pooling,
                "seed": f"{seed}",
                "settings": "{}",
                "epoch": f"{epoch}",
                "test_accuracy": f"{test}",
                "validation_accuracy": f"{validation}",
            }
            for epoch, (test, validation) in enumerate(accuracies, 1)
        ]

    rising = [(0.5 + epoch / 1000, 0.5 + epoch / 1000) for epoch in range(60)]
    noisy = [(0.9, 0.1), (0.6, 0.8), (0.7, 0.8), (1.0, 0.0)]  # the first epoch of the best validation counts
    found = epochs.curves(lines("mean", 0, *noisy)[::-1] + lines("mean", 1, *noisy) + lines("max", 0, *rising))
    assert [curve.chosen(4) for curve in found["a"]["mean"]] == [2, 2]
    assert found["a"]["max"][0].smooth()[[0, 30]] == pytest.approx([50.0, 53.0])
    assert epochs.in_words(found) == [
        "a, max, 1 seed: 54.9 % after 50 epochs, 55.9 % after 60 epochs; mean of the last third 55.0 %",
        "a, mean, 2 seeds: 60.0 % after 4 epochs; mean of the last third 100.0 %",
    ]
    with pytest.raises(ValueError, match="settings: expected curves of runs without"):
        epochs.curves([lines("mean", 0, *noisy)[0] | {"settings": "{1}"}])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, r"expected .*epochs.csv, got no such file: run it in the root of the project, or set UOTPOOL_"),
        ("dataset,pooling,seed,settings,epoch,test_accuracy\n", "got none of validation_accuracy$"),
        (f"{','.join(epochs.COLUMNS)}\n", "got no line$"),
    ],
)
def test_files_without_curves(text, said, tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, str(tmp_path))
    if text is not None:
        (tmp_path / "graph").mkdir()
        (tmp_path / epochs.FILE).write_text(text)
    with pytest.raises((ValueError, FileNotFoundError), match=said):
        epochs.read()


def test_the_best_other_is_chosen_on_other_seeds():
    lucky = {(0, 0): 0.9, (1, 0): 0.5, (2, 0): 0.5}  # best on average, through its first seed
    steady = {(0, 0): 0.6, (1, 0): 0.6, (2, 0): 0.6, (3, 0): 0.6}  # the fourth seed is one that few have
    short = {(0, 0): 1.0, (1, 0): 1.0}
    found = {
        (name, "a"): Sample(values)
        for name, values in (("max", lucky), ("mean", steady), ("add", short), ("uotp", short))
    }
    assert best_others(found) == {(BEST, "a"): Sample({(0, 0): 0.6, (1, 0): 0.5, (2, 0): 0.5})}
    folds = {key: Sample({(0, s): v for (s, _), v in one.values.items()}) for key, one in found.items()}
    assert best_others(folds) == {}  # one seed
    folds["max", "a"].values[1, 0] = 1.0  # a second one, of a single pooling
    assert best_others(folds) == {}


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
    decades = (1e-5, 1e4)
    cells = [(a, b) for a in decades for b in decades]
    lines = [
        {"solver": "sinkhorn", "formulation": f, "alpha0": str(a0), "alpha1, alpha2": str(a), "mass": str(mass)}
        for f, masses in (("exact", (1.0, 2.0, 3.0, 4.0)), ("paper", (float("nan"),) * 4))
        for (a0, a), mass in zip(cells, masses, strict=True)
    ]
    assert stability.masses(lines, "sinkhorn", "exact", decades).tolist() == [[1.0, 3.0], [2.0, 4.0]]
    assert np.isnan(stability.masses(lines, "sinkhorn", "paper", decades)).all()


@pytest.mark.parametrize("name", ["modules", "best-modules", "priors"])
def test_figures_of_committed_runs_fit_long_settings(name, tmp_path, monkeypatch):
    more = {"lr": 5e-4, "weight_decay": 5e-3, "alpha0_of_spread": 0.3, "pool_lr": 10}
    varied: list[dict[str, object]] = [{}, {"K": 8}, {"p0": "learned"}]
    poolings = ("uotp-sinkhorn", "uotp-sinkhorn-paper", "uotp-badmm-e", "uotp-badmm-q")
    rows = [
        run(pool, fold, 0.5 + 0.1 * fold, pooling, **settings)
        for pool in varied
        for fold in (0, 1)
        for pooling in poolings
        for settings in ({}, more, {"features": "x" * 80})
    ]
    (tmp_path / "mil").mkdir()
    with (tmp_path / "mil" / "runs.csv").open("w") as file:
        export.write(rows, file)
    monkeypatch.setenv(FOLDER, str(tmp_path))
    module = {"modules": modules, "best-modules": best_modules, "priors": priors}[name]
    figure, words = module.draw(0, True)
    figure.savefig(tmp_path / "drawn.png")  # lays it out
    axes = [ax for ax in figure.axes if ax.get_visible()]
    boxes = [ax.title.get_window_extent() for ax in axes]
    assert len(axes) == 6 + (name == "priors")  # two formulations, three settings; the published numbers
    width, height = figure.get_size_inches() * figure.dpi
    for i, box in enumerate(boxes):
        assert box.x0 >= 0
        assert box.x1 <= width
        assert box.y1 <= height
        assert not any(box.overlaps(other) for other in boxes[i + 1 :])
    assert any("weight_decay=0.005" in word for word in words)


def run(
    pool: dict[str, object], fold: int, accuracy: float, pooling: str = "uotp-sinkhorn", **more: Any
) -> Row:
    settings = {**more, "pool": pool} if pool else more
    spec = RunSpec.make(
        settings, task="mil", dataset="musk1", pooling=pooling, protocol="fair", fold=fold, seed=0
    )
    costs: dict[str, Any] = {"seconds": 1.0, "cpu_seconds": 1.0, "peak_mib": 1.0, "parameters": 1}
    text: dict[str, Any] = {"fingerprint": "f", "status": "done", "error": None}
    return Row(spec=spec, attempts=1, metrics={"accuracy": accuracy}, details={}, **text, **costs)


def shown(found: from_runs.Samples[Any]) -> dict[tuple[str, Any], tuple[Any, int]]:
    return {key: (pytest.approx(sample.mean), len(sample)) for key, sample in found.items()}


def test_modules_are_compared_on_the_same_runs():
    rows = [run({}, fold, accuracy) for fold, accuracy in enumerate((0.5, 0.7, 0.1))]
    rows += [run({"K": 8}, 0, 0.6), run({"K": 8}, 1, 0.8)]
    others = [run({"K": "converged"}, 0, 0.9), run({"K": 8}, 0, 0.9, "mean"), run({}, 0, 0.9, lr=0.1)]
    others += [run({}, 1, 0.9, "uotp-badmm-e")]  # with one K only
    ((panel, found),) = from_runs.by_modules(rows + others).items()
    assert panel == ("musk1", "exact", "fair", "")
    assert shown(found) == {("sinkhorn", 4): (0.6, 2), ("sinkhorn", 8): (0.7, 2)}


def test_priors_are_compared_on_the_same_runs():
    learned: dict[str, object] = {"q0": "learned"}
    rows = [run({}, 0, 0.5), run({}, 1, 0.7), run(learned, 0, 0.9), run({"K": 8}, 0, 0.1)]
    rows += [run(pool, 0, 0.4, "uotp-badmm-q-paper", lr=0.1) for pool in ({}, learned)]
    exact, published = priors.by_priors(rows).items()
    assert exact[0] == ("musk1", "exact", "fair", "")
    assert shown(exact[1]) == {("sinkhorn", (False, False)): (0.5, 1), ("sinkhorn", (False, True)): (0.9, 1)}
    assert published[0] == ("musk1", "paper", "fair", "lr=0.1")


def test_best_modules():
    own = {K: Sample({(0, 0): accuracy}) for K, accuracy in ((16, 0.7), (2, 0.7), (4, 0.6))}
    assert best_modules.best(own) == 2


def test_published_tables_agree_where_they_overlap():
    """Table 6 with fixed priors is NCI1 of Table 1, and Table 7 that table where the best K is 4."""
    poolings = ("uotp-sinkhorn-paper", "uotp-badmm-e-paper", "uotp-badmm-q-paper")
    assert len(published_results.TABLE_6) == 3 * 4
    assert len(published_results.TABLE_7) == 3 * 12
    for name in poolings:
        assert (
            published_results.TABLE_6[name, (False, False)]
            == published_results.TABLE_1[name, published_results.PRIORS_DATASET]
        )
    for (name, dataset), best in published_results.TABLE_7.items():
        if best.K == 4:
            assert best.accuracy == published_results.TABLE_1[name, dataset], (name, dataset)
        assert best.accuracy.mean >= published_results.TABLE_1[name, dataset].mean, (name, dataset)


def test_figures_without_runs(tmp_path, monkeypatch):
    monkeypatch.delenv(FOLDER, raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"results.mil.runs\.csv .*got neither: .*UOTPOOL_RESULTS"):
        figures.draw("modules", tmp_path, quick=True)
    (tmp_path / "results" / "mil").mkdir(parents=True)
    with (tmp_path / "results" / "mil" / "runs.csv").open("w") as file:
        export.write([run({}, 0, 0.5)], file)
    for name in ("modules", "best-modules"):
        with pytest.raises(ValueError, match=r"differ in pool\.K .* got none"):
            figures.draw(name, tmp_path, quick=True)
    with pytest.raises(ValueError, match=r"differ in pool\.p0 or pool\.q0 .* got none"):
        figures.draw("priors", tmp_path, quick=True)


def write_times(path: Path, *labels: str) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(runtime.COLUMNS)
        for i, label in enumerate(labels, 1):
            for mode, us in ((runtime.FORWARD, 1000 * i), (runtime.BOTH, 3000 * i)):
                writer.writerow(["5 x 4 x 3", mode, 1, label, us, 7])
            writer.writerow(["5 x 4 x 3", runtime.BOTH, 1, f"{label}, memory", "", 7])


def test_runtime_of_a_file(tmp_path):
    write_times(tmp_path / "zoo.csv", "mean", "uotp-sinkhorn (fused)", "sagp", "uotp-sinkhorn (eager)")
    words = figures.draw("runtime", tmp_path, source=tmp_path / "zoo.csv")
    assert words[:-2] == [
        "5 x 4 x 3, float32, one thread, least of 7 samples; forward, then forward + backward: mean 1, 3 ms",
        "uotp-sinkhorn, K = 4: fused 2, 6 ms, 2 and 2 times mean; eager 4, 12 ms, 2.0 and 2.0 times fused",
        "what the paper compares with (on a GPU): sagp 3, 9 ms",
        f"drawn from {tmp_path / 'zoo.csv'}; in a checkout `python -m bench zoo` measures it again",
    ]
    lines = measured.read("zoo", runtime.COLUMNS, tmp_path / "zoo.csv")
    (ax,) = runtime.draw(lines)[0].axes
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels == ["mean", "uotp-sinkhorn (fused)", "sagp", "uotp-sinkhorn (eager)"]


def test_runtime_without_the_kernel(tmp_path):
    write_times(tmp_path / "zoo.csv", "mean", "uotp-sinkhorn (eager)")
    words = figures.draw("runtime", tmp_path, source=tmp_path / "zoo.csv")
    assert "uotp-sinkhorn, K = 4: eager 2, 6 ms; measured without the fused kernel" in words


def test_a_measurement_that_is_not_there_or_another_one(tmp_path, monkeypatch):
    monkeypatch.delenv(FOLDER, raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"results.bench.zoo\.csv, got no such file: .*--from FILE"):
        figures.draw("runtime", tmp_path)
    write_times(tmp_path / "zoo.csv", "mean")
    with pytest.raises(ValueError, match=r"zoo\.csv: expected what `python -m bench stability` .* none of X, "):
        figures.draw("stability", tmp_path, source=tmp_path / "zoo.csv")
    write_times(tmp_path / "zoo.csv")
    with pytest.raises(ValueError, match=r"zoo\.csv: expected .*; got no line"):
        figures.draw("runtime", tmp_path, source=tmp_path / "zoo.csv")
    with pytest.raises(ValueError, match=r"--from: .*'stability', 'convergence', 'runtime'.* got 'plans'"):
        figures.draw("plans", tmp_path, source=tmp_path / "zoo.csv")


def test_figures_know_the_solvers():
    assert list(problems.LABELS) == list(problems.COLOURS) == list(problems.MARKERS) == list(SOLVERS)


def test_short_numbers():
    assert [power(x) for x in (0.01, 1.0, 100.0, 1e4, 1e-5)] == ["0.01", "1", "100", "1e4", "1e-5"]
    assert [short(x) for x in (2.2e-5, 49.0, float("inf"))] == ["2.2e-5", "4.9e1", "inf"]
