"""Train and test the models of several seeds on one regime."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from uotpool.zoo import Pooling, build
from uotpool_experiments.tasks.regimes.bags import DrawnBags, draw
from uotpool_experiments.tasks.regimes.images import FEATURES, pools
from uotpool_experiments.tasks.regimes.models import StackedModel, StackedPooling
from uotpool_experiments.tasks.regimes.problems import Regime, regime
from uotpool_experiments.tasks.regimes.settings import BAGS, DIM, LOOKS, Settings
from uotpool_experiments.tasks.seeding import part, seed_for
from uotpool_experiments.tasks.spec import Report, Result, RunSpec

PARTS = ("train", "validation", "test")
MOST_ROWS = 2**15  # of one model in an evaluation, which bounds its memory

Make = Callable[[Callable[[str], int]], Pooling]


@dataclass(frozen=True)
class Data:
    """The bags of several seeds.

    Attributes:
        features: the images of all seeds as rows, one seed after the other.
        members: rows of `features`, (S, bags, size).
        y: (S, bags).
    """

    features: Tensor
    members: Tensor
    y: Tensor

    def bags(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Return X (S, chosen, size, 20) and y (S, chosen) of the chosen bags (S, chosen)."""
        members = torch.stack([some[bags] for some, bags in zip(self.members, chosen, strict=True)])
        X = self.features.index_select(0, members.flatten())
        return X.view(*members.shape, -1), self.y.gather(1, chosen)


def load_data(chosen: Regime, settings: Settings, seeds: Sequence[Callable[[str], int]]) -> dict[str, Data]:
    """Draw the bags of all seeds. Values of regressions are scaled by those of the training bags."""
    counts = BAGS | {"train": settings.bags}
    found: dict[str, list[tuple[Any, DrawnBags]]] = {name: [] for name in PARTS}
    for seed in seeds:
        images = pools(chosen.images, chosen.scalar, seed("images"))
        for name, pool in zip(PARTS, images, strict=True):
            size = chosen.test_size if name == "test" and chosen.test_size else chosen.size
            found[name].append((pool, draw(chosen, pool, counts[name], size, seed(name))))
    units = [
        (bags.y.mean(), bags.y.std()) if chosen.is_regression else (0.0, 1.0) for _, bags in found["train"]
    ]
    return {name: _stacked(drawn, units) for name, drawn in found.items()}


def _stacked(drawn: list[tuple[Any, DrawnBags]], units: list[tuple[float, float]]) -> Data:
    features = torch.cat([torch.from_numpy(pool.features) for pool, _ in drawn])
    images = len(features) // len(drawn)
    members = torch.stack([torch.from_numpy(bags.members) + s * images for s, (_, bags) in enumerate(drawn)])
    y = [torch.from_numpy((bags.y - m) / s) for (_, bags), (m, s) in zip(drawn, units, strict=True)]
    return Data(features, members, torch.stack(y).float())


def losses(chosen: Regime, output: Tensor, y: Tensor) -> Tensor:
    """Return the loss of each model, (S,)."""
    if chosen.is_regression:
        return (output - y).square().mean(-1)
    return nn.functional.binary_cross_entropy_with_logits(output, y, reduction="none").mean(-1)


def scores(chosen: Regime, output: Tensor, y: Tensor) -> Tensor:
    """Return the accuracy of each model, or its R2, (S,)."""
    if chosen.is_regression:
        return 1 - (output - y).square().sum(-1) / (y - y.mean(-1, keepdim=True)).square().sum(-1)
    return ((output > 0) == (y > 0.5)).to(output.dtype).mean(-1)


def run(specs: Sequence[RunSpec], report: Report) -> list[Result]:
    """Train and test the runs together. They differ in their seeds only, and none depends on the others."""
    settings = Settings.of(specs[0])

    def make(seed: Callable[[str], int]) -> Pooling:
        torch.manual_seed(seed("pool"))
        return build(specs[0].pooling, DIM, DIM, **settings.pool)

    seeds = [partial(seed_for, spec) for spec in specs]
    return train_and_test(regime(specs[0].dataset), settings, seeds, make, report)


def train_and_test(
    chosen: Regime,
    settings: Settings,
    seeds: Sequence[Callable[[str], int]],
    make: Make,
    report: Report,
) -> list[Result]:
    """Train the models of all seeds at each rate; test what the validation bags choose, once.

    Args:
        chosen: the regime.
        settings: how to train.
        seeds: functions from the use of a seed to the seed, one per model.
        make: makes the pooling of one model.
        report: is told the progress.
    """
    data = load_data(chosen, settings, seeds)
    best = [_Best() for _ in seeds]
    for i, lr in enumerate(settings.lrs):
        model = _model(make, seeds, data["train"])
        _train(chosen, settings, lr, model, data, seeds, best, part(report, i, len(settings.lrs)))
    model = _model(make, seeds, data["train"])
    for s, found in enumerate(best):
        found.restore(model, s)
    output = _evaluate(model, data["test"])
    test_loss, test_score = (f(chosen, output, data["test"].y) for f in (losses, scores))
    measure = "r2" if chosen.is_regression else "accuracy"
    parameters = sum(p.numel() for p in model.parameters()) // (1 if len(seeds) == 1 else len(seeds))
    return [
        Result(
            metrics={"score": float(test_score[s]), measure: float(test_score[s]), "loss": float(test_loss[s])},
            details={
                "lr": found.lr,
                "step": found.step,
                "validation_loss": found.loss,
                "diverged": found.diverged,
            },
            parameters=parameters,
        )
        for s, found in enumerate(best)
    ]


def _model(make: Make, seeds: Sequence[Callable[[str], int]], train: Data) -> StackedModel:
    made = [make(seed) for seed in seeds]
    model = StackedModel(seeds, FEATURES, StackedPooling(made), made[0].out_dim)
    if made[0].needs_fit:
        with torch.no_grad():
            X, _ = train.bags(torch.arange(min(100, train.y.shape[1])).expand(len(seeds), -1))
            for seed, pool, rows in zip(seeds, made, model.embed(X), strict=True):
                torch.manual_seed(seed("fit"))
                pool.fit(rows)
    return model


class _Best:
    """The state of one model at the step with the least validation loss so far, over all rates."""

    def __init__(self) -> None:
        self.loss: float | None = None
        self.lr, self.step, self.diverged = 0.0, 0, 0
        self.state: dict[str, Tensor] = {}

    def offer(self, loss: float, lr: float, step: int, state: dict[str, Tensor]) -> None:
        if math.isfinite(loss) and (self.loss is None or loss < self.loss):
            self.loss, self.lr, self.step, self.state = loss, lr, step, state

    def restore(self, model: StackedModel, s: int) -> None:
        own = _state_of(model, s)
        with torch.no_grad():
            for name, value in self.state.items():
                own[name].copy_(value)


def _state_of(model: StackedModel, s: int) -> dict[str, Tensor]:
    """Return views of the parameters of one model: its slices of stacked ones, and those of its own pooling."""
    found: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        own = name.split(".pools.")
        if len(own) == 2:  # pool.pools.S.NAME
            number, _, rest = own[1].partition(".")
            if int(number) == s:
                found[rest] = parameter
        else:
            found[name] = parameter[s]
    return found


def _train(
    chosen: Regime,
    settings: Settings,
    lr: float,
    model: StackedModel,
    data: dict[str, Data],
    seeds: Sequence[Callable[[str], int]],
    best: Sequence[_Best],
    report: Report,
) -> None:
    steps = settings.steps or chosen.steps
    look_every = max(steps // LOOKS, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, fused=True)
    orders = [torch.Generator().manual_seed(seed("order")) for seed in seeds]
    for step, chosen_bags in zip(
        range(1, steps + 1), _batches(orders, settings.bags, chosen.batch), strict=False
    ):
        X, y = data["train"].bags(chosen_bags)
        loss = losses(chosen, model(X), y).sum() + model.pool.aux_loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % look_every == 0 or step == steps:
            held_out = data["validation"]
            loss_now = losses(chosen, _evaluate(model, held_out), held_out.y).tolist()
            for s, (found, value) in enumerate(zip(best, loss_now, strict=True)):
                state = {name: t.detach().clone() for name, t in _state_of(model, s).items()}
                found.offer(value, lr, step, state)
                found.diverged += not math.isfinite(value)
            report(step, steps)


def _batches(orders: Sequence[torch.Generator], bags: int, batch: int) -> Any:
    """Yield the bags of each step, (S, batch), pass after pass; each model has its own order."""
    while True:
        passes = torch.stack([torch.randperm(bags, generator=order) for order in orders])
        yield from passes[:, : bags - bags % batch].split(batch, 1) if bags >= batch else [passes]


@torch.no_grad()
def _evaluate(model: StackedModel, data: Data) -> Tensor:
    """Return the output for all bags, (S, bags)."""
    count, size = data.members.shape[1:]
    found = []
    for some in torch.arange(count).split(max(MOST_ROWS // size, 1)):
        X, _ = data.bags(some.expand(len(data.members), -1))
        found.append(model(X))
    return torch.cat(found, 1)
