"""Train epoch by epoch, so that a restarted process continues with the same numbers.

Every epoch has seeds of its own, made from its number, so no generator's state has to be kept.
The learning rate is computed from the number of the step.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from uotpool.nn.groups import param_groups
from uotpool_experiments.tasks import checkpoints
from uotpool_experiments.tasks.image import parallel
from uotpool_experiments.tasks.image.batches import DRAWS, Source
from uotpool_experiments.tasks.spec import Report

cross_entropy = nn.functional.cross_entropy
TEST_BATCH = 256


@dataclass(frozen=True)
class Phase:
    """The settings of a phase of training."""

    name: str
    epochs: int
    batch: int
    lr: float
    momentum: float = 0.9
    weight_decay: float = 0.0
    pool_lr: float = 1.0
    cosine: bool = True
    adam: bool = False
    augment: bool = False
    precision: str = "float32"

    def factor(self, step: int, steps: int) -> float:
        """Return the factor of the learning rate at a step of all steps."""
        return 0.5 * (1 + math.cos(math.pi * step / steps)) if self.cosine else 1.0


@dataclass
class Trained:
    """The results of training beside the model."""

    curves: list[dict[str, float]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)  # of each epoch; CPU time where the CPU does the work
    diverged: bool = False
    best_epoch: int = 0  # by test accuracy, where that was asked for
    best_accuracy: float = -1.0
    best: dict[str, Tensor] | None = None


def train(
    model: nn.Module,
    learning: Sequence[nn.Module],
    source: Source,
    phase: Phase,
    seed: Callable[[str], int],
    path: Path,
    report: Report,
    accuracy: Callable[[], float] | None = None,
) -> Trained:
    """Train the parameters that require gradients, from the state in the file `path` if there is one.

    Args:
        model: maps inputs of `source` to logits. It is left at the last epoch with a finite loss.
        learning: the modules in training mode; the rest is in eval mode.
        source: the inputs and labels.
        phase: the settings.
        seed: returns a seed for each use.
        path: the file that gets the state after each epoch.
        report: is told of the progress.
        accuracy: returns the accuracy on the test images, by which the best epoch is remembered;
            None to look at no test image.
    """
    optimizer = make_optimizer(model, phase)
    trained = Trained()
    state = parallel.from_first(lambda: checkpoints.read(path))
    if state is not None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        trained = Trained(**state["trained"])
    runner = parallel.wrapped(model)
    on_cpu = next(model.parameters()).device.type == "cpu"
    clock = time.process_time if on_cpu else time.perf_counter
    report(len(trained.curves), phase.epochs)
    while len(trained.curves) < phase.epochs and not trained.diverged:
        before = copy.deepcopy(model.state_dict())
        epoch, start = len(trained.curves) + 1, clock()
        model.eval()
        for module in learning:
            module.train()
        loss = _epoch(runner, optimizer, source, phase, epoch, seed)
        parallel.share_buffers(model)  # before anything is predicted, kept or trained with them
        if not math.isfinite(loss):
            model.load_state_dict(before)
            trained.diverged = True
            break
        trained.curves.append({"train_loss": loss})
        trained.seconds.append(clock() - start)
        if accuracy is not None:
            now = accuracy()
            trained.curves[-1]["test_accuracy"] = now
            if now > trained.best_accuracy:
                trained.best_epoch, trained.best_accuracy = epoch, now
                trained.best = copy.deepcopy(model.state_dict())
        if parallel.rank() == 0:
            found = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            checkpoints.write(path, found | {"trained": vars(trained)})
        report(epoch, phase.epochs)
    return trained


def make_optimizer(model: nn.Module, phase: Phase) -> torch.optim.Optimizer:
    """Make an optimiser of the parameters that require gradients.

    The weights of a UOT pooling have no decay.
    """
    groups = param_groups(model, phase.weight_decay, lr=phase.lr * phase.pool_lr)
    for group in groups:
        group["params"] = [p for p in group["params"] if p.requires_grad]
    groups = [group for group in groups if group["params"]]
    made: torch.optim.Optimizer
    if phase.adam:
        made = torch.optim.Adam(groups, lr=phase.lr)
    else:
        made = torch.optim.SGD(groups, lr=phase.lr, momentum=phase.momentum)
    for group in made.param_groups:
        group["first_lr"] = group["lr"]
    return made


def _epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    source: Source,
    phase: Phase,
    epoch: int,
    seed: Callable[[str], int],
) -> float:
    """Train for one pass over the images, without a smaller last batch; return the mean loss."""
    what = f"{phase.name} {epoch}"
    order = torch.Generator().manual_seed(seed(f"order {what}"))
    change = torch.Generator().manual_seed(seed(f"change {what}"))
    torch.manual_seed(seed(f"dropout {what}") + parallel.rank())
    batches = torch.randperm(len(source.y), generator=order).split(phase.batch)
    if len(batches) > 1 and len(batches[-1]) < phase.batch:
        batches = batches[:-1]
    total, count = 0.0, 0
    for i, chosen in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = group["first_lr"] * phase.factor(
                (epoch - 1) * len(batches) + i, phase.epochs * len(batches)
            )
        draws = torch.rand(len(chosen), DRAWS, generator=change) if phase.augment else None
        own = parallel.mine(chosen)
        x = source.batch(own, None if draws is None else parallel.mine(draws))
        with autocast(x, phase.precision):
            logits = model(x)
        losses = cross_entropy(logits.float(), source.y[own].to(x.device), reduction="sum")
        optimizer.zero_grad()
        # Gradients are averaged over the processes, so this gives the mean over the batch of all processes.
        (losses * (parallel.world() / len(chosen))).backward()
        optimizer.step()
        total += float(losses.detach())
        count += len(chosen)
    return float(parallel.total(torch.tensor(total, dtype=torch.float64))) / count


def autocast(x: Tensor, precision: str) -> AbstractContextManager[Any]:
    return torch.autocast(x.device.type, torch.bfloat16) if precision == "bfloat16" else nullcontext()


@torch.no_grad()
def predict(model: nn.Module, source: Source, precision: str = "float32") -> Tensor:
    """Return the logits of all images, on the CPU."""
    model.eval()
    rows = []
    own = parallel.mine(torch.arange(len(source.y)))
    for chosen in own.split(TEST_BATCH):
        x = source.batch(chosen)
        with autocast(x, precision):
            rows.append(model(x).float().cpu())
    found = torch.cat(rows)
    if parallel.world() == 1:
        return found
    everything = torch.zeros(len(source.y), found.shape[1])
    everything[own] = found
    return parallel.total(everything)
