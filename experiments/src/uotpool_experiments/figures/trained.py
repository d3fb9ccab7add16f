"""A model of AD-GCL that is trained for a figure, and its plans graph by graph."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import torch
from torch import Tensor

from uotpool_experiments.datasets import graphs as data
from uotpool_experiments.datasets.graphs import Graphs
from uotpool_experiments.tasks.graph import adgcl
from uotpool_experiments.tasks.graph.batches import Batch
from uotpool_experiments.tasks.graph.encoder import GraphEncoder
from uotpool_experiments.tasks.graph.metrics import uot_of
from uotpool_experiments.tasks.graph.models import make_batches
from uotpool_experiments.tasks.graph.settings import Settings
from uotpool_experiments.tasks.spec import RunSpec

POOLING = "uotp-badmm-e"  # the paper's choice for both figures


def epochs(dataset: str, seed: int, settings: Settings) -> Iterator[tuple[Graphs, GraphEncoder]]:
    """The encoder before training and after each epoch; always the same one, so look at it at once."""
    graphs = _load(dataset)
    spec = RunSpec("graph", dataset, POOLING, "paper", 0, seed)
    torch.set_num_threads(1)  # small graphs
    batches = make_batches(settings, graphs)
    model = adgcl.make_model(spec, settings, batches)
    yield graphs, model.encoder
    training = adgcl.Training(spec, settings, model, batches)
    for _ in range(settings.epochs_on(dataset)):
        training.epoch()
        yield graphs, model.encoder


@torch.no_grad()
def plans(encoder: GraphEncoder, graphs: Graphs, which: Tensor) -> list[Tensor]:
    """The plan of each of these graphs, (D, nodes), of mass 1."""
    encoder.eval()
    batch = Batch.of(graphs, "constant", which)
    uot = uot_of(encoder)
    assert uot is not None
    P = uot.plan(encoder.gin(batch), ptr=batch.ptr)
    return [part.T / part.sum() for part in P.split(batch.ptr.diff().tolist())]


@lru_cache(maxsize=1)
def _load(dataset: str) -> Graphs:
    return data.load(dataset).without_loops()
