"""Check that a pooling keeps the promises of `uotpool.zoo.Pooling`: ours, or a module of your own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from uotpool import checks

# Tolerances relative to the largest entry: of sums in float64, and of half precision.
ROUNDING, HALF = 1e-9, 3e-2


class Promise(NamedTuple):
    """The result of the check of one promise.

    Attributes:
        name: of the promise.
        held: whether it held on all examples; None where it is not required, or was skipped.
        detail: the smallest example on which it failed and the error, or what was measured.
    """

    name: str
    held: bool | None
    detail: str = ""


class Failure(AssertionError):
    """A pooling broke a promise."""


class _Broken(Exception):
    """A check found an example that breaks its promise."""


# From few rows to many, so that the first failure is the smallest.
_SIZES = ((1,), (2,), (3,), (1, 2), (3, 1, 4), (5, 2, 7, 1))


def check_pooling(
    pool: nn.Module, dim: int, *, skip: Collection[str] = (), raise_exception: bool = True
) -> list[Promise]:
    """Check the promises of a pooling, and return the result for each.

    The pooling is checked in eval mode, in float64, on the device of its parameters; afterwards it has its
    state and mode again. Required are

    - "permutation": the order of the samples does not matter.
    - "ragged": `ptr`, `index` in any order and a mask agree with single sets.
    - "padding": absent rows are never read and get no gradient.
    - "apart": a set does not depend on the others of its batch.
    - "empty set": pools to zeros; "one sample": is finite.
    - "gradients": are finite and those of finite differences.
    - "half precision": float16 and bfloat16 in and out, near the same in float32.

    "change of unit" (is pool(c X) = c pool(X)?) and "added constant" (is pool(X + c) = pool(X) + c?) are only
    reported.

    Args:
        pool: called as pool(X, index, ptr=..., dim_size=..., mask=...) with X (B, N, dim) or (M, dim), as a
            `uotpool.zoo.Pooling` is. An adapter of a few lines brings others to this form.
        dim: number of features of a sample.
        skip: names of promises to leave out.
        raise_exception: whether broken promises raise `Failure`, once all are checked.

    Example:
        >>> all(promise.held is not False for promise in check_pooling(uotpool.UOTPooling(3), 3))
        True
    """
    if not isinstance(pool, nn.Module):
        checks.fail("pool", "a module", pool, TypeError)
    dim = int(checks.count("dim", dim, 1))
    unknown = set(skip) - {*_REQUIRED, *_REPORTED}
    if unknown:
        checks.fail("skip", f"names among {', '.join([*_REQUIRED, *_REPORTED])}", sorted(unknown))
    results = []
    with _in_eval_and_float64(pool):
        for name, check in _REQUIRED.items():
            if name in skip:
                results.append(Promise(name, None, "skipped"))
                continue
            try:
                check(pool, dim)
                results.append(Promise(name, True))
            except _Broken as broken:
                results.append(Promise(name, False, str(broken)))
            except Exception as error:  # whatever a pooling raises, it breaks the promise
                results.append(Promise(name, False, f"{type(error).__name__}: {error}"))
        results += [
            Promise(name, None, report(pool, dim)) for name, report in _REPORTED.items() if name not in skip
        ]
    failed = [promise for promise in results if promise.held is False]
    if failed and raise_exception:
        lines = [f"  {promise.name}: {promise.detail}" for promise in failed]
        raise Failure("\n".join([f"{type(pool).__name__} breaks {len(failed)} promises of a pooling:", *lines]))
    return results


@contextmanager
def _in_eval_and_float64(pool: nn.Module) -> Iterator[None]:
    """Put the pooling in eval mode and float64, and restore its state, mode and dtype afterwards."""
    modes = [(module, module.training) for module in pool.modules()]
    tensors = [*pool.parameters(), *pool.buffers()]
    data = [tensor.data for tensor in tensors]
    gradients = [tensor.grad for tensor in tensors]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            pool.eval()
            for tensor in tensors:
                tensor.data = tensor.data.double() if tensor.is_floating_point() else tensor.data.clone()
                tensor.grad = None
            yield
        finally:
            for tensor, before, gradient in zip(tensors, data, gradients, strict=True):
                tensor.data, tensor.grad = before, gradient
            for module, mode in modes:
                module.training = mode


def _device(pool: nn.Module) -> torch.device:
    tensor = next(iter([*pool.parameters(), *pool.buffers()]), None)
    return torch.device("cpu") if tensor is None else tensor.device


def _rows(pool: nn.Module, count: int, dim: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + 1)
    return torch.randn(count, dim, generator=generator, dtype=torch.float64).to(_device(pool))


def _batches(pool: nn.Module, dim: int) -> Iterator[tuple[list[Tensor], Tensor, Tensor]]:
    """Return sets, from small to large, with all of their rows and offsets."""
    for sizes in _SIZES:
        X = _rows(pool, sum(sizes), dim, seed=len(sizes))
        yield list(X.split(list(sizes))), X, torch.tensor([0, *sizes], device=X.device).cumsum(0)


def _call(pool: nn.Module, X: Tensor, **sets: Any) -> Tensor:
    y = pool(X, **sets)
    if not isinstance(y, Tensor) or y.dim() != 2:
        raise _Broken(f"{_named(X, sets)}: expected (B, out_dim), got {checks.describe(y)}")
    return y


def _alone(pool: nn.Module, one: Tensor) -> Tensor:
    return _call(pool, one.unsqueeze(0))


def _named(X: Tensor, sets: dict[str, Any]) -> str:
    values = {name: value.tolist() if isinstance(value, Tensor) else value for name, value in sets.items()}
    return ", ".join([f"X {tuple(X.shape)}", *(f"{name}={value}" for name, value in values.items())])


def _same(a: Tensor, b: Tensor, where: str, tolerance: float = ROUNDING) -> None:
    if a.shape != b.shape:
        raise _Broken(f"{where}: expected the shape {tuple(b.shape)}, got {tuple(a.shape)}")
    if a.numel() == 0:
        return
    a, b = a.detach().double(), b.detach().double()
    error = float((a - b).abs().max())
    if not error <= tolerance * max(1.0, float(b.abs().max())):  # NaN is not, either
        raise _Broken(f"{where}: results differ by {error:.1e}")


def _permutation(pool: nn.Module, dim: int) -> None:
    for sets, _, _ in _batches(pool, dim):
        one = sets[-1]
        _same(_alone(pool, one.flip(0)), _alone(pool, one), f"{len(one)} samples in the reverse order")


def _ragged(pool: nn.Module, dim: int) -> None:
    for sets, X, ptr in _batches(pool, dim):
        expected = torch.cat([_alone(pool, one) for one in sets])
        _same(_call(pool, X, ptr=ptr), expected, _named(X, {"ptr": ptr}))
        index = torch.arange(len(sets), device=X.device).repeat_interleave(ptr.diff())
        order = torch.randperm(len(X), generator=torch.Generator().manual_seed(3)).to(X.device)
        shuffled = {"index": index[order], "dim_size": len(sets)}
        _same(_call(pool, X[order], **shuffled), expected, _named(X, shuffled))
        dense, mask = _padded(sets)
        _same(_call(pool, dense, mask=mask), expected, _named(dense, {"mask": mask}))


def _padded(sets: list[Tensor], fill: float = 0.0) -> tuple[Tensor, Tensor]:
    longest = max(map(len, sets)) + 1
    dense = sets[0].new_full((len(sets), longest, sets[0].shape[1]), fill)
    mask = torch.zeros(len(sets), longest, dtype=torch.bool, device=dense.device)
    for b, one in enumerate(sets):
        dense[b, : len(one)], mask[b, : len(one)] = one, True
    return dense, mask


def _padding(pool: nn.Module, dim: int) -> None:
    for sets, _, _ in _batches(pool, dim):
        expected, mask = _padded(sets)
        for fill in (torch.nan, torch.inf, 1e300):
            dense, _ = _padded(sets, fill)
            leaf = dense.requires_grad_()
            y = _call(pool, leaf, mask=mask)
            _same(y, _call(pool, expected, mask=mask), f"{_named(dense, {'mask': mask})}, padding of {fill}")
            if y.requires_grad:
                (gradient,) = torch.autograd.grad(y.sum(), leaf)
                _same(gradient[~mask], torch.zeros_like(gradient[~mask]), f"the gradient of padding of {fill}")


def _apart(pool: nn.Module, dim: int) -> None:
    for sets, X, ptr in _batches(pool, dim):
        if len(sets) > 1:
            other = torch.cat([X[: ptr[-2]] * 100 + 7, X[ptr[-2] :]])
            where = f"{_named(X, {'ptr': ptr})}: the last set while the others change"
            _same(_call(pool, other, ptr=ptr)[-1:], _call(pool, X, ptr=ptr)[-1:], where, 1e-7)


def _empty(pool: nn.Module, dim: int) -> None:
    X, ptr = _rows(pool, 2, dim).requires_grad_(), torch.tensor([0, 0, 2, 2], device=_device(pool))
    for rows, sets, empty in (
        (X[:0], {"ptr": ptr[:2] * 0}, [0]),
        (X[:0].reshape(1, 0, dim), {}, [0]),
        (X, {"ptr": ptr}, [0, 2]),
    ):
        y = _call(pool, rows, **sets)
        _same(y[empty], torch.zeros_like(y[empty]), f"{_named(rows, sets)}: the empty sets")
        if y.requires_grad:
            _finite(torch.autograd.grad(y[empty].sum(), X, materialize_grads=True), _named(rows, sets))


def _one_sample(pool: nn.Module, dim: int) -> None:
    one = _rows(pool, 1, dim).requires_grad_()
    y = _alone(pool, one)
    _finite([y], "one sample")
    if y.requires_grad:
        _finite(torch.autograd.grad(y.sum(), one), "the gradient of one sample")


def _finite(tensors: Any, where: str) -> None:
    for tensor in tensors:
        if not bool(tensor.isfinite().all()):
            raise _Broken(f"{where}: expected finite numbers, got {tensor.detach().flatten()[:8].tolist()}")


def _gradients(pool: nn.Module, dim: int) -> None:
    for sets, X, ptr in _batches(pool, dim):
        leaf = X.clone().requires_grad_()
        y = _call(pool, leaf, ptr=ptr)
        weights = torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype, device=y.device).reshape(y.shape)
        learned = [p for p in pool.parameters() if p.requires_grad]
        if not y.requires_grad:
            raise _Broken(f"{_named(X, {'ptr': ptr})}: the output has no graph")
        by_X, *rest = torch.autograd.grad((y * weights).sum(), [leaf, *learned], materialize_grads=True)
        _finite([by_X, *rest], f"{_named(X, {'ptr': ptr})}: gradients")
        step, direction = 1e-6, _rows(pool, len(X), dim, seed=9)
        with torch.no_grad():
            ahead, behind = (_call(pool, X + sign * step * direction, ptr=ptr) for sign in (1, -1))
        slope = float(((ahead - behind) * weights).sum()) / (2 * step)
        expected = float((by_X * direction).sum())
        if not abs(slope - expected) <= 1e-4 * max(1.0, abs(expected)):
            where = f"{len(sets)} sets of {X.shape[1]} features"
            raise _Broken(f"{where}: the derivative is {expected:.6g}, finite differences {slope:.6g}")


def _half(pool: nn.Module, dim: int) -> None:
    _, X, ptr = list(_batches(pool, dim))[-1]
    for dtype in (torch.float16, torch.bfloat16):
        half = copy.deepcopy(pool).to(dtype)
        wide = copy.deepcopy(half).float()
        y, expected = _call(half, X.to(dtype), ptr=ptr), _call(wide, X.to(dtype).float(), ptr=ptr)
        if y.dtype != dtype:
            raise _Broken(f"X of {dtype}: the output is {y.dtype}")
        _same(y, expected, f"X of {dtype} against the same in float32", HALF)


def _unit(pool: nn.Module, dim: int) -> str:
    X = _rows(pool, 5, dim).unsqueeze(0)
    with torch.no_grad():
        y = pool(X)
        errors = [f"{_relative(pool(c * X), c * y):.1e} for c = {c:g}" for c in (1e-3, 10.0, 1e3)]
    return f"relative difference of pool(c X) and c pool(X): {', '.join(errors)}"


def _constant(pool: nn.Module, dim: int) -> str:
    X = _rows(pool, 5, dim).unsqueeze(0)
    with torch.no_grad():
        y = pool(X)
        errors = [f"{_relative(pool(X + c), y + c):.1e} for c = {c:g}" for c in (1.0, 10.0, 1e3)]
    return f"relative difference of pool(X + c) and pool(X) + c: {', '.join(errors)}"


def _relative(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max() / b.abs().max().clamp_min(1e-300))


_REQUIRED: dict[str, Callable[[nn.Module, int], None]] = {
    "permutation": _permutation,
    "ragged": _ragged,
    "padding": _padding,
    "apart": _apart,
    "empty set": _empty,
    "one sample": _one_sample,
    "gradients": _gradients,
    "half precision": _half,
}
_REPORTED: dict[str, Callable[[nn.Module, int], str]] = {"change of unit": _unit, "added constant": _constant}
