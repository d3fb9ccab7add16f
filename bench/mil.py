"""What a pooling costs in training: seconds an epoch of the bag classifier, and how much of it is pooling."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from uotpool_experiments.datasets import Bags, load_bags, status
from uotpool_experiments.figures.timing import Call
from uotpool_experiments.tasks.mil.settings import GRID, Settings
from uotpool_experiments.tasks.mil.training import BagClassifier, make_model, make_optimizer, train_epoch
from uotpool_experiments.tasks.spec import RunSpec

from bench.report import COST, Case, Row, cost
from bench.session import Session

DATASETS = ("digits", "musk2", "component")
POOLINGS = ("mean", "max", "attention", "uotp-sinkhorn", "uotp-badmm-e", "uotp-badmm-q", "uotp-sinkhorn-paper")
BASELINE = "mean"
EPOCH, SHARE = "epoch", "pooling in an epoch"
NOTE = (
    "all bags, batches of 128, one thread. pooling in an epoch: forward + backward of the pooling alone on the "
    "same batches, as a share of the epoch. Data sets that are not at hand (UOTPOOL_DATA) are left out"
)


def run(session: Session) -> list[Row]:
    names = DATASETS[:1] if session.quick else [name for name in DATASETS if status(name).present]
    poolings = POOLINGS[:2] if session.quick else POOLINGS
    torch.set_num_threads(1)
    rows: list[Row] = []
    for name in session.track(names, "mil"):
        bags = load_bags(name)
        epochs: dict[str, Call] = {}
        pools: dict[str, Call] = {}
        for pooling in poolings:
            spec = RunSpec.make(task="mil", dataset=name, pooling=pooling, protocol="paper", fold=0, seed=0)
            model = make_model(spec, Settings(), bags)
            epochs[pooling] = _epoch(model, bags)
            pools[pooling] = _pooling(model, bags)
        epoch, pool = session.measure(epochs, 1), session.measure(pools, 1)
        size = f"{name}: {len(bags):,} bags, {len(bags.X):,} instances"
        for pooling in poolings:
            case = Case("mil", size, pooling, EPOCH, 1)
            rows.append(cost(case, pooling, BASELINE, epoch[pooling], epoch[BASELINE], None, NOTE))
            about = (*Case("mil", size, pooling, SHARE, 1), pooling, "its epoch")
            us = (1e6 * pool[pooling], 1e6 * epoch[pooling])
            rows.append(Row(*about, *us, pool[pooling] / epoch[pooling], COST, "", "", NOTE))
    return rows


def _epoch(model: BagClassifier, bags: Bags) -> Call:
    optimizer = make_optimizer(model, Settings(), GRID[0])

    def call() -> object:
        return train_epoch(model, optimizer, bags, Settings().batch, torch.Generator().manual_seed(0))

    return call


def _pooling(model: BagClassifier, bags: Bags) -> Call:
    batches: list[tuple[Tensor, dict[str, Any]]] = []
    order = torch.randperm(len(bags), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for chosen in order.split(Settings().batch):
            batch = bags.subset(chosen)
            batches.append((model.features(batch.X).requires_grad_(), {"ptr": batch.ptr}))
    wanted = list(model.pool.parameters())

    def call() -> object:
        for X, layout in batches:
            y = model.pool(X, **layout)
            torch.autograd.grad(y, [X, *wanted], torch.ones_like(y), allow_unused=True)
        return None

    return call
