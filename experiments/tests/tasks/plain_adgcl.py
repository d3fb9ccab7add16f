"""AD-GCL in the most obvious way, for comparison: a row for each node, gather and scatter for each edge."""

from __future__ import annotations

import copy
import dataclasses

import torch
from torch import Tensor, nn
from uotpool_experiments.tasks.graph.batches import Batch
from uotpool_experiments.tasks.graph.contrast import (
    DROP_PENALTY,
    TEMPERATURE,
    Contrasted,
    Trainer,
    ViewLearner,
    gates,
)
from uotpool_experiments.tasks.graph.encoder import GIN


def in_dtype(batch: Batch, dtype: torch.dtype) -> Batch:
    """The same batch with features and counts of another precision."""
    found = copy.copy(batch)
    found.X = batch.X.to(dtype)
    counts = [count.to(dtype) for count in batch.merged.counts]
    found.merged = dataclasses.replace(batch.merged, X=batch.merged.X.to(dtype), counts=counts)
    return found


def gin(model: GIN, batch: Batch, weight: Tensor | None = None) -> Tensor:
    H = batch.X
    i, j = batch.edges.index
    for k, (mlp, norm) in enumerate(zip(model.mlps, model.norms, strict=True)):
        H = H.relu() if k > 0 else H
        messages = H[j] if weight is None else weight[:, None] * H[j]
        H = norm(mlp(H + torch.zeros_like(H).index_add(0, i, messages)))
    return H


def embedding(model: Contrasted, batch: Batch, weight: Tensor | None = None) -> Tensor:
    pool, H = model.encoder.pool, gin(model.encoder.gin, batch, weight)
    edges = {"edge_index": batch.edges.index.flip(0), "edge_weight": weight} if pool.needs_edges else {}
    found: Tensor = model.head(pool(H, ptr=batch.ptr, **edges))
    return found


def logits(view: ViewLearner, batch: Batch) -> Tensor:
    H = gin(view.gin, batch)
    i, j = batch.edges.index
    found: Tensor = view.out(view.ends(torch.cat([H[i], H[j]], dim=1)).relu()).squeeze(-1)
    return found


def contrast(Z: Tensor, V: Tensor) -> Tensor:
    similarity = nn.functional.cosine_similarity(Z[:, None], V[None], dim=-1) / TEMPERATURE
    own = similarity.diagonal()
    others = similarity.masked_fill(torch.eye(len(Z), dtype=torch.bool), -torch.inf)
    return ((others.logsumexp(0) - own) + (others.logsumexp(1) - own)).mean() / 2


def dropped(batch: Batch, weight: Tensor) -> Tensor:
    shares = [(1 - weight[batch.graph_of_edge == g]).mean() for g in range(len(batch))]
    return torch.stack([share for share in shares if not share.isnan()]).mean()


class PlainTrainer(Trainer):
    """The two turns of `Trainer`."""

    def _step_of_view(self, batch: Batch) -> float:
        self.view.train()
        self.model.eval()
        self.model.requires_grad_(False)
        weight = gates(logits(self.view, batch))
        share = dropped(batch, weight)
        Z, V = embedding(self.model, batch), embedding(self.model, batch, weight)
        loss = DROP_PENALTY * share - contrast(Z, V)
        self._view_optimizer.zero_grad()
        loss.backward()
        self._view_optimizer.step()
        self.model.requires_grad_(True)
        return float(share.detach())

    def _step_of_model(self, batch: Batch) -> float:
        self.model.train()
        self.view.eval()
        with torch.no_grad():
            weight = gates(logits(self.view, batch))
        loss = contrast(embedding(self.model, batch), embedding(self.model, batch, weight))
        self._optimizer.zero_grad()
        (loss + self.model.encoder.pool.aux_loss).backward()
        self._optimizer.step()
        return float(loss.detach())
