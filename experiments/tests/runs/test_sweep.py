"""A sweep as its user meets it: files, plans, interruptions, tables, wrong names."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from uotpool_experiments.cli import execute as execute_command
from uotpool_experiments.runs import progress, scheduler, sweep, worker
from uotpool_experiments.runs.executors import Failed, Finished, Started
from uotpool_experiments.runs.plan import Plan, make_plan
from uotpool_experiments.runs.progress import Display
from uotpool_experiments.runs.rows import Row
from uotpool_experiments.runs.store import Store, StoreWriteError
from uotpool_experiments.tasks.fingerprint import fingerprint
from uotpool_experiments.tasks.mil import training
from uotpool_experiments.tasks.spec import Result

from experiments.tests.helpers import (
    FACTS,
    SECONDS_TO_END,
    call,
    check_they_end,
    children,
    command,
    is_worker,
    mil_spec,
    quiet,
    toy,
    wait_until,
    write,
)
from uotpool.cli import main

FILE = """
[[runs]]
task = "mil"
dataset = "digits"
pooling = ["mean", "max", "uotp-sinkhorn"]
folds = 3
settings = {epochs = 8} # long enough that a signal comes in the middle
"""
RUNS = 9


def stored(path: Path) -> dict[str, tuple[Any, ...]]:
    """Everything of each run, by its key."""
    if not path.exists():
        return {}
    db = sqlite3.connect(path, timeout=30)
    try:
        return {row[1]: row for row in db.execute("SELECT rowid, * FROM runs")}
    except sqlite3.OperationalError:  # no table yet
        return {}
    finally:
        db.close()


def check_whole(path: Path) -> None:
    db = sqlite3.connect(path)
    assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    db.close()


# ---------------------------------------------------------------------------------------------------------
# stopped and started again


class Driver:
    """`uotpool sweep` in a process of its own, as from a terminal: the leader of a group."""

    def __init__(self, file: Path, store: Path) -> None:
        argv = command("sweep", str(file), "--workers", "2", "--store", str(store))
        env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, start_new_session=True
        )

    def workers(self) -> list[int]:
        return [pid for pid in children(self.process.pid) if is_worker(pid)]

    def family(self) -> list[int]:
        return [*children(self.process.pid), self.process.pid]

    def end(self) -> tuple[int, str, str]:
        try:
            out, err = self.process.communicate(timeout=120)
        finally:
            self.process.kill()
        return self.process.returncode, out, err


def test_a_sweep_that_is_stopped_goes_on_and_repeats_nothing(tmp_path, capsys):
    """One that is killed does so, too (experiments/tests/kills.py, which test_hostile runs)."""
    file, path = write(tmp_path / "sweep.toml", FILE), tmp_path / "runs.sqlite"

    # Ctrl-C, which the terminal sends to driver and workers alike
    driver = Driver(file, path)
    wait_until(lambda: len(stored(path)) >= 2, 90, "two finished runs")
    family = driver.family()
    assert len(driver.workers()) == 2
    os.killpg(driver.process.pid, signal.SIGINT)
    code, out, err = driver.end()
    assert code == 130, err
    assert "stopped; the same command continues from here" in err
    assert f"{RUNS} runs to do, 0 done before; core-hours: no estimate, as no finished run of the task" in err
    assert "Traceback" not in err
    check_they_end(family, SECONDS_TO_END)
    check_whole(path)
    first = stored(path)
    assert 2 <= len(first) < RUNS
    assert "digits" in out  # a table of what is there

    # the same command again, in this process, with another number of workers
    time.sleep(1.1)  # a run that is run again would have another `finished`
    code, out, err = call(capsys, "sweep", file, "--store", path, "--workers", "1")
    assert code == 0, err
    err = " ".join(err.split())
    assert f"{RUNS - len(first)} runs to do, {len(first)} done before; core-hours, estimated: " in err
    assert "no estimate" not in err
    second = stored(path)
    assert {key: second[key] for key in first} == first  # all columns, the time and the attempts too
    assert re.search(r"mean +\d+\.\d\d ± \d+\.\d\d", out)
    assert "3 (1 seed)" in out
    check_complete(file, path)

    # and once more, where there is nothing to do
    code, _, err = call(capsys, "sweep", file, "--store", path, "--workers", "2")
    assert code == 0
    assert f"0 runs to do, {RUNS} done before" in err
    assert stored(path) == second


def check_complete(file: Path, path: Path) -> None:
    """Every run is there, once, at its first attempt, and is what it gives here and now."""
    store = Store(path)
    rows = store.rows()
    assert {row.spec for row in rows} == set(sweep.read(file))
    assert len(rows) == RUNS
    assert {row.attempts for row in rows} == {1}
    assert store.rows("failed") == []
    assert all(row.seconds and row.cpu_seconds and row.peak_mib and row.parameters for row in rows)
    again = training.run(rows[-1].spec, quiet)
    assert again.metrics == rows[-1].metrics
    assert again.details == rows[-1].details
    store.close()


# ---------------------------------------------------------------------------------------------------------
# the loop


class Scripted:
    """An executor that yields the events that it is given."""

    workers = 1

    def __init__(self, *events):
        self.events, self.closed = events, False

    def run(self, specs):
        try:
            for event in self.events:
                if isinstance(event, BaseException):
                    raise event
                if callable(event):
                    event()
                else:
                    yield event
        finally:
            self.closed = True

    def close(self):
        assert self.closed


def display() -> Display:
    return Display(Console(file=io.StringIO()))


def sweep_with(store, *events):
    executor = Scripted(*events)
    outcome = scheduler.run([mil_spec()], store, executor, display())
    assert executor.closed
    return outcome


def finished(spec, result):
    return Finished(spec, result, fingerprint(spec.task, spec.pooling))


def test_a_result_of_other_code_is_refused(store):
    """Such a result comes from a worker that loaded its code after an edit."""
    spec = mil_spec()
    outcome = sweep_with(store, Started(spec), Finished(spec, Result({"accuracy": 1.0}), "other code"))
    assert (outcome.finished, outcome.failed) == (0, 1)
    (failed,) = store.rows("failed")
    assert "code of this run changed" in failed.error


def test_what_failed_is_tried_again_and_what_is_done_is_not(store):
    spec = mil_spec()
    code = fingerprint("mil", "mean")
    assert make_plan([spec], store).todo == [spec]
    outcome = sweep_with(store, Started(spec), Failed(spec, "Traceback\nOSError: disk"))
    assert (outcome.finished, outcome.failed, outcome.interrupted) == (0, 1, False)
    assert make_plan([spec], store).todo == [spec]
    outcome = sweep_with(store, Started(spec), finished(spec, Result({"accuracy": 1.0}, seconds=7.0)))
    assert (outcome.finished, outcome.failed, outcome.interrupted) == (1, 0, False)
    (row,) = store.rows()
    assert (row.attempts, row.error, row.fingerprint) == (2, None, code)
    plan = make_plan([spec, mil_spec(fold=1)], store)
    assert (plan.todo, plan.done, plan.core_seconds) == ([mil_spec(fold=1)], 1, 7.0)


def test_ctrl_c_keeps_what_is_finished(store):
    one, other = mil_spec(fold=0), mil_spec(fold=1)
    events = [Started(one), Started(other), finished(one, Result({"accuracy": 1.0})), KeyboardInterrupt()]
    outcome = sweep_with(store, *events)
    assert (outcome.finished, outcome.interrupted) == (1, True)
    assert [row.spec for row in store.rows()] == [one]
    with store.writing():  # free again
        pass


def test_the_store_has_the_facts_of_where_it_ran(store):
    one, other, third = (mil_spec(fold=fold) for fold in range(3))
    code = fingerprint("mil", "mean")
    there = FACTS | {"machine": "there"}
    events = [Finished(one, Result({"accuracy": 1.0}), code, there, 3.5), Failed(other, "broken", there)]
    sweep_with(store, *map(Started, (one, other, third)), *events, Failed(third, "it died"))
    found = store._db.execute("SELECT fold, machine, cpu_seconds FROM runs ORDER BY fold").fetchall()
    assert found == [(0, "there", 3.5), (1, "there", None), (2, None, None)]


def test_a_store_that_cannot_be_written_ends_the_sweep(store):
    one, other = mil_spec(fold=0), mil_spec(fold=1)
    good = Result({"accuracy": 1.0})
    executor = Scripted(
        *(Started(one), Started(other), finished(one, good)),
        lambda: store._db.execute("PRAGMA query_only = ON"),
        *(finished(other, good), KeyboardInterrupt()),
    )
    with pytest.raises(StoreWriteError, match=f"cannot write to {store.path}"):
        scheduler.run([one, other], store, executor, display())
    assert executor.closed
    assert [row.spec for row in store.rows()] == [one]
    with store.writing():  # free again
        pass


def test_a_store_that_cannot_be_written_ends_the_command(tmp_path, capsys, monkeypatch):
    def opened(path):
        found = Store(path)
        found._db.execute("PRAGMA query_only = ON")
        return found

    spec = mil_spec({"epochs": 1})
    executor = Scripted(Started(spec), finished(spec, Result({"accuracy": 1.0})), KeyboardInterrupt())
    monkeypatch.setattr(execute_command, "Store", opened)
    monkeypatch.setattr(execute_command, "LocalExecutor", lambda *given: executor)
    path = tmp_path / "runs.sqlite"
    argv = ["run", "mil", "--pooling", "mean", "--folds", "2", "--set", "epochs=1", "--store", path]
    code, out, err = call(capsys, *argv)
    assert (code, out) == (1, "")
    assert f"store: cannot write to {path}: attempt to write a readonly database" in err
    assert "the same command continues from here" in err
    assert "Traceback" not in err
    assert executor.closed


def test_a_result_that_cannot_be_stored_is_a_failure_and_the_sweep_goes_on(store):
    one, other = mil_spec(fold=0), mil_spec(fold=1)
    bad = Result({"accuracy": float("nan")})
    good = Result({"accuracy": 1.0})
    outcome = sweep_with(store, Started(one), Started(other), finished(one, bad), finished(other, good))
    assert (outcome.finished, outcome.failed) == (1, 1)
    (failed,) = store.rows("failed")
    assert failed.spec == one
    assert "JSON" in failed.error


def test_a_plan_counts_each_run_once(store):
    spec = mil_spec()
    plan = make_plan([spec, spec], store)
    assert (plan.todo, plan.done) == ([spec], 0)


def test_a_plan_after_a_change_of_the_code_does_it_all_again(store, monkeypatch):
    store.save(mil_spec(), "old code", Result({"accuracy": 1.0}), FACTS)
    assert make_plan([mil_spec()], store).todo == [mil_spec()]
    assert make_plan([mil_spec()], store).core_seconds == 0.0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, ": no estimate, as no finished run of the task is known yet"),
        (0.5, ", estimated: under 0.01"),
        (36.0, ", estimated: 0.01"),
        (5400.0, ", estimated: 1.50"),
    ],
)
def test_a_plan_says_what_it_costs(seconds, text):
    assert str(Plan([mil_spec()] * 3, 4, seconds)) == f"3 runs to do, 4 done before; core-hours{text}"


def test_the_estimate_takes_the_runs_most_like_each(store):
    code = fingerprint("mil", "mean")
    for fold, seconds in enumerate([1.0, 2.0, 30.0]):
        store.save(mil_spec(fold=fold), code, Result({}, seconds=seconds), FACTS)
    store.save(mil_spec(pooling="max"), code, Result({}, seconds=100.0), FACTS)
    assert make_plan([mil_spec(fold=4), mil_spec(fold=3)], store).core_seconds == 4.0  # median 2, twice
    assert make_plan([mil_spec(pooling="max", fold=4)], store).core_seconds == 100.0
    assert make_plan([mil_spec(pooling="add")], store).core_seconds == 16.0  # of all on digits, fair
    store.save(mil_spec(pooling="gem"), code, Result({}, seconds=100.0), FACTS, 60.0)
    assert make_plan([mil_spec(pooling="gem", fold=4)], store).core_seconds == 60.0  # of CPU, where known


def test_a_plan_says_which_runs_are_stored_by_other_code(store):
    rows = [Row(mil_spec(fold=fold), "other", "done", 1, None, 2.0, 2.0, 1, {}, {}) for fold in (0, 1)]
    plan = make_plan([mil_spec(fold=fold) for fold in (0, 1, 2)], store, stored=rows)
    assert (len(plan.todo), plan.of_other_code) == (3, 2)
    assert str(plan).endswith("; 2 of them are stored, but by other code (see uotpool same-code --help)")


def test_the_estimate_knows_what_a_pooling_costs_elsewhere(store):
    """A pooling that costs three times the median on one data set is taken to do so on another."""
    for pooling, seconds in (("mean", 2.0), ("max", 2.0), ("gem", 6.0)):
        store.save(mil_spec(dataset="musk1", pooling=pooling), "code", Result({}, seconds=seconds), FACTS)
    for pooling in ("mean", "max"):
        store.save(mil_spec(dataset="musk2", pooling=pooling), "code", Result({}, seconds=10.0), FACTS)
    plan = make_plan([mil_spec(dataset="musk2", pooling=pooling) for pooling in ("gem", "add")], store)
    assert plan.core_seconds == 3 * 10.0 + 10.0


def test_runs_of_a_task_that_is_no_longer_known_are_passed_over(store):
    """Such runs can be in a store or a CSV file of earlier code."""
    store.save(replace(mil_spec(), task="gone"), "code", Result({}, seconds=7.0), FACTS)
    store.save(mil_spec(fold=1), "code", Result({}, seconds=2.0), FACTS)
    plan = make_plan([mil_spec()], store, stored=store.rows(), like=store.rows())
    assert (plan.todo, plan.done, plan.core_seconds) == ([mil_spec()], 0, 2.0)


def test_progress_where_there_is_no_terminal():
    text = io.StringIO()
    shown = Display(Console(file=text, width=200))
    with shown:
        shown.begin(2, 2)
        for spec in (toy("succeed"), mil_spec({"pool": {"init": {"alpha0": [1, 2]}}})):
            shown.started(spec)
            shown.progress(spec, 1, 2)
        shown.finished(toy("succeed"))
        shown.failed(
            mil_spec({"pool": {"init": {"alpha0": [1, 2]}}}), "Traceback\n  ...\nValueError: [/bad] markup\n"
        )
    failed, last = text.getvalue().splitlines()
    assert failed.startswith("failed: mil/digits mean")
    assert failed.endswith("ValueError: [/bad] markup")
    assert last == "2 of 2 runs, 1 failed"


def test_progress_in_a_log_is_a_line_a_minute(monkeypatch):
    """Failures must not drown the progress."""
    text, now = io.StringIO(), 1000.0
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now))
    with Display(Console(file=text, width=40)) as shown:
        shown.begin(600, 1)
        for i in range(600):
            spec = mil_spec(fold=i)
            shown.started(spec)
            for epoch in range(10):
                now += 1
                shown.progress(spec, epoch, 10)
            if i < 500:
                shown.finished(spec)
            else:
                shown.failed(spec, "broken")
    lines = text.getvalue().splitlines()
    said = [line for line in lines if "runs, " in line]
    assert len(said) == 100 + 1
    assert said[0] == "5 of 600 runs, 0 failed, 1:59:00 left"
    assert said[-1] == "600 of 600 runs, 100 failed"
    others = [line for line in lines if line not in said]
    assert len(others) == progress.MOST + 1
    assert "only counted" in others[-1]


# ---------------------------------------------------------------------------------------------------------
# sweep files

GOOD = '[[runs]]\ntask = "mil"\ndataset = "digits"\npooling = "mean"\n'


def test_a_file_is_read_in_order_and_no_run_twice(tmp_path):
    text = GOOD + 'seeds = 2\nfolds = [3, 1]\nprotocol = ["fair", "paper"]\n' + GOOD + "folds = 2\n"
    specs = sweep.read(write(tmp_path / "a.toml", text))
    assert len(specs) == 2 * 2 * 2 + 1  # fold 1 of seed 0 is there already
    assert len(set(specs)) == len(specs)
    assert [spec.seed for spec in specs] == [0] * 4 + [1] * 4 + [0]
    assert [spec.fold for spec in specs[:2]] == [3, 1]


def test_groups_of_poolings_and_several_settings():
    all_names = sweep.pooling_names("mil", "all")
    assert len(all_names) == 43
    assert "sagp" not in sweep.pooling_names("mil", "paper")
    assert len(sweep.pooling_names("mil", "paper")) == 14
    assert sweep.pooling_names("mil", ["mean", "exact", "mean"]) == [
        *("mean", "uotp-sinkhorn", "uotp-badmm-e", "uotp-badmm-q")
    ]
    variants = [{"pool": {"K": k}} for k in (0, 1, 2)]
    specs = sweep.expand("mil", "digits", "uotp-sinkhorn", folds=1, settings=variants)
    assert [spec.options["pool"]["K"] for spec in specs] == [0, 1, 2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[runs]\n", "not a TOML file"),
        ("", r"expected tables \[\[runs\]\]"),
        ("[runs]\n", r"expected tables \[\[runs\]\]"),
        (GOOD + "[other]\n", r"expected tables \[\[runs\]\].*'other'"),
        ("runs = [1, 2]\n", r"expected tables \[\[runs\]\]"),
        (GOOD + "colour = 1\n", r"\[\[runs\]\] 1: expected names among.*'colour'"),
        (
            GOOD + '[[runs]]\ntask = "mil"\n',
            r"\[\[runs\]\] 2: expected task, dataset and pooling, got no \['dataset', 'p",
        ),
        (GOOD + GOOD.replace("mean", "meen"), r"\[\[runs\]\] 2: .*did you mean 'mean'"),
        (GOOD.replace("digits", "digit"), r"\[\[runs\]\] 1: .*nearest: 'digits'"),
        (GOOD.replace('"mil"', '"milk"'), r"\[\[runs\]\] 1: task: expected one of"),
        (GOOD + 'protocol = "honest"\n', r"\[\[runs\]\] 1: protocol: expected one of"),
        (GOOD + "settings = {epoch = 3}\n", r"\[\[runs\]\] 1: settings: expected names among.*'epoch'"),
        (GOOD + "settings = {pool = {bogus = 3}}\n", r"\[\[runs\]\] 1: bogus: expected an option of 'mean'"),
        (GOOD + "settings = 3\n", r"\[\[runs\]\] 1: "),
        (GOOD + "folds = 9\n", r"\[\[runs\]\] 1: fold"),
        (GOOD + "seeds = 1.5\n", r"\[\[runs\]\] 1: "),
        (GOOD.replace('"digits"', "3"), r"\[\[runs\]\] 1: "),
        (GOOD.replace('"mean"', "[]"), r"\[\[runs\]\] 1: "),
    ],
)
def test_errors_name_the_file_and_the_block(tmp_path, text, message):
    path = write(tmp_path / "wrong.toml", text)
    with pytest.raises(ValueError, match=message) as error:
        sweep.read(path)
    assert str(error.value).startswith(f"{path}: ")


def test_a_file_that_is_not_text(tmp_path):
    path = tmp_path / "wrong.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=re.escape(f"{path}: not a TOML file")):
        sweep.read(path)


# ---------------------------------------------------------------------------------------------------------
# the command, in this process


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A store of real runs: of the command with its default poolings, and the same under the other protocol."""
    path = tmp_path_factory.mktemp("filled") / "runs.sqlite"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        with pytest.raises(SystemExit) as exit:
            main(["run", "mil", "--set", "epochs=2", "--folds", "2", "--workers", "1", "--store", str(path)])
    assert exit.value.code == 0
    store = Store(path)
    for spec in [row.spec for row in store.rows()]:
        other = replace(spec, protocol="paper")
        store.save(other, fingerprint("mil", spec.pooling), worker.execute([other], quiet)[0], worker.facts())
    store.close()
    return path


def test_run_stores_its_runs(filled):
    opened = Store(filled)
    rows = opened.rows()
    assert len(rows) == 2 * 3 * 2
    assert {row.spec.dataset for row in rows} == {"digits"}
    assert {row.spec.pooling for row in rows} == {"mean", "max", "uotp"}
    assert {row.spec.settings for row in rows} == {'{"epochs":2}'}
    spec = mil_spec()
    assert len(opened.epochs(spec.key(fingerprint("mil", "mean")))) == 4
    assert all(row.cpu_seconds for row in rows if row.spec.protocol == "fair")
    ((versions,),) = opened._db.execute("SELECT DISTINCT versions FROM runs").fetchall()
    assert "torch" in json.loads(versions)
    opened.close()


def test_run_shows_its_results_and_does_nothing_twice(filled, capsys):
    argv = ["run", "mil", "--set", "epochs=2", "--folds", "2", "--store", filled]
    code, out, err = call(capsys, *argv)
    assert code == 0
    assert "0 runs to do, 6 done before" in err
    assert 'settings {"epochs":2}' in out
    assert "accuracy, protocol fair" in out
    assert "majority class" in out
    assert "paper" not in out


TABLE = ("table", "mil", "--set", "epochs=2")


@pytest.mark.parametrize("kind", ["results", "optimism", "comparison"])
def test_tables_in_all_formats(filled, capsys, kind):
    found = {}
    for form in ("terminal", "markdown", "latex", "csv"):
        code, found[form], err = call(capsys, *TABLE, "--kind", kind, "--format", form, "--store", filled)
        assert (code, err) == (0, "")
    lines = list(csv.reader(io.StringIO(found["csv"])))
    assert len({len(line) for line in lines}) == 1
    assert {"mean", "max"} <= {line[0] for line in lines}
    for line in lines[1:]:
        for cell in line[1:]:
            assert cell in found["terminal"]
            assert cell in found["markdown"]
            assert cell.replace("±", "$\\pm$") in found["latex"]
    assert found["latex"].count("\\\\") == len(lines)
    assert found["markdown"].count("\n|") == len(lines) + 1


def test_tables_of_protocol_metric_and_data_set(filled, capsys):
    code, out, _ = call(capsys, *TABLE, "--protocol", "paper", "--metric", "auc", "--store", filled)
    assert code == 0
    assert "auc, protocol paper" in out
    assert "optimistic" in out
    code, _, err = call(capsys, *TABLE, "--dataset", "musk1", "--store", filled)
    assert code == 2
    assert "no such run" in err
    assert "; no runs on musk1" in err
    code, out, _ = call(capsys, *TABLE, "--dataset", "digits,musk1", "--store", filled)
    assert code == 0
    assert "no runs on musk1" in out
    assert "no runs on digits" not in out


def test_a_setting_at_its_default_is_none(filled, capsys):
    """Runs are stored without it."""
    expected = call(capsys, *TABLE, "--store", filled)
    assert call(capsys, *TABLE, "--set", "batch=128", "--store", filled) == expected
    code, _, err = call(capsys, *TABLE, "--set", "bach=128", "--store", filled)
    assert code == 2
    assert "settings: expected names among" in err


def test_a_table_of_a_store_with_runs_of_other_code_says_so(filled, capsys, tmp_path):
    path = tmp_path / "copy.sqlite"
    with closing(sqlite3.connect(filled)) as source, closing(sqlite3.connect(path)) as target:
        source.backup(target)  # with what is still in its log
    opened = Store(path)
    opened.save(mil_spec(fold=4), "old code", Result({"accuracy": 1.0, "majority": 0.5}), FACTS)
    opened.close()
    code, out, err = call(capsys, *TABLE, "--store", path)
    assert code == 0, err
    assert "1 runs of other versions of the code are left out" in out
    code, out, err = call(capsys, *TABLE, "--store", path, "--stored")
    assert code == 2
    assert out == ""
    assert "'mean' by 2 versions of the code" in err


def test_datasets(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("UOTPOOL_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    code, out, _ = call(capsys, "datasets")
    assert code == 0
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert lines["digits"].split()[1:3] == ["mil", "here:"]
    assert lines["messidor"].split()[1:4] == ["mil", "not", "here:"]
    assert "1200 bags (654 positive)" in out
    assert "MUTAG" in lines


def test_workers_and_timeout_reach_those_who_run(tmp_path, capsys, monkeypatch):
    given = []

    def executor(*arguments):
        given.append(arguments)
        raise ValueError("enough")

    monkeypatch.setattr(execute_command, "LocalExecutor", executor)
    monkeypatch.setattr(execute_command, "RayExecutor", executor)
    argv = ["run", "mil", "--pooling", "mean", "--folds", "1", "--store", tmp_path / "runs.sqlite"]
    call(capsys, *argv)
    call(capsys, *argv, "--workers", "3", "--timeout", "60")
    call(capsys, *argv, "--ray", "there:1")  # all of the cluster, however many this machine has
    call(capsys, *argv, "--ray", "there:1", "--workers", "3", "--timeout", "60")
    assert given == [(os.cpu_count(), None), (3, 60), ("there:1", None, None), ("there:1", 3, 60)]


def test_dry_run_only_prints(tmp_path, capsys):
    file = write(tmp_path / "sweep.toml", FILE)
    code, out, err = call(capsys, "sweep", file, "--dry-run", "--store", tmp_path / "new" / "runs.sqlite")
    assert code == 0
    assert len(out.splitlines()) == RUNS
    assert out.startswith('mil/digits mean fair fold 0 seed 0 {"epochs":8}')
    assert f"{RUNS} runs to do" in err
    assert not (tmp_path / "new").exists()


def test_runs_that_fail_are_said_and_kept(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("UOTPOOL_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("UOTPOOL_OFFLINE", "1")
    path = tmp_path / "runs.sqlite"
    argv = ["run", "mil", "--dataset", "messidor", "--pooling", "mean", "--folds", "2", "--store", path]
    code, _, err = call(capsys, *argv, "--workers", "1")
    text = " ".join(err.split())
    assert code in (1, 2)
    assert "messidor.mat" in text  # which file
    assert str(tmp_path) in text.replace(" ", "")  # and where to put it
    assert "Traceback" not in err
    if code == 1:
        assert "2 runs failed; the same command tries them again" in text
        assert all("DatasetMissingError" in row.error for row in Store(path).rows("failed"))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["run", "mil", "--dataset", "digit"], "nearest: 'digits'"),
        (["run", "mil", "--dataset", "MUTAG"], "expected one for multi-instance learning"),
        (["run", "mil", "--pooling", "meen"], "did you mean 'mean'"),
        (["run", "mil", "--pooling", "sagp"], "expected one that task 'mil' can use"),
        (["run", "mil", "--protocol", "honest"], "expected one of ('paper', 'fair'), got 'honest'"),
        (["run", "milk"], "invalid choice: 'milk'"),
        (["run", "mil", "--seeds", "0"], "expected a number >= 1"),
        (["run", "mil", "--seeds", "x"], "--seeds"),
        (["run", "mil", "--folds", "7"], "fold"),
        (["run", "mil", "--workers", "0"], "expected a number >= 1"),
        (["run", "mil", "--timeout", "0"], "expected a number >= 1"),
        (["run", "mil", "--set", "epochs"], "expected NAME=VALUE"),
        (["run", "mil", "--set", "epoch=3"], "settings: expected names among"),
        (["run", "mil", "--set", "epochs=three"], "epochs"),
        (["run", "mil", "--set", 'pool={"bogus": 1}'], "bogus"),
        (["run", "mil", "--set", "pool=3"], "pool"),
        (["run", "mil", "--set", "lr=NaN"], "lr"),
        (["run", "mil", "--dataset", ""], "dataset"),
        (["run", "mil", "--pooling", ""], "pooling"),
        (["sweep", "no-such.toml"], "no-such.toml"),
        (["table", "mil", "--metric", "beauty"], "invalid choice: 'beauty'"),
        (["table", "mil", "--format", "html"], "invalid choice: 'html'"),
    ],
)
def test_wrong_arguments(tmp_path, capsys, monkeypatch, argv, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "uotpool_experiments.cli.execute.LocalExecutor", lambda *given: pytest.fail("it started")
    )
    code, out, err = call(capsys, *argv)
    assert code == 2
    assert message in err
    assert "Traceback" not in err
    assert out == ""
    assert not any(tmp_path.rglob("*.sqlite"))


def test_a_store_that_is_not_there(tmp_path, capsys):
    code, _, err = call(capsys, "table", "mil", "--store", tmp_path / "none.sqlite")
    assert code == 2
    assert "none.sqlite, which does not exist" in err
    assert not (tmp_path / "none.sqlite").exists()
    write(tmp_path / "text.sqlite", "some text, which is no database\n" * 50)
    code, _, err = call(capsys, "table", "mil", "--store", tmp_path / "text.sqlite")
    assert code == 2
    assert "expected a run store of uotpool" in err


@pytest.mark.parametrize(
    "argv",
    [
        ["--kind", "comparison", "--pooling", "meen"],
        ["--kind", "comparison", "--pooling", "gem"],  # a real one, without runs
        ["--dataset", "nonsense"],
        ["--set", "epochs=77"],
    ],
)
def test_a_table_of_what_is_not_there_is_an_error(filled, capsys, argv):
    code, out, err = call(capsys, *TABLE, "--store", filled, *argv)
    assert code == 2
    assert out == ""
    assert err.startswith("uotpool table: error: ")


@pytest.mark.parametrize("kind", ["results", "comparison", "optimism"])
def test_a_table_of_a_protocol_without_runs_is_an_error(store, capsys, kind):
    store.save(mil_spec({}), fingerprint("mil", "mean"), Result({"accuracy": 1.0, "majority": 0.5}), FACTS)
    argv = ["table", "mil", "--protocol", "paper", "--pooling", "mean", "--kind", kind, "--store", store.path]
    code, out, err = call(capsys, *argv)
    assert code == 2
    assert out == ""
    assert "no " in err


def test_a_second_sweep_on_a_store_is_refused_with_a_message(store, capsys):
    with store.writing():
        argv = ["run", "mil", "--pooling", "mean", "--folds", "1", "--set", "epochs=1", "--store", store.path]
        code, _, err = call(capsys, *argv, "--workers", "1")
    assert code in (1, 2)
    assert "another sweep is writing" in err
    assert store.path.name in err
    assert store.rows() == []


# ---------------------------------------------------------------------------------------------------------
# without the packages of the extra

BLOCKED = """
import sys
for name in {blocked!r}:
    sys.modules[name] = None
from uotpool.cli import main
for argv in (["info"], ["run", "mil", "--dataset", "digits"], ["sweep", "a.toml"], ["datasets"]):
    print("->", *argv, flush=True)
    try:
        main(argv)
    except SystemExit as exit:
        print("code", exit.code, flush=True)
"""


def test_without_a_package_that_it_needs_info_works_and_the_others_name_it(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED.format(blocked=("rich", "sklearn", "scipy"))],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    info, *others = re.split(r"^-> .*\n", done.stdout, flags=re.MULTILINE)[1:]
    assert info.startswith("uotpool ")
    assert others == ["code 1\n"] * 3
    assert done.stderr.splitlines() == [
        f"uotpool {command}: error: needs rich: pip install --upgrade uotpool-experiments"
        for command in ("run", "sweep", "datasets")
    ]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("sweep",), "a TOML file"),
        (("run", "mil", "--done"), "a CSV file that uotpool export wrote"),
        (("run", "mil", "--like"), "a CSV file that uotpool export wrote"),
    ],
    ids=["sweep", "done", "like"],
)
def test_a_named_file_that_cannot_be_read_is_said_in_one_line(words, expected, tmp_path, capsys):
    for path, got in ((tmp_path / "nope", "no such file"), (tmp_path, "a folder")):
        code, _, err = call(capsys, *words, path, "--store", tmp_path / "runs.sqlite")
        assert (code, err) == (2, f"uotpool {words[0]}: error: {path}: expected {expected}, got {got}\n")
