"""One run of a GIN that learns from labels: encoder, pooling, linear head; a hold-out chooses the epoch."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from uotpool.experiments.data.graphs import Graphs
from uotpool.experiments.graph.batches import Batch, in_order, shuffled
from uotpool.experiments.graph.encoder import GraphEncoder
from uotpool.experiments.graph.metrics import class_metrics, majority, plan_facts, some_of
from uotpool.experiments.graph.models import LARGE_BATCH, make_encoder
from uotpool.experiments.graph.settings import Settings
from uotpool.experiments.protocols import split
from uotpool.experiments.spec import Report, Result, RunSpec
from uotpool.experiments.training import seed_for

cross_entropy = nn.functional.cross_entropy


class GraphClassifier(nn.Module):
    """Logits of the classes."""

    def __init__(self, encoder: GraphEncoder, classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(encoder.pool.out_dim, classes)

    def forward(self, batch: Batch) -> Tensor:
        out: Tensor = self.head(self.encoder(batch))
        return out


def run(spec: RunSpec, settings: Settings, graphs: Graphs, report: Report) -> Result:
    parts = split(graphs.y.numpy(), spec.protocol, spec.fold, spec.seed)
    train, validation, test = (graphs.subset(part) for part in (parts.train, parts.validation, parts.test))
    model = make_model(spec, settings, train)
    torch.manual_seed(seed_for(spec, "training"))
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.lr, fused=True)
    order = torch.Generator().manual_seed(seed_for(spec, "order"))
    epochs = settings.epochs_on(spec.dataset)
    best, chosen, state = math.inf, 0, copy.deepcopy(model.state_dict())
    shown = Batch.of(validation, settings.features, some_of(validation))
    curves: list[dict[str, Any]] = []
    diverged = False
    for epoch in range(1, epochs + 1):
        train_loss = train_epoch(model, optimizer, train, settings, order)
        logits = predict(model, validation, settings.features)
        loss = float(cross_entropy(logits, validation.y))
        diverged = not math.isfinite(train_loss + loss)
        if diverged:
            break
        accuracy = float((logits.argmax(1) == validation.y).float().mean())
        losses = {"train_loss": train_loss, "validation_loss": loss, "validation_accuracy": accuracy}
        curves.append(losses | plan_facts(model.encoder, shown))
        if loss < best:
            best, chosen, state = loss, epoch, copy.deepcopy(model.state_dict())
        report(epoch, epochs)
    model.load_state_dict(state)
    said = predict(model, test, settings.features).argmax(1).numpy()
    train_y = train.y.numpy()
    if chosen == 0:
        said = np.full(len(test), majority(train_y))
    return Result(
        metrics=class_metrics(said, test.y.numpy(), train_y),
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


def make_model(spec: RunSpec, settings: Settings, train: Graphs) -> GraphClassifier:
    encoder = make_encoder(spec, settings, train)
    torch.manual_seed(seed_for(spec, "head"))
    return GraphClassifier(encoder, train.num_classes)


def train_epoch(
    model: GraphClassifier,
    optimizer: torch.optim.Optimizer,
    train: Graphs,
    settings: Settings,
    order: torch.Generator,
) -> float:
    """One pass over the graphs; the mean loss."""
    model.train()
    total = 0.0
    for batch in shuffled(train, settings.features, settings.batch, order):
        loss = cross_entropy(model(batch), batch.y)
        optimizer.zero_grad()
        (loss + model.encoder.pool.aux_loss).backward()
        optimizer.step()
        total += float(loss.detach()) * len(batch)
    return total / len(train)


@torch.no_grad()
def predict(model: GraphClassifier, graphs: Graphs, kind: str) -> Tensor:
    model.eval()
    return torch.cat([model(batch) for batch in in_order(graphs, kind, LARGE_BATCH)])
