"""What a pooling costs in training: seconds per epoch of the bag classifier, and how much is pooling."""

from __future__ import annotations

import torch
from uotpool_experiments.datasets import Bags, load_bags, status
from uotpool_experiments.tasks.mil.settings import GRID, Settings
from uotpool_experiments.tasks.mil.training import BagClassifier, make_model, make_optimizer, train_epoch

from bench import training
from bench.rows import Comparison
from bench.session import Session
from bench.timing import Call

DATASETS = ("digits", "musk2", "component")
POOLINGS = ("mean", "max", "attention", "uotp-sinkhorn", "uotp-badmm-e", "uotp-badmm-q", "uotp-sinkhorn-paper")
NOTE = (
    "all bags, batches of 128, one thread. pooling in epoch: forward + backward of the pooling alone on the "
    "same batches, as a share of the epoch. Data sets that are not at hand (UOTPOOL_DATA) are left out"
)


def measure(session: Session) -> list[Comparison]:
    names = DATASETS[:1] if session.quick else [name for name in DATASETS if status(name).present]
    torch.set_num_threads(1)
    rows: list[Comparison] = []
    for name in session.track(names, "mil"):
        bags = load_bags(name)
        parts = {}
        for pooling in POOLINGS[: 2 if session.quick else None]:
            model = make_model(training.spec("mil", name, pooling), Settings(), bags)
            parts[pooling] = training.Parts(_epoch(model, bags), _pooling(model, bags))
        size = f"{name}: {len(bags):,} bags, {len(bags.X):,} instances"
        rows += training.compared(session, "mil", size, "epoch", parts, NOTE)
    return rows


def _epoch(model: BagClassifier, bags: Bags) -> Call:
    optimizer = make_optimizer(model, Settings(), GRID[0])

    def call() -> object:
        return train_epoch(model, optimizer, bags, Settings().batch, torch.Generator().manual_seed(0))

    return call


@torch.no_grad()
def _pooling(model: BagClassifier, bags: Bags) -> Call:
    order = torch.randperm(len(bags), generator=torch.Generator().manual_seed(0))
    batches = [bags.subset(chosen) for chosen in order.split(Settings().batch)]
    embedded = [(model.features(batch.X), batch.ptr) for batch in batches]
    return training.pooling_calls(model.pool, embedded, forward=0, both=1)
