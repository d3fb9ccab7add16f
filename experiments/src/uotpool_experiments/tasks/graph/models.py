"""The encoder with its pooling, drawn from the seed of the run, for both backbones."""

from __future__ import annotations

import torch

from uotpool_experiments.datasets.graphs import Graphs
from uotpool_experiments.tasks.graph.batches import Batches
from uotpool_experiments.tasks.graph.encoder import GIN, GraphEncoder
from uotpool_experiments.tasks.graph.settings import Settings, make_pool
from uotpool_experiments.tasks.seeding import seed_for
from uotpool_experiments.tasks.spec import RunSpec

LARGE_BATCH = 128  # for passes that learn nothing


def make_batches(settings: Settings, graphs: Graphs) -> Batches:
    if settings.features == "labels" and graphs.x is None:
        raise ValueError(f"features: expected 'constant', as {graphs.name} has no node labels, got 'labels'")
    return Batches(graphs, settings.features, merge=settings.dropout == 0)


def make_gin(settings: Settings, graphs: Graphs) -> GIN:
    in_dim = 1 if settings.features == "constant" else graphs.num_node_labels
    return GIN(in_dim, dropout=settings.dropout)


def make_encoder(spec: RunSpec, settings: Settings, batches: Batches) -> GraphEncoder:
    """Make the encoder. The GIN is the same for every pooling; references come from the training graphs."""
    torch.manual_seed(seed_for(spec, "pool"))
    pool = make_pool(spec, settings)
    torch.manual_seed(seed_for(spec, "encoder"))
    encoder = GraphEncoder(make_gin(settings, batches.graphs), pool)
    if pool.needs_fit:
        encoder.eval()
        with torch.no_grad():
            rows = [encoder.gin(batch) for batch in batches.in_order(LARGE_BATCH)]
        torch.manual_seed(seed_for(spec, "fit"))
        pool.fit(torch.cat(rows))
    return encoder
