"""What a pooling costs in AD-GCL: milliseconds per step, the share of pooling, and the memory it adds."""

from __future__ import annotations

import time
from itertools import pairwise

import torch
from uotpool_experiments.datasets import graphs as data
from uotpool_experiments.datasets import status
from uotpool_experiments.datasets.graphs import Graphs
from uotpool_experiments.runs.worker import peak_mib, reset_peak
from uotpool_experiments.tasks.graph.adgcl import PaperJudge, Training, embed, make_model
from uotpool_experiments.tasks.graph.batches import Batch, Batches
from uotpool_experiments.tasks.graph.contrast import Contrasted, Trainer, ViewLearner
from uotpool_experiments.tasks.graph.encoder import GIN, WIDTH
from uotpool_experiments.tasks.graph.models import LARGE_BATCH
from uotpool_experiments.tasks.graph.settings import Settings

from bench import training
from bench.rows import Case, Comparison, memory, speedup
from bench.session import Session
from bench.timing import Call

DATASETS = ("MUTAG", "IMDB-BINARY", "REDDIT-BINARY")
POOLINGS = ("mean", "add", "max", "attention", "uotp-sinkhorn", "uotp-badmm-e", "uotp-badmm-q")
MEMORY = "memory of a step"
BATCHES = 8  # of an epoch; the steps of one are like another
LARGE = 50_000  # nodes; with less, the memory of a step is lost in what the process holds anyway
NOTE = (
    f"{BATCHES} batches of 32 graphs, the largest graph in the first, one thread; both players' turns. pooling "
    "in steps: the pooling alone as often as a step calls it (4 forward, 3 backward), as a share. memory of a "
    "step: what it adds at its peak, beside the node embeddings of the batch (N x 32 floats). Data sets that "
    "are not at hand (UOTPOOL_DATA) are left out"
)
EPOCH_NOTE = (
    "a whole epoch under the paper's protocol, CPU seconds, one thread, the least of two, in turns: steps with "
    "the preparation of their batches, embeddings of all graphs, SVM of 10 folds. Baseline: the same with a "
    "row for each node, not one for all nodes that a GIN cannot tell apart"
)
EPOCH_POOLINGS = ("mean", "uotp-badmm-q")


def measure(session: Session) -> list[Comparison]:
    names = [name for name in DATASETS if status(name).present][: 1 if session.quick else None]
    torch.set_num_threads(1)
    rows: list[Comparison] = []
    for name in session.track(names, "graph"):
        graphs = data.load(name).without_loops()
        source = Batches(graphs, "constant")
        batches = _batches(source)
        parts = {}
        for pooling in POOLINGS[: 2 if session.quick else None]:
            model = make_model(training.spec("graph", name, pooling), Settings(), source)
            parts[pooling] = training.Parts(_steps(model, batches), _pooling(model, batches))
        nodes = sum(len(batch.X) for batch in batches)
        size = f"{name}: {len(batches)} batches, {nodes:,} nodes, largest graph {int(graphs.sizes.max()):,}"
        rows += training.compared(session, "graph", size, "steps", parts, NOTE)
        if nodes > LARGE:
            rows += [_memory(size, pooling, part.whole, batches) for pooling, part in parts.items()]
        for pooling in EPOCH_POOLINGS[: 1 if session.quick else None]:
            rows += _epochs(graphs, pooling)
    return rows


def _batches(source: Batches) -> list[Batch]:
    """Prepare batches, the same ones for all poolings."""
    graphs, order = source.graphs, torch.Generator().manual_seed(0)
    others = list(source.shuffled(Settings().batch, order))[: BATCHES - 1]
    largest = torch.cat([graphs.sizes.argmax()[None], torch.arange(min(31, len(graphs)))])
    return [source.batch(largest), *others]


def _epochs(graphs: Graphs, pooling: str) -> list[Comparison]:
    """Measure the seconds of an epoch and of its parts."""
    spec = training.spec("graph", graphs.name, pooling)
    judge, clock = PaperJudge(graphs.y.numpy(), 0), time.process_time
    epochs = {}
    for merge in (True, False):
        source = Batches(graphs, "constant", merge=merge)
        model = make_model(spec, Settings(), source)
        evaluated = list(source.in_order(LARGE_BATCH))
        epochs[merge] = (model.encoder, Training(spec, Settings(), model, source), evaluated)
    least = {merge: [float("inf")] * 3 for merge in epochs}
    for _ in range(2):
        for merge, (encoder, run, evaluated) in epochs.items():
            times = [clock()]
            run.epoch()
            times.append(clock())
            found = embed(encoder, evaluated)
            times.append(clock())
            judge.look(found)
            times.append(clock())
            now = [after - before for before, after in pairwise(times)]
            least[merge] = [min(pair) for pair in zip(least[merge], now, strict=True)]
    size = f"{graphs.name}: {len(graphs)} graphs, {graphs.num_nodes:,} nodes"
    parts = ("an epoch", "its steps", "its embeddings", "its SVM")
    times_of = {merge: [sum(seconds), *seconds] for merge, seconds in least.items()}
    names = ("merged nodes", "one row per node")
    return [
        speedup(Case("graph", size, pooling, part, 1), *names, ours, theirs, None, EPOCH_NOTE)
        for part, ours, theirs in zip(parts, times_of[True], times_of[False], strict=True)
    ]


def _steps(model: Contrasted, batches: list[Batch]) -> Call:
    trainer = Trainer(model, ViewLearner(GIN(1)))

    def call() -> object:
        for batch in batches:
            trainer.step(batch)
        return None

    return call


@torch.no_grad()
def _pooling(model: Contrasted, batches: list[Batch]) -> Call:
    embedded = [(model.encoder.gin(batch), batch.ptr) for batch in batches]
    return training.pooling_calls(model.encoder.pool, embedded, forward=1, both=3)


def _memory(size: str, pooling: str, steps: Call, batches: list[Batch]) -> Comparison:
    """Compare the memory of the steps with the embeddings of the largest batch."""
    reset_peak()
    before = peak_mib()
    steps()
    added = 2**20 * (peak_mib() - before)
    embeddings = 4.0 * WIDTH * max(len(batch.X) for batch in batches)
    case = Case("graph", size, pooling, MEMORY, 1)
    return memory(case, f"{pooling}, memory", "node embeddings", added, embeddings, None, NOTE)
