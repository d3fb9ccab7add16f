"""How the library behaves at run time: empty sets, precisions, threads, saving, compilers, accelerators."""

from __future__ import annotations

import copy
import io
import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch._inductor.utils import fresh_cache

from tests import tolerances as tol
from tests.cases import FORMULATIONS, SOLVERS, module_weights, step
from uotpool import MixedMeanMax, UOTPooling, uot_plan, uot_pool

D = 3
HOW = [(s, f, 2) for s in SOLVERS for f in FORMULATIONS] + [(s, "exact", "converged") for s in SOLVERS]
UNROLLED = [how[:2] for how in HOW if how[2] != "converged"]
LOW = {torch.float16: tol.F16, torch.bfloat16: tol.BF16}

each_how = pytest.mark.parametrize(("solver", "formulation", "K"), HOW)
each_unrolled = pytest.mark.parametrize(("solver", "formulation"), UNROLLED)
each_low = pytest.mark.parametrize("dtype", LOW, ids=str)


def randn(*size, seed=0, dtype=torch.float64):
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def close(a, b, tolerance):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def weights(solver, K, dtype=torch.float64):
    """Weights that require gradients; no rho where there is none."""
    values = module_weights(solver, 1 if K == "converged" else K, dtype=dtype)
    return [*values[:3], None if K == "converged" else values[3]]


def learned(solver, formulation, K, dim=D, **kwargs):
    return UOTPooling(dim, solver=solver, formulation=formulation, K=K, p0="learned", q0="learned", **kwargs)


def run(pool, X, leaves=(), **layout):
    """Output and gradients of X and the leaves (0 where a leaf has no effect)."""
    X = X.detach().requires_grad_()
    y = pool(X, **layout)
    leaves = [X, *leaves]
    scale = torch.arange(1.0, y.shape[1] + 1, dtype=y.dtype)
    grads = torch.autograd.grad((y * scale).sin().sum(), leaves, allow_unused=True)
    return [y.detach(), *(torch.zeros_like(x) if g is None else g for x, g in zip(leaves, grads, strict=True))]


def no_index(n=0):
    return torch.zeros(n, dtype=torch.int64)


# Empty sets: rows, layout, which sets are empty.
ROWS = randn(7, D, seed=1)
DENSE = randn(4, 5, D, seed=2)
MASK = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 0, 0, 0], [0, 1, 0, 1, 1], [0, 0, 0, 0, 0]]) > 0
EMPTY = {
    "mask": (DENSE, {"mask": MASK}, [1, 3]),
    "mask all False": (DENSE, {"mask": torch.zeros_like(MASK)}, [0, 1, 2, 3]),
    "index with gaps": (
        ROWS,
        {"index": torch.tensor([4, 1, 1, 4, 1, 4, 4]), "dim_size": 7},
        [0, 2, 3, 5, 6],
    ),
    "ptr with gaps": (ROWS, {"ptr": torch.tensor([0, 0, 3, 3, 7, 7])}, [0, 2, 4]),
    "one set, masked": (ROWS, {"mask": torch.zeros(7, dtype=torch.bool)}, [0]),
    "N = 0": (DENSE[:, :0], {}, [0, 1, 2, 3]),
    "B = 0": (DENSE[:0], {}, []),
    "M = 0, index": (ROWS[:0], {"index": no_index(), "dim_size": 3}, [0, 1, 2]),
    "M = 0, no set": (ROWS[:0], {"index": no_index()}, []),
    "M = 0, ptr": (ROWS[:0], {"ptr": no_index(3)}, [0, 1]),
    "B = 0, ptr": (ROWS[:0], {"ptr": no_index(1)}, []),
    "one set of N = 0": (ROWS[:0], {}, [0]),
}


def check_empty(results, X, layout, empty, poisoned):
    y, dX, *rest = results
    full = [b for b in range(y.shape[0]) if b not in empty]
    assert (y[empty] == 0).all()
    assert all(g.isfinite().all() for g in (y, dX, *rest))
    assert (dX[poisoned] == 0).all()
    if full:
        assert (y[full] != 0).all()
        assert all(g.abs().max() > 0 for g in (dX, rest[0]))  # X and a weight or prior
    else:
        assert all((g == 0).all() for g in (dX, *rest))


@pytest.mark.parametrize("case", EMPTY)
@each_how
def test_empty_sets_pool_to_zeros_with_zero_gradients(solver, formulation, K, case):
    X, layout, empty = EMPTY[case]
    mask = layout.get("mask", torch.ones(X.shape[:-1], dtype=torch.bool))
    X = torch.where(mask[..., None], X, torch.nan)  # what an absent row holds is never read
    w = weights(solver, K)
    sets = {k: v for k, v in layout.items() if k != "mask"}
    counts = uot_pool(mask[..., None].double(), 1.0, 0.0, 0.0, **sets, readout="authors", formulation="paper")
    del counts
    q0 = uniform_q0(mask, layout).requires_grad_()
    p0 = randn(D, seed=3).softmax(-1).requires_grad_()
    leaves = [v for v in w if v is not None]

    def pool(X, **kwargs):
        return uot_pool(X, *w, **kwargs, **layout, solver=solver, formulation=formulation, K=K)

    check_empty(run(pool, X, leaves), X, layout, empty, ~mask)
    check_empty(run(pool, X, [*leaves, p0, q0], p0=p0, q0=q0), X, layout, empty, ~mask)
    layer = learned(solver, formulation, K).double()
    check_empty(run(layer, X, layer.parameters(), **layout), X, layout, empty, ~mask)
    P = uot_plan(X, *w, **layout, solver=solver, formulation=formulation, K=K)
    assert P.isfinite().all()
    assert (P[~mask] == 0).all()
