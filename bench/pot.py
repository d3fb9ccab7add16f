"""One call for a batch against POT (Python Optimal Transport), which solves the problem set by set.

The same entropic problem with the same number of iterations, and the pooled output from the plan. POT leaves
the mass of the plan free, so the iterates differ; at the optimum outputs agree (`python -m bench convergence`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import ot
import torch
from torch import Tensor

from bench.cases import answer, only_reference, show, verify
from bench.rows import NOTE_END, Case, Comparison, speedup
from bench.session import Session
from bench.timing import BOTH, FORWARD, Call, Size, fastest, samples, timed
from uotpool import Sinkhorn, UOTPooling

ALPHA0, ALPHA1, ALPHA2 = 0.7, 0.7, 0.7
METHODS = {
    "knopp": ot.unbalanced.sinkhorn_knopp_unbalanced,
    "stabilized": ot.unbalanced.sinkhorn_stabilized_unbalanced,
    "translation invariant": ot.unbalanced.sinkhorn_unbalanced_translation_invariant,
}
FEW_SETS = 4  # timed of a batch with many iterations, and scaled up


def measure(session: Session) -> list[Comparison]:
    # The reference keeps some ten copies of X a module for its backward pass: no 100 modules on that.
    modules = (4,) if session.quick or only_reference() else (4, 100)
    cases = [(size, K) for size in session.sizes for K in modules]
    return [row for size, K in session.track(cases, "pot") for row in _case(session, size, K)]


def _case(session: Session, size: Size, K: int) -> list[Comparison]:
    rows: list[Comparison] = []
    X = samples(size)
    some = X if K == 4 else X[:FEW_SETS]
    scale = len(X) / len(some)
    ours = fixed_layer(size[2], K, "auto")
    expected = answer(fixed_layer(size[2], K, "reference"), some)
    for threads in session.threads:
        torch.set_num_threads(threads)
        verify(ours, expected, some)
        for mode in (FORWARD, BOTH):
            calls: dict[str, Call] = {"uotpool": timed(ours, mode, X)}
            method: dict[str, str] = {}
            for backend in ("torch", "numpy") if mode == FORWARD else ("torch",):
                options = {name: call_pot(f, X[:1], K, backend, mode) for name, f in METHODS.items()}
                method[backend] = fastest(options, threads)
                calls[backend] = call_pot(METHODS[method[backend]], some, K, backend, mode)
            seconds = session.measure(calls, threads)
            case = Case("pot", show(size), "sinkhorn", mode, threads)
            for backend, name in method.items():
                note = (
                    f"POT set by set, K iterations, stopThr=0{NOTE_END}its fastest method on {backend}: {name}"
                )
                if scale != 1:
                    note += (
                        f"{NOTE_END}{show(size)}, K={K}: {len(some)} sets timed, the time taken {scale:g}-fold"
                    )
                theirs = scale * seconds[backend]
                rows.append(speedup(case, f"K={K}", f"POT {backend}", seconds["uotpool"], theirs, None, note))
    return rows


def fixed_layer(D: int, K: int, impl: str) -> UOTPooling:
    """POT has one weight for all iterations."""
    return UOTPooling(D, Sinkhorn(K), alpha0=ALPHA0, alpha1=ALPHA1, alpha2=ALPHA2, scale=1.0, impl=impl)


def call_pot(method: Callable[..., Any], X: Tensor, K: int, backend: str, mode: str) -> Call:
    N, D = X.shape[1:]
    a, b, c = torch.full((N,), 1 / N), torch.full((D,), 1 / D), torch.ones(N, D)

    def one(bag: Any, a: Any, b: Any, c: Any) -> Any:
        settings = {"reg": ALPHA0, "reg_m": (ALPHA2, ALPHA1), "reg_type": "kl", "c": c}
        P = method(a, b, -bag, **settings, numItermax=K, stopThr=0)
        return (bag * P).sum(0) / P.sum(0)

    def quietly(bags: Any, *priors: Any) -> Any:
        with warnings.catch_warnings():  # that K iterations did not converge
            warnings.simplefilter("ignore")
            return [one(bag, *priors) for bag in bags]

    if backend == "numpy":
        bags, priors = X.numpy(), [t.numpy() for t in (a, b, c)]
        return lambda: quietly(bags, *priors)

    def forward() -> object:
        with torch.no_grad():
            return quietly(X, a, b, c)

    def both() -> object:
        leaf = X.detach().requires_grad_()
        y = torch.stack(quietly(leaf, a, b, c))
        return torch.autograd.grad(y, leaf, torch.ones_like(y))

    return forward if mode == FORWARD else both
