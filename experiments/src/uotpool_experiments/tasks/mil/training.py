"""The bag classifier of Ilse et al. (2018) with any pooling: its model, its training and its test."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from uotpool import UOTPooling, param_groups
from uotpool.zoo import Pooling, build
from uotpool_experiments.datasets import Bags, load_bags
from uotpool_experiments.tasks.mil.dropout import ReLUDropout
from uotpool_experiments.tasks.mil.metrics import binary_metrics
from uotpool_experiments.tasks.mil.settings import WIDTHS, Settings
from uotpool_experiments.tasks.protocols import Split, split
from uotpool_experiments.tasks.seeding import part, seed_for
from uotpool_experiments.tasks.spec import Report, Result, RunSpec

bce = nn.functional.binary_cross_entropy_with_logits

# Under "fair", standardised features are clipped to this. A feature that hardly varies in the
# training bags can be thousands of standard deviations away elsewhere, and a few such values would
# decide the result.
CLIP = 10.0


def uot_of(pool: Pooling) -> UOTPooling | None:
    return pool if isinstance(pool, UOTPooling) else None


def check_pooling(pooling: str, settings: Settings) -> None:
    """Refuse settings that this pooling has no use for."""
    pool = build(pooling, WIDTHS[-1], settings.hidden, **settings.pool)
    if settings.alpha0_of_spread is not None:
        raw_alpha0(pool)
    for name in ("pool_lr", "pool_decay"):
        if getattr(settings, name) is not None and uot_of(pool) is None:
            raise ValueError(f"{name}: expected a UOT pooling, got {pooling!r}")


class BagClassifier(nn.Module):
    """Layers d - 256 - 128 - 64 with ReLU and dropout, pooling, and a linear layer that gives one
    logit per bag.
    """

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
    """The chosen model of one outer fold, with its training and test bags."""

    best: _Trained
    curves: list[dict[str, Any]]
    train: Bags
    test: Bags
    parts: Split | None = None  # of the data set, if the bags are parts of one
    bags: int = 0  # in the data set

    @property
    def model(self) -> BagClassifier:
        return self.best.model


def fit(spec: RunSpec, report: Report) -> Fitted:
    """Do one outer fold of a data set, but for the test."""
    bags = _bags(spec.dataset)
    parts = split(bags.y.numpy(), spec.protocol, spec.fold, spec.seed)
    train, validation, test, scaling = (
        bags.subset(torch.from_numpy(part))
        for part in (parts.train, parts.validation, parts.test, parts.scaling)
    )
    clip = CLIP if spec.protocol == "fair" else math.inf
    train, validation, test = _standardised(scaling, clip, train, validation, test)
    fitted = fit_bags(spec, Settings.of(spec), (train, validation, test), report)
    return replace(fitted, parts=parts, bags=len(bags))


def fit_bags(spec: RunSpec, settings: Settings, parts: tuple[Bags, Bags, Bags], report: Report) -> Fitted:
    """Train each configuration; choose one and its epoch by the hold-out.

    Args:
        spec: the run, of which pooling and seed count here.
        settings: the settings of the run.
        parts: bags to train on, to choose by, and to test on.
        report: what is told how far training is.
    """
    train, validation, test = parts
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
    return Fitted(best, curves, train, test)


def run(spec: RunSpec, report: Report) -> Result:
    """Do one outer fold: fit, and test once."""
    return tested(fit(spec, report))


def tested(fitted: Fitted) -> Result:
    """Test the chosen model, once."""
    best, model, test = fitted.best, fitted.model, fitted.test
    details: dict[str, Any] = {
        "configuration": best.config,
        "epoch": best.epoch,
        "validation_loss": best.validation_loss if math.isfinite(best.validation_loss) else None,
        # The accuracy on the validation bags at the last epoch. Under "paper" these are the test
        # fold, and the reported accuracy is higher only because the test fold chooses the epoch.
        "last_accuracy": (best.curves["validation_accuracy"] or [None])[-1],
        "diverged": sum(bool(c["diverged"]) for c in fitted.curves),
    }
    if fitted.parts is not None:
        details["split"] = fitted.parts.packed(fitted.bags)
    with torch.no_grad():
        logits = model(test.X, test.ptr)
        uot = uot_of(model.pool)
        if uot is not None:
            details |= uot.diagnostics(model.features(test.X), ptr=test.ptr)
    if best.epoch == 0:  # no epoch had a finite loss, so we only know which class is the larger one
        logits = torch.full_like(logits, 1.0 if fitted.train.y.double().mean() > 0.5 else -1.0)
    return Result(
        metrics=binary_metrics(logits, test.y, fitted.train.y),
        epochs=fitted.curves,
        details=details,
        parameters=sum(p.numel() for p in model.parameters()),
    )


_bags = lru_cache(load_bags)  # a worker does many runs on one data set


def _standardised(scaling: Bags, clip: float, *parts: Bags) -> list[Bags]:
    """Scale the parts to mean 0 and variance 1 over the instances of `scaling`, clipped to +-clip."""
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


def raw_alpha0(pool: Pooling) -> Tensor:
    uot = uot_of(pool)
    raw = None if uot is None else uot.raw_parameters().get("alpha0")
    if raw is None:
        raise ValueError("alpha0_of_spread: expected a UOT pooling with a learned alpha0, got another")
    return raw


def _scale_alpha0(pool: Pooling, alpha0: float) -> None:
    raw = raw_alpha0(pool)
    value = torch.tensor(alpha0, dtype=torch.float64)
    raw.copy_((value + torch.log(-torch.expm1(-value))).to(raw.dtype).expand(raw.shape))  # softplus^-1


def make_optimizer(model: BagClassifier, settings: Settings, config: dict[str, float]) -> torch.optim.Optimizer:
    lr, decay = config["lr"], config["weight_decay"]
    uot = uot_of(model.pool)
    if uot is None:
        return torch.optim.Adam(model.parameters(), lr=lr, weight_decay=decay, fused=True)
    # The published layers were trained with decay on all parameters.
    decayed = not uot.solver.is_exact if settings.pool_decay is None else settings.pool_decay
    pool_lr = lr * (1.0 if settings.pool_lr is None else settings.pool_lr)
    rest, weights = param_groups(model, decay, lr=pool_lr)
    if decayed:
        weights["weight_decay"] = decay
    return torch.optim.Adam([group for group in (rest, weights) if group["params"]], lr=lr, fused=True)


def train_epoch(
    model: BagClassifier, optimizer: torch.optim.Optimizer, train: Bags, batch_size: int, order: torch.Generator
) -> float:
    """Train for one pass over the bags; return the mean loss."""
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
    """Train, and go back to the epoch with the least loss on the validation bags."""
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
