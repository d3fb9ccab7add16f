"""What a pooling costs in AD-GCL: milliseconds a step, how much of it is pooling, and the memory it adds."""

from __future__ import annotations

import time
from itertools import pairwise

import torch
from uotpool_experiments.datasets import graphs as data
from uotpool_experiments.datasets import status
from uotpool_experiments.datasets.graphs import Graphs
from uotpool_experiments.figures.timing import Call
from uotpool_experiments.runs.worker import peak_mib, reset_peak
from uotpool_experiments.tasks.graph.adgcl import Training, _PaperJudge, embed, make_model
from uotpool_experiments.tasks.graph.batches import Batch, Batches
from uotpool_experiments.tasks.graph.contrast import Contrasted, Trainer, ViewLearner
from uotpool_experiments.tasks.graph.encoder import GIN, WIDTH
from uotpool_experiments.tasks.graph.models import LARGE_BATCH
from uotpool_experiments.tasks.graph.settings import Settings
from uotpool_experiments.tasks.spec import RunSpec

from bench.report import COST, Case, Row, cost, speedup
from bench.session import Session

DATASETS = ("MUTAG", "IMDB-BINARY", "REDDIT-BINARY")
POOLINGS = ("mean", "add", "max", "attention", "uotp-sinkhorn", "uotp-badmm-e", "uotp-badmm-q")
BASELINE = "mean"
STEPS, SHARE, MEMORY = "steps", "pooling in a step", "memory of a step"
BATCHES = 8  # of an epoch; the steps of one are like another
LARGE = 50_000  # nodes; with less, the memory of a step is lost in what the process holds anyway
NOTE = (
    f"{BATCHES} batches of 32 graphs, the largest graph in the first, one thread; both players' turns. pooling "
    "in a step: the pooling alone as often as a step calls it (4 forward, 3 backward), as a share. memory of a "
    "step: what it adds at its peak, beside the node embeddings of the batch (N x 32 floats). Data sets that "
    "are not at hand (UOTPOOL_DATA) are left out"
)
EPOCH_NOTE = (
    "a whole epoch under the paper's protocol, CPU seconds, one thread, the least of two, in turns: steps with "
    "the preparation of their batches, embeddings of all graphs, SVM of 10 folds. Baseline: the same with a "
    "row for each node, not one for all nodes that a GIN cannot tell apart"
)
EPOCH_POOLINGS = ("mean", "uotp-badmm-q")


def run(session: Session) -> list[Row]:
    names = [name for name in DATASETS if status(name).present][: 1 if session.quick else None]
    poolings = POOLINGS[:2] if session.quick else POOLINGS
    torch.set_num_threads(1)
    rows: list[Row] = []
    for name in session.track(names, "graph"):
        graphs = data.load(name).without_loops()
        source = Batches(graphs, "constant")
        batches = _batches(source)
        steps: dict[str, Call] = {}
        pools: dict[str, Call] = {}
        for pooling in poolings:
            spec = RunSpec.make(task="graph", dataset=name, pooling=pooling, protocol="paper", fold=0, seed=0)
            model = make_model(spec, Settings(), source)
            steps[pooling] = _steps(model, batches)
            pools[pooling] = _pooling(model, batches)
        step, pool = session.measure(steps, 1), session.measure(pools, 1)
        nodes = sum(len(batch.X) for batch in batches)
        size = f"{name}: {len(batches)} batches, {nodes:,} nodes, largest graph {int(graphs.sizes.max()):,}"
        for pooling in poolings:
            case = Case("graph", size, pooling, STEPS, 1)
            rows.append(cost(case, pooling, BASELINE, step[pooling], step[BASELINE], None, NOTE))
            about = (*Case("graph", size, pooling, SHARE, 1), pooling, "its steps")
            us = (1e6 * pool[pooling], 1e6 * step[pooling])
            rows.append(Row(*about, *us, pool[pooling] / step[pooling], COST, "", "", NOTE))
            if nodes > LARGE:
                rows.append(_memory(size, pooling, steps[pooling], batches))
        for pooling in EPOCH_POOLINGS[: 1 if session.quick else None]:
            rows += _epochs(graphs, pooling)
    return rows


def _batches(source: Batches) -> list[Batch]:
    """The same ones for all poolings, prepared."""
    graphs, order = source.graphs, torch.Generator().manual_seed(0)
    others = list(source.shuffled(Settings().batch, order))[: BATCHES - 1]
    largest = torch.cat([graphs.sizes.argmax()[None], torch.arange(min(31, len(graphs)))])
    return [source.batch(largest), *others]


def _epochs(graphs: Graphs, pooling: str) -> list[Row]:
    """Seconds of an epoch and of its parts."""
    spec = RunSpec.make(task="graph", dataset=graphs.name, pooling=pooling, protocol="paper", fold=0, seed=0)
    judge, clock = _PaperJudge(graphs.y.numpy(), 0), time.process_time
    epochs = {}
    for merge in (True, False):
        source = Batches(graphs, "constant", merge=merge)
        model = make_model(spec, Settings(), source)
        evaluated = list(source.in_order(LARGE_BATCH))
        epochs[merge] = (model.encoder, Training(spec, Settings(), model, source), evaluated)
    least = {merge: [float("inf")] * 3 for merge in epochs}
    for _ in range(2):
        for merge, (encoder, training, evaluated) in epochs.items():
            times = [clock()]
            training.epoch()
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
    return [
        speedup(
            Case("graph", size, pooling, part, 1),
            "merged nodes",
            "a row a node",
            ours,
            theirs,
            None,
            EPOCH_NOTE,
        )
        for part, ours, theirs in zip(parts, times_of[True], times_of[False], strict=True)
    ]


def _steps(model: Contrasted, batches: list[Batch]) -> Call:
    trainer = Trainer(model, ViewLearner(GIN(1)))

    def call() -> object:
        for batch in batches:
            trainer.step(batch)
        return None

    return call


def _pooling(model: Contrasted, batches: list[Batch]) -> Call:
    pool = model.encoder.pool
    with torch.no_grad():
        embedded = [model.encoder.gin(batch).requires_grad_() for batch in batches]
    wanted = list(pool.parameters())

    def call() -> object:
        for X, batch in zip(embedded, batches, strict=True):
            with torch.no_grad():
                pool(X, ptr=batch.ptr)
            for _ in range(3):
                y = pool(X, ptr=batch.ptr)
                torch.autograd.grad(y, [X, *wanted], torch.ones_like(y), allow_unused=True)
        return None

    return call


def _memory(size: str, pooling: str, steps: Call, batches: list[Batch]) -> Row:
    """Against the embeddings of the largest batch."""
    reset_peak()
    before = peak_mib()
    steps()
    added = peak_mib() - before
    embeddings = 4 * WIDTH * max(len(batch.X) for batch in batches) / 2**20
    about = (*Case("graph", size, pooling, MEMORY, 1), f"{pooling}, memory", "node embeddings")
    return Row(*about, None, None, added / embeddings, COST, "", "", NOTE, added, embeddings)
