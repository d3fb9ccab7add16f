"""Distributed data parallel: every parameter takes part, and the gradients are those of one process."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tests import tolerances as tol
from tests.cases import FORMULATIONS, SOLVERS
from tests.spelling import classic

WORLD = 2
STEPS = 2
D = 3
SETTINGS: list[dict[str, Any]] = [
    {"solver": solver, "formulation": formulation, "K": K, "p0": "learned", "q0": "learned"}
    for solver in SOLVERS
    for formulation in FORMULATIONS
    for K in (1, 2)
]
SETTINGS += [{"solver": solver, "K": "converged", "p0": "learned", "q0": "learned"} for solver in SOLVERS]
SETTINGS += [{"alpha0": 0.1, "K": 2, "shared": True}]  # with a buffer, that DDP sends around

pytestmark = pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch has no gloo backend")


class Model(nn.Module):
    def __init__(self, settings: dict[str, Any], seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.before = nn.Linear(4, D)
        self.pool = classic(D, **settings)
        self.after = nn.Linear(D, 2)

    def forward(self, X: Tensor, mask: Tensor) -> Tensor:
        return self.after(self.pool(self.before(X), mask=mask))


def train(model: nn.Module, X: Tensor, mask: Tensor) -> list[list[Tensor]]:
    """Gradients of each step, and the parameters in the end."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    results = []
    for k in range(STEPS):
        optimiser.zero_grad()
        model(X[k], mask[k]).square().mean().backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        assert len(gradients) == len(list(model.parameters()))
        results.append([g.clone() for g in gradients])
        optimiser.step()
    return [*results, [p.detach().clone() for p in model.parameters()]]


def batches() -> tuple[Tensor, Tensor]:
    """Make a batch of 2 sets per process for each step, one of them empty."""
    g = torch.Generator().manual_seed(0)
    X = torch.randn(STEPS, 2 * WORLD, 5, 4, generator=g, dtype=torch.float64)
    mask = torch.rand(STEPS, 2 * WORLD, 5, generator=g) < 0.7
    mask[:, 1] = False
    return X, mask


def process(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=WORLD
    )
    X, mask = (t[:, 2 * rank : 2 * rank + 2] for t in batches())
    results = []
    for settings in SETTINGS:
        model = DistributedDataParallel(Model(settings, seed=rank).double())  # rank 0 gives all its weights
        results.append(train(model, X, mask))
    torch.save(results, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


def test_two_processes_train_like_one(tmp_path):
    """Without `find_unused_parameters`: a parameter that is not in the graph would raise in the second step.

    One test for all settings, since it takes seconds to start processes.
    """
    torch.multiprocessing.spawn(process, (str(tmp_path),), nprocs=WORLD)
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(WORLD)]
    for settings, first, second in zip(SETTINGS, *ranks, strict=True):
        for a, b in zip(first, second, strict=True):
            assert all(torch.equal(p, q) for p, q in zip(a, b, strict=True)), settings

        model = Model(settings, seed=0).double()
        start = copy.deepcopy(model)
        for a, b in zip(first, train(model, *batches()), strict=True):
            for p, q in zip(a, b, strict=True):
                assert torch.allclose(p, q, rtol=tol.F64, atol=tol.F64), settings
        named = zip(start.named_parameters(), first[-1], strict=True)
        still = [name for (name, p), q in named if torch.equal(p, q)]
        if settings.get("formulation") == "paper":  # not all of its parameters have an effect
            assert all(name.startswith("pool.") for name in still), settings
        else:
            assert still == [], settings
