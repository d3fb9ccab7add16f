"""One run of a GIN that learns from labels: encoder, pooling and linear head. A hold-out chooses the epoch."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from uotpool_experiments.datasets.graphs import Graphs
from uotpool_experiments.tasks.graph.batches import Batch, Batches
from uotpool_experiments.tasks.graph.encoder import GraphEncoder
from uotpool_experiments.tasks.graph.metrics import class_metrics, majority, plan_facts, some_of
from uotpool_experiments.tasks.graph.models import LARGE_BATCH, make_batches, make_encoder
from uotpool_experiments.tasks.graph.resume import Checkpoint
from uotpool_experiments.tasks.graph.settings import Settings
from uotpool_experiments.tasks.protocols import split
from uotpool_experiments.tasks.seeding import seed_for
from uotpool_experiments.tasks.spec import Report, Result, RunSpec

cross_entropy = nn.functional.cross_entropy


class GraphClassifier(nn.Module):
    """Returns the logits of the classes."""

    def __init__(self, encoder: GraphEncoder, classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(encoder.pool.out_dim, classes)

    def forward(self, batch: Batch) -> Tensor:
        out: Tensor = self.head(self.encoder(batch))
        return out


def run(spec: RunSpec, settings: Settings, graphs: Graphs, report: Report, kept: Checkpoint) -> Result:
    """Train, keep the best epoch, and test. A killed run continues where it was."""
    parts = split(graphs.y.numpy(), spec.protocol, spec.fold, spec.seed)
    train, validation, test = (
        make_batches(settings, graphs.subset(part)) for part in (parts.train, parts.validation, parts.test)
    )
    model = make_model(spec, settings, train)
    torch.manual_seed(seed_for(spec, "training"))
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.lr, fused=True)
    order = torch.Generator().manual_seed(seed_for(spec, "order"))
    epochs = settings.epochs_on(spec.dataset)
    best, chosen, state = math.inf, 0, copy.deepcopy(model.state_dict())
    evaluated = list(validation.in_order(LARGE_BATCH))
    shown = validation.batch(some_of(validation.graphs))
    curves: list[dict[str, Any]] = []
    diverged = False
    before = kept.read()
    if before is not None:
        model.load_state_dict(before["model"])
        optimizer.load_state_dict(before["optimizer"])
        order.set_state(before["order"])
        torch.set_rng_state(before["noise"])
        best, chosen, state = before["best"], before["chosen"], before["state"]
        curves = before["curves"]
    report(len(curves), epochs)
    while len(curves) < epochs:
        train_loss = train_epoch(model, optimizer, train, settings, order)
        logits = predict(model, evaluated)
        loss = float(cross_entropy(logits, validation.graphs.y))
        diverged = not math.isfinite(train_loss + loss)
        if diverged:
            break
        accuracy = float((logits.argmax(1) == validation.graphs.y).float().mean())
        losses = {"train_loss": train_loss, "validation_loss": loss, "validation_accuracy": accuracy}
        curves.append({"epoch": len(curves) + 1} | losses | plan_facts(model.encoder, shown))
        if loss < best:
            best, chosen, state = loss, len(curves), copy.deepcopy(model.state_dict())
        if kept.is_due():
            kept.write(
                {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "order": order.get_state(),
                    "noise": torch.get_rng_state(),
                    "best": best,
                    "chosen": chosen,
                    "state": state,
                    "curves": curves,
                }
            )
        report(len(curves), epochs)
    model.load_state_dict(state)
    said = predict(model, test.in_order(LARGE_BATCH)).argmax(1).numpy()
    train_y = train.graphs.y.numpy()
    if chosen == 0:
        said = np.full(len(test.graphs), majority(train_y))
    return Result(
        metrics=class_metrics(said, test.graphs.y.numpy(), train_y),
        epochs=curves,
        details={
            "epoch": chosen,
            "validation_loss": best if chosen else None,
            "diverged": int(diverged),
            "split": parts.packed(len(graphs)),
        }
        | (plan_facts(model.encoder, shown) if chosen else {}),
        parameters=sum(p.numel() for p in model.parameters()),
    )


def make_model(spec: RunSpec, settings: Settings, train: Batches) -> GraphClassifier:
    encoder = make_encoder(spec, settings, train)
    torch.manual_seed(seed_for(spec, "head"))
    return GraphClassifier(encoder, train.graphs.num_classes)


def train_epoch(
    model: GraphClassifier,
    optimizer: torch.optim.Optimizer,
    train: Batches,
    settings: Settings,
    order: torch.Generator,
) -> float:
    """Train for one pass over the graphs; return the mean loss."""
    model.train()
    total = 0.0
    for batch in train.shuffled(settings.batch, order):
        loss = cross_entropy(model(batch), batch.y)
        optimizer.zero_grad()
        (loss + model.encoder.pool.aux_loss).backward()
        optimizer.step()
        total += float(loss.detach()) * len(batch)
    return total / len(train.graphs)


@torch.no_grad()
def predict(model: GraphClassifier, batches: Iterable[Batch]) -> Tensor:
    model.eval()
    rows = []
    for batch in batches:
        rows.append(model(batch))
        batch.forget_edges()
    return torch.cat(rows)
