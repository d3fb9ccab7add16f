"""The fused CPU kernels as torch operators, forward and backward.

`solve` is what the rest of the package calls. The operators `uotpool::solve` and `uotpool::solve_backward`
are what a compiler or an exporter sees. A plain eager call goes to the library through an `autograd.Function`
instead: the way through torch's dispatcher costs more than the kernel on small input.
"""

from __future__ import annotations

from collections.abc import Callable
from types import NoneType
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad

from uotpool import checks
from uotpool.backends.cpu import library, pieces
from uotpool.problem import Problem
from uotpool.sets import DenseSets, RaggedSets, Sets

SOLVERS = ("sinkhorn", "badmm-e", "badmm-q")  # in the order of their codes in the header
DTYPES = (torch.float32, torch.float64)
_SOLVER_CODES = {name: code for code, name in enumerate(SOLVERS)}
_DTYPE_CODES = {dtype: code for code, dtype in enumerate(DTYPES)}
Derivatives = Callable[[Tensor, Any, list[bool]], list[Tensor | None]]
MOST_THREADS, MOST_MODULES = 4096, 2**20  # that the library takes


class Arguments(NamedTuple):
    """What the operators take. Which rows are in which set is as in csrc/uotpool.h."""

    X: Tensor  # (M, D)
    ptr: Tensor | None
    order: Tensor | None
    N: int
    log_p0: Tensor | None
    log_q0: Tensor | None
    weights: Tensor
    num_sets: int
    solver: str
    plan: bool

    def differentiable(self) -> tuple[Tensor | None, ...]:
        return self.X, self.log_p0, self.log_q0, self.weights

    def tensors(self) -> tuple[Tensor | None, ...]:
        return *self.differentiable(), self.ptr, self.order

    def output_shape(self) -> Any:
        return self.X.shape if self.plan else (self.num_sets, self.X.shape[1])


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


def solve(problem: Problem, solver: str, *, plan: bool = False) -> Tensor:
    """Pooled output (B, D), or the plan in the shape of X, of a problem without scale and with K >= 1.

    Args:
        problem: what to solve.
        solver: one of `SOLVERS`.
        plan: the plan instead of the pooled output.
    """
    X, sets, log_p0, log_q0, weights, _ = problem
    rows = plain(X.reshape(-1, X.shape[-1]))
    ptr, order, N = _grouping(rows, sets)
    if log_p0 is not None:
        log_p0 = plain(log_p0)
    if log_q0 is not None:
        log_q0 = plain(log_q0.reshape(-1))
    weights = plain(weights)
    arguments = Arguments(rows, ptr, order, N, log_p0, log_q0, weights, sets.num_sets, solver, plan)
    inputs = arguments.differentiable()
    if not all_eager(inputs):
        out = cast(Tensor, torch.ops.uotpool.solve(*arguments))
    elif torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs):
        out = cast(Tensor, _Solve.apply(*inputs, arguments))
    else:
        out = _forward(arguments)
    return out.view(X.shape) if plan else out


def plain(x: Tensor) -> Tensor:
    """x in memory as it reads: contiguous, with no sign or zeros that only a flag knows of."""
    return resolved(x.contiguous())


def resolved(x: Tensor) -> Tensor:
    """x with its signs and zeros in memory, whatever flags it had."""
    if torch.compiler.is_compiling():  # the operator does the rest when it runs
        return x
    if x.is_neg():
        return x.resolve_neg()
    return torch.zeros_like(x) if x._is_zerotensor() else x


def _grouping(rows: Tensor, sets: Sets) -> tuple[Tensor | None, Tensor | None, int]:
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
    group = _group if all_eager((rows,)) else torch.ops.uotpool.group
    ptr, order = group(rows, index, present, sets.num_sets, N)
    return ptr, order, 0


def all_eager(inputs: tuple[Tensor | None, ...]) -> bool:
    """Whether nobody but us sees a call with these tensors: no compiler, no subclass, no dispatch mode."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0:
        return False
    return all(type(t) in _PLAIN for t in inputs)


_PLAIN = (Tensor, NoneType)


def _group(
    rows: Tensor, index: Tensor | None, present: Tensor | None, num_sets: int, N: int
) -> tuple[Tensor, Tensor]:
    ptr = torch.empty(num_sets + 1, dtype=torch.int64, device=rows.device)
    order = torch.empty(rows.shape[0], dtype=torch.int64, device=rows.device)
    arguments = (address(index), address(present), rows.shape[0], num_sets, N)
    library.check(native().uotpool_group(*arguments, ptr.data_ptr(), order.data_ptr()))
    return ptr, order


def native() -> Any:
    return library.load()  # handed out only where `library.missing()` has nothing to say


def address(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


def _call(p: Arguments, *outputs: Tensor | None) -> library.Call:
    """`outputs`: dout, out, dX, dlog_p0, dlog_q0, dweights."""
    arrays = (p.X, p.ptr, p.order, p.log_p0, p.log_q0, p.weights, *outputs)
    rows, features = p.X.shape
    return library.Call.packed(
        _DTYPE_CODES[p.X.dtype],
        _SOLVER_CODES[p.solver],
        p.plan,
        p.weights.shape[1],
        p.num_sets,
        rows,
        p.N,
        features,
        min(torch.get_num_threads(), MOST_THREADS),
        p.log_p0 is not None and p.log_p0.dim() == 1,
        *[0 if t is None else t.data_ptr() for t in arrays],
    )


def _solve(p: Arguments, call: library.Call, name: str) -> None:
    """All sets, by the function of the library with this name, in pieces where it takes long."""
    a_row = p.X.shape[1] * (p.weights.shape[1] + 1)  # work of it, as `pieces` counts
    if pieces.is_short(p.X.shape[0] * a_row, p.num_sets):
        library.check(getattr(native(), name)(call))
        return
    carry = torch.empty(p.weights.shape, dtype=torch.float64)  # lives until the last piece is done
    extra = (carry.data_ptr(),) if name == "uotpool_backward" else ()
    function = getattr(native(), f"{name}_bags")

    def reach(begin: int, wanted: int) -> tuple[int, int]:
        assert p.ptr is not None
        first = int(p.ptr[begin])
        end = int(torch.searchsorted(p.ptr, first + wanted // a_row, right=True)) - 1
        end = min(max(end, begin + 1), p.num_sets)
        return end, (int(p.ptr[end]) - first) * a_row

    pieces.run(
        p.num_sets,
        lambda begin, end: function(call, begin, end, *extra),
        pieces.equal_reach(p.N * a_row, p.num_sets) if p.ptr is None else reach,
    )


def _forward(p: Arguments) -> Tensor:
    out = p.X.new_empty(p.output_shape())
    if out.numel() == 0:  # the library would look at every set, and there can be 2^40 of them without a row
        return out
    _solve(p, _call(p, None, out, None, None, None, None), "uotpool_forward")
    return out


def _derivatives(dout: Tensor, p: Arguments, wanted: list[bool]) -> list[Tensor | None]:
    """By X, log_p0, log_q0 and the weights; None for one that is not wanted."""
    pairs = zip(p.differentiable(), wanted, strict=True)
    if p.X.shape[0] == 0:
        return [None if t is None or not w else torch.zeros_like(t) for t, w in pairs]
    made = [None if t is None or not w else torch.empty_like(t) for t, w in pairs]
    dout = plain(dout)  # named, as it has to live until the call is over
    _solve(p, _call(p, dout, None, *made), "uotpool_backward")
    return made


def _save(ctx: Any, p: Arguments) -> None:
    ctx.save_for_backward(p.X, p.ptr, p.order, p.log_p0, p.log_q0, p.weights)
    ctx.rest = p.N, p.num_sets, p.solver, p.plan


def _saved(ctx: Any) -> Arguments:
    X, ptr, order, log_p0, log_q0, weights = ctx.saved_tensors
    N, *rest = ctx.rest
    return Arguments(X, ptr, order, N, log_p0, log_q0, weights, *rest)


def _by_operator(dout: Tensor, p: Arguments, wanted: list[bool]) -> list[Tensor | None]:
    made = torch.ops.uotpool.solve_backward(dout, *p, wanted)
    return [d if w else None for d, w in zip(made, wanted, strict=True)]


_TWICE = (
    "the fused CPU kernels have first derivatives only; for derivatives of derivatives (create_graph=True, "
    'gradient penalties, Hessians) use impl="reference"'
)


class _Solve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        problem = inputs[-1]  # beside its tensors, which autograd has to see one by one
        _save(ctx, problem)
        return _forward(problem)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        wanted = list(ctx.needs_input_grad[:4])
        return *differentiated(dout, _saved(ctx), wanted, _derivatives, _by_operator), None


def differentiated(
    dout: Tensor, problem: Any, wanted: list[bool], direct: Derivatives, by_operator: Derivatives
) -> Any:
    """The derivatives of an eager call, one for each of `problem.differentiable()`."""
    if not torch._C._has_storage(dout):  # is_grads_batched=True: the dispatcher runs an operator for each
        return by_operator(dout, problem, wanted)
    if torch.is_grad_enabled():  # under create_graph=True alone
        return _Once.apply(direct, dout, *problem.differentiable(), problem, wanted)
    return direct(dout, problem, wanted)


class _Once(torch.autograd.Function):
    """Derivatives that cannot be differentiated again, and say so."""

    @staticmethod
    def forward(ctx: Any, direct: Derivatives, dout: Tensor, *inputs: Any) -> tuple[Tensor | None, ...]:
        *_, problem, wanted = inputs
        return tuple(direct(dout, problem, wanted))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> None:
        raise RuntimeError(_TWICE)


# The same for compilers and exporters, which see operators with a schema.

_problem = (
    "Tensor X, Tensor? ptr, Tensor? order, SymInt N, Tensor? log_p0, Tensor? log_q0, Tensor weights, "
    "SymInt num_sets, str solver, bool plan"
)


def operator(name: str, function: Any, schema: str) -> Any:
    return torch.library.custom_op(
        f"uotpool::{name}", function, mutates_args=(), schema=schema, device_types="cpu"
    )


def _validated(p: Arguments) -> Arguments:
    """What `solve` makes sure of, for an operator that anyone can call: C trusts shapes and dtypes."""
    M, D = p.X.shape if p.X.dim() == 2 else (0, 0)
    good = (
        p.X.dtype in DTYPES
        and p.X.dim() == 2
        and D >= 1
        and p.num_sets >= 0
        and p.N >= 0
        and all(t is None or (t.dtype == p.X.dtype and t.device.type == "cpu") for t in p.differentiable())
        and all(t is None or (t.dtype == torch.int64 and t.device.type == "cpu") for t in (p.ptr, p.order))
        and p.solver in SOLVERS
        and p.weights.dim() == 2
        and p.weights.shape[0] == (3 if p.solver == "sinkhorn" else 4)
        and 1 <= p.weights.shape[1] <= MOST_MODULES
        and (p.log_p0 is None or p.log_p0.shape in ((D,), (p.num_sets, D)))
        and (p.log_q0 is None or p.log_q0.shape == (M,))
        and (p.ptr is None or p.ptr.shape == (p.num_sets + 1,))
        and (p.order is None or (p.ptr is not None and p.order.shape == (M,)))
        and (p.ptr is not None or p.num_sets * p.N == M)
    )
    if not good:
        raise ValueError(
            "uotpool::solve: shapes, dtypes or devices that do not fit; use uotpool.uot_pool or uot_plan"
        )
    tensors: dict[str, Any] = {k: plain(t) for k, t in p._asdict().items() if isinstance(t, Tensor)}
    return p._replace(**tensors)


def _operator_forward(*problem: Any) -> Tensor:
    return _forward(_validated(Arguments(*problem)))


def _operator_backward(dout: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """An operator returns tensors: an empty one for a derivative that is not wanted."""
    *problem, wanted = rest
    p = _validated(Arguments(*problem))
    if dout.dtype != p.X.dtype or dout.shape != p.output_shape():
        raise ValueError("uotpool::solve_backward: dout has not the shape and dtype of the output")
    return tuple(p.X.new_empty(0) if d is None else d for d in _derivatives(dout, p, wanted))


def _operator_group(
    rows: Tensor, index: Tensor | None, present: Tensor | None, num_sets: int, N: int
) -> tuple[Tensor, Tensor]:
    """What `solve` makes sure of, as in `_validated`."""
    M = rows.shape[0] if rows.dim() else -1
    good = (
        M >= 0
        and num_sets >= 0
        and N >= 0
        and (index is None or (index.dtype == torch.int64 and index.shape == (M,)))
        and (index is not None or num_sets * N == M)
        and (present is None or (present.dtype == torch.bool and present.shape == (M,)))
    )
    if not good:
        raise ValueError(
            "uotpool::group: expected rows (M, D), an int64 index (M,) or num_sets * N = M, and a bool present "
            f"(M,), got rows {checks.describe(rows)}, index {checks.describe(index)}, present "
            f"{checks.describe(present)}, num_sets={num_sets}, N={N}; use uotpool.uot_pool or uot_plan"
        )
    index, present = (None if t is None else plain(t) for t in (index, present))
    return _group(rows, index, present, num_sets, N)


_group_op = operator(
    "group",
    _operator_group,
    "(Tensor rows, Tensor? index, Tensor? present, SymInt num_sets, SymInt N) -> (Tensor, Tensor)",
)
_solve_op = operator("solve", _operator_forward, f"({_problem}) -> Tensor")
_backward_op = operator(
    "solve_backward",
    _operator_backward,
    f"(Tensor dout, {_problem}, bool[] wanted) -> (Tensor, Tensor, Tensor, Tensor)",
)


@_group_op.register_fake
def _(
    rows: Tensor, index: Tensor | None, present: Tensor | None, num_sets: int, N: int
) -> tuple[Tensor, Tensor]:
    checks.one_device("uotpool::group", rows, index, present)
    return rows.new_empty(num_sets + 1, dtype=torch.int64), rows.new_empty(rows.shape[0], dtype=torch.int64)


@_solve_op.register_fake
def _(*problem: Any) -> Tensor:
    p = Arguments(*problem)
    checks.one_device("uotpool::solve", *p.tensors())
    return p.X.new_empty(p.output_shape())


@_backward_op.register_fake
def _(dout: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    *problem, wanted = rest
    p = Arguments(*problem)
    checks.one_device("uotpool::solve_backward", dout, *p.tensors())
    pairs = zip(p.differentiable(), wanted, strict=True)
    return tuple(dout.new_empty(0 if t is None or not w else t.shape) for t, w in pairs)


def _differentiate(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
    wanted = [bool(ctx.needs_input_grad[i]) for i in (0, 4, 5, 6)]
    dX, dp, dq, dw = _by_operator(dout, _saved(ctx), wanted)
    return dX, None, None, None, dp, dq, dw, None, None, None


def refuse(ctx: Any, *grads: Tensor) -> None:
    raise RuntimeError(_TWICE)


_solve_op.register_autograd(
    _differentiate, setup_context=lambda ctx, inputs, output: _save(ctx, Arguments(*inputs))
)
_backward_op.register_autograd(refuse)
