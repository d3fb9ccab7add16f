"""Every measurement runs and says what it must; what the figures are is not for a test on a shared machine.

`--quick` takes tiny sizes and leaves out torch.compile, which takes minutes (`--compile` has it).
"""

from __future__ import annotations

import csv
import math
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

pytest.importorskip("matplotlib")
pytest.importorskip("ot")
pytest.importorskip("rich")
pytest.importorskip("sentence_transformers")
pytest.importorskip("torch_geometric")

from uotpool_experiments.datasets import status

from bench import default, measurements, sentence_speed, swap, zoo
from bench.__main__ import csv_path, main, make_parser, make_session
from bench.cases import WrongAnswerError, layer, truth, verify
from bench.growth import Sweep
from bench.report import END, markdown, rewrite, write_csv
from bench.rows import PART, at_least, at_most, judge, spread
from bench.timing import Job, fastest, interleaved, samples
from uotpool import explain_impl
from uotpool.backends.cpu import library
from uotpool.zoo import ENTRIES

ROOT = Path(__file__).parent.parent
COMPARISONS = (
    *("speed", "scale", "default", "pools", "pot", "memory", "ragged", "latency", "growth", "zoo"),
    *("mil", "graph", "svm", "swap", "vit", "deploy", "sentence-speed", "assignment"),
)
FINDINGS = (
    *("convergence", "gap-map", "propositions", "stability", "structural-zeros"),
    *("witnesses", "heat-maps", "retrieval", "retrieval-settings", "sentences"),
)
NO_PROMISES = (
    *("default", "pot", "zoo", "mil", "graph", "svm", "swap", "vit", "deploy", "sentence-speed", "assignment"),
)
FACTS = {"machine", "isa", "python", "torch", "torch_geometric", "pot", "uotpool", "commit", "repeats"}
COLUMNS = {
    *("benchmark", "size", "solver", "mode", "threads", "candidate", "baseline", "candidate_us", "baseline_us"),
    *("ratio", "target", "met"),
    *FACTS,
}


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """Standard output of a quick run of everything, and the folder it wrote to."""
    folder = tmp_path_factory.mktemp("bench")
    command = [sys.executable, "-m", "bench", "--quick", "--out", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, folder


@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons(quick, name):
    _, folder = quick
    if name == "graph" and not status("MUTAG").present:
        pytest.skip("MUTAG is not at hand")
    with (folder / f"{name}.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows
    assert set(rows[0]) >= COLUMNS
    for row in rows:
        assert row["benchmark"] == name
        assert row["met"] == ("" if not row["target"] else row["met"])
        assert row["met"] in ("", "ok", "miss")
        memory = row["candidate_mib"] != ""
        assert memory or name != "memory"
        for column in (
            "ratio",
            *(("candidate_mib", "baseline_mib") if memory else ("candidate_us", "baseline_us")),
        ):
            number = float(row[column])
            assert math.isfinite(number), (row, column)
            # Exponents of a sweep that fixed costs swamp here, and differences of two times, may be negative.
            if name != "growth" and not row["mode"].startswith(swap.SHARE):
                assert number > 0, (row, column)
        assert all(row[column] for column in ("size", "solver", "mode", "threads", "candidate", "baseline"))
        assert all(row[column] for column in ("machine", "isa", "python", "torch", "commit", "repeats"))
    if name not in NO_PROMISES:
        assert any(row["target"] for row in rows)


@pytest.mark.parametrize("name", FINDINGS)
def test_findings(quick, name):
    printed, folder = quick
    for measurement, dataset in (("retrieval", "cifar10-subset"), ("retrieval-settings", "fashion-mnist")):
        if name == measurement and not status(dataset).present:
            pytest.skip(f"{dataset} is not at hand")
    with (folder / f"{name}.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows
    assert set(rows[0]) >= FACTS | {PART}
    assert all(row[PART] for row in rows)
    assert f"{folder / name}.csv ({len(rows)} rows" in printed


def test_every_measurement_says_in_a_line_what_it_measures():
    assert {*COMPARISONS, *FINDINGS, *measurements.NAMED} == set(measurements.NAMES)
    assert {*COMPARISONS, *FINDINGS} == set(measurements.default())
    helped = make_parser().format_help()
    for name in measurements.NAMES:
        assert re.search(rf"^  {name} +{re.escape(measurements.about(name))}$", helped, re.MULTILINE)
        assert len(measurements.about(name)) > 20


def test_all_solvers_and_modes_are_there(quick):
    _, folder = quick
    for name in ("speed", "pools", "ragged", "latency"):
        text = (folder / f"{name}.csv").read_text()
        for expected in ("sinkhorn", "badmm-e", "badmm-q", ",forward,", ",forward+backward,"):
            assert expected in text, (name, expected)


def test_printed(quick):
    printed, folder = quick
    assert f"implementation {explain_impl(torch.empty(1, 1, 1)).partition(';')[0]}" in printed
    for expected in ("SetTransformer", "POT numpy", "eager", "padded + mask", "weights", "exponent"):
        assert expected in printed
    for picture in ("growth", "runtime", "convergence", "stability", "gap_map", "gap_map_rho"):
        assert (folder / f"{picture}.png").stat().st_size > 10_000


def test_unknown_name_is_an_error(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bench", "sped"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "unknown measurement 'sped'; there are: speed" in capsys.readouterr().err


@pytest.mark.parametrize("other", [["--quick"], ["--out", "elsewhere"]])
def test_what_the_documentation_shows_is_renewed_by_whole_measurements_only(other, capsys):
    parser = make_parser()
    with pytest.raises(SystemExit):
        make_session(parser, parser.parse_args(["zoo", "--renew", *other]))
    assert "--renew: expected neither --quick" in capsys.readouterr().err
    session = make_session(parser, parser.parse_args(["zoo", "--renew"]))
    assert csv_path(session, "zoo") == ROOT / "results/bench/zoo.csv"
    assert csv_path(session, "speed") == Path("out/bench/speed.csv")
    assert session.figures == ROOT / "docs/figures"


def test_findings_are_kept_to_the_last_bit(tmp_path):
    rows = [{PART: "a", "K": 4, "mass": 1 + 2**-52}, {PART: "a", "K": 8, "mass": math.nan, "more": "x, y"}]
    write_csv(tmp_path / "found.csv", rows, {"torch": "2"})
    with (tmp_path / "found.csv").open(newline="") as file:
        read = list(csv.DictReader(file))
    assert float(read[0]["mass"]) == 1 + 2**-52
    assert math.isnan(float(read[1]["mass"]))
    assert [(row["K"], row["more"], row["torch"]) for row in read] == [("4", "", "2"), ("8", "x, y", "2")]


def test_findings_that_differ_in_one_column_are_one_line():
    rows = [{PART: "a", "solver": s, "K": K, "gap": 10.0 * K} for s in ("x", "y") for K in (4, 8)]
    lines = spread(rows, "K", "gap")
    assert lines == [{PART: "a", "solver": s, "K=4": 40.0, "K=8": 80.0} for s in ("x", "y")]
    assert markdown(lines[:1]) == "| solver | K=4 | K=8 |\n|---|---|---|\n| x | 40 | 80 |"


def test_zoo_has_every_pooling_in_both_implementations(quick):
    _, folder = quick
    with (folder / "zoo.csv").open(newline="") as file:
        timed = [row["candidate"] for row in csv.DictReader(file) if row["mode"] == "forward"]
    impls = ["(eager)"] if library.missing() else ["(fused)", "(eager)"]
    exact = [f"{name} {impl}" for name in zoo.EXACT for impl in impls]
    assert sorted(timed) == sorted([name for name in ENTRIES if name not in zoo.EXACT] + exact)


def test_zoo_without_the_kernel(monkeypatch):
    monkeypatch.setattr(library, "missing", lambda: "no compiler")
    assert zoo.candidates(["mean", "uotp-sinkhorn"]) == [("mean", None), ("uotp-sinkhorn", "reference")]


def test_the_table_of_costs_is_that_of_the_committed_measurement(tmp_path):
    with (ROOT / "results/bench/zoo.csv").open(newline="") as file:
        table = zoo.table(list(csv.DictReader(file)))
    page = (ROOT / "docs/poolings.md").read_text()
    (tmp_path / "page.md").write_text(page.replace(table, "an old one"))
    rewrite(tmp_path / "page.md", zoo.BEGIN, table)
    assert (tmp_path / "page.md").read_text() == page
    assert table in page


def test_the_table_of_the_default_layer(quick, tmp_path):
    """It has a line for each rival and mode, from the measurement; its place is in the page of the kernels."""
    _, folder = quick
    with (folder / "default.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["baseline"] for line in lines] == list(default.RIVALS) * 2
    table = default.table(lines)
    assert table.count("as a multiple of") == 2 * len(default.RIVALS)
    first = lines[0]
    assert f"| forward, as a multiple of {first['baseline']} | {float(first['ratio']):.2f} |" in table
    assert f"| forward, microseconds | {float(first['candidate_us']):.0f} |" in table
    assert f"commit {first['commit']}, 1 thread." in table
    page = (ROOT / "docs/kernels.md").read_text()
    (tmp_path / "page.md").write_text(page)
    rewrite(tmp_path / "page.md", default.BEGIN, table)
    renewed = (tmp_path / "page.md").read_text()
    before, after = page.split(default.BEGIN)
    assert renewed == f"{before}{default.BEGIN}\n\n{table}\n\n{END}{after.partition(END)[2]}"
    (tmp_path / "page.md").write_text("no place")
    with pytest.raises(SystemExit, match="has no place for the table"):
        rewrite(tmp_path / "page.md", default.BEGIN, table)


def test_the_table_of_sentence_encoders(quick, tmp_path):
    """It has a line for each size and layout, and its place is in the page on sentence encoders."""
    _, folder = quick
    with (folder / "sentence-speed.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    table = sentence_speed.table(lines, 1)
    for layout in ("all tokens", "padded", "flat"):
        assert f"| 2 x 8 x 16, {layout} | " in table
    first = lines[0]
    assert first["baseline"] == sentence_speed.BASELINE
    assert f"| {float(first['candidate_us']) / 1e3:.3g} | {float(first['ratio']):.2g} | " in table
    assert len(re.findall(r"-?[0-9.e+-]+ % \(forward", table)) == 2
    page = (ROOT / "docs/use/sentence-transformers.md").read_text()
    (tmp_path / "page.md").write_text(page)
    rewrite(tmp_path / "page.md", sentence_speed.BEGIN, table)
    assert table in (tmp_path / "page.md").read_text()


def test_a_wrong_answer_is_not_timed():
    X = samples((3, 5, 4))
    pool = layer(4, "sinkhorn")
    expected = truth(pool, X)
    verify(pool, expected, X)
    for wrong in (
        expected._replace(y=expected.y * 1.001),
        expected._replace(dX=expected.dX * 1.001),
        expected._replace(dX=expected.dX * math.nan),
    ):
        with pytest.raises(WrongAnswerError, match="is off the exact reference"):
            verify(pool, wrong, X)


def test_interleaved_takes_turns_and_keeps_threads():
    threads = torch.get_num_threads()
    log: list[tuple[str, int]] = []
    jobs = {
        name: Job(lambda name=name: log.append((name, torch.get_num_threads())), n)
        for name, n in (("one", 1), ("two", 2))
    }
    seconds = interleaved(jobs, repeats=4, min_sample=0.0)
    assert set(seconds) == {"one", "two"}
    assert all(s > 0 for s in seconds.values())
    assert {n for name, n in log if name == "one"} == {1}
    assert {n for name, n in log if name == "two"} == {2}
    turns = [name for name, _ in log[-12:]]
    assert turns.count("one") >= 4
    assert turns.count("two") >= 4
    assert torch.get_num_threads() == threads


def test_samples_are_long_enough():
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            time.sleep(0.1)  # a first call that compiles must not pass for a slow one

    interleaved({"call": Job(call, torch.get_num_threads())}, repeats=1, min_sample=1e-3)
    assert calls > 1000  # a call of nothing takes some 50 ns


def test_fastest():
    def slow() -> object:
        return [i * i for i in range(20_000)]

    assert fastest({"slow": slow, "quick": lambda: None}, torch.get_num_threads(), budget=1e-2) == "quick"


def test_targets():
    assert judge(at_least(8), 8.0) == (">= 8", "ok")
    assert judge(at_least(8), 7.9) == (">= 8", "miss")
    assert judge(at_most(2.5), 2.6) == ("<= 2.5", "miss")
    assert judge(None, 1.0) == ("", "")


def test_exponent():
    values = [1, 2, 4, 8, 16, 32, 64]
    assert Sweep(values, [3e-6 * v**2 for v in values]).exponent == pytest.approx(2)
    assert Sweep(values, [1.0, 1.0, 1.0, 8.0, 16.0, 32.0, 64.0]).exponent == pytest.approx(1)
