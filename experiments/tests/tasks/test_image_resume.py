"""A killed run goes on with the numbers of one that was not killed; several processes train like one."""

from __future__ import annotations

import copy
import os
import signal
import socket
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.multiprocessing.spawn import start_processes
from uotpool_experiments.datasets import images
from uotpool_experiments.runs.store import Store
from uotpool_experiments.tasks import checkpoints
from uotpool_experiments.tasks.image import features, loop, models, parallel, pools, recipes
from uotpool_experiments.tasks.image.settings import Settings
from uotpool_experiments.tasks.image.task import ImageClassification
from uotpool_experiments.tasks.spec import Result, RunSpec

from experiments.tests.forked import CONTEXT, METHOD
from experiments.tests.helpers import numbers, quiet
from tests import tolerances as tol

pytest.importorskip("transformers")

SETTINGS = {"epochs": 3, "pool_epochs": 3, "size": 8, "train_size": 200, "batch": 50, "batch2": 50, "lr2": 0.1}
FAST_OPTIONS = ["--set", "size=8", "--set", "train_size=200", "--set", "batch=64", "--epochs", "2"]


def spec(recipe: str, protocol: str) -> RunSpec:
    settings = SETTINGS | ({"recipe": recipe} if recipe != "scratch" else {})
    return RunSpec.make(
        settings, task="image", dataset="digits", pooling="uotp-sinkhorn", protocol=protocol, fold=0, seed=0
    )


def run(recipe: str, protocol: str) -> Result:
    result = ImageClassification().run(spec(recipe, protocol), quiet)
    result.details.pop("seconds_per_epoch")
    return result


def run_and_die(recipe: str, protocol: str, after: int, folder: str) -> None:
    """Killed in the middle of an epoch, when `after` of them are done."""
    os.environ["UOTPOOL_CHECKPOINTS"] = folder
    torch.set_num_threads(1)
    done = 0
    real = loop.cross_entropy

    def report(epochs: int, total: int) -> None:
        nonlocal done
        done = epochs

    def deadly(*args: Any, **options: Any) -> Any:
        if done == after:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **options)

    loop.cross_entropy = deadly
    ImageClassification().run(spec(recipe, protocol), report)


@pytest.mark.parametrize(
    ("recipe", "protocol", "after"),
    [("scratch", "paper", 2), ("two-stage", "fair", 1), ("two-stage", "fair", 5)],
)
def test_a_killed_run_goes_on(tmp_path, monkeypatch, recipe, protocol, after):
    monkeypatch.setattr(features, "_kept", {})
    monkeypatch.setenv("UOTPOOL_CHECKPOINTS", str(tmp_path / "whole"))
    whole = run(recipe, protocol)
    folder = tmp_path / "killed"
    killed = CONTEXT.Process(target=run_and_die, args=(recipe, protocol, after, str(folder)))
    killed.start()
    killed.join(300)
    assert killed.exitcode == -signal.SIGKILL
    monkeypatch.setenv("UOTPOOL_CHECKPOINTS", str(folder))
    monkeypatch.setattr(features, "_kept", {})
    states = [checkpoints.read(path) for path in folder.glob("*.pt") if "stage" not in path.name or after == 1]
    assert [len(state["trained"]["curves"]) for state in states if state] == [after % 3 or 3]
    epochs = []
    real = loop._epoch
    monkeypatch.setattr(loop, "_epoch", lambda *a: (epochs.append(a[4]), real(*a))[1])
    assert numbers(run(recipe, protocol)) == numbers(whole)  # bit for bit
    left = {("scratch", 2): [3], ("two-stage", 1): [2, 3, 1, 2, 3], ("two-stage", 5): [3]}
    assert epochs == left[recipe, after]
    assert [path.name for path in folder.glob("*.pt") if not path.name.startswith("stage")] == []


def test_two_processes_do_not_train_stage_one_twice(tmp_path):
    """The second waits for the first, and takes what it made."""
    counts = [tmp_path / "0", tmp_path / "1"]
    started = [CONTEXT.Process(target=count_epochs, args=(path, str(tmp_path / "both"))) for path in counts]
    for process in started:
        process.start()
    for process in started:
        process.join(300)
        assert process.exitcode == 0
    assert sorted(int(path.read_text()) for path in counts) == [3, 6]


def count_epochs(path: Path, folder: str) -> None:
    os.environ["UOTPOOL_CHECKPOINTS"] = folder
    torch.set_num_threads(1)
    count = 0
    real = loop._epoch

    def counted(*args: Any) -> float:
        nonlocal count
        count += 1
        return real(*args)

    loop._epoch = counted  # type: ignore[assignment]
    run("two-stage", "fair" if path.name == "0" else "paper")
    path.write_text(str(count))


# ---------------------------------------------------------------------------------------------------------
# several processes

needs_gloo = pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch has no gloo backend")
PHASE = loop.Phase("x", epochs=2, batch=64, lr=0.05, weight_decay=1e-3, augment=True)


class Made:
    """Inputs of a pool, moved by the random numbers of a batch."""

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(0)
        self.x = torch.randn(150, 64, 3, 3, generator=draw)
        self.y = torch.arange(150) % 10

    def batch(self, chosen: torch.Tensor, draws: torch.Tensor | None = None) -> torch.Tensor:
        moved = 0.0 if draws is None else draws.mean(1)[:, None, None, None]
        return self.x[chosen] + moved


def seed(what: str) -> int:
    return zlib.crc32(what.encode())


def train_tail(folder: Path) -> dict[str, Any]:
    """Pool and head, in which no batch norm sees how many processes there are; then with one before them."""
    torch.manual_seed(0)
    network = models.make("resnet-tiny", 1, 10, 8, small_stem=True, trained=False, weights=None)
    network.put(pools.make("uotp-badmm-e", 64, {}, "mean"))
    model, source = models.Tail(network), Made()
    trained = loop.train(model, [model], source, PHASE, seed, folder / "x.pt", quiet)
    found = {"curves": trained.curves, "model": model.state_dict(), "logits": loop.predict(model, source)}
    normed = torch.nn.Sequential(torch.nn.BatchNorm2d(64), copy.deepcopy(model))
    loop.train(normed, [normed], source, PHASE, seed, folder / "normed.pt", quiet)
    return found | {"statistics": dict(normed[0].named_buffers())}


def process(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2
    )
    assert len(parallel.mine(torch.arange(64))) == 32
    torch.save(train_tail(Path(folder)), f"{folder}/{rank}.out")
    torch.distributed.destroy_process_group()


@needs_gloo
def test_two_processes_train_like_one(tmp_path):
    """2 x 32 images give what 64 give."""
    together(process, str(tmp_path))
    first, second = (torch.load(tmp_path / f"{rank}.out") for rank in range(2))
    (tmp_path / "alone").mkdir()
    alone = train_tail(tmp_path / "alone")
    for name, value in alone["model"].items():
        assert torch.equal(first["model"][name], second["model"][name])
        assert torch.allclose(first["model"][name], value, rtol=1e-4, atol=tol.F32), name
    assert torch.equal(first["logits"], second["logits"])
    for name, value in first["statistics"].items():  # each saw its half of a batch
        assert torch.equal(value, second["statistics"][name])
    for ours, theirs in zip(alone["curves"], first["curves"], strict=True):
        assert ours["train_loss"] == pytest.approx(theirs["train_loss"], rel=1e-5)


def torchrun(rank: int, folder: str, port: int, poolings: str) -> None:
    """As torchrun starts it."""
    from uotpool import cli

    place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_PORT": str(port)}
    os.environ |= place | {
        "MASTER_ADDR": "127.0.0.1",
        "TORCHELASTIC_RUN_ID": "x",
        "UOTPOOL_CHECKPOINTS": folder,
    }
    options = ["--store", f"{folder}/runs.sqlite", "--pooling", poolings, "--recipe", "two-stage"]
    with open(f"{folder}/{rank}.txt", "w") as sys.stdout, pytest.raises(SystemExit) as ended:
        cli.main(["run", "image", *options, *FAST_OPTIONS])
    assert ended.value.code == 0


def together(function: Any, *arguments: Any) -> None:
    """The function in two processes, each with its number before the arguments."""
    start_processes(function, arguments, nprocs=2, start_method=METHOD)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@needs_gloo
def test_the_command_under_torchrun(tmp_path):
    """The first process keeps the runs and shows them; the same command again finds them done."""
    for poolings in ("mean,uotp-sinkhorn", "uotp-sinkhorn"):
        together(torchrun, str(tmp_path), free_port(), poolings)
        assert "uotp-sinkhorn" in (tmp_path / "0.txt").read_text()
        assert (tmp_path / "1.txt").read_text() == ""
    rows = Store(tmp_path / "runs.sqlite", readonly=True).rows()
    assert [row.spec.pooling for row in rows] == ["mean", "uotp-sinkhorn"]
    assert rows[1].details["accuracy_swapped"] == rows[1].details["accuracy_before"]


def fail_alone(rank: int, folder: str, port: int) -> None:
    """The second process has a picture that it cannot read."""
    real = loop._epoch

    def epoch(*args: Any) -> float:
        if rank == 1:
            raise OSError("cannot read it")
        return real(*args)

    loop._epoch = epoch  # type: ignore[assignment]
    sys.stderr = open(f"{folder}/{rank}.err", "w")  # noqa: SIM115 - until the process ends
    torchrun(rank, folder, port, "mean")


@needs_gloo
def test_a_process_that_fails_alone_ends_all(tmp_path):
    """The first waits for it in the middle of a step."""
    with pytest.raises(torch.multiprocessing.ProcessExitedException, match="exit code 1"):
        together(fail_alone, str(tmp_path), free_port())
    said = (tmp_path / "1.err").read_text()
    assert said.startswith("process 1 of 2: image/digits mean")
    assert "cannot read it" in said


def test_a_state_of_other_processes_is_not_taken_up(monkeypatch):
    """Nor one of other weights or files: what decides stage one is in its name."""
    paths = []
    for count in (1, 2):
        monkeypatch.setattr(parallel, "world", lambda count=count: count)
        spec = RunSpec("image", "digits", "mean", "fair", 0, 0)
        job = recipes.Job.of(spec, Settings(), images.load("digits"), quiet)
        paths.append(job.path("two"))
    assert paths[0] != paths[1]
    assert paths[0].name.split(".")[:2] == paths[1].name.split(".")[:2]  # the same run
