"""Validate what a user passes, once for each call, and turn it into rows, sets and log priors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from uotpool import checks
from uotpool.sets import DenseSets, RaggedSets, Sets


def as_sets(
    X: Tensor,
    index: Tensor | None,
    ptr: Tensor | None,
    dim_size: int | None,
    mask: Tensor | None,
    *,
    dim: int | None = None,
    raw: bool = False,
    name: str = "X",
) -> tuple[Tensor, Sets]:
    """Return X in at least float32 with zeros in absent rows, and its sets.

    Args:
        dim: the number of features that X must have; None: any.
        raw: whether X keeps its dtype and the values of its absent rows.
        name: of X, in messages.
    """
    if isinstance(X, Tensor) and X.is_nested:
        X, ptr = _jagged(name, X, index, ptr, mask)
    if not (isinstance(X, Tensor) and X.dtype in _DTYPES and X.dim() in (2, 3) and X.shape[-1] > 0):
        _refuse(name, X)
    if X.layout != torch.strided:
        _refuse(name, X)
    if dim is not None and X.shape[-1] != dim:
        _refuse_dim(name, X, dim)
    if index is not None or ptr is not None or dim_size is not None:
        _check_layout(X, index, ptr, dim_size)

    sets: Sets
    present = None if mask is None else _present(mask, X)
    if X.dim() == 3:
        if index is not None or ptr is not None:
            argument, value = ("ptr", ptr) if index is None else ("index", index)
            checks.fail(argument, f"None with a dense {name} of shape (B, N, D); use mask for padding", value)
        if dim_size is not None and dim_size != X.shape[0]:
            checks.fail("dim_size", f"the number of sets of {name}, {X.shape[0]}", dim_size)
        sets = DenseSets(X.shape[0], present)
    elif index is None and ptr is None:
        if dim_size not in (None, 1):
            checks.fail("dim_size", f"1 ({name} of shape (N, D) without index or ptr is one set)", dim_size)
        sets = RaggedSets(None, 1, present, like=X)
    elif ptr is not None:
        ptr = _ptr(X, ptr, dim_size)
        sets = RaggedSets(None, ptr.shape[0] - 1, present, ptr=ptr, like=X)
    else:
        assert index is not None
        row_index, num_sets = _index(X, index, dim_size, name)
        sets = RaggedSets(row_index, num_sets, present)

    if X.dtype.itemsize < 4 and not raw:
        X = X.float()
    X = X.contiguous()  # torch sums in an order that depends on strides
    if checks.values_checked(X):
        checks.finite_rows(name, X, present)
    return X if present is None or raw else sets.fill_absent(X, 0.0), sets


_DTYPES = frozenset((torch.float16, torch.bfloat16, torch.float32, torch.float64))


def _refuse(name: str, X: Tensor) -> None:
    """Raise the error of an X that is not valid."""
    layouts = "a floating tensor (B, N, D), or (M, D) with index or ptr"
    checks.floating(name, X, layouts)
    if X.layout != torch.strided or X.dtype not in _DTYPES:
        checks.fail(name, layouts + ", of 16 bits or more and not sparse", X, TypeError)
    if X.dim() not in (2, 3):
        checks.fail(name, layouts, X)
    checks.fail(name, "at least one feature in the last dimension", X)


def _refuse_dim(name: str, X: Tensor, dim: int) -> None:
    turned = X.dim() == 3 and X.shape[1] == dim
    hint = "; samples are rows, (B, N, D): X.transpose(1, 2)?" if turned else ""
    checks.fail(name, f"{dim} features in the last dimension (dim={dim}){hint}", X)


def _jagged(
    name: str, X: Tensor, index: Tensor | None, ptr: Tensor | None, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the rows of a jagged nested tensor, and their offsets in the place of `ptr`."""
    if X.layout != torch.jagged:
        hint = "torch.nested.as_nested_tensor(list(X.unbind()), layout=torch.jagged) makes one"
        checks.fail(name, f"a nested tensor in the layout torch.jagged ({hint})", X, TypeError)
    nested: Any = X
    if X.dim() != 3 or nested._ragged_idx != 1:
        checks.fail(name, "a nested tensor of shape (B, samples, D) that is ragged in its samples", X)
    if nested.lengths() is not None:
        checks.fail(name, "a nested tensor without holes (X.contiguous() closes them)", X)
    for argument, value in (("index", index), ("ptr", ptr), ("mask", mask)):
        if value is not None:
            checks.fail(argument, f"None with a nested {name}, which has the offsets of its sets", value)
    return nested.values(), nested.offsets()


def in_layout_of(X: Tensor, rows: Tensor) -> Tensor:
    """Return one value, or one vector, per row in the layout of X: nested if X is."""
    if not X.is_nested:
        return rows
    return torch.nested.nested_tensor_from_jagged(rows, X.offsets())  # type: ignore[attr-defined] # nested tensors have it


def _check_layout(X: Tensor, index: Tensor | None, ptr: Tensor | None, dim_size: int | None) -> None:
    # Other libraries take a mask as the second argument, where we, like PyG, have `index`.
    for name, value, accepted in (
        ("index", index, "the set of each row, 1-d integers (M,)"),
        ("ptr", ptr, "the offsets of the sets, 1-d integers (B + 1,)"),
        ("dim_size", dim_size, "the number of sets"),
    ):
        if isinstance(value, Tensor) and (value.dtype == torch.bool or value.dim() == 2):
            checks.fail(name, f"{accepted}; a mask is passed by its name, mask=...", value)
    if index is not None and ptr is not None:
        raise ValueError("index, ptr: expected one of the two, got both")
    if dim_size is not None:
        checks.count("dim_size", dim_size, 0)
        if checks.has_values(X) and dim_size > _max_sets(X):
            checks.fail("dim_size", f"at most {_max_sets(X)} sets for {X.shape[0]} rows", dim_size)


def _max_sets(X: Tensor) -> int:
    """Return a bound on the number of sets: a larger one is a mistake, and would take all of the memory."""
    return max(10**7, 1000 * X.shape[0])


def _ptr(X: Tensor, ptr: Tensor, dim_size: int | None) -> Tensor:
    """Return the offsets as int64."""
    checks.integers("ptr", ptr)
    checks.same_device("ptr", ptr, X)
    if ptr.shape[0] < 1:
        checks.fail("ptr", "at least one offset, (B + 1,)", ptr)
    if dim_size is not None and dim_size != ptr.shape[0] - 1:
        checks.fail("dim_size", f"{ptr.shape[0] - 1}, the number of sets of ptr", dim_size)
    checks.ptr_values(ptr, X.shape[0])
    return ptr.long()


def _index(X: Tensor, index: Tensor, dim_size: int | None, name: str) -> tuple[Tensor, int]:
    """Return the set of each row as int64, and the number of sets."""
    checks.integers("index", index)
    checks.same_device("index", index, X)
    if index.shape[0] != X.shape[0]:
        checks.fail("index", f"one entry for each of the {X.shape[0]} rows of {name}", index)
    is_chosen = dim_size is not None
    if dim_size is None:
        dim_size = int(index.max()) + 1 if index.numel() else 0
        # IDs passed as indices would allocate max(ID) sets.
        if checks.readable(index) and dim_size > _max_sets(X):
            hint = "torch.unique(index, return_inverse=True) numbers IDs; dim_size=... allows for empty sets"
            checks.fail("index", f"numbers of sets, from 0 on ({hint})", dim_size - 1)
    checks.index_values(index, dim_size, is_chosen)
    return index.long(), dim_size


def _present(mask: Tensor, X: Tensor) -> Tensor:
    """Return the mask as bool, in the shape of a per-sample value."""
    accepted = f"a bool or 0/1 tensor of shape {tuple(X.shape[:-1])}"
    checks.strided("mask", mask, accepted)
    if mask.is_complex() or mask.is_floating_point():
        # An additive mask (0 to keep, -inf to drop) means the opposite of a multiplicative one.
        checks.fail("mask", f"{accepted} (mask.bool(), if 1 means present)", mask, TypeError)
    checks.same_device("mask", mask, X)
    if mask.shape != X.shape[:-1]:
        checks.fail("mask", accepted, mask)
    if mask.dtype != torch.bool:
        checks.mask_values(mask, accepted)
        mask = mask != 0
    return mask.unsqueeze(-1)


def log_priors(
    X: Tensor, sets: Sets, p0: Tensor | None, q0: Tensor | None
) -> tuple[Tensor | None, Tensor | None, Sets]:
    """Return log p0, (D,) or (B, D), log q0 as v, 0 at absent rows, and the sets without samples of prior 0.

    A uniform prior is None.
    """
    log_p0 = None
    if p0 is not None:
        D = X.shape[-1]
        checks.floating_of_shape("p0", p0, X, (D,), (sets.num_sets, D))
        if checks.values_checked(p0):
            checks.distribution("p0", p0, p0.to(X.dtype).sum(-1), p0.dtype)
            if not bool((p0 > 0).all()):
                raise ValueError("p0: expected positive probabilities, got 0; leave such features out of X")
        # A feature cannot be absent, so an unchecked 0 becomes the least prior. A negative prior becomes NaN.
        p0 = p0.to(X.dtype)
        log_p0 = _log(torch.where(p0 < 0, torch.nan, p0))

    if q0 is None:
        return log_p0, None, sets
    checks.floating_of_shape("q0", q0, X, X.shape[:-1])
    dtype, q0 = q0.dtype, sets.per_sample(q0.to(X.dtype))
    if checks.values_checked(q0):
        present_q0 = sets.fill_absent(q0, 0.0)
        checks.distribution("q0", present_q0, sets.sum_n(present_q0)[sets.count(X) > 0], dtype)
    sets = sets.restrict(~(q0 <= 0))  # a sample whose prior is NaN stays, and makes its set NaN
    return log_p0, _log(sets.fill_absent(q0, 1.0)), sets


def _log(prior: Tensor) -> Tensor:
    """Return the log of a prior, at least 1e-31 in float32: divisions by smaller priors overflow."""
    limits = torch.finfo(prior.dtype)
    return prior.clamp_min(limits.tiny / limits.eps).log()
