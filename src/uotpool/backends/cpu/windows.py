"""Local pooling of images by the fused CPU kernel: every window of X is a set, its positions the samples.

`pool` is what layers call. As in `ops`, the operators `uotpool::window` and `uotpool::window_backward` are for
compilers and exporters, and an eager call goes past the dispatcher.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor

from uotpool import checks
from uotpool.backends.cpu import library, pieces
from uotpool.backends.cpu.calls import (
    DTYPES,
    MOST_MODULES,
    MOST_THREADS,
    address,
    native,
)
from uotpool.backends.cpu.operators import operator
from uotpool.backends.derivatives import differentiated, keep, kept, refuse
from uotpool.backends.images import SCHEMA, empty_derivatives, memory_format, plain_image
from uotpool.backends.images import WindowArguments as Arguments
from uotpool.backends.tensors import all_eager, plain, resolved

MOST_POSITIONS = 2**31  # along an axis, that the library takes


def pool(
    X: Tensor,
    weights: Tensor,
    scale: Tensor | None,
    kernel_size: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    output_size: tuple[int, int],
) -> Tensor:
    """Pool each window by Sinkhorn with uniform priors: (B, C, *output_size) in the dtype and format of X.

    Output (i, j) is of the window that starts at (i, j) * stride - padding; what is outside of X is absent.

    Args:
        X: (B, C, H, W), not copied if contiguous or channels_last; half precision is computed in float32.
        weights: (3, K), the rows alpha0, alpha1, alpha2.
        scale: s, one number, () or (1,), or one per channel, (C,); the plan is that of s X, for the mean of X.
            None: 1.
        kernel_size: height and width of a window.
        stride: from one window to the next.
        padding: rows and columns of nothing at each side.
        output_size: number of windows.
    """
    dtype = X.dtype if X.dtype in DTYPES else torch.float32
    weights = plain(weights.to(dtype))
    if scale is not None:
        scale = plain(scale.to(dtype).reshape(-1))
    problem = Arguments(plain_image(X.to(dtype)), weights, scale, kernel_size, stride, padding, output_size)
    inputs = problem.differentiable()
    if not all_eager(inputs):
        out = cast(Tensor, torch.ops.uotpool.window(*problem))
    elif torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs):
        out = cast(Tensor, _Pool.apply(*inputs, problem))
    else:
        out = _forward(problem)
    return out if X.dtype == dtype else out.to(X.dtype)


def _call(p: Arguments, *outputs: Tensor | None) -> library.WindowCall:
    """Return the call; `outputs` are dout, out, dX, dweights, dscale."""
    return library.WindowCall(
        DTYPES.index(p.X.dtype),
        memory_format(p.X) == torch.channels_last,
        p.weights.shape[1],
        *p.X.shape,
        *p.kernel_size,
        *p.stride,
        *p.padding,
        *p.output_size,
        min(torch.get_num_threads(), MOST_THREADS),
        0 if p.scale is None else p.scale.shape[0],
        *[address(t) for t in (*p.differentiable(), *outputs)],
    )


def _solve(p: Arguments, call: library.WindowCall, name: str) -> None:
    """Solve all images by the function of the library with this name, in pieces where it takes long."""
    images, channels = p.X.shape[:2]
    entries = channels * math.prod(p.kernel_size) * math.prod(p.output_size)
    each = entries * (p.weights.shape[1] + 1)  # work of an image, as `pieces` counts
    if pieces.is_short(images * each, images):
        library.check(getattr(native(), name)(call))
        return
    numbers = p.weights.numel() + (0 if p.scale is None else p.scale.shape[0])
    carry = torch.empty(numbers, dtype=torch.float64, device="cpu")  # lives until the last piece is done
    extra = (carry.data_ptr(),) if name == "uotpool_window_backward" else ()
    function = getattr(native(), f"{name}_images")
    pieces.run(images, lambda begin, end: function(call, begin, end, *extra), pieces.equal_reach(each, images))


def _forward(p: Arguments) -> Tensor:
    out = p.empty_output()
    _solve(p, _call(p, None, out, None, None, None), "uotpool_window_forward")
    return out


def _derivatives(dout: Tensor, p: Arguments, wanted: list[bool]) -> list[Tensor | None]:
    """Return the derivatives by X, the weights and the scale; None for one that is not wanted."""
    pairs = zip(p.differentiable(), wanted, strict=True)
    made = [None if t is None or not w else torch.empty_like(t) for t, w in pairs]
    dout = resolved(dout.contiguous(memory_format=memory_format(p.X)))  # has to live until the call is over
    _solve(p, _call(p, dout, None, *made), "uotpool_window_backward")
    return made


def _by_operator(dout: Tensor, p: Arguments, wanted: list[bool]) -> list[Tensor | None]:
    made = torch.ops.uotpool.window_backward(dout, *p, wanted)
    return [d if w else None for d, w in zip(made, wanted, strict=True)]


def _save(ctx: Any, p: Arguments) -> None:
    keep(ctx, *p.differentiable())
    ctx.sizes = p[3:]


def _saved(ctx: Any, tensors: Any) -> Arguments:
    return Arguments(*tensors, *ctx.sizes)


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        problem = inputs[-1]
        _save(ctx, problem)
        return _forward(problem)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        wanted = list(ctx.needs_input_grad[:3])
        X, *rest = kept(ctx)
        tensors = (plain_image(X), *(None if t is None else plain(t) for t in rest))  # type: ignore[arg-type]
        return *differentiated(dout, _saved(ctx, tensors), wanted, _derivatives, _by_operator), None


def _validated(p: Arguments) -> Arguments:
    """Check what `pool` makes sure of: anyone can call an operator, and C trusts shapes and dtypes."""
    good = (
        p.fits()
        and p.X.dtype in DTYPES
        and all(t is None or (t.dtype == p.X.dtype and t.device.type == "cpu") for t in p.differentiable())
        and p.K <= MOST_MODULES
        and max(size for pair in p[3:] for size in pair) <= MOST_POSITIONS
    )
    if not good:
        raise ValueError("uotpool::window: shapes, dtypes, devices or sizes that do not fit; use the layers")
    return p.plain()


def _operator_forward(*problem: Any) -> Tensor:
    return _forward(_validated(Arguments(*problem)))


def _operator_backward(dout: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """Return tensors, as an operator must: an empty one for a derivative that is not wanted."""
    *problem, wanted = rest
    p = _validated(Arguments(*problem))
    if dout.dtype != p.X.dtype or dout.shape != p.output_shape():
        raise ValueError("uotpool::window_backward: dout has not the shape and dtype of the output")
    return tuple(p.X.new_empty(0) if d is None else d for d in _derivatives(dout, p, wanted))


_window_op = operator("window", _operator_forward, f"({SCHEMA}) -> Tensor")
_backward_op = operator(
    "window_backward",
    _operator_backward,
    f"(Tensor dout, {SCHEMA}, bool[] wanted) -> (Tensor, Tensor, Tensor)",
)


@_window_op.register_fake
def _(*problem: Any) -> Tensor:
    p = Arguments(*problem)
    checks.one_device("uotpool::window", *p.differentiable())
    return p.empty_output()


@_backward_op.register_fake
def _(dout: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    *problem, wanted = rest
    p = Arguments(*problem)
    checks.one_device("uotpool::window_backward", dout, *p.differentiable())
    return empty_derivatives(dout, p, wanted)


def _differentiate(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
    wanted = [bool(ctx.needs_input_grad[i]) for i in range(3)]
    return *_by_operator(dout, _saved(ctx, ctx.saved_tensors), wanted), None, None, None, None


_window_op.register_autograd(
    _differentiate, setup_context=lambda ctx, inputs, output: _save(ctx, Arguments(*inputs))
)
_backward_op.register_autograd(refuse)
