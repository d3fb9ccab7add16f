"""Local pooling of images in place of max pooling: against torch's own, in both memory formats."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.cases import WrongAnswerError, show
from bench.rows import Case, Comparison, Target, at_most, cost
from bench.session import Session
from bench.timing import BOTH, FORWARD, Call, samples
from uotpool import uot_pool
from uotpool.backends.cpu import library, windows
from uotpool.backends.images import memory_format

# (B, C, H, W), kernel, stride, padding
CASES = (
    ((32, 64, 56, 56), 2, 2, 0),
    ((32, 64, 56, 56), 3, 2, 1),
    ((32, 256, 14, 14), 2, 2, 0),
)
QUICK = (((2, 5, 8, 8), 2, 2, 0),)
K = 4
FORMATS = {"NCHW": torch.contiguous_format, "NHWC": torch.channels_last}
OURS, UNFOLDED, PLAIN = "windows", "unfold + bag kernel", ("max_pool2d", "avg_pool2d")
TARGETS = {FORWARD: at_most(10), BOTH: at_most(6)}  # times max_pool2d
NOTE = (
    f"Sinkhorn, K = {K}, an alpha0 for each module; images of normal numbers; the derivative by the output has "
    "the memory format of the input, as in a network. forward+backward: by the images and the weights"
)


def measure(session: Session) -> list[Comparison]:
    if library.missing():
        return []  # there is nothing but the kernel to be measured
    rows: list[Comparison] = []
    for case in session.track(QUICK if session.quick else CASES, "windows"):
        for threads in session.threads:
            torch.set_num_threads(threads)
            for name in FORMATS:
                rows += _compare(session, case, name, threads)
    return rows


def _compare(session: Session, case: Any, name: str, threads: int) -> list[Comparison]:
    shape, kernel, stride, padding = case
    X = samples(shape).contiguous(memory_format=FORMATS[name])
    torch.manual_seed(1)
    weights = 0.4 + torch.rand(3, K)
    poolings = _poolings(weights, kernel, stride, padding)
    _verify(poolings, X)
    rows: list[Comparison] = []
    for mode in (FORWARD, BOTH):
        seconds = session.measure({n: _timed(pool, mode, X, weights) for n, pool in poolings.items()}, threads)
        size = f"{show(shape)}, {kernel}x{kernel} / {stride}, {name}"
        for candidate in (OURS, UNFOLDED):
            for baseline in PLAIN:
                about = Case("windows", size, "sinkhorn", mode, threads)
                target = _target(candidate, baseline, mode)
                rows.append(
                    cost(about, candidate, baseline, seconds[candidate], seconds[baseline], target, NOTE)
                )
    return rows


def _target(candidate: str, baseline: str, mode: str) -> Target | None:
    return TARGETS[mode] if (candidate, baseline) == (OURS, PLAIN[0]) else None


def _poolings(weights: Tensor, kernel: int, stride: int, padding: int) -> dict[str, Any]:
    sizes = (kernel, kernel), (stride, stride), (padding, padding)

    def ours(X: Tensor, weights: Tensor = weights) -> Tensor:
        return windows.pool(X, weights, None, *sizes, _output(X, kernel, stride, padding))

    return {
        OURS: ours,
        UNFOLDED: partial(_unfolded, weights=weights, kernel=kernel, stride=stride, padding=padding),
        PLAIN[0]: lambda X, **_: F.max_pool2d(X, kernel, stride, padding),
        PLAIN[1]: lambda X, **_: F.avg_pool2d(X, kernel, stride, padding),
    }


def _output(X: Tensor, kernel: int, stride: int, padding: int) -> tuple[int, int]:
    h, w = ((n + 2 * padding - kernel) // stride + 1 for n in X.shape[2:])
    return h, w


def _unfolded(X: Tensor, weights: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
    """Make each window a set of (kernel^2, C) for the kernel of sets, with the padding masked."""
    B, C = X.shape[:2]
    out = _output(X, kernel, stride, padding)

    def rows(x: Tensor) -> Tensor:
        cut = F.pad(x, [padding] * 4).unfold(2, kernel, stride).unfold(3, kernel, stride)
        return cut.permute(0, 2, 3, 4, 5, 1).reshape(-1, kernel * kernel, x.shape[1])

    mask = None
    if padding:
        mask = rows(X.new_ones(1, 1, *X.shape[2:]))[..., 0].repeat(B, 1) > 0
    y = uot_pool(rows(X), *weights, mask=mask)
    return y.reshape(B, *out, C).permute(0, 3, 1, 2)


def _verify(poolings: dict[str, Any], X: Tensor) -> None:
    """Check that two independent ways give the same numbers; else nothing is timed."""
    ours, other = (poolings[name](X[:2]) for name in (OURS, UNFOLDED))
    if not torch.allclose(ours, other, rtol=1e-4, atol=1e-4):
        raise WrongAnswerError(
            f"bench: windows and {UNFOLDED} differ on X of shape {tuple(X.shape)}; not timed"
        )


def _timed(pool: Any, mode: str, X: Tensor, weights: Tensor) -> Call:
    if mode == FORWARD:

        def forward() -> object:
            with torch.no_grad():
                return pool(X)

        return forward
    leaf, by = X.detach().requires_grad_(), weights.clone().requires_grad_()
    y = pool(leaf)
    dout = samples(tuple(y.shape), seed=2).contiguous(memory_format=memory_format(X))

    def both() -> object:
        return torch.autograd.grad(pool(leaf, weights=by), (leaf, by), dout, allow_unused=True)

    return both
