"""What a table shows, as a value: from TOML, from the command line, and back to a command line."""

from __future__ import annotations

import shlex
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest
from uotpool_experiments.analysis.selection import Source
from uotpool_experiments.cli.table import spec_of
from uotpool_experiments.tables import kinds, manifest
from uotpool_experiments.tables.kinds import KINDS, Kind
from uotpool_experiments.tables.make import make
from uotpool_experiments.tables.spec import TableSpec, options
from uotpool_experiments.tables.table import Column, Count, Line, Table

from experiments.tests.helpers import table_of_runs
from uotpool.cli import main, make_parser

RESULTS = Path(__file__).parents[2] / "results"


def parsed(command: str) -> TableSpec:
    return spec_of(make_parser().parse_args(shlex.split(command)[1:]))


EVERYTHING = {
    "kind": "settings",
    "protocol": "paper",
    "pooling": ["exact", "mean"],
    "vary": "pool.K",
    "dataset": ["musk1", "a b"],
    "settings": {"lr": 5e-4, "recipe": "two-stage", "text": "true", "pool": {"K": 8}, "augment": False},
    "seeds": [3],
    "metric": "loss",
}


def test_the_command_of_a_table_asks_for_that_table():
    found = [manifest.read(RESULTS / task) for task in ("mil", "graph", "image")]
    specs = [entry.spec for one in found for entry in one.entries]
    specs += [TableSpec.from_toml("mil", EVERYTHING), TableSpec("mil", runs="own", seeds=(0, 4))]
    specs += [
        TableSpec("mil", datasets=("--store",)),
        TableSpec("mil", seeds=(0,)),
        TableSpec("mil", seeds=(1,)),
    ]
    assert len(specs) > 40
    for spec in specs:
        assert parsed(spec.command(Path("some where.csv"))) == spec


def test_every_option_has_a_key_and_no_two_share_one():
    assert len({option.name for _, option in options()}) == len({option.flag for _, option in options()})
    assert {option.name for _, option in options()} == {*EVERYTHING, "runs"}


def test_a_command_says_only_what_is_not_the_default():
    store = Path("runs.csv")
    assert TableSpec("mil").command(store) == "uotpool table mil --store=runs.csv"
    assert TableSpec("mil", "cost", "paper").command(store, stored=True) == (
        "uotpool table mil --store=runs.csv --stored --kind cost --protocol paper"
    )


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("kind", "pie", r"kind: expected one of \('results', .*\), got 'pie'"),
        ("kind", ["results"], r"kind: expected a name, got \['results'\]"),
        ("protocol", "mine", r"protocol: expected one of \('paper', 'fair'\), got 'mine'"),
        ("metric", "beauty", r"metric: expected one of .*, got 'beauty'"),
        ("runs", "all", r"runs: expected one of \('common', 'own'\), got 'all'"),
        ("pooling", [], r"pooling: expected a name or a list of names, got \[\]"),
        ("dataset", [1], r"dataset: expected a name or a list of names, got \[1\]"),
        ("seeds", 0, r"seeds: expected a number >= 1 or a list of numbers >= 0, got 0"),
        ("seeds", True, r"seeds: expected a number >= 1 or a list of numbers >= 0, got True"),
        ("seeds", [-1], r"seeds: expected a number >= 1 or a list of numbers >= 0, got \[-1\]"),
        ("seeds", 10**9, r"seeds: expected a number >= 1"),
        ("settings", "lr=1", r"settings: expected a table of settings, .*, got 'lr=1'"),
        ("settings", {"lr": float("nan")}, r"settings: expected a table of settings, .*, got {'lr': nan}"),
        ("settings", {"lr": date(1979, 5, 27)}, r"settings: .* got {'lr': datetime.date\(1979, 5, 27\)}"),
        ("vary", "pool.K", r"--vary: expected --kind settings, got --kind results, which takes none"),
        ("arguments", "--seeds 5", r"expected keys among \['dataset', .*\], got \['arguments'\]"),
    ],
)
def test_a_wrong_key_is_named(key, value, message):
    with pytest.raises(ValueError, match=message):
        TableSpec.from_toml("mil", {key: value})


def test_own_runs_are_of_results_only():
    with pytest.raises(ValueError, match=r"--runs: expected --kind results, got --kind cost, which takes none"):
        TableSpec("mil", "cost", runs="own")
    with pytest.raises(ValueError, match=r"task: expected one of .*, got 'sound'"):
        TableSpec("sound")


def test_a_wrong_option_is_refused_in_words(capsys):
    for words, message in (
        (["--kind", "cost", "--vary", "pool.K"], "--vary: expected --kind settings, got --kind cost"),
        (["--protocol", "mine"], "protocol: expected one of ('paper', 'fair'), got 'mine'"),
        (["--metric", "beauty"], "invalid choice: 'beauty'"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(["table", "mil", "--store", str(RESULTS / "mil" / "runs.csv"), *words])
        assert stop.value.code == 2
        assert message in capsys.readouterr().err


class Runs(Kind):
    """A kind of this file: how many runs each pooling has."""

    def table(self, spec, rows):
        names = dict.fromkeys(row.spec.pooling for row in rows)
        lines = [Line.of(name, Count(sum(row.spec.pooling == name for row in rows))) for name in names]
        return Table("runs", [Column.label("pooling"), Column("runs")], lines)


def test_a_new_kind_is_a_module_and_a_line(monkeypatch):
    """Options, help and refusals know it without a change elsewhere."""
    monkeypatch.setitem(KINDS, "count", "how many runs there are")
    module = type(sys)("uotpool_experiments.tables.count")
    module.KIND = Runs()
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert kinds.load("count") is module.KIND
    rows = table_of_runs({("mean", "x", "fair"): [0.5] * 3, ("max", "x", "fair"): [0.5] * 2})
    field = next(option for found, option in options() if found.name == "kind")
    monkeypatch.setitem(field.__dict__, "choices", tuple(KINDS))
    spec = TableSpec("mil", "count", poolings=("mean",))
    assert make(spec, Source(Path("runs.csv"), rows)).texts() == [["mean", "3"]]
    with pytest.raises(ValueError, match="--vary: expected --kind settings, got --kind count"):
        TableSpec("mil", "count", vary=("pool.K",))


HEAVY = (
    "matplotlib",
    "dash",
    "plotly",
    "torch_geometric",
    "sklearn",
    "scipy",
    "networkx",
    "rich",
    "jinja2",
    "ray",
)


def test_the_commands_are_known_without_what_they_need():
    """`uotpool info` loads the parsers of all commands, and should not pay for what they compute with."""
    script = (
        "import sys, uotpool.cli\n"
        "before = set(sys.modules)\n"  # torch may import some of them
        "uotpool.cli.make_parser()\n"
        f"print(*sorted({{m.split('.')[0] for m in set(sys.modules) - before}} & set({HEAVY!r})))\n"
        "print('uotpool_experiments.cli.table' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["", "True"]
