"""Multi-instance learning: the bag classifier of Ilse et al. (2018), with any pooling of the zoo."""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from uotpool import UOTPooling, checks, param_groups, plan_stats
from uotpool.experiments.data import Bags, entry, load_bags, locate
from uotpool.experiments.dropout import ReLUDropout
from uotpool.experiments.metrics import binary_metrics
from uotpool.experiments.protocols import split
from uotpool.experiments.spec import Report, Result, RunSpec
from uotpool.zoo import ENTRIES, Pooling, build
from uotpool.zoo.uot import UOTP

bce = nn.functional.binary_cross_entropy_with_logits

EMBEDDED = "digits"
WIDTHS = (256, 128, 64)
# Tuning under "fair": the same four configurations for every pooling, the first one the paper's.
GRID: tuple[dict[str, float], ...] = tuple(
    {"lr": lr, "weight_decay": decay} for lr in (5e-4, 2e-3) for decay in (5e-3, 1e-4)
)


@dataclass(frozen=True)
class Settings:
    """What can be set for a run; the defaults are the paper's."""

    epochs: int = 50
    batch: int = 128
    lr: float | None = None  # None: 5e-4, or tuned under "fair"
    weight_decay: float | None = None  # None: 5e-3, or tuned under "fair"
    dropout: float = 0.5
    hidden: int = 64
    pool: dict[str, Any] = field(default_factory=dict)  # options of `zoo.build`
    pool_lr: float | None = None  # learning rate of a UOT pooling's weights, as a multiple of lr
    alpha0_of_spread: float | None = None  # initial alpha0, as a multiple of the spread of what is pooled

    def __post_init__(self) -> None:
        checks.count("epochs", self.epochs, 1)
        checks.count("batch", self.batch, 1)
        checks.count("hidden", self.hidden, 1)
        for name in ("lr", "alpha0_of_spread", "weight_decay", "pool_lr"):
            if getattr(self, name) is not None:
                checks.number(name, getattr(self, name), positive=name in ("lr", "alpha0_of_spread"))
        if checks.number("dropout", self.dropout, positive=False) >= 1:
            checks.fail("dropout", "a number in [0, 1)", self.dropout)
        if not isinstance(self.pool, dict):
            checks.fail("pool", "a table of options", self.pool, TypeError)

    @classmethod
    def of(cls, spec: RunSpec) -> Settings:
        return cls.from_options(spec.options)

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Settings:
        known = [f.name for f in fields(cls)]
        for name in options:
            if name not in known:
                raise ValueError(f"settings: expected names among {known}, got {name!r}")
        return cls(**options)

    def configurations(self, protocol: str) -> list[dict[str, float]]:
        """What is tried: all of the grid under "fair", without the values that are set."""
        fixed = {name: value for name in GRID[0] if (value := getattr(self, name)) is not None}
        tried = GRID if protocol == "fair" else GRID[:1]
        found = [config | fixed for config in tried]
        return [config for i, config in enumerate(found) if config not in found[:i]]


def poolings() -> list[str]:
    """All that need no edges."""
    return [name for name, found in ENTRIES.items() if not found.where.startswith("graphs:")]


def check_dataset(name: str) -> None:
    """Refuse what is no data set of this task, or is not at hand."""
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
    if settings.pool_lr is not None and not _exact(pool):
        raise ValueError(f"pool_lr: expected an exact UOT pooling, got {pooling!r}")
    plain = Settings()
    return {name: value for name, value in options.items() if value != getattr(plain, name)}


def _exact(pool: Pooling) -> bool:
    return isinstance(pool, UOTP) and pool.uot.rule.formulation == "exact"


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


def run(spec: RunSpec, report: Report) -> Result:
    """One outer fold: train each configuration, choose one and its epoch by the hold-out, test it."""
    settings = Settings.of(spec)
    bags = _bags(spec.dataset)
    parts = split(bags.y.numpy(), spec.protocol, spec.fold, spec.seed)
    train, validation, test, scaling = (
        bags.subset(torch.from_numpy(part))
        for part in (parts.train, parts.validation, parts.test, parts.scaling)
    )
    train, validation, test = _standardised(scaling, train, validation, test)
    tried = settings.configurations(spec.protocol)
    best: _Trained | None = None
    curves: list[dict[str, Any]] = []
    for i, config in enumerate(tried):
        trained = _train(spec, settings, config, train, validation, _part(report, i, len(tried)))
        curves.append(config | trained.curves)
        if best is None or trained.validation_loss < best.validation_loss:
            best = trained
    assert best is not None
    model = best.model
    details = {
        "configuration": best.config,
        "epoch": best.epoch,
        "diverged": sum(bool(c["diverged"]) for c in curves),
        "split": parts.packed(len(bags)),
    }
    model.eval()
    with torch.no_grad():
        logits = model(test.X, test.ptr)
        if isinstance(model.pool, UOTP):
            details |= _diagnostics(model.pool.uot, model.features(test.X), test.ptr)
    logits = logits.nan_to_num(0.0, 0.0, 0.0)  # of a model that never had a finite loss: no opinion
    return Result(
        metrics=binary_metrics(logits, test.y, train.y),
        epochs=curves,
        details=details,
        parameters=sum(p.numel() for p in model.parameters()),
    )


_bags = lru_cache(load_bags)  # a worker has many runs of one data set


def _standardised(scaling: Bags, *parts: Bags) -> list[Bags]:
    """Features of mean 0 and variance 1 over the instances of `scaling`; constant ones are left at 0."""
    mean, std = scaling.X.mean(0), scaling.X.std(0, unbiased=False)
    std = torch.where(std > 0, std, 1.0)
    return [replace(part, X=(part.X - mean) / std) for part in parts]


def _part(report: Report, i: int, n: int) -> Report:
    return lambda done, total: report(i * total + done, n * total)


def _seed(spec: RunSpec, what: str) -> int:
    """One for each use, the same for every pooling: they are compared from one start, on one order of bags."""
    text = f"{spec.task} {spec.dataset} {spec.fold} {spec.seed} {what}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")


def make_model(spec: RunSpec, settings: Settings, train: Bags) -> BagClassifier:
    torch.manual_seed(_seed(spec, "pool"))
    pool = build(spec.pooling, WIDTHS[-1], settings.hidden, **settings.pool)
    torch.manual_seed(_seed(spec, "head"))
    head = nn.Linear(pool.out_dim, 1)
    torch.manual_seed(_seed(spec, "features"))
    model = BagClassifier(train.X.shape[1], pool, head, settings.dropout)
    if pool.needs_fit or settings.alpha0_of_spread is not None:
        model.eval()
        with torch.no_grad():
            features = model.features(train.X)
            if pool.needs_fit:
                torch.manual_seed(_seed(spec, "fit"))
                pool.fit(features)
            if settings.alpha0_of_spread is not None:
                _scale_alpha0(pool, settings.alpha0_of_spread * float(features.std()))
    return model


def _raw_alpha0(pool: Pooling) -> nn.Parameter:
    raw = pool.uot.raw_weights().get("alpha0") if isinstance(pool, UOTP) else None
    if raw is None:
        raise ValueError("alpha0_of_spread: expected a UOT pooling with a learned alpha0, got another")
    return raw


def _scale_alpha0(pool: Pooling, alpha0: float) -> None:
    raw = _raw_alpha0(pool)
    value = torch.tensor(alpha0, dtype=torch.float64)
    raw.copy_((value + torch.log(-torch.expm1(-value))).to(raw.dtype).expand(raw.shape))  # softplus^-1


def make_optimizer(model: BagClassifier, settings: Settings, config: dict[str, float]) -> torch.optim.Optimizer:
    lr, decay = config["lr"], config["weight_decay"]
    pool = model.pool
    if _exact(pool):
        pool_lr = lr * (1.0 if settings.pool_lr is None else settings.pool_lr)
        groups = [group for group in param_groups(model, decay, lr=pool_lr) if group["params"]]
        return torch.optim.Adam(groups, lr=lr, fused=True)
    # The published layers were trained with decay on all parameters.
    return torch.optim.Adam(model.parameters(), lr=lr, weight_decay=decay, fused=True)


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
    torch.manual_seed(_seed(spec, "training"))
    order = torch.Generator().manual_seed(_seed(spec, "order"))
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


def _diagnostics(pool: UOTPooling, X: Tensor, ptr: Tensor) -> dict[str, Any]:
    """Does the learned plan do more than mean pooling? And with what weights."""
    stats = plan_stats(pool.plan(X, ptr=ptr), ptr=ptr)
    weights = {n: [round(float(v), 6) for v in w] for n, w in pool.weights()._asdict().items() if w is not None}
    found = {
        "divergence": float(stats.divergence.mean()),
        "mass": float(stats.mass.mean()),
        "spread": float(X.std()),
    }
    known = {name: value if math.isfinite(value) else None for name, value in found.items()}
    return known | {"weights": weights}
