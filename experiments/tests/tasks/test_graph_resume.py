"""A run on graphs that is killed goes on with the numbers of one that was not."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import torch
from uotpool_experiments.tasks import checkpoints
from uotpool_experiments.tasks.graph import contrast, resume, supervised, task
from uotpool_experiments.tasks.graph.task import GraphClassification
from uotpool_experiments.tasks.spec import Result, RunSpec

from experiments.tests.forked import CONTEXT
from experiments.tests.helpers import numbers, quiet
from experiments.tests.tasks.test_graph_task import rings_and_stars

EPOCHS = 4
CASES = [
    ("paper", "uotp-sinkhorn", {}),
    ("fair", "mean", {"dropout": 0.5}),
    ("fair", "attention", {"transductive": True}),
    ("fair", "uotp-badmm-e", {"backbone": "gin", "dropout": 0.2}),
]


def spec(protocol: str, pooling: str, settings: dict[str, Any]) -> RunSpec:
    choices = {"task": "graph", "dataset": "rings", "pooling": pooling, "protocol": protocol}
    return RunSpec.make({"epochs": EPOCHS} | settings, **choices, fold=0, seed=0)


def run(protocol: str, pooling: str, settings: dict[str, Any]) -> Result:
    return GraphClassification().run(spec(protocol, pooling, settings), quiet)


def run_and_die(protocol: str, pooling: str, settings: dict[str, Any], after: int, folder: str) -> None:
    """Killed in the middle of an epoch, when `after` of them are done."""
    os.environ["UOTPOOL_CHECKPOINTS"] = folder
    torch.set_num_threads(1)
    resume.SECONDS = 0.0
    task._graphs = lambda name: rings_and_stars()  # type: ignore[assignment]
    done = 0

    def report(epochs: int, total: int) -> None:
        nonlocal done
        done = epochs

    real_step, real_loss = contrast.Trainer.step, supervised.cross_entropy

    def dying(real: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            found = real(*args, **options)
            if done == after:
                os.kill(os.getpid(), signal.SIGKILL)
            return found

        return call

    contrast.Trainer.step = dying(real_step)  # type: ignore[method-assign]
    supervised.cross_entropy = dying(real_loss)
    GraphClassification().run(spec(protocol, pooling, settings), report)


@pytest.mark.parametrize(("protocol", "pooling", "settings"), CASES)
def test_a_killed_run_goes_on(tmp_path, monkeypatch, protocol, pooling, settings):
    monkeypatch.setattr(task, "_graphs", lambda name: rings_and_stars())
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        whole = run(protocol, pooling, settings)
        after, folder = 2, tmp_path / "killed"
        arguments = (protocol, pooling, settings, after, str(folder))
        killed = CONTEXT.Process(target=run_and_die, args=arguments)
        killed.start()
        killed.join(300)
        assert killed.exitcode == -signal.SIGKILL
        (path,) = folder.glob("*.pt")
        state = checkpoints.read(path)
        assert state is not None
        assert len(state["curves"]) == after
        monkeypatch.setenv("UOTPOOL_CHECKPOINTS", str(folder))
        seen: list[int] = []
        found = GraphClassification().run(
            spec(protocol, pooling, settings), lambda done, total: seen.append(done)
        )
    finally:
        torch.set_num_threads(threads)
    assert seen == [2, 3, 4]
    assert numbers(found) == numbers(whole)  # bit for bit
    assert list(folder.iterdir()) == []


def test_a_short_run_writes_no_state(tmp_path, monkeypatch):
    monkeypatch.setattr(task, "_graphs", lambda name: rings_and_stars())
    monkeypatch.setattr(checkpoints, "write", lambda *a: pytest.fail("a state of a run of seconds"))
    run("paper", "mean", {})


def test_a_state_of_another_run_is_not_taken_up(monkeypatch):
    """What decides the numbers is in its name: choices, code, version of torch."""
    first = spec("paper", "mean", {})
    resume.Checkpoint(first).write({"a": 1})
    assert resume.Checkpoint(first).read() == {"a": 1}
    assert resume.Checkpoint(spec("paper", "mean", {"lr": 0.1})).read() is None
    assert resume.Checkpoint(spec("paper", "max", {})).read() is None
    with monkeypatch.context() as patch:
        patch.setattr(resume, "fingerprint", lambda *names: "other code")
        assert resume.Checkpoint(first).read() is None
    with monkeypatch.context() as patch:
        patch.setattr(torch, "__version__", "0.1")
        assert resume.Checkpoint(first).read() is None
