"""The paper's learned priors. They return logits, which are normalised in each set."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from uotpool import checks
from uotpool.nn.base import no_autocast
from uotpool.sets import Sets

Prior = nn.Module | Literal["learned"] | None  # what a user passes as p0 or q0


class FeaturePrior(nn.Module):
    r"""Logits of the prior over features, :math:`p_0 = \text{softmax}(U X 1)`: linear in the sum of a set.

    Args:
        dim: number of features D.

    Shape:
        (B, D), the sum over the samples of each set -> (B, D).
    """

    def __init__(
        self, dim: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.dim = checks.count("dim", dim, 1)
        checks.floating_dtype("dtype", dtype)
        self.U = nn.Parameter(torch.empty(dim, dim, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        _uniform(self.U)

    def forward(self, total: Tensor) -> Tensor:
        return _linear(total, self.U)


class SamplePrior(nn.Module):
    r"""Logits of the prior over samples, :math:`q_0 = \text{softmax}(w^T \tanh(V X))` (Ilse et al. 2018).

    Args:
        dim: number of features D.
        hidden: width H of the hidden layer; default D, as in the paper.

    Shape:
        (..., D) -> (..., 1), each sample by itself.
    """

    def __init__(
        self,
        dim: int,
        hidden: int | None = None,
        *,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.dim = checks.count("dim", dim, 1)
        hidden = dim if hidden is None else checks.count("hidden", hidden, 1)
        checks.floating_dtype("dtype", dtype)
        self.V = nn.Parameter(torch.empty(hidden, dim, device=device, dtype=dtype))
        self.w = nn.Parameter(torch.empty(1, hidden, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        _uniform(self.V)
        _uniform(self.w)

    def forward(self, X: Tensor) -> Tensor:
        return _linear(_linear(X, self.V).tanh(), self.w)


def _uniform(weight: Tensor) -> None:
    """Draw the initial values of `nn.Linear`."""
    bound = 1 / math.sqrt(weight.shape[1])
    nn.init.uniform_(weight, -bound, bound)


def _linear(x: Tensor, weight: Tensor) -> Tensor:
    # We compute in the precision of x, the solver's, since a sum over a large set overflows float16.
    with no_autocast(x.device.type):
        return nn.functional.linear(x, weight.to(x.dtype))


def make_prior(
    name: str, prior: Prior, dim: int, device: torch.device | None, dtype: torch.dtype | None
) -> nn.Module | None:
    """Return the module of a prior, `name` "p0" or "q0"; None is a uniform one."""
    if prior is None:
        return None
    if isinstance(prior, nn.Module):
        if isinstance(prior, (FeaturePrior, SamplePrior)) and prior.dim != dim:
            raise ValueError(
                f"{name}: expected a prior for {dim} features (dim={dim}), got one for {prior.dim}"
            )
        return prior
    if not (isinstance(prior, str) and prior == "learned"):
        hint = f"; Problem(X, ..., {name}=...) takes probabilities" if isinstance(prior, Tensor) else ""
        checks.fail(name, f'None (uniform), "learned" or a module that returns logits{hint}', prior)
    kind = FeaturePrior if name == "p0" else SamplePrior
    return kind(dim, device=device, dtype=dtype)


def log_feature_prior(prior: nn.Module, rows: Tensor, sets: Sets, dtype: torch.dtype) -> Tensor:
    """Return log p0 of each set, (B, D). A module other than ours gets its input in `dtype`."""
    total = sets.squeeze(sets.sum_n(rows))
    logits = prior(total if isinstance(prior, FeaturePrior) else total.to(dtype))
    checks.floating_of_shape("p0", logits, rows, total.shape, prefix=_RETURNS)
    return logits.to(rows.dtype).log_softmax(-1)


def log_sample_prior(prior: nn.Module, rows: Tensor, sets: Sets, dtype: torch.dtype) -> tuple[Tensor, Sets]:
    """Return log q0, (..., 1), and the sets without the samples whose prior is 0."""
    logits = prior(rows if isinstance(prior, SamplePrior) else rows.to(dtype))
    samples = rows.shape[:-1]
    checks.floating_of_shape("q0", logits, rows, (*samples, 1), samples, prefix=_RETURNS)
    logits = logits.to(rows.dtype).reshape(*samples, 1)
    # A logit of -inf is a prior of 0, so the sample is absent. A sample with a logit of NaN
    # stays, and makes its set NaN.
    sets = sets.restrict(logits != -torch.inf)
    logits = sets.fill_absent(logits, 0.0)
    return logits - sets.to_rows(sets.logsumexp_n(logits)), sets


_RETURNS = "a module that returns "
