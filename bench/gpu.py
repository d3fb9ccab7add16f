"""Times on a GPU: the fused kernels, the reference, what torch.compile makes of that, and max pooling.

Each answer is compared with the reference first, and a wrong one is not timed. Without a GPU,
`TRITON_INTERPRET=1 python -m bench gpu --quick` does all of it on tiny CPU tensors, whose times mean nothing:
it shows that the measurement works.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bench.cases import Answer, WrongAnswerError, show
from bench.rows import Case, Comparison, speedup
from bench.session import Session
from bench.timing import BOTH, FORWARD, samples
from uotpool import explain_impl
from uotpool.backends import BACKENDS
from uotpool.solvers import Sinkhorn
from uotpool.zoo import build

OURS, REFERENCE, COMPILED, MAX = "triton", "reference", "torch.compile(reference)", "torch.max"
LARGE = (1, 50_000, 512)
QUICK = ((2, 5, 4), (1, 70, 4))
NOTE = "K = 4, float32, learned weights; times of the GPU between two events, the least of several turns"
DRY = "TRITON_INTERPRET is set: these are times of Triton's interpreter on the CPU, which mean nothing"
Pool = Callable[[Tensor], Tensor]


def measure(session: Session) -> list[Comparison]:
    device = _device()
    sizes = QUICK if session.quick else (*session.sizes, LARGE)
    rows: list[Comparison] = []
    for size in session.track(sizes, "gpu"):
        rows += _compare(session, size, device)
    return rows


def _device() -> torch.device:
    """Return where to measure: a GPU, or the CPU if the kernels are interpreted there."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    X = torch.empty(1, 1, 1)
    if BACKENDS["triton"].why_not(X, Sinkhorn()):
        raise SystemExit(
            f"bench: gpu needs a CUDA or ROCm GPU, and torch sees none (uotpool: {explain_impl(X)}). "
            "To see that the measurement works: TRITON_INTERPRET=1 python -m bench gpu --quick"
        )
    return torch.device("cpu")


def pools(D: int, device: torch.device, K: int, *, compiled: bool) -> dict[str, nn.Module]:
    """Make the layers of a case, all with the same weights."""

    def layer(impl: str) -> nn.Module:
        torch.manual_seed(1)
        return build("uotp-sinkhorn", D, K=K, impl=impl).to(device)

    layers = {OURS: layer("triton"), REFERENCE: layer("reference")}
    if compiled:
        torch.compiler.reset()
        layers[COMPILED] = torch.compile(layer("reference"), dynamic=False)  # type: ignore[assignment]
    layers[MAX] = _Max()
    return layers


class _Max(nn.Module):
    def forward(self, X: Tensor) -> Tensor:
        return X.amax(1)


def _compare(session: Session, size: tuple[int, ...], device: torch.device) -> list[Comparison]:
    X = samples(size).to(device)
    if BACKENDS["triton"].why_not(X, Sinkhorn()):  # more features than it takes
        return []
    K = 1 if session.quick else 4
    layers = pools(size[2], device, K, compiled=session.compile != "none")
    expected = answer(layers[REFERENCE], X)
    for name, pool in layers.items():
        if name != MAX:
            verify(name, pool, X, expected)
    note = NOTE if device.type == "cuda" else DRY
    rows = []
    for mode in (FORWARD, BOTH):
        seconds = _seconds({name: _call(pool, mode, X) for name, pool in layers.items()}, session, device)
        about = Case("gpu", show(size), "sinkhorn", mode, torch.get_num_threads())
        for name in layers:
            if name != OURS:
                rows.append(speedup(about, OURS, name, seconds[OURS], seconds[name], None, note))
    return rows


def answer(pool: nn.Module, X: Tensor) -> Answer:
    leaf = X.detach().requires_grad_()
    y = pool(leaf)
    (dX,) = torch.autograd.grad(y, leaf, samples(tuple(y.shape), seed=2).to(X.device))
    return Answer(y.detach(), dX)


def verify(name: str, pool: nn.Module, X: Tensor, expected: Answer) -> None:
    """Refuse to time an answer that is off by more than float32 explains."""
    for part, ours, wanted in zip(Answer._fields, answer(pool, X), expected, strict=True):
        error = (ours - wanted).abs()
        if not bool((error <= 1e-4 * wanted.abs() + 1e-5 * wanted.abs().max()).all()):  # also for NaN
            worst = float((error / wanted.abs().max()).max())
            raise WrongAnswerError(
                f"bench: {part} of {name} on X of shape {tuple(X.shape)} is off the reference by up to "
                f"{worst:.1e} of its largest entry; not timed"
            )


def _call(pool: nn.Module, mode: str, X: Tensor) -> Callable[[], Any]:
    if mode == FORWARD:

        def forward() -> Tensor:
            with torch.no_grad():
                return pool(X)

        return forward
    leaf = X.detach().requires_grad_()
    with torch.no_grad():
        dout = torch.ones_like(pool(leaf))
    wanted = [leaf, *pool.parameters()]

    def both() -> tuple[Tensor | None, ...]:
        return torch.autograd.grad(pool(leaf), wanted, dout, allow_unused=True)

    return both


def _seconds(calls: dict[str, Callable[[], Any]], session: Session, device: torch.device) -> dict[str, float]:
    """Return the least time of a call, all calls taken in turns."""
    if device.type == "cpu":
        return session.measure(calls, torch.get_num_threads())
    least = dict.fromkeys(calls, float("inf"))
    for call in calls.values():  # kernels are compiled, memory is kept
        for _ in range(3):
            call()
    for _ in range(session.repeats):
        for name, call in calls.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            loops = 2 if session.quick else 20
            torch.cuda.synchronize()
            start.record()
            for _ in range(loops):
                call()
            end.record()
            torch.cuda.synchronize()
            least[name] = min(least[name], start.elapsed_time(end) / 1e3 / loops)
    return least
