"""Local pooling by unfolding, in plain torch, and cases: what the tests of the window kernel compare with."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tests import tolerances as tol
from tests.kernels.harness import modules, rand, randn
from uotpool.backends import SolverOptions
from uotpool.backends.cpu import windows
from uotpool.backends.images import memory_format as image_format
from uotpool.backends.reference import log_plan
from uotpool.inputs import as_sets
from uotpool.problem import Problem
from uotpool.solvers import SOLVERS

Pair = tuple[int, int]


class Windows(NamedTuple):
    """A batch of images and what to do with them. Weights are rows of a (3, K) tensor."""

    X: Tensor
    weights: Tensor
    scale: Tensor | None
    kernel_size: Pair
    stride: Pair
    padding: Pair
    output_size: Pair

    def to(self, dtype: torch.dtype, memory_format: torch.memory_format = torch.contiguous_format) -> Windows:
        scale = None if self.scale is None else self.scale.to(dtype)
        X = self.X.to(dtype).contiguous(memory_format=memory_format)
        return self._replace(X=X, weights=self.weights.to(dtype), scale=scale)


def output_size(size: Pair, kernel: Pair, stride: Pair, padding: Pair, ceil: bool = False) -> Pair:
    """As torch's poolings have it: with `ceil`, a last window that starts inside of the image."""

    def one(n: int, k: int, s: int, p: int) -> int:
        count = (n + 2 * p - k + (s - 1 if ceil else 0)) // s + 1
        return count - 1 if ceil and (count - 1) * s >= n + p else count

    h, w = (one(*sizes) for sizes in zip(size, kernel, stride, padding, strict=True))
    return h, w


def case(
    shape: tuple[int, int, int, int],
    kernel: Pair,
    stride: Pair | None = None,
    padding: Pair = (0, 0),
    *,
    ceil: bool = False,
    K: int = 2,
    scale: float | str | None = None,
    seed: int = 0,
) -> Windows:
    """X in [-2, 2]; `scale` is of all channels, or "each": of both signs and 0."""
    weights = torch.stack([w for w in modules("sinkhorn", K, seed) if w is not None])
    s = None
    if scale == "each":
        s = randn(shape[1], seed=seed + 7)
        s[1::4] = 0
    elif scale is not None:
        s = torch.tensor([scale]).double()
    sizes = (kernel, stride or kernel, padding)
    return Windows(
        4 * rand(*shape, seed=seed) - 2, weights, s, *sizes, output_size(shape[2:], *sizes, ceil=ceil)
    )


def reference(p: Windows) -> Tensor:
    """Every window of zero-padded X a row, what is in the padding masked."""
    B, C, H, W = p.X.shape
    (kh, kw), (sh, sw), (ph, pw), (oh, ow) = p[3:]
    below, right = ((o - 1) * s + k for o, s, k in ((oh, sh, kh), (ow, sw, kw)))
    pad = (pw, max(right - W - pw, 0), ph, max(below - H - ph, 0))

    def rows(x: Tensor) -> Tensor:  # (B L, kh kw, channels)
        cut = F.pad(x, pad)[:, :, :below, :right].unfold(2, kh, sh).unfold(3, kw, sw)
        return cut.permute(0, 2, 3, 4, 5, 1).reshape(B * oh * ow, kh * kw, x.shape[1])

    mask = rows(torch.ones(B, 1, H, W))[..., 0] > 0
    X = rows(p.X)
    # The plan itself may be 0 for all of a channel: softmax over the samples of its logarithm.
    sX, sets = as_sets(X if p.scale is None else p.scale * X, None, None, None, mask)
    log_P = log_plan(Problem(sX, sets, None, None, p.weights), SolverOptions(SOLVERS["sinkhorn"]))
    y = (X * sets.softmax_n(log_P)).sum(1)
    return y.reshape(B, oh, ow, C).permute(0, 3, 1, 2)


def solved(p: Windows, pool: Any) -> dict[str, Tensor]:
    """Value, and the derivative of a random combination of it by everything there is."""
    named = {"X": p.X, "weights": p.weights, "scale": p.scale}
    inputs: dict[str, Any] = {
        name: t.detach().clone().requires_grad_() for name, t in named.items() if t is not None
    }
    y = pool(p._replace(**inputs))
    dout = randn(*y.shape, seed=11).to(y.dtype)
    grads = torch.autograd.grad(y, list(inputs.values()), dout)
    return {"value": y.detach(), **dict(zip(inputs, grads, strict=True))}


def fused(p: Windows) -> Tensor:
    return windows.pool(*p)


def compare(p: Windows, slack: float = 1.0) -> None:
    """The kernel against the reference in float64, in both precisions and memory formats."""
    want = solved(p, reference)
    ratio = float((p.X.abs().max() * (1 if p.scale is None else p.scale.abs().max())) / p.weights[0].min())
    for dtype in (torch.float64, torch.float32):
        for memory_format in (torch.contiguous_format, torch.channels_last):
            q = p.to(dtype, memory_format)
            got = solved(q, fused)
            assert got["value"].is_contiguous(memory_format=image_format(q.X))
            for name, error in off(got, want, p.weights).items():
                bound = tol.window(name, torch.finfo(dtype).eps, ratio, slack)
                assert error <= bound, (name, dtype, memory_format, error, bound)


def off(got: dict[str, Tensor], want: dict[str, Tensor], weights: Tensor) -> dict[str, float]:
    """Errors relative to the largest entry, or to 1e-3; by the logarithms of weights, and as `harness.off`."""
    assert got.keys() == want.keys()
    spread = max(1.0, float(want["value"].max() - want["value"].min()))
    errors = {}
    for name, g in got.items():
        assert g.shape == want[name].shape, name
        assert g.isfinite().all(), name
        by = weights if name == "weights" else 1.0
        floor = 1e-3 * (1.0 if name in ("value", "X") else spread)
        error = float(((g.double() - want[name]) * by).abs().max())
        errors[name] = error / max(float((want[name] * by).abs().max()), floor)
    return errors
