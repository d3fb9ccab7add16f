"""Local pooling of images by the fused GPU kernels: every window of X is a set, its positions the samples.

`pool` is what layers call. As in `ops`, the operators `uotpool::triton_window` and its `_backward` are for
compilers and exporters, and an eager call goes past the dispatcher.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from uotpool import checks
from uotpool.backends.base import Pair, Windows
from uotpool.backends.derivatives import differentiated, keep, kept, refuse
from uotpool.backends.images import SCHEMA, WindowArguments, empty_derivatives, memory_format, plain_image
from uotpool.backends.tensors import all_eager, plain, resolved
from uotpool.backends.triton.arguments import DTYPES, computed_in
from uotpool.backends.triton.choice import MOST_WINDOW, window_entries


def calls() -> Any:
    """Return the module `window_calls`, which imports triton: at a call, and not when uotpool is imported."""
    from uotpool.backends.triton import window_calls  # noqa: PLC0415

    return window_calls


def refuses(channels: int, kernel_size: Pair) -> str:
    """Say why the kernel does not take windows of this size; "" if it does."""
    height, width = kernel_size
    if window_entries(channels, height * width) <= MOST_WINDOW:
        return ""
    return (
        f"its kernel for windows takes at most {MOST_WINDOW} entries, channels and positions padded to powers "
        f"of two, got {channels} channels of {height} x {width}"
    )


def pool(X: Tensor, weights: Tensor, scale: Tensor | None, geometry: Windows) -> Tensor:
    """Pool each window by Sinkhorn with uniform priors: (B, C, *output_size) in the dtype and format of X.

    Output (i, j) is of the window that starts at (i, j) * stride - padding; what is outside of X is absent.

    Args:
        X: (B, C, H, W), not copied if contiguous or channels_last; half precision is read as it is.
        weights: (3, K), the rows alpha0, alpha1, alpha2.
        scale: s, one number, () or (1,), or one per channel, (C,); the plan is that of s X, for the mean of X.
            None: 1.
        geometry: the windows, which `refuses` has to take.
    """
    dtype = computed_in(X.dtype)
    weights = plain(weights.to(dtype))
    if scale is not None:
        scale = plain(scale.to(dtype).reshape(-1))
    p = WindowArguments(plain_image(X), weights, scale, *geometry)
    inputs = p.differentiable()
    save = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs)
    if not all_eager(inputs):
        return cast(Tensor, torch.ops.uotpool.triton_window(*p, save)[0])
    if save:
        return cast(Tensor, _Pool.apply(*inputs, p))
    return cast(Tensor, calls().forward(p, save=False)[0])


class _Solved(NamedTuple):
    """What was solved, and R of each module: the input of the way back."""

    arguments: WindowArguments
    rows: Tensor

    def differentiable(self) -> tuple[Tensor | None, ...]:
        return self.arguments.differentiable()


def _save(ctx: Any, p: WindowArguments, rows: Tensor) -> None:
    keep(ctx, *p.differentiable(), rows)
    ctx.sizes = p[3:]


def _solved(ctx: Any, tensors: Any) -> _Solved:
    *differentiable, rows = tensors
    return _Solved(WindowArguments(*differentiable, *ctx.sizes), rows)


def _derivatives(dout: Tensor, solved: _Solved, wanted: list[bool]) -> list[Tensor | None]:
    dout = resolved(dout.contiguous(memory_format=memory_format(solved.arguments.X)))
    return cast(list[Tensor | None], calls().backward(dout, *solved, wanted))


def _by_operator(dout: Tensor, solved: _Solved, wanted: list[bool]) -> list[Tensor | None]:
    made = torch.ops.uotpool.triton_window_backward(dout, solved.rows, *solved.arguments, wanted)
    return [d if w else None for d, w in zip(made, wanted, strict=True)]


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        p = inputs[-1]
        out, rows = calls().forward(p)
        _save(ctx, p, rows)
        return cast(Tensor, out)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        wanted = list(ctx.needs_input_grad[:3])
        X, *rest = kept(ctx)
        tensors = (plain_image(X), *(None if t is None else plain(t) for t in rest))  # type: ignore[arg-type]
        return *differentiated(dout, _solved(ctx, tensors), wanted, _derivatives, _by_operator), None


def _validated(p: WindowArguments) -> WindowArguments:
    """Check what `pool` makes sure of: anyone can call an operator, and kernels trust shapes."""
    device, dtype = p.X.device, computed_in(p.X.dtype)
    good = (
        p.fits()
        and p.X.dtype in DTYPES
        and all(t is None or (t.dtype == dtype and t.device == device) for t in p.differentiable()[1:])
        and not refuses(p.X.shape[1], p.kernel_size)  # type: ignore[arg-type]
    )
    if not good:
        raise ValueError(
            "uotpool::triton_window: shapes, dtypes, devices or sizes that do not fit; use the layers"
        )
    return p.plain()


def _operator_forward(*inputs: Any) -> tuple[Tensor, Tensor]:
    *problem, save = inputs
    p = _validated(WindowArguments(*problem))
    out, rows = calls().forward(p, save=save)
    return out, out.new_empty(0, dtype=computed_in(p.X.dtype)) if rows is None else rows


def _operator_backward(dout: Tensor, rows: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """Return tensors, as an operator must: an empty one for a derivative that is not wanted."""
    *problem, wanted = rest
    p = _validated(WindowArguments(*problem))
    if (dout.dtype, dout.shape, dout.device) != (p.X.dtype, p.output_shape(), p.X.device):
        raise ValueError(
            "uotpool::triton_window_backward: dout has not the shape, dtype and device of the output"
        )
    saved = (p.rows_shape(), computed_in(p.X.dtype), p.X.device)
    if (rows.shape, rows.dtype, rows.device) != saved:
        raise ValueError(
            "uotpool::triton_window_backward: expected what triton_window saved, got another tensor"
        )
    found = _derivatives(dout, _Solved(p, plain(rows)), wanted)
    return tuple(p.X.new_empty(0) if d is None else d for d in found)


_window_op = torch.library.custom_op(
    "uotpool::triton_window",
    _operator_forward,
    mutates_args=(),
    schema=f"({SCHEMA}, bool save) -> (Tensor, Tensor)",
)
_backward_op = torch.library.custom_op(
    "uotpool::triton_window_backward",
    _operator_backward,
    mutates_args=(),
    schema=f"(Tensor dout, Tensor rows, {SCHEMA}, bool[] wanted) -> (Tensor, Tensor, Tensor)",
)


@_window_op.register_fake
def _(*inputs: Any) -> tuple[Tensor, Tensor]:
    *problem, save = inputs
    p = WindowArguments(*problem)
    checks.one_device("uotpool::triton_window", *p.differentiable())
    return p.empty_output(), p.X.new_empty(p.rows_shape() if save else (0,), dtype=computed_in(p.X.dtype))


@_backward_op.register_fake
def _(dout: Tensor, rows: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    *problem, wanted = rest
    p = WindowArguments(*problem)
    checks.one_device("uotpool::triton_window_backward", dout, rows, *p.differentiable())
    return empty_derivatives(dout, p, wanted)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _save(ctx, WindowArguments(*inputs[:-1]), output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, dout: Tensor | None, *rest: Any) -> tuple[Tensor | None, ...]:
    if dout is None:  # nobody uses the output
        return (None,) * 8
    wanted = [bool(ctx.needs_input_grad[i]) for i in range(3)]
    return *_by_operator(dout, _solved(ctx, ctx.saved_tensors), wanted), None, None, None, None, None


_window_op.register_autograd(_differentiate, setup_context=_setup)
_backward_op.register_autograd(refuse)
