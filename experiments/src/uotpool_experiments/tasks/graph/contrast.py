"""AD-GCL (Suresh et al. 2021): contrastive learning against a learned dropping of edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from uotpool_experiments.tasks.graph.batches import Batch
from uotpool_experiments.tasks.graph.encoder import GIN, WIDTH, GraphEncoder, draw_linear

TEMPERATURE = 0.2  # of the contrast
DROP_PENALTY = 5.0
EDGE_WIDTH = 64
GATE_MARGIN = 1e-4  # keeps the noise of a gate off 0 and 1
LEARNING_RATE = 1e-3


class Contrasted(nn.Module):
    """An encoder with a projection head, which only training uses."""

    def __init__(self, encoder: GraphEncoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Sequential(nn.Linear(encoder.pool.out_dim, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        draw_linear(self.head)

    def forward(self, batch: Batch, weight: Tensor | None = None) -> Tensor:
        out: Tensor = self.head(self.encoder(batch, weight))
        return out


class ViewLearner(nn.Module):
    """Returns one logit per edge, from the embeddings of its ends by a GIN of its own. It pools nothing."""

    def __init__(self, gin: GIN) -> None:
        super().__init__()
        self.gin = gin
        self.ends = nn.Linear(2 * WIDTH, EDGE_WIDTH)
        self.out = nn.Linear(EDGE_WIDTH, 1)
        for layer in (self.ends, self.out):
            draw_linear(layer)

    def forward(self, batch: Batch) -> Tensor:
        H = self.gin.merged(batch)
        # A linear layer of two concatenated ends is the sum of a linear layer of each end, so it
        # works on nodes and not on edges.
        first, second = self.ends.weight.split(WIDTH, dim=1)
        bias = torch.cat([self.ends.bias, torch.zeros_like(self.ends.bias)])
        both = nn.functional.linear(H, torch.cat([first, second]), bias)  # each row as first and as second end
        joined = batch.pairs.ends(both.view(-1, EDGE_WIDTH)).relu_()
        return self.out(joined).squeeze(-1).index_select(0, batch.pairs.of_edge)

    def sample(self, batch: Batch) -> Tensor:
        """Draw weights of the edges, (E,)."""
        return gates(self(batch))


def gates(logits: Tensor) -> Tensor:
    """Draw numbers between 0 and 1: relaxed Bernoulli variables at temperature 1."""
    noise = torch.rand_like(logits) * (1 - 2 * GATE_MARGIN) + GATE_MARGIN
    return torch.sigmoid(noise.log() - (-noise).log1p() + logits)


def info_nce(Z: Tensor, Z_view: Tensor) -> Tensor:
    """Contrast each graph with its own view and the views of the others, both ways, at temperature 0.2."""
    similarity = _directions(Z) @ _directions(Z_view).T / TEMPERATURE
    own = similarity.diagonal()
    others = similarity.masked_fill(torch.eye(len(Z), dtype=torch.bool, device=Z.device), -torch.inf)
    return (others.logsumexp(0) + others.logsumexp(1)).mean() / 2 - own.mean()


def _directions(Z: Tensor) -> Tensor:
    """Scale rows to norm 1, first by their largest entry, as the square of a large number is not finite."""
    return nn.functional.normalize(Z / Z.detach().abs().amax(1, keepdim=True).clamp(min=1e-12), dim=1)


def dropped_share(batch: Batch, weight: Tensor) -> Tensor:
    """Return the share of edges that a view drops, the mean over the graphs with edges."""
    counts = batch.edges_of_graphs
    sums = weight.new_zeros(len(batch)).index_add(0, batch.graph_of_edge, 1 - weight)
    return (sums / counts.clamp(min=1)).sum() / (counts > 0).sum().clamp(min=1)


@dataclass
class StepLosses:
    contrast: float
    dropped: float


class Trainer:
    """Trains two players: the view learner lowers the agreement of graph and view, the encoder raises it."""

    def __init__(self, model: Contrasted, view: ViewLearner, lr: float = LEARNING_RATE) -> None:
        self.model, self.view = model, view
        self._optimizer = torch.optim.Adam(model.parameters(), lr=lr, fused=True)
        self._view_optimizer = torch.optim.Adam(view.parameters(), lr=lr, fused=True)

    def _parts(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "view": self.view,
            "optimizer": self._optimizer,
            "view_optimizer": self._view_optimizer,
        }

    def state(self) -> dict[str, Any]:
        """Return the state of both players and their optimisers."""
        return {name: part.state_dict() for name, part in self._parts().items()}

    def restore(self, state: dict[str, Any]) -> None:
        for name, part in self._parts().items():
            part.load_state_dict(state[name])

    def step(self, batch: Batch) -> StepLosses:
        dropped = self._step_of_view(batch)
        return StepLosses(self._step_of_model(batch), dropped)

    def _step_of_view(self, batch: Batch) -> float:
        """Lower the agreement with as few dropped edges as possible.

        The model judges here and does not learn.
        """
        self.view.train()
        self.model.eval()
        self.model.requires_grad_(False)
        weight = self.view.sample(batch)
        dropped = dropped_share(batch, weight)
        with torch.no_grad():
            Z = self.model(batch)
        loss = DROP_PENALTY * dropped - info_nce(Z, self.model(batch, weight))
        self._view_optimizer.zero_grad()
        loss.backward()
        self._view_optimizer.step()
        self.model.requires_grad_(True)
        return float(dropped.detach())

    def _step_of_model(self, batch: Batch) -> float:
        self.model.train()
        self.view.eval()
        with torch.no_grad():
            weight = self.view.sample(batch)
        loss = info_nce(self.model(batch), self.model(batch, weight))
        self._optimizer.zero_grad()
        (loss + self.model.encoder.pool.aux_loss).backward()
        self._optimizer.step()
        return float(loss.detach())
