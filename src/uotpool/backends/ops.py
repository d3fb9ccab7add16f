"""The fused kernels of every device as one function of tensors, with derivatives.

`uotpool::solve` and `uotpool::solve_backward` are what a compiler or an exporter sees. A plain eager call goes
past torch's dispatcher, through an `autograd.Function` where it needs a graph: that saves 34 to 63 us, which
is more than a kernel takes on small input.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from uotpool import checks, coefficients
from uotpool.backends.base import Backend
from uotpool.backends.call import Call
from uotpool.backends.tensors import all_eager, all_materialized, materialize
from uotpool.sets import Sets
from uotpool.solvers.base import MAX_K

# What the numbers of a coefficient are; csrc/uotpool.h has the same codes.
TRANSFORMS = ("none", "fixed", "identity", "softplus", "exp", "linear")
_CODES = {name: code for code, name in enumerate(TRANSFORMS)}
FIXED = _CODES["fixed"]
SLOTS = coefficients.NAMES
_SCALE = len(SLOTS) - 1
Grouping = tuple[Tensor | None, Tensor | None, Tensor | None, int]  # ptr, order, present, N

_TWICE = (
    "the fused kernels have first derivatives only; for derivatives of derivatives (create_graph=True, "
    'gradient penalties, Hessians) use impl="reference"'
)


class Arguments(NamedTuple):
    """What a kernel is to solve.

    Set b has the rows b N .. (b + 1) N - 1; with `ptr`, the rows ptr[b] .. ptr[b + 1] - 1; with `order` too,
    the rows that it names at these places. A row that `present` is False for, or that `order` does not name, is
    absent.
    """

    kernel: str
    X: Tensor  # (M, D), or (B, N, D)
    ptr: Tensor | None  # (B + 1,), int64
    order: Tensor | None  # (M,), int64
    present: Tensor | None  # (M,), bool
    N: int
    log_p0: Tensor | None  # (D,) or (B, D), this and all below in the dtype of computation
    log_q0: Tensor | None  # (M,)
    raw: list[Tensor]  # of the coefficients that are tensors, in the order of SLOTS
    transforms: list[int]  # a code of TRANSFORMS for each of SLOTS
    fixed: list[float]  # the numbers of the fixed ones, one after the other
    lengths: list[int]  # for each of SLOTS: 0 where there is none, 1, or K, for the scale D
    num_sets: int
    solver: str
    K: int
    plan: bool

    def dtype(self) -> torch.dtype:
        """Return what is computed in: float32 for half precision."""
        return self.X.dtype if self.X.dtype.itemsize >= 4 else torch.float32

    def differentiable(self) -> tuple[Tensor | None, ...]:
        """Return the tensors that a derivative can be asked for."""
        return self.X, self.log_p0, self.log_q0, *self.raw

    def tensors(self) -> tuple[Tensor | None, ...]:
        """Return all tensors."""
        return self.X, self.ptr, self.order, self.present, self.log_p0, self.log_q0, *self.raw

    def with_tensors(self, tensors: tuple[Tensor | None, ...]) -> Arguments:
        """Return the same with these in the places of `tensors()`; more of them are passed over."""
        X, ptr, order, present, log_p0, log_q0, *rest = tensors
        raw = cast(list[Tensor], rest[: len(self.raw)])
        where: dict[str, Any] = {"X": X, "ptr": ptr, "order": order, "present": present}
        return self._replace(**where, log_p0=log_p0, log_q0=log_q0, raw=raw)

    def output_shape(self) -> Any:
        """Return the shape of the pooled output, or of the plan."""
        return self.X.shape if self.plan else (self.num_sets, self.X.shape[-1])

    def values(self) -> tuple[Tensor, Tensor | None]:
        """Return the coefficients of all steps, (3 or 4, K), and the scale, (1,) or (D,), as tensors."""
        like, found = self.X.new_empty((), dtype=self.dtype()), []
        raw, fixed = iter(self.raw), iter(self.fixed)
        for code, length in zip(self.transforms, self.lengths, strict=True):
            if code == FIXED:
                numbers = tuple(next(fixed) for _ in range(length))
                found.append(coefficients.values(numbers, "", like))
            elif code:
                found.append(coefficients.transformed(next(raw), TRANSFORMS[code]))
        scale = found.pop() if self.transforms[_SCALE] else None
        return torch.stack([value.expand(self.K) for value in found]), scale

    def by_raw(self, dvalues: Tensor | None, dscale: Tensor | None) -> list[Tensor | None]:
        """Return the derivatives by `raw` from those by what `values` returns."""
        results: list[Tensor | None] = []
        raw = iter(self.raw)
        for slot, (code, length) in enumerate(zip(self.transforms, self.lengths, strict=True)):
            if code in (0, FIXED):
                continue
            tensor = next(raw)
            gradient = dscale if slot == _SCALE else None if dvalues is None else dvalues[slot]
            if gradient is not None and length == 1 and gradient.numel() > 1:
                gradient = gradient.sum().reshape(1)
            if gradient is not None:
                gradient = coefficients.chain_rule(gradient, tensor, TRANSFORMS[code])
                if gradient._base is not None:  # a row of `dvalues`: results of an operator share no memory
                    gradient = gradient.clone()
            results.append(gradient)
        return results


class FusedBackend(Backend):
    """A backend of fused kernels: what it does to tensors in memory."""

    @abstractmethod
    def grouping(self, X: Tensor, sets: Sets) -> Grouping:
        """Return which rows are in which set, as `Arguments` has it."""

    @abstractmethod
    def forward(self, a: Arguments, *, save: bool) -> list[Tensor]:
        """Return the pooled output (B, D), or the plan like X, then what `backward` needs if `save`."""

    @abstractmethod
    def backward(
        self, dout: Tensor, a: Arguments, saved: list[Tensor], wanted: list[bool]
    ) -> list[Tensor | None]:
        """Return the derivatives by each of `a.differentiable()`; None for one that is not wanted."""

    def saved_shapes(self, a: Arguments) -> list[tuple[int, ...]]:
        """Return the shapes of what `forward` saves, in the dtype of computation."""
        return []

    def takes(self, a: Arguments) -> bool:
        """Whether the kernels have code for the dtype, device, width and solver of a call of the operator."""
        raise NotImplementedError

    def solve(self, call: Call, *, plan: bool = False) -> Tensor:
        a = arguments(self, call, plan)
        inputs = (a.X, a.log_p0, a.log_q0, *a.raw)
        if not all_eager(inputs):
            return cast(Tensor, torch.ops.uotpool.solve(*a)[0])
        if torch.is_grad_enabled():
            for x in inputs:
                if x is not None and x.requires_grad:
                    return cast(Tensor, _Solve.apply(self, a, *inputs))
        return self.forward(a, save=False)[0]


KERNELS: dict[str, FusedBackend] = {}  # by name; `backends` fills it


def arguments(kernel: FusedBackend, call: Call, plan: bool) -> Arguments:
    """Return a call as tensors and numbers."""
    X, sets, log_p0, log_q0, given, solver, _ = call
    raw: list[Tensor] = []
    transforms: list[int] = []
    fixed: list[float] = []
    lengths: list[int] = []
    for value, transform in zip(given[: len(SLOTS)], given.transforms, strict=True):
        if value is None:
            code = length = 0
        elif isinstance(value, Tensor):
            raw.append(value)
            code, length = _CODES[transform], value.shape[0]
        elif isinstance(value, tuple):
            fixed += value  # type: ignore[arg-type] # the transforms are left out above
            code, length = FIXED, len(value)
        else:
            fixed.append(value)
            code, length = FIXED, 1
        transforms.append(code)
        lengths.append(length)
    if log_q0 is not None:
        log_q0 = log_q0.reshape(-1)
    X, log_p0, log_q0, *raw = all_materialized((X, log_p0, log_q0, *raw))  # type: ignore[assignment]
    ptr, order, present, N = kernel.grouping(X, sets)
    rest = (raw, transforms, fixed, lengths, sets.num_sets, solver.kernel, solver.K, plan)
    return Arguments(kernel.name, X, ptr, order, present, N, log_p0, log_q0, *rest)


def _save(ctx: Any, a: Arguments, saved: list[Tensor]) -> None:
    tensors = (*a.tensors(), *saved)
    ctx.save_for_backward(*tensors)
    ctx.kinds = [None if t is None else (t.shape, t.dtype, t.device) for t in tensors]
    # Numbers alone: what is saved may be offloaded meanwhile.
    ctx.numbers = a.with_tensors((None,) * (6 + len(a.raw)))


def _saved(ctx: Any) -> tuple[Arguments, list[Tensor]]:
    """Return what was saved; refuse other tensors, as a hook (offloading, compression) can hand them back."""
    tensors = ctx.saved_tensors
    for t, kind in zip(tensors, ctx.kinds, strict=True):
        if t is not None and (t.shape, t.dtype, t.device) != kind:
            place = "the CPU" if kind[2].type == "cpu" else kind[2]
            raise RuntimeError(
                f"saved_tensors_hooks: expected the tensor that was saved, {kind[1]} of shape "
                f"{tuple(kind[0])} on {place}, got {checks.describe(t)}"
            )
    tensors = all_materialized(tensors)
    count = 6 + len(ctx.numbers.raw)
    return ctx.numbers.with_tensors(tensors[:count]), cast(list[Tensor], list(tensors[count:]))


class _Solve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kernel: FusedBackend, a: Arguments, *inputs: Any) -> Tensor:
        """`inputs` are the tensors of the arguments that autograd has to see one by one."""
        out, *saved = kernel.forward(a, save=True)
        ctx.kernel = kernel
        _save(ctx, a, saved)
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        (a, saved), wanted = _saved(ctx), list(ctx.needs_input_grad[2:])
        if torch.compiler.is_compiling():  # compiled autograd traces this
            found = _by_operator(dout, a, saved, wanted)
        elif not torch._C._has_storage(dout):
            found = _each_direction(ctx.kernel, dout, a, saved, wanted)
        elif torch.is_grad_enabled():  # under create_graph=True alone
            found = _Once.apply(ctx.kernel, a, saved, wanted, dout, *a.differentiable())
        else:
            found = ctx.kernel.backward(materialize(dout), a, saved, wanted)
        return None, None, *found


def _each_direction(
    kernel: FusedBackend, dout: Tensor, a: Arguments, saved: list[Tensor], wanted: list[bool]
) -> list[Tensor | None]:
    """Run the backward pass for each direction of torch.autograd.grad(..., is_grads_batched=True).

    torch does that itself for operators without lists of tensors.
    """
    level = torch._C._vmapmode_increment_nesting() - 1  # that of the caller
    torch._C._vmapmode_decrement_nesting()
    directions = torch._remove_batch_dim(dout, level, 0, 0)
    each = [kernel.backward(materialize(direction), a, saved, wanted) for direction in directions]
    columns = zip(*each, strict=True)
    return [None if x[0] is None else torch._add_batch_dim(torch.stack(x), 0, level) for x in columns]


class _Once(torch.autograd.Function):
    """Derivatives that cannot be differentiated again, and say so."""

    @staticmethod
    def forward(
        ctx: Any, kernel: FusedBackend, a: Arguments, saved: list[Tensor], wanted: list[bool], *inputs: Any
    ) -> tuple[Tensor | None, ...]:
        return tuple(kernel.backward(materialize(inputs[0]), a, saved, wanted))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> None:
        _refuse(ctx, *grads)


def _refuse(ctx: Any, *grads: Any) -> None:
    raise RuntimeError(_TWICE)


def _by_operator(dout: Tensor, a: Arguments, saved: list[Tensor], wanted: list[bool]) -> list[Tensor | None]:
    results = torch.ops.uotpool.solve_backward(dout, saved, *a, wanted)
    return [d if w else None for d, w in zip(results, wanted, strict=True)]


# Operators ---------------------------------------------------------------------------------------------------

_SCHEMA = (
    "str kernel, Tensor X, Tensor? ptr, Tensor? order, Tensor? present, SymInt N, Tensor? log_p0, "
    "Tensor? log_q0, Tensor[] raw, int[] transforms, float[] fixed, SymInt[] lengths, SymInt num_sets, "
    "str solver, SymInt K, bool plan"
)


def _validated(a: Arguments) -> tuple[FusedBackend, Arguments]:
    """Check what `arguments` makes sure of: anyone can call an operator; kernels trust shapes and dtypes."""
    kernel, X = KERNELS.get(a.kernel), a.X
    D = X.shape[-1] if X.dim() in (2, 3) else 0
    M = X.numel() // D if D else 0
    tensors = [code for code in a.transforms if code not in (0, FIXED)]
    fits = (
        kernel is not None
        and D >= 1
        and a.num_sets >= 0
        and a.N >= 0
        and all(t is None or t.device == X.device for t in a.tensors())
        and all(t is None or t.dtype == a.dtype() for t in a.differentiable()[1:])
        and all(t is None or t.dtype == torch.int64 for t in (a.ptr, a.order))
        and len(a.transforms) == len(a.lengths) == len(SLOTS)
        and all(0 <= code < len(TRANSFORMS) for code in a.transforms)
        and [t.shape for t in a.raw]
        == [(n,) for n, code in zip(a.lengths, a.transforms, strict=True) if code not in (0, FIXED)]
        and len(tensors) == len(a.raw)
        and len(a.fixed) == sum(n for n, code in zip(a.lengths, a.transforms, strict=True) if code == FIXED)
        and all(n in (1, a.K) for n, code in zip(a.lengths[:4], a.transforms[:4], strict=True) if code)
        and all(a.transforms[:3])
        and bool(a.transforms[3]) == (a.solver != "sinkhorn")
        and (not a.transforms[_SCALE] or a.lengths[_SCALE] in (1, D))
        and 1 <= a.K <= MAX_K
        and (a.log_p0 is None or a.log_p0.shape in ((D,), (a.num_sets, D)))
        and (a.log_q0 is None or a.log_q0.shape == (M,))
        and (a.present is None or (a.present.shape == (M,) and a.present.dtype == torch.bool))
        and (a.ptr is None or a.ptr.shape == (a.num_sets + 1,))
        and (a.order is None or (a.ptr is not None and a.order.shape == (M,)))
        and (a.ptr is not None or a.num_sets * a.N == M)
        and kernel.takes(a)
    )
    if not fits or kernel is None:
        raise ValueError(
            "uotpool::solve: arguments that do not fit each other, or that this kernel has no code for; "
            "use uotpool.Problem or a layer"
        )
    return kernel, a.with_tensors(all_materialized(a.tensors()))


def _operator_forward(*inputs: Any) -> list[Tensor]:
    kernel, a = _validated(Arguments(*inputs))
    return kernel.forward(a, save=True)


def _operator_backward(dout: Tensor, saved: list[Tensor], *rest: Any) -> list[Tensor]:
    """Return tensors, as an operator must: an empty one for a derivative that is not wanted."""
    *inputs, wanted = rest
    kernel, a = _validated(Arguments(*inputs))
    shapes = [(shape, a.dtype(), a.X.device) for shape in kernel.saved_shapes(a)]
    if (dout.dtype, tuple(dout.shape), dout.device) != (a.X.dtype, tuple(a.output_shape()), a.X.device):
        raise ValueError("uotpool::solve_backward: dout has not the shape, dtype and device of the output")
    if [(tuple(t.shape), t.dtype, t.device) for t in saved] != shapes:
        raise ValueError("uotpool::solve_backward: expected what solve saved, got other tensors")
    found = kernel.backward(materialize(dout), a, [materialize(t) for t in saved], wanted)
    return [a.X.new_empty(0) if d is None else d for d in found]


_solve_op = torch.library.custom_op(
    "uotpool::solve", _operator_forward, mutates_args=(), schema=f"({_SCHEMA}) -> Tensor[]"
)
_backward_op = torch.library.custom_op(
    "uotpool::solve_backward",
    _operator_backward,
    mutates_args=(),
    schema=f"(Tensor dout, Tensor[] saved, {_SCHEMA}, bool[] wanted) -> Tensor[]",
)


@_solve_op.register_fake
def _(*inputs: Any) -> list[Tensor]:
    a = Arguments(*inputs)
    checks.one_device("uotpool::solve", *a.tensors())
    shapes = KERNELS[a.kernel].saved_shapes(a)
    return [a.X.new_empty(a.output_shape()), *(a.X.new_empty(shape, dtype=a.dtype()) for shape in shapes)]


@_backward_op.register_fake
def _(dout: Tensor, saved: list[Tensor], *rest: Any) -> list[Tensor]:
    *inputs, wanted = rest
    a = Arguments(*inputs)
    checks.one_device("uotpool::solve_backward", dout, *saved, *a.tensors())
    pairs = zip(a.differentiable(), wanted, strict=True)
    return [dout.new_empty(0) if t is None or not w else t.new_empty(t.shape) for t, w in pairs]


def _setup(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    a = Arguments(*inputs)
    ctx.set_materialize_grads(False)
    _save(ctx, a, output[1:])


def _differentiate(ctx: Any, grads: list[Tensor | None]) -> tuple[Any, ...]:
    numbers = ctx.numbers
    nothing = [None] * len(Arguments._fields)
    results: dict[str, Any] = dict(zip(Arguments._fields, nothing, strict=True))
    # torch wants a list in the place of a list of tensors, and of every empty list.
    results["raw"] = [None] * len(numbers.raw)
    results["fixed"] = None if numbers.fixed else []
    if grads[0] is not None:  # somebody uses the output
        tensors = ctx.saved_tensors
        count = 6 + len(numbers.raw)
        a, saved = numbers.with_tensors(tensors[:count]), list(tensors[count:])
        needs = dict(zip(Arguments._fields, ctx.needs_input_grad, strict=True))
        by_raw = needs["raw"] if isinstance(needs["raw"], (list, tuple)) else [needs["raw"]] * len(a.raw)
        wanted = [bool(needs[name]) for name in ("X", "log_p0", "log_q0")] + [bool(w) for w in by_raw]
        dX, dp, dq, *draw = _by_operator(grads[0], a, saved, wanted)
        results |= {"X": dX, "log_p0": dp, "log_q0": dq, "raw": draw}
    return tuple(results.values())


_solve_op.register_autograd(_differentiate, setup_context=_setup)
_backward_op.register_autograd(_refuse)
