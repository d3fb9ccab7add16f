"""Every task defines what it must, and a new one needs only its module and its line in the list."""

from __future__ import annotations

import pytest
from uotpool_experiments.analysis import published_results
from uotpool_experiments.cli import execute as execute_command
from uotpool_experiments.runs import sweep
from uotpool_experiments.runs.executors import Started
from uotpool_experiments.runs.executors.base import quietly
from uotpool_experiments.tasks import SHORT_OPTIONS, TASKS, load
from uotpool_experiments.tasks.poolings import PAPER, UOTP
from uotpool_experiments.tasks.protocols import FOLDS
from uotpool_experiments.tasks.spec import RunSpec

from experiments.tests.helpers import call
from uotpool.zoo import ENTRIES


@pytest.mark.parametrize("name", TASKS)
def test_what_a_task_says_is_consistent(name):
    task = load(name)
    assert task.title
    if not task.optimism:  # then no protocol is optimistic
        with pytest.raises(ValueError, match="protocol: expected fair, as the paper has no"):
            task.check_protocol("paper", {})
    task.check_dataset(task.default_dataset)
    assert set(task.poolings()) <= set(ENTRIES)
    known = set(vars(task.settings)["__dataclass_fields__"])
    assert {*task.pooling_settings, *task.paper_settings, *SHORT_OPTIONS.get(name, {})} <= known
    assert task.clean_settings("mean", {}) == {}
    assert task.clean_settings("mean", vars(task.settings())) == {}
    task.check_protocol("fair", {})
    assert task.folds("fair", {}) in (1, FOLDS)
    spec = RunSpec(name, task.default_dataset, "mean", "fair", 0, 0)
    assert task.stands_alone(spec) == (task.folds("fair", {}) == 1)
    assert task.epochs(spec) >= 1


def test_an_unknown_task_is_refused():
    for name in ("milk", ["mil"], None):
        with pytest.raises(ValueError, match=r"task: expected one of .*'mil'"):
            load(name)


def test_the_groups_of_poolings():
    """The order of the paper's poolings is that of its Table 1, which has all of them on graphs."""
    table = dict.fromkeys(name for name, dataset in published_results.TABLE_1 if dataset == "NCI1")
    assert tuple(table) == PAPER
    assert set(UOTP) <= set(ENTRIES)


class Here:
    """An executor in this process, where the toy is in the list of tasks."""

    workers = 1

    def __init__(self, *given):
        pass

    def run(self, specs):
        for spec in specs:
            yield Started(spec)
            yield from quietly((spec,))

    def close(self):
        pass


def test_a_new_task_runs_and_is_shown(tmp_path, capsys, monkeypatch):
    """The toy of `helpers` is a class and a line in TASKS: commands, plans, tables and reports know it."""
    monkeypatch.setattr(execute_command, "LocalExecutor", Here)
    store = tmp_path / "runs.sqlite"
    code, out, err = call(capsys, "run", "toy", "--pooling", "mean", "--folds", "2", "--store", store)
    assert code == 0, err
    assert "2 runs to do" in err
    assert "100.00" in out
    code, out, err = call(capsys, "table", "toy", "--format", "csv", "--store", store)
    assert code == 0, err
    assert out.startswith("pooling,none,mean rank\nmean,100.00 ± 0.00,")
    code, out, err = call(capsys, "report", store, "--output", tmp_path / "report.html")
    assert code == 0, err
    assert load("toy").title in (tmp_path / "report.html").read_text()
    assert len(sweep.expand("toy", "none", "mean")) == FOLDS
