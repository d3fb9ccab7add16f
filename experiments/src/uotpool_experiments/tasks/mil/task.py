"""Multi-instance learning: the bag classifier of Ilse et al. (2018), with any pooling of the zoo."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from uotpool import UOTPooling, checks, param_groups
from uotpool.zoo import ENTRIES, Pooling, build
from uotpool_experiments.datasets import Bags, entry, load_bags, locate
from uotpool_experiments.tasks.mil.dropout import LEVELS, ReLUDropout
from uotpool_experiments.tasks.mil.metrics import binary_metrics
from uotpool_experiments.tasks.protocols import Split, split
from uotpool_experiments.tasks.seeding import part, seed_for
from uotpool_experiments.tasks.spec import Options, Report, Result, RunSpec

bce = nn.functional.binary_cross_entropy_with_logits

EMBEDDED = "digits"
WIDTHS = (256, 128, 64)
# Tuning under "fair": the same four configurations for every pooling, the first one the paper's.
GRID: tuple[dict[str, float], ...] = tuple(
    {"lr": lr, "weight_decay": decay} for lr, decay in ((5e-4, 5e-3), (2e-3, 5e-3), (5e-3, 5e-3), (2e-3, 1e-4))
)
# Of standardised features, under "fair". A feature that hardly varies in the training bags has values of
# thousands of standard deviations elsewhere, and a few of those decide the result.
CLIP = 10.0


@dataclass(frozen=True)
class Settings(Options):
    """What can be set for a run; the defaults are the paper's."""

    epochs: int = 50
    batch: int = 128
    lr: float | None = None  # None: 5e-4, or tuned under "fair"
    weight_decay: float | None = None  # None: 5e-3, or tuned under "fair"
    dropout: float = 0.5
    hidden: int = 64
    pool: dict[str, Any] = field(default_factory=dict)  # options of `zoo.build`
    pool_decay: bool | None = None  # weight decay on a UOT pooling's weights; None: published ones only
    pool_lr: float | None = None  # learning rate of a UOT pooling's weights, as a multiple of lr
    alpha0_of_spread: float | None = None  # initial alpha0, as a multiple of the spread of what is pooled

    def __post_init__(self) -> None:
        checks.count("epochs", self.epochs, 1)
        checks.count("batch", self.batch, 1)
        checks.count("hidden", self.hidden, 1)
        for name in ("lr", "alpha0_of_spread", "weight_decay", "pool_lr"):
            if getattr(self, name) is not None:
                checks.number(name, getattr(self, name), positive=name in ("lr", "alpha0_of_spread"))
        if checks.number("dropout", self.dropout, positive=False) > 1 - 1 / LEVELS:
            checks.fail("dropout", f"a number from 0 to {1 - 1 / LEVELS}", self.dropout)
        if self.pool_decay is not None:
            checks.flag("pool_decay", self.pool_decay)
        if not isinstance(self.pool, dict):
            checks.fail("pool", "a table of options", self.pool, TypeError)

    @classmethod
    def of(cls, spec: RunSpec) -> Settings:
        return cls.from_options(spec.options)

    def configurations(self, protocol: str) -> list[dict[str, float]]:
        """What is tried: all of the grid under "fair", without the values that are set."""
        fixed = {name: value for name in GRID[0] if (value := getattr(self, name)) is not None}
        tried = GRID if protocol == "fair" else GRID[:1]
        found = [config | fixed for config in tried]
        return [config for i, config in enumerate(found) if config not in found[:i]]


def poolings() -> list[str]:
    """All that need no edges."""
    return [name for name, found in ENTRIES.items() if not found.needs_edges]


def check_dataset(name: str) -> None:
    """Refuse what is no data set of this task."""
    found = entry(name)
    if found.task != "mil":
        raise ValueError(f"dataset: expected one for multi-instance learning, got {name!r}")


def prepare(name: str) -> None:
    """Fetch the data set, or say what is missing, before a sweep starts."""
    if entry(name).files:
        locate(entry(name))


def clean_settings(pooling: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """What differs from the defaults, in one spelling; refuses what a run would refuse."""
    try:
        settings = Settings.from_options(options)
        pool = build(pooling, WIDTHS[-1], settings.hidden, **settings.pool)
    except TypeError as error:
        raise ValueError(str(error)) from error
    if settings.alpha0_of_spread is not None:
        _raw_alpha0(pool)
    for name in ("pool_lr", "pool_decay"):
        if getattr(settings, name) is not None and _uot(pool) is None:
            raise ValueError(f"{name}: expected a UOT pooling, got {pooling!r}")
    plain = Settings()
    return {name: value for name, value in options.items() if value != getattr(plain, name)}


def _uot(pool: Pooling) -> UOTPooling | None:
    return pool if isinstance(pool, UOTPooling) else None


class BagClassifier(nn.Module):
    """d - 256 - 128 - 64 with ReLU and dropout, pooling, linear: a logit for each bag."""

    def __init__(self, dim: int, pool: Pooling, head: nn.Linear, dropout: float) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inner, outer in zip((dim, *WIDTHS), WIDTHS, strict=False):
            layers += [nn.Linear(inner, outer), ReLUDropout(dropout)]
        self.features = nn.Sequential(*layers)
        self.pool = pool
        self.head = head

    def forward(self, X: Tensor, ptr: Tensor) -> Tensor:
        return self.head(self.pool(self.features(X), ptr=ptr)).squeeze(-1)


@dataclass(frozen=True)
class Fitted:
    """The chosen model of one outer fold, with the bags it was trained and is tested on."""

    best: _Trained
    curves: list[dict[str, Any]]
    train: Bags
    test: Bags
    parts: Split
    bags: int

    @property
    def model(self) -> BagClassifier:
        return self.best.model


def fit(spec: RunSpec, report: Report) -> Fitted:
    """Train each configuration; choose one and its epoch by the hold-out."""
    settings = Settings.of(spec)
    bags = _bags(spec.dataset)
    parts = split(bags.y.numpy(), spec.protocol, spec.fold, spec.seed)
    train, validation, test, scaling = (
        bags.subset(torch.from_numpy(part))
        for part in (parts.train, parts.validation, parts.test, parts.scaling)
    )
    clip = CLIP if spec.protocol == "fair" else math.inf
    train, validation, test = _standardised(scaling, clip, train, validation, test)
    tried = settings.configurations(spec.protocol)
    best: _Trained | None = None
    curves: list[dict[str, Any]] = []
    for i, config in enumerate(tried):
        trained = _train(spec, settings, config, train, validation, part(report, i, len(tried)))
        curves.append(config | trained.curves)
        if best is None or trained.validation_loss < best.validation_loss:
            best = trained
    assert best is not None
    best.model.eval()
    return Fitted(best, curves, train, test, parts, len(bags))


def run(spec: RunSpec, report: Report) -> Result:
    """One outer fold: fit, and test once."""
    fitted = fit(spec, report)
    best, model, test = fitted.best, fitted.model, fitted.test
    details = {
        "configuration": best.config,
        "epoch": best.epoch,
        "validation_loss": best.validation_loss if math.isfinite(best.validation_loss) else None,
        # At the last epoch, of the validation bags. Under "paper" those are the test fold, and what the
        # accuracy is above this comes from choosing the epoch by it.
        "last_accuracy": (best.curves["validation_accuracy"] or [None])[-1],
        "diverged": sum(bool(c["diverged"]) for c in fitted.curves),
        "split": fitted.parts.packed(fitted.bags),
    }
    with torch.no_grad():
        logits = model(test.X, test.ptr)
        uot = _uot(model.pool)
        if uot is not None:
            details |= uot.diagnostics(model.features(test.X), ptr=test.ptr)
    if best.epoch == 0:  # no epoch had a finite loss: nothing was learned but which class is the larger one
        logits = torch.full_like(logits, 1.0 if fitted.train.y.double().mean() > 0.5 else -1.0)
    return Result(
        metrics=binary_metrics(logits, test.y, fitted.train.y),
        epochs=fitted.curves,
        details=details,
        parameters=sum(p.numel() for p in model.parameters()),
    )


_bags = lru_cache(load_bags)  # a worker has many runs of one data set


def _standardised(scaling: Bags, clip: float, *parts: Bags) -> list[Bags]:
    """Features of mean 0 and variance 1 over the instances of `scaling`, within +-clip."""
    mean, std = scaling.X.mean(0), scaling.X.std(0, unbiased=False)
    std = torch.where(std > 0, std, 1.0)
    return [replace(bags, X=((bags.X - mean) / std).clamp(-clip, clip)) for bags in parts]


def make_model(spec: RunSpec, settings: Settings, train: Bags) -> BagClassifier:
    torch.manual_seed(seed_for(spec, "pool"))
    pool = build(spec.pooling, WIDTHS[-1], settings.hidden, **settings.pool)
    torch.manual_seed(seed_for(spec, "head"))
    head = nn.Linear(pool.out_dim, 1)
    torch.manual_seed(seed_for(spec, "features"))
    model = BagClassifier(train.X.shape[1], pool, head, settings.dropout)
    if pool.needs_fit or settings.alpha0_of_spread is not None:
        model.eval()
        with torch.no_grad():
            features = model.features(train.X)
            if pool.needs_fit:
                torch.manual_seed(seed_for(spec, "fit"))
                pool.fit(features)
            if settings.alpha0_of_spread is not None:
                _scale_alpha0(pool, settings.alpha0_of_spread * float(features.std()))
    return model


def _raw_alpha0(pool: Pooling) -> nn.Parameter:
    uot = _uot(pool)
    raw = None if uot is None else uot.raw_weights().get("alpha0")
    if raw is None:
        raise ValueError("alpha0_of_spread: expected a UOT pooling with a learned alpha0, got another")
    return raw


def _scale_alpha0(pool: Pooling, alpha0: float) -> None:
    raw = _raw_alpha0(pool)
    value = torch.tensor(alpha0, dtype=torch.float64)
    raw.copy_((value + torch.log(-torch.expm1(-value))).to(raw.dtype).expand(raw.shape))  # softplus^-1


def make_optimizer(model: BagClassifier, settings: Settings, config: dict[str, float]) -> torch.optim.Optimizer:
    lr, decay = config["lr"], config["weight_decay"]
    uot = _uot(model.pool)
    if uot is None:
        return torch.optim.Adam(model.parameters(), lr=lr, weight_decay=decay, fused=True)
    # The published layers were trained with decay on all parameters.
    decayed = uot.options.formulation == "paper" if settings.pool_decay is None else settings.pool_decay
    pool_lr = lr * (1.0 if settings.pool_lr is None else settings.pool_lr)
    rest, weights = param_groups(model, decay, lr=pool_lr)
    if decayed:
        weights["weight_decay"] = decay
    return torch.optim.Adam([group for group in (rest, weights) if group["params"]], lr=lr, fused=True)


def train_epoch(
    model: BagClassifier, optimizer: torch.optim.Optimizer, train: Bags, batch_size: int, order: torch.Generator
) -> float:
    """One pass over the bags; the mean loss."""
    model.train()
    total = 0.0
    for chosen in torch.randperm(len(train), generator=order).split(batch_size):
        batch = train.subset(chosen)
        loss = bce(model(batch.X, batch.ptr), batch.y.to(batch.X.dtype))
        optimizer.zero_grad()
        (loss + model.pool.aux_loss).backward()
        optimizer.step()
        total += float(loss.detach()) * len(chosen)
    return total / len(train)


@dataclass
class _Trained:
    model: BagClassifier
    config: dict[str, float]
    validation_loss: float
    epoch: int
    curves: dict[str, Any]


def _train(
    spec: RunSpec, settings: Settings, config: dict[str, float], train: Bags, validation: Bags, report: Report
) -> _Trained:
    """The model at the epoch with the least loss on the validation bags."""
    model = make_model(spec, settings, train)
    optimizer = make_optimizer(model, settings, config)
    torch.manual_seed(seed_for(spec, "training"))
    order = torch.Generator().manual_seed(seed_for(spec, "order"))
    target = validation.y.to(train.X.dtype)
    curves: dict[str, list[float]] = {"train_loss": [], "validation_loss": [], "validation_accuracy": []}
    best, best_epoch, state = float("inf"), 0, copy.deepcopy(model.state_dict())
    diverged = False
    for epoch in range(1, settings.epochs + 1):
        train_loss = train_epoch(model, optimizer, train, settings.batch, order)
        model.eval()
        with torch.no_grad():
            logits = model(validation.X, validation.ptr)
        loss_now = float(bce(logits, target))
        diverged = not math.isfinite(train_loss + loss_now)
        if diverged:
            break  # a parameter that is NaN stays so
        curves["train_loss"].append(round(train_loss, 6))
        curves["validation_loss"].append(round(loss_now, 6))
        curves["validation_accuracy"].append(round(float(((logits > 0) == target).float().mean()), 6))
        if loss_now < best:
            best, best_epoch, state = loss_now, epoch, copy.deepcopy(model.state_dict())
        report(epoch, settings.epochs)
    report(settings.epochs, settings.epochs)
    model.load_state_dict(state)
    return _Trained(model, config, best, best_epoch, curves | {"diverged": diverged})
