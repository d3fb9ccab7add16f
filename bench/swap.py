"""What the swap costs in a ResNet-18 at 224 x 224: time of a forward pass and of a training step."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from uotpool_experiments.solvers import SOLVERS
from uotpool_experiments.tasks.image import models

from bench.rows import Case, Comparison, cost
from bench.session import Session
from bench.timing import Call
from uotpool import replace_global_pool

BASELINE = "average pool"
FORWARD, STEP, SHARE = "forward", "training step", "added, of a"
NOTE = (
    "ResNet-18 of transformers, images of 224 x 224 (7 x 7 x 512 is pooled), channels_last, K = 4; a step is "
    "forward, backward and SGD. added: milliseconds of the pool alone less those of the average pool alone, as "
    "a share of the network's: the difference of two networks is lost in noise"
)


def measure(session: Session) -> list[Comparison]:
    batch, size = (2, 64) if session.quick else (16, 224)
    rows: list[Comparison] = []
    for threads in session.track(session.threads, "swap"):
        torch.manual_seed(0)
        plain = models.make("resnet18", 3, 10, size, small_stem=False, trained=False, weights=None)
        x = torch.randn(batch, 3, size, size).to(memory_format=torch.channels_last)
        nets: dict[str, nn.Module] = {BASELINE: plain}
        for solver in tuple(SOLVERS)[: 1 if session.quick else None]:
            net = copy.deepcopy(plain)
            replace_global_pool(net.net, example=x[:1], solver=solver)
            nets[solver] = net
        pooled = torch.randn_like(plain.features(x)).to(memory_format=torch.channels_last)
        label = f"{batch} x 3 x {size} x {size}"
        for mode, make in ((FORWARD, _forward), (STEP, _step)):
            for swapped in nets.values():
                swapped.train(mode == STEP)
            whole = session.measure({name: make(net, x) for name, net in nets.items()}, threads)
            pools: dict[str, Any] = {name: net.pool for name, net in nets.items()}
            alone = session.measure({name: make(pool, pooled) for name, pool in pools.items()}, threads)
            for name in list(nets)[1:]:
                case = Case("swap", label, name, mode, threads)
                rows.append(cost(case, name, BASELINE, whole[name], whole[BASELINE], None, NOTE))
                added = alone[name] - alone[BASELINE]
                case = Case("swap", label, name, f"{SHARE} {mode}", threads)
                rows.append(cost(case, name, "the network", added, whole[BASELINE], None, NOTE))
    return rows


def _forward(model: nn.Module, x: torch.Tensor) -> Call:
    def call() -> object:
        with torch.no_grad():
            return model(x)

    return call


def _step(model: nn.Module, x: torch.Tensor) -> Call:
    weights = list(model.parameters())
    optimizer = torch.optim.SGD(weights, lr=1e-4) if weights else None
    inputs = x.clone().requires_grad_()

    def call() -> object:
        out = model(inputs)
        out.square().mean().backward()
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()
        inputs.grad = None
        return None

    return call
