"""The fused CPU kernels as torch operators, forward and backward.

`solve` is what the rest of the package calls. The operators `uotpool::solve` and `uotpool::solve_backward`
are what a compiler or an exporter sees. A plain eager call goes to the library through an `autograd.Function`
instead: the way through torch's dispatcher costs more than the kernel on small input.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad

from uotpool.kernels import library
from uotpool.layout import DenseSets, RaggedSets, Sets

SOLVERS = ("sinkhorn", "badmm-e", "badmm-q")  # in the order of their codes in the header
_DTYPES = (torch.float32, torch.float64)
MOST_THREADS, MOST_MODULES = 4096, 2**20  # that the library takes

Grouping = tuple[Tensor | None, Tensor | None, int]


def _transformed() -> bool:
    """Inside vmap, torch.func.grad or the like, or forward-mode AD."""
    return torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0


# What torch.compiler.assume_constant_result does: the compiler asks while it traces. That one would import it.
_transformed._dynamo_marked_constant = True  # type: ignore[attr-defined]


def handles(X: Tensor) -> bool:
    """Whether the kernels can work on this X here: on the CPU, differentiated in reverse at most."""
    if X.device.type != "cpu" or _transformed():
        return False
    if torch.compiler.is_compiling():
        return not torch.onnx.is_in_onnx_export()  # an ONNX file has to hold plain operations
    return not torch._C._is_tracing()  # torch.jit.trace


def solve(
    X: Tensor,
    sets: Sets,
    log_p0: Tensor | None,
    log_q0: Tensor | None,
    weights: Tensor,
    solver: str,
    *,
    plan: bool = False,
) -> Tensor:
    """Pooled output (B, D), or the plan in the shape of X.

    Args:
        X: in the layout of `sets`, contiguous.
        sets: which rows belong to which set.
        log_p0: (D,) or (B, D); None: uniform.
        log_q0: as v of `layout`; None: uniform.
        weights: a row for each weight of the solver, a column for each of the K >= 1 modules.
        solver: one of `SOLVERS`.
        plan: the plan instead of the pooled output.
    """
    D = X.shape[-1]
    rows = _plain(X.reshape(-1, D))
    ptr, order, N = _grouping(rows, sets)
    if log_p0 is not None:
        log_p0 = _plain(log_p0)
    if log_q0 is not None:
        log_q0 = _plain(log_q0.reshape(-1))
    weights = _plain(weights)
    problem = (rows, ptr, order, N, log_p0, log_q0, weights, sets.num_sets, solver, plan)
    differentiable = (rows, log_p0, log_q0, weights)
    if not all(t is None or _eager(t) for t in differentiable):
        out = cast(Tensor, torch.ops.uotpool.solve(*problem))
    elif torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in differentiable):
        out = cast(Tensor, _Solve.apply(*differentiable, problem))
    else:
        out = _forward(*problem)
    return out.view(X.shape) if plan else out


def _plain(x: Tensor) -> Tensor:
    """x in memory as it reads: contiguous, with no sign or zeros that only a flag knows of."""
    x = x.contiguous()
    if torch.compiler.is_compiling():  # the operator does the rest when it runs
        return x
    if x.is_neg():
        return x.resolve_neg()
    return torch.zeros_like(x) if x._is_zerotensor() else x


def _grouping(rows: Tensor, sets: Sets) -> Grouping:
    """ptr, the order of the rows, and the common size of the sets (0 where ptr says it)."""
    M = rows.shape[0]
    if isinstance(sets, DenseSets):
        N = M // sets.num_sets if sets.num_sets else 0
        if sets.present is None:
            return None, None, N
        index = None
    else:
        assert isinstance(sets, RaggedSets)
        if sets.present is None and sets.one:
            return None, None, M
        if sets.present is None and sets.ptr is not None:
            return sets.ptr.contiguous(), None, 0
        index, N = sets.index.contiguous(), 0
    present = None if sets.present is None else sets.present.reshape(-1).contiguous()
    group = _group if _eager(rows) else torch.ops.uotpool.group
    ptr, order = group(rows, index, present, sets.num_sets, N)
    return ptr, order, 0


def _eager(X: Tensor) -> bool:
    return not (
        torch.compiler.is_compiling() or type(X) is not Tensor or torch._C._len_torch_dispatch_stack() > 0
    )


def _group(
    rows: Tensor, index: Tensor | None, present: Tensor | None, num_sets: int, N: int
) -> tuple[Tensor, Tensor]:
    ptr = torch.empty(num_sets + 1, dtype=torch.int64, device=rows.device)
    order = torch.empty(rows.shape[0], dtype=torch.int64, device=rows.device)
    arguments = (_address(index), _address(present), rows.shape[0], num_sets, N)
    library.check(_native().uotpool_group(*arguments, ptr.data_ptr(), order.data_ptr()))
    return ptr, order


def _native() -> Any:
    return library.load()  # handed out only where `library.missing()` has nothing to say


def _address(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


def _call(
    X: Tensor,
    ptr: Tensor | None,
    order: Tensor | None,
    N: int,
    log_p0: Tensor | None,
    log_q0: Tensor | None,
    weights: Tensor,
    num_sets: int,
    solver: str,
    plan: bool,
    *outputs: Tensor | None,
) -> library.Call:
    """`outputs`: dout, out, dX, dlog_p0, dlog_q0, dweights."""
    return library.Call(
        _DTYPES.index(X.dtype),
        SOLVERS.index(solver),
        plan,
        weights.shape[1],
        num_sets,
        X.shape[0],
        N,
        X.shape[1],
        min(torch.get_num_threads(), MOST_THREADS),
        log_p0 is not None and log_p0.dim() == 1,
        *[None if t is None else t.data_ptr() for t in (X, ptr, order, log_p0, log_q0, weights, *outputs)],
    )


def _forward(X: Tensor, *rest: Any) -> Tensor:
    num_sets, plan = rest[6], rest[8]
    out = torch.empty_like(X) if plan else X.new_empty(num_sets, X.shape[1])
    call = _call(X, *rest, None, out, None, None, None, None)
    library.check(_native().uotpool_forward(call))
    return out


def _derivatives(
    dout: Tensor,
    X: Tensor,
    ptr: Tensor | None,
    order: Tensor | None,
    N: int,
    log_p0: Tensor | None,
    log_q0: Tensor | None,
    weights: Tensor,
    num_sets: int,
    solver: str,
    plan: bool,
    wanted: list[bool],
) -> list[Tensor | None]:
    """By X, log_p0, log_q0 and the weights; None for one that is not wanted."""
    targets = (X, log_p0, log_q0, weights)
    made = [None if t is None or not w else torch.empty_like(t) for t, w in zip(targets, wanted, strict=True)]
    dout = _plain(dout)  # named, as it has to live until the call is over
    call = _call(X, ptr, order, N, log_p0, log_q0, weights, num_sets, solver, plan, dout, None, *made)
    library.check(_native().uotpool_backward(call))
    return made


_TWICE = (
    "the fused CPU kernels have first derivatives only; for derivatives of derivatives (create_graph=True, "
    'gradient penalties, Hessians) use impl="reference"'
)


class _Solve(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        X: Tensor,
        log_p0: Tensor | None,
        log_q0: Tensor | None,
        weights: Tensor,
        problem: tuple[Any, ...],
    ) -> Tensor:
        _, ptr, order, N, _, _, _, *rest = problem
        ctx.save_for_backward(X, ptr, order, log_p0, log_q0, weights)
        ctx.rest = N, rest
        return _forward(*problem)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        X, ptr, order, log_p0, log_q0, weights = ctx.saved_tensors
        N, rest = ctx.rest
        wanted = list(ctx.needs_input_grad[:4])
        arguments = (dout, X, ptr, order, N, log_p0, log_q0, weights, *rest, wanted)
        if not torch._C._has_storage(dout):  # is_grads_batched=True: the dispatcher runs an operator for each
            made = torch.ops.uotpool.solve_backward(*arguments)
            return *(d if w else None for d, w in zip(made, wanted, strict=True)), None
        # Grad mode is on here under create_graph=True alone.
        made = _SolveBackward.apply(*arguments) if torch.is_grad_enabled() else _derivatives(*arguments)
        return *made, None


class _SolveBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor | None, ...]:
        return tuple(_derivatives(*arguments))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> None:
        raise RuntimeError(_TWICE)


# The same for compilers and exporters, which see operators with a schema.

_problem = (
    "Tensor X, Tensor? ptr, Tensor? order, SymInt N, Tensor? log_p0, Tensor? log_q0, Tensor weights, "
    "SymInt num_sets, str solver, bool plan"
)


def _operator(name: str, function: Any, schema: str) -> Any:
    return torch.library.custom_op(
        f"uotpool::{name}", function, mutates_args=(), schema=schema, device_types="cpu"
    )


def _validated(
    X: Tensor,
    ptr: Tensor | None,
    order: Tensor | None,
    N: int,
    log_p0: Tensor | None,
    log_q0: Tensor | None,
    weights: Tensor,
    num_sets: int,
    solver: str,
    plan: bool,
) -> tuple[Any, ...]:
    """What `solve` makes sure of, for an operator that anyone can call: C trusts shapes and dtypes."""
    floats, integers = (X, log_p0, log_q0, weights), (ptr, order)
    M, D = X.shape
    good = (
        X.dtype in _DTYPES
        and all(t is None or (t.dtype == X.dtype and t.device.type == "cpu") for t in floats)
        and all(t is None or (t.dtype == torch.int64 and t.device.type == "cpu") for t in integers)
        and solver in SOLVERS
        and weights.dim() == 2
        and weights.shape[0] == (3 if solver == "sinkhorn" else 4)
        and (log_p0 is None or log_p0.shape in ((D,), (num_sets, D)))
        and (log_q0 is None or log_q0.shape == (M,))
        and (ptr is None or ptr.shape == (num_sets + 1,))
        and (order is None or order.shape == (M,))
    )
    if not good:
        raise ValueError(
            "uotpool::solve: shapes, dtypes or devices that do not fit; use uotpool.uot_pool or uot_plan"
        )
    X, log_p0, log_q0, weights = (None if t is None else _plain(t) for t in floats)  # type: ignore[assignment]
    ptr, order = (None if t is None else t.contiguous() for t in integers)
    return X, ptr, order, N, log_p0, log_q0, weights, num_sets, solver, plan


def _operator_forward(*problem: Any) -> Tensor:
    return _forward(*_validated(*problem))


def _operator_backward(dout: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """An operator returns tensors: an empty one for a derivative that is not wanted."""
    *problem, wanted = rest
    validated = _validated(*problem)
    X, num_sets, plan = validated[0], validated[7], validated[9]
    if dout.dtype != X.dtype or dout.shape != (X.shape if plan else (num_sets, X.shape[1])):
        raise ValueError("uotpool::solve_backward: dout has not the shape and dtype of the output")
    made = _derivatives(dout, *validated, wanted)  # type: ignore[call-arg]
    return tuple(X.new_empty(0) if d is None else d for d in made)


_group_op = _operator(
    "group",
    _group,
    "(Tensor rows, Tensor? index, Tensor? present, SymInt num_sets, SymInt N) -> (Tensor, Tensor)",
)
_solve_op = _operator("solve", _operator_forward, f"({_problem}) -> Tensor")
_backward_op = _operator(
    "solve_backward",
    _operator_backward,
    f"(Tensor dout, {_problem}, bool[] wanted) -> (Tensor, Tensor, Tensor, Tensor)",
)


@_group_op.register_fake
def _(
    rows: Tensor, index: Tensor | None, present: Tensor | None, num_sets: int, N: int
) -> tuple[Tensor, Tensor]:
    return rows.new_empty(num_sets + 1, dtype=torch.int64), rows.new_empty(rows.shape[0], dtype=torch.int64)


@_solve_op.register_fake
def _(X: Tensor, *rest: Any) -> Tensor:
    num_sets, plan = rest[6], rest[8]
    return X.new_empty(X.shape if plan else (num_sets, X.shape[1]))


@_backward_op.register_fake
def _(dout: Tensor, X: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    log_p0, log_q0, weights = rest[3:6]
    targets = zip((X, log_p0, log_q0, weights), rest[-1], strict=True)
    dX, dp, dq, dw = (X.new_empty(0 if t is None or not w else t.shape) for t, w in targets)
    return dX, dp, dq, dw


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    X, ptr, order, N, log_p0, log_q0, weights, *rest = inputs
    ctx.save_for_backward(X, ptr, order, log_p0, log_q0, weights)
    ctx.rest = N, rest


def _differentiate(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
    X, ptr, order, log_p0, log_q0, weights = ctx.saved_tensors
    N, rest = ctx.rest
    wanted = [bool(ctx.needs_input_grad[i]) for i in (0, 4, 5, 6)]
    made = torch.ops.uotpool.solve_backward(dout, X, ptr, order, N, log_p0, log_q0, weights, *rest, wanted)
    dX, dp, dq, dw = (g if w else None for g, w in zip(made, wanted, strict=True))
    return dX, None, None, None, dp, dq, dw, None, None, None


def _refuse(ctx: Any, *grads: Tensor) -> None:
    raise RuntimeError(_TWICE)


_solve_op.register_autograd(_differentiate, setup_context=_save)
_backward_op.register_autograd(_refuse)
