"""The base class of every pooling."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from itertools import chain, pairwise
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from uotpool import checks
from uotpool.inputs import as_sets, in_layout_of
from uotpool.nn.scores import Output, direction
from uotpool.sets import DenseSets, Sets


class Pooling(nn.Module):
    """A pooling of `(B, N, dim)` or ragged `(M, dim)` to `(B, out_dim)`. `uotpool.zoo.build` makes one by name.

    The output of every pooling does not depend on the order of the samples (except of nodes whose scores
    tie in `SAGPool`), on padding or on the other sets of the batch. An empty set pools to zeros with zero
    gradient. The computation runs in at least float32, whatever the dtype of X, the parameters or
    autocast, and the output has the dtype of X.

    Args:
        dim: number of features of a sample.

    Attributes:
        out_dim: number of features of a pooled set.
        aux_loss: a loss of the last forward pass, to be added to that of the task; 0.0 for most methods.
        needs_edges: whether `forward` needs `edge_index`.
        needs_fit: whether the method takes references from data; see `fit`.
    """

    needs_edges: ClassVar[bool] = False
    needs_fit: ClassVar[bool] = False
    aux_loss: Tensor | float = 0.0

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = self.out_dim = int(checks.count("dim", dim, 1))

    def forward(
        self,
        X: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        dim_size: int | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Return the pooled vector of each set, (B, out_dim), in the dtype of X.

        Args:
            X: (B, N, dim), or (M, dim) with `index` or `ptr`.
            index: set of each row, in any order.
            ptr: offsets of the sets, (B + 1,), instead of `index`.
            dim_size: number of sets; keeps trailing empty ones.
            mask: True where a sample is present, shape of X without its last dimension.
        """
        # The first four arguments are those of PyG's aggregations, in their order. None is
        # keyword-only, since torch.onnx.export by tracing passes every argument by position.
        rows, sets = as_sets(X, index, ptr, dim_size, mask, dim=self.dim)
        return self._forward(X, rows, sets)

    def _forward(self, X: Tensor, rows: Tensor, sets: Sets, *edges: Tensor | None) -> Tensor:
        """Pool checked rows in their precision; X is the argument of `forward`."""
        if sets.num_sets == 0 and not edges:  # torch's attention fails on no sets
            joined = sum((parameter.sum() for parameter in self.parameters()), rows.sum())
            return (rows.new_zeros(0, self.out_dim) + 0.0 * joined).to(X.dtype)
        with no_autocast(rows.device.type):
            pool = self._in_precision_of(rows)
            y = pool._pool(rows, sets, *edges)
            if pool is not self:
                self.aux_loss = pool.aux_loss
        if not isinstance(y, Tensor) or y.shape != (sets.num_sets, self.out_dim):
            shape = f"({sets.num_sets}, {self.out_dim}), (B, out_dim)"
            error = ValueError if isinstance(y, Tensor) else TypeError
            checks.fail("_pool", f"{type(self).__name__}._pool to return a tensor {shape}", y, error)
        if not isinstance(sets, DenseSets) or sets.present is not None or X.shape[-2] == 0:
            y = torch.where(sets.squeeze(sets.count(rows)) > 0, y, 0.0)
        return y.to(X.dtype)

    def _in_precision_of(self, X: Tensor) -> Self:
        """Return this pooling with parameters and buffers in the dtype of X: itself, or a copy for one call."""
        tensors = chain(self.parameters(), self.buffers())
        to_cast = [t for t in tensors if t.dtype != X.dtype and t.is_floating_point()]
        if not to_cast:
            return self
        # The copy has cast tensors in the place of the parameters. Gradients flow back through the
        # casts, and nothing changes in this module, which another thread may be using.
        return copy.deepcopy(self, {id(t): t.to(X.dtype) for t in to_cast})

    def _pool(self, X: Tensor, sets: Sets) -> Tensor:
        """Return (B, out_dim) from X with 0 in absent rows, finite for empty sets, whose output is replaced."""
        raise NotImplementedError(
            f"{type(self).__name__} has no method _pool(X, sets), which every pooling defines"
        )

    @torch.no_grad()
    def scores(
        self,
        X: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        dim_size: int | None = None,
        mask: Tensor | None = None,
        output: Output | None = None,
    ) -> Tensor:
        """Return a score for each sample, for heat maps, in the layout of X without its features.

        Args:
            X, index, ptr, dim_size, mask: as in `forward`.
            output: None for the attention of the pooling (the mean over its heads), which adds up to 1 in each
                set. Otherwise a function from the pooled vectors (B, out_dim) to one number per set, (B,) or
                (B, 1), or several, (B, C); or the derivative of such a function, (out_dim,), (B, out_dim) or
                (B, C, out_dim). The score is then the product of x_n and the derivative of the output by x_n;
                these need not add up to the output.

        Returns:
            (B, N), or (M,), in at least float32, without a graph; 0 at absent samples; (B, N, C) or (M, C) for
            several outputs.
        """
        rows, sets = as_sets(X, index, ptr, dim_size, mask, dim=self.dim)
        if output is None:
            return in_layout_of(X, self._attention_of(rows, sets))
        with torch.inference_mode(False), torch.enable_grad():
            leaf = rows.detach().clone().requires_grad_()
            y = self._forward(leaf, leaf, sets)
            g = direction(y.detach().to(X.dtype), output).to(y.dtype)
            directions = g.unbind(1) if g.dim() == 3 else [g]
            maps = [
                (leaf * torch.autograd.grad((y * each).sum(), leaf, retain_graph=True)[0]).sum(-1)
                for each in directions
            ]
        result = torch.stack(maps, dim=-1) if g.dim() == 3 else maps[0]
        return in_layout_of(X, result.detach())

    def _attention_of(self, rows: Tensor, sets: Sets) -> Tensor:
        with no_autocast(rows.device.type):
            attention = self._in_precision_of(rows)._attention(rows, sets)
        if attention is None:
            accepted = "a function of the pooled vectors, such as lambda y: head(y)[:, 1], or its derivative"
            raise ValueError(
                f"output: expected {accepted}, as {type(self).__name__} has no attention, got None"
            )
        return attention.squeeze(-1)

    def _attention(self, X: Tensor, sets: Sets) -> Tensor | None:
        """Return the attention to each sample, shape v of `sets`, 0 at absent ones; None: it has none."""
        return None

    def fit(
        self,
        X: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        dim_size: int | None = None,
        mask: Tensor | None = None,
    ) -> Self:
        """Take references from training data, in the layouts of `forward`. This needs scikit-learn.

        A method that has references starts from random ones unless it is fitted; for other methods this
        does nothing. Random numbers come from torch's generator.
        """
        rows, sets = as_sets(X, index, ptr, dim_size, mask, dim=self.dim)
        if self.needs_fit:
            rows = rows.detach().reshape(-1, self.dim)
            if sets.present is not None:
                rows = rows[sets.present.flatten()]
            with torch.no_grad():
                self._fit(rows)
        return self

    def _fit(self, rows: Tensor) -> None:
        raise NotImplementedError

    def reset_parameters(self) -> None:
        """Draw all parameters anew, from torch's generator."""
        for module in self.modules():
            has_parameters = any(parameter is not None for parameter in module._parameters.values())
            reset: Any = getattr(module, "reset_parameters", None)
            if has_parameters and reset is not None and module is not self:
                reset()
        for module in self.modules():
            if isinstance(module, nn.MultiheadAttention):  # it has no public reset_parameters
                module._reset_parameters()

    def extra_repr(self) -> str:
        return str(self.dim) if self.out_dim == self.dim else f"{self.dim}, out_dim={self.out_dim}"


def no_autocast(device: str) -> Any:
    """Return a context without autocast, in which tensors on the device keep their dtype."""
    return torch.autocast(device, enabled=False) if _has_autocast(device) else nullcontext()


def _has_autocast(device: str) -> bool:
    return torch.amp.is_autocast_available(device)  # "meta" has none


# torch.compile of torch 2.4 to 2.8 cannot trace this function, so its result is marked as a constant, as
# torch.compiler.assume_constant_result does, which would import the compiler and take seconds.
_has_autocast._dynamo_marked_constant = True  # type: ignore[attr-defined]


def mlp(*widths: int) -> nn.Sequential:
    """Make linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for inner, outer in pairwise(widths):
        layers += [nn.Linear(inner, outer), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
