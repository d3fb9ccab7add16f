"""The list of code that gives the same numbers: what may be in it, what tables and sweeps make of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from uotpool_experiments.analysis.selection import MixedCodeError, Source, select
from uotpool_experiments.runs import export, same_code
from uotpool_experiments.runs.plan import make_plan
from uotpool_experiments.runs.rows import Row
from uotpool_experiments.runs.same_code import Entry, SameCode
from uotpool_experiments.runs.store import Store
from uotpool_experiments.tables.results import results_table
from uotpool_experiments.tasks.fingerprint import fingerprint
from uotpool_experiments.tasks.mil import training
from uotpool_experiments.tasks.spec import Result, RunSpec

from experiments.tests.helpers import FACTS, call, mil_spec, quiet, write

A, B, C = "a" * 16, "b" * 16, "c" * 16


def entry(old: str, new: str, pooling: str = "mean", task: str = "mil") -> Entry:
    return Entry(task, pooling, old, new, "a run", "equal", {"accuracy": 0.5}, {"accuracy": 0.5})


def row(code: str, seed: int = 0, pooling: str = "mean", accuracy: float = 0.5, seconds: float = 1.0) -> Row:
    spec = mil_spec({}, seed=seed, pooling=pooling)
    metrics = {"accuracy": accuracy, "majority": 0.5}
    return Row(spec, code, "done", 1, None, seconds, 1.0, 1, metrics, {}, seconds)


# ---------------------------------------------------------------------------------------------------------
# the list


def test_what_is_the_same_as_the_same_is_the_same():
    for entries in ([entry(A, B), entry(B, C)], [entry(B, C), entry(A, B)], [entry(A, C), entry(B, A)]):
        found = SameCode(entries)
        assert len({found.code("mil", "mean", code) for code in (A, B, C)}) == 1
        assert found.code("mil", "max", A) == A  # another pooling
        assert found.code("graph", "mean", A) == A  # another task
    assert SameCode([entry(A, B), entry(B, A)]).code("mil", "mean", A) is not None  # a circle ends


def test_a_written_list_is_read_again(tmp_path):
    path = tmp_path / same_code.NAME
    entries = [entry(A, B), replace(entry(B, C, "max"), run='a "run" {}', agreement="rounding")]
    for one in entries:
        same_code.append(one, path)
    assert same_code.read(path).entries == entries
    assert same_code.beside(tmp_path / "runs.csv").entries == entries
    assert same_code.beside(tmp_path / "mil" / "runs.csv").entries == entries
    assert same_code.beside(tmp_path / "results" / "mil" / "runs.csv").entries == []


GOOD = f"""[[same]]
task = "mil"
pooling = "mean"
old = "{A}"
new = "{B}"
run = "a run"
agreement = "equal"
old_metrics = {{ accuracy = 0.5 }}
new_metrics = {{ accuracy = 0.5 }}
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[same", "not a TOML file"),
        ("x = 1", r"expected tables \[\[same\]\], got \['x'\]"),
        ("same = 3", r"expected tables \[\[same\]\]"),
        ("same = [3]", r"expected tables \[\[same\]\]"),
        (GOOD.replace('run = "a run"\n', ""), r"\[\[same\]\] 1: expected the names"),
        (GOOD.replace('"mil"', '"mild"'), r"\[\[same\]\] 1: task: expected one of"),
        (GOOD.replace(A, "abc"), "old: expected a fingerprint, 16 hexadecimal digits, got 'abc'"),
        (GOOD.replace(f'"{B}"', "7"), "new: expected a fingerprint"),
        (GOOD.replace('"equal"', '"nearly"'), "agreement: expected one of"),
        (GOOD.replace("old_metrics = { accuracy = 0.5 }", "old_metrics = {}"), "old_metrics: expected a table"),
        (
            GOOD.replace("old_metrics = { accuracy = 0.5 }", "old_metrics = { accuracy = nan }"),
            "finite numbers",
        ),
        (GOOD.replace("old_metrics = { accuracy = 0.5 }", "old_metrics = { accuracy = 0.6 }"), "as near as"),
        (GOOD.replace('pooling = "mean"', "pooling = 3"), "pooling: expected a text, got 3"),
    ],
)
def test_what_is_no_list_is_refused(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        same_code.read(write(tmp_path / "x.toml", text))


def test_agreement():
    assert same_code.agreement({"a": 0.1234567, "b": 0.0}, {"a": 0.12345674, "b": 0.0}) == "equal"
    assert same_code.agreement({"a": 0.5}, {"a": 0.500002}) == "rounding"
    assert same_code.agreement({"a": 0.5}, {"a": 0.51}) is None
    assert same_code.agreement({"a": 0.5}, {"a": 0.5, "b": 1.0}) is None


# ---------------------------------------------------------------------------------------------------------
# tables and sweeps


def test_tables_join_what_is_listed_and_say_so():
    rows = [row(A, 0), row(B, 1), row(A, 0, "max"), row(A, 1, "max")]
    with pytest.raises(MixedCodeError, match="'mean' by 2 versions"):
        select(rows, "mil", stored=True)
    with pytest.raises(MixedCodeError):
        select(rows, "mil", stored=True, same=SameCode([entry(A, B, "max")]))
    found, notes = select(rows, "mil", stored=True, same=SameCode([entry(A, B)]))
    assert found == rows
    assert notes[-1].endswith("the same by a repeated run (same_code.toml): mean")
    assert "2 seeds" in results_table(found, "fair").notes[0]


def test_a_table_of_one_data_set_speaks_of_its_runs_alone(tmp_path):
    there, elsewhere = row(A, 0), replace(row(B, 1), spec=mil_spec({}, dataset="musk2", seed=1))
    source = Source(tmp_path / "runs.csv", [there, elsewhere])
    found, notes = source.select("mil", "{}", [there.spec.dataset])
    assert found == [there]
    assert notes == ["stored runs: one version of the code for each pooling, perhaps not the same one for all"]
    with pytest.raises(MixedCodeError, match="'mean' by 2 versions"):
        source.select("mil", "{}")


def test_tables_of_the_present_code_take_what_is_listed():
    now = fingerprint("mil", "mean")
    rows = [row(A, 0), row(B, 1), row(now, 2)]
    found, notes = select(rows, "mil", same=SameCode([entry(A, now)]))
    assert [r.fingerprint for r in found] == [A, now]
    assert notes[0] == "1 runs of other versions of the code are left out"
    assert "same_code.toml" in notes[1]


def test_a_run_that_both_have_counts_once():
    found, _ = select(
        [row(A, accuracy=0.1), row(B, accuracy=0.2)], "mil", stored=True, same=SameCode([entry(A, B)])
    )
    assert [r.metrics["accuracy"] for r in found] == [0.2]


def test_a_sweep_counts_runs_of_a_csv_file_as_done(store):
    now = fingerprint("mil", "mean")
    specs = [mil_spec({}, seed=seed) for seed in range(4)]
    stored = [row(now, 0), row(A, 1), row(B, 2)]
    assert make_plan(specs, store).todo == specs
    assert make_plan(specs, store, stored).todo == specs[1:]
    plan = make_plan(specs, store, stored, same=SameCode([entry(A, now)]))
    assert (plan.todo, plan.done) == (specs[2:], 2)


def test_the_commands(tmp_path, capsys):
    """same-code with a run that comes out the same and one that does not, then sweep --done."""
    folder = tmp_path / "mil"
    folder.mkdir()
    specs = [mil_spec(pooling=name) for name in ("mean", "max")]
    now = training.run(specs[0], quiet)
    store = Store(tmp_path / "runs.sqlite")
    store.save(specs[0], A, now, FACTS, 2.0)
    store.save(specs[1], A, Result(metrics=dict.fromkeys(now.metrics, 0.25)), FACTS, 1.0)
    with (folder / "runs.csv").open("w") as file:
        export.write(store.rows(), file)
    store.close()
    listed = tmp_path / same_code.NAME
    options = ["same-code", folder / "runs.csv", "--task", "mil", "--list", listed]
    code, out, _ = call(capsys, *options)
    assert code == 1
    assert "not the same" in out
    (found,) = same_code.read(listed).entries
    assert (found.pooling, found.old, found.new) == ("mean", A, fingerprint("mil", "mean"))
    assert found.agreement == "equal"
    assert call(capsys, *options, "--pooling", "mean")[:2] == (0, "")  # listed already
    code, _, err = call(capsys, *options, "--pooling", "add")
    assert "store: expected runs of this task" in err

    file = write(
        tmp_path / "sweep.toml",
        '[[runs]]\ntask = "mil"\ndataset = "digits"\npooling = "mean"\nfolds = 1\nsettings = {epochs = 2}\n'
        '[[runs]]\ntask = "mil"\ndataset = "digits"\npooling = "max"\nfolds = 2\nsettings = {epochs = 2}\n',
    )
    start = ["sweep", file, "--dry-run", "--store", tmp_path / "none.sqlite"]
    code, out, err = call(capsys, *start)
    assert "3 runs to do, 0 done before; core-hours: no estimate, as no finished run" in err
    code, out, err = call(capsys, *start, "--done", folder / "runs.csv")
    assert code == 0
    assert "2 runs to do, 1 done before; core-hours, estimated: under 0.01" in err
    assert "[[runs]] 1: 0 runs to do, 1 done before" in err
    assert "[[runs]] 2: 2 runs to do, 0 done before" in err
    assert "mean" not in out


# ---------------------------------------------------------------------------------------------------------
# estimates, and epochs


def test_the_estimate_of_graphs_goes_by_epochs(store):
    def spec(pooling: str, **settings: int) -> RunSpec:
        choices = {"task": "graph", "dataset": "REDDIT-BINARY", "protocol": "paper", "fold": 0, "seed": 0}
        return RunSpec.make(settings, pooling=pooling, **choices)

    known = Row(spec("mean", epochs=5), A, "done", 1, None, 60.0, 1.0, 1, {"accuracy": 0.5}, {}, 50.0)
    plan = make_plan([spec("mean"), spec("mean", epochs=10)], store, like=[known])
    assert plan.core_seconds == 10.0 * (150 + 10)
    assert plan.done == 0  # that it is like them does not make it one of them


def test_accuracies_of_epochs(tmp_path, capsys):
    store = Store(tmp_path / "runs.sqlite")
    choices = {"task": "graph", "dataset": "MUTAG", "pooling": "mean", "protocol": "paper", "fold": 0}
    for seed in (0, 1):
        epochs = [{"epoch": e, "contrast": 1.0, "test_accuracy": 0.5 + e / 10 + seed / 100} for e in (1, 2)]
        result = Result(metrics={"accuracy": 0.7}, epochs=epochs)
        store.save(RunSpec.make({}, **choices, seed=seed), fingerprint("graph", "mean"), result, FACTS)
    store.close()
    path = tmp_path / "epochs.csv"
    code, out, _ = call(capsys, "export", "graph", "--store", tmp_path / "runs.sqlite", "--epochs", path)
    assert code == 0
    assert path.read_text().splitlines() == [
        "dataset,pooling,protocol,fold,seed,settings,epoch,test_accuracy",
        *(f"MUTAG,mean,paper,0,0,{{}},{e},{0.5 + e / 10:.7g}" for e in (1, 2)),
        *(f"MUTAG,mean,paper,0,1,{{}},{e},{0.51 + e / 10:.7g}" for e in (1, 2)),
    ]
    runs = write(tmp_path / "runs.csv", out)
    code, _, err = call(capsys, "export", "graph", "--store", runs, "--epochs", Path(path))
    assert code != 0
    assert "--epochs: expected a run store" in err
