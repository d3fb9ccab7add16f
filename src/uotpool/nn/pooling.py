"""The layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from uotpool import checks, dispatch
from uotpool.inputs import Modules, Weight, lay_out, resolve_weights, uniform_p0, uniform_q0, weight
from uotpool.layout import Sets
from uotpool.nn.priors import FeaturePrior, SamplePrior
from uotpool.solvers import NEEDS_RHO
from uotpool.solvers.weights import Weights

Prior = str | nn.Module

# Learned alpha0 and rho are divided by, and softplus reaches 0 in float32: they stay above this.
FLOOR = {"alpha0": 1e-6, "alpha1": 0.0, "alpha2": 0.0, "rho": 1e-6}


class UOTPooling(nn.Module):
    r"""Global pooling by unbalanced optimal transport over (sample, feature) pairs.

    .. math::
        y_d = \sum_n X_{nd}\, \frac{P_{nd}}{\sum_m P_{md}}, \quad
        P = \arg\min_{P \ge 0,\ \sum P = 1} -\langle X, P\rangle + \alpha_0 R(P)
        + \alpha_1 KL(\textstyle\sum_n P \,|\, p_0) + \alpha_2 KL(\sum_d P \,|\, q_0)

    solved by K unrolled steps, each with weights of its own.

    Args:
        dim: number of features D.
        solver: "sinkhorn", "badmm-e" (both entropic R) or "badmm-q" (quadratic R).
        K: number of modules, or "converged" for the optimum with implicit gradients.
        formulation: "exact", or "paper" for the algorithms as published.
        shared: one value of each learned weight for all modules.
        alpha0, alpha1, alpha2, rho: None to learn the weight (softplus of a parameter `raw_alpha0`, ...); a
            number, or K numbers, to fix it at exactly that value (a buffer `alpha0`, ...). `rho` is of
            Bregman ADMM only.
        p0: prior over features: "uniform", "learned" (softmax(U X 1)), or a module from the sums of the sets
            (B, D) to logits (B, D).
        q0: prior over samples: "uniform", "learned" (softmax(w^T tanh(V X))), or a module from X to one
            logit for each sample, (..., D) -> (..., 1).
        init: initial values of learned weights, for example `{"alpha0": 0.1}`; a number or K numbers each.
            Default: softplus(0.1 randn), as the authors', from torch's seed.
        readout: "conditional", or "authors" with `formulation="paper"`; see `uot_pool`.
        tol, max_iter: with `K="converged"`; see `uot_plan`.
        impl: see `resolve_impl`.

    Shape:
        X (B, N, D), or (M, D) with `index` or `ptr` -> (B, D).
    """

    def __init__(
        self,
        dim: int,
        *,
        solver: str = "sinkhorn",
        K: Modules = 4,
        formulation: str = "exact",
        shared: bool = False,
        alpha0: Weight | None = None,
        alpha1: Weight | None = None,
        alpha2: Weight | None = None,
        rho: Weight | None = None,
        p0: Prior = "uniform",
        q0: Prior = "uniform",
        init: Mapping[str, Weight] | None = None,
        readout: str = "conditional",
        tol: float | None = None,
        max_iter: int | None = None,
        impl: str = "auto",
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.dim = checks.count("dim", dim, 1)
        checks.flag("shared", shared)
        checks.floating_dtype("dtype", dtype)
        converged = checks.converged(K, optional=False)
        self.K: Any = K
        self.shared = shared
        self.rule = dispatch.Rule(solver, formulation, converged, tol, max_iter, impl, readout)
        self.rule.validate()
        given = {"alpha0": alpha0, "alpha1": alpha1, "alpha2": alpha2}
        if solver in NEEDS_RHO and not converged:
            given["rho"] = rho
        elif rho is not None:
            checks.fail("rho", f"None: no step size with solver={solver!r}, K={K!r}", rho)
        if init is not None and not isinstance(init, Mapping):
            checks.fail("init", "a mapping from names of weights to values", init, TypeError)
        self._names = tuple(given)
        self._register_weights(given, dict(init or {}), device, dtype)
        self.p0 = _prior("p0", p0, dim, lambda: FeaturePrior(dim, device=device, dtype=dtype))
        self.q0 = _prior("q0", q0, dim, lambda: SamplePrior(dim, device=device, dtype=dtype))

    def _register_weights(
        self,
        given: Mapping[str, Weight | None],
        init: Mapping[str, Weight],
        device: torch.device | None,
        dtype: torch.dtype | None,
    ) -> None:
        # One validation for layers and functions; a number stands in for a learned weight. In float32: a fixed
        # weight has to be a number there too, as the layer follows the dtype of X.
        numbers: dict[str, Any] = {name: 1.0 if value is None else value for name, value in given.items()}
        like = torch.empty(0, dtype=torch.float32)
        resolve_weights(like, self.rule.solver, self.K, **{"rho": None} | numbers)
        learned = [name for name in self._names if given[name] is None and self.K != 0]
        for name in init:
            if name not in learned:
                raise ValueError(f"init: expected names among the learned weights {learned}, got {name!r}")
        length = 1 if self.shared or self.K in ("converged", 0) else self.K
        self._init = {name: self._inverse(name, value, length) for name, value in init.items()}
        for name, value in given.items():
            if name in learned:
                self.register_parameter(
                    f"raw_{name}", nn.Parameter(torch.empty(length, device=device, dtype=dtype))
                )
            elif value is not None:
                self.register_buffer(
                    name, torch.as_tensor(value, dtype=torch.float64, device=device).detach().clone()
                )
        self.reset_parameters()

    @staticmethod
    def _inverse(name: str, value: Weight, length: int) -> Tensor:
        """Parameter values whose weight is `value`."""
        argument = f"init[{name!r}]"
        like = torch.empty(0, dtype=torch.float64, device="cpu")
        target = weight(argument, value, like, positive=True).detach()
        if target.dim() == 1 and target.shape[0] not in (1, length):
            checks.fail(argument, "one number" if length == 1 else f"a number or {length} numbers", value)
        if bool((target < FLOOR[name]).any()):
            checks.fail(argument, f"values >= {FLOOR[name]}, the least that a learned {name} can be", value)
        above = (target - FLOOR[name]).clamp_min(1e-12)
        return above + torch.log(-torch.expm1(-above))  # softplus^-1, for large values too

    def reset_parameters(self) -> None:
        """Draw the learned weights (softplus(0.1 randn) or `init`) and the priors anew."""
        with torch.no_grad():
            for name in self._names:
                raw = getattr(self, f"raw_{name}", None)
                if raw is None:
                    continue
                if name in self._init:
                    raw.copy_(self._init[name].expand(raw.shape))
                else:
                    raw.normal_(0.0, 0.1)
        for prior in (getattr(self, "p0", None), getattr(self, "q0", None)):
            if isinstance(prior, (FeaturePrior, SamplePrior)):
                prior.reset_parameters()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> UOTPooling:
        """`.to()`, `.half()` and the like move the fixed weights but leave their precision.

        1e10 is infinite in float16, and 0.1 in float32 is another number.
        """
        fixed = {name: self._buffers.pop(name) for name in self._names if name in self._buffers}
        super()._apply(fn, recurse)
        for name, value in fixed.items():
            assert value is not None
            device = fn(torch.empty(0, device=value.device)).device
            no_double = device.type == "mps"
            self.register_buffer(name, value.to(device, torch.float32 if no_double else torch.float64))
        return self

    def weights(self) -> Weights:
        """The weights in force, (K,) each (one value for K="converged"), in at least float32."""
        length = 1 if self.K == "converged" else self.K
        return Weights(**{name: self._weight(name).expand(length) for name in self._names})

    def _weight(self, name: str) -> Tensor:
        raw: Tensor | None = getattr(self, f"raw_{name}", None)
        if raw is not None:
            raw = raw.to(torch.promote_types(raw.dtype, torch.float32))
            return nn.functional.softplus(raw) + FLOOR[name]
        fixed: Tensor | None = getattr(self, name, None)
        return torch.ones(()) if fixed is None else fixed  # none at K = 0: no module reads it

    def _prepare(
        self, X: Tensor, index: Tensor | None, ptr: Tensor | None, dim_size: int | None, mask: Tensor | None
    ) -> tuple[Tensor, Sets, Tensor, Tensor, Weights]:
        rows, sets = lay_out(X, index, ptr, dim_size, mask)
        if X.shape[-1] != self.dim:
            checks.fail("X", f"{self.dim} features in the last dimension (dim={self.dim})", X)
        if self.p0 is None:
            log_p0 = uniform_p0(rows, sets)
        else:
            log_p0 = self._log_p0(self.p0, rows, sets, X.dtype)
        if self.q0 is None:
            log_q0 = uniform_q0(rows, sets)
        else:
            log_q0, sets = self._log_q0(self.q0, rows, sets, X.dtype)
        weights = Weights(**{k: w.to(rows) for k, w in self.weights()._asdict().items() if w is not None})
        return rows, sets, log_p0, log_q0, weights

    @staticmethod
    def _log_p0(prior: nn.Module, rows: Tensor, sets: Sets, dtype: torch.dtype) -> Tensor:
        total = sets.squeeze(sets.sum_n(rows))
        logits = prior(total if isinstance(prior, FeaturePrior) else total.to(dtype))
        accepted = f"a module that returns floating logits of shape {tuple(total.shape)}"
        checks.floating("p0", logits, accepted)
        if logits.shape != total.shape:
            checks.fail("p0", accepted, logits)
        return sets.per_feature(logits.to(rows.dtype).log_softmax(-1))

    @staticmethod
    def _log_q0(prior: nn.Module, rows: Tensor, sets: Sets, dtype: torch.dtype) -> tuple[Tensor, Sets]:
        logits = prior(rows if isinstance(prior, SamplePrior) else rows.to(dtype))
        samples = rows.shape[:-1]
        accepted = f"a module that returns floating logits of shape {(*samples, 1)}"
        checks.floating("q0", logits, accepted)
        if logits.shape not in (samples, (*samples, 1)):
            checks.fail("q0", accepted, logits)
        logits = logits.to(rows.dtype).reshape(*samples, 1)
        # A logit of -inf is a prior of 0, so an absent sample; one of NaN is there, and spoils its set.
        sets = sets.among(logits != -torch.inf)
        logits = sets.hide(logits, 0.0)
        return logits - sets.spread(sets.logsumexp_n(logits)), sets

    def forward(
        self,
        X: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        dim_size: int | None = None,
        *,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Pooled vector of each set, (B, D), in the dtype of X."""
        y = dispatch.pool(*self._prepare(X, index, ptr, dim_size, mask), self.rule)
        if self.rule.formulation == "paper":
            # The published output does not see the last module's weights, nor any alpha1 and alpha2 of Bregman
            # ADMM. This keeps them in the graph, with gradient 0, so that DDP does not wait for them.
            y = y + 0.0 * sum(getattr(self, f"raw_{n}").sum() for n in self._names if hasattr(self, f"raw_{n}"))
        return y.to(X.dtype)

    def plan(
        self,
        X: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        dim_size: int | None = None,
        *,
        mask: Tensor | None = None,
    ) -> Tensor:
        """The transport plan behind `forward`, in the layout and dtype of X."""
        return dispatch.plan(*self._prepare(X, index, ptr, dim_size, mask), self.rule).to(X.dtype)

    @classmethod
    def mean(cls, dim: int, **kwargs: Any) -> UOTPooling:
        """Mean pooling (Proposition 1): all weights large, uniform priors."""
        return cls._preset(dim, kwargs, K=1, alpha0=1e4, alpha1=1e4, alpha2=1e4, rho=1e6)

    @classmethod
    def max(cls, dim: int, temperature: float = 1e-3, **kwargs: Any) -> UOTPooling:
        """Max pooling (Proposition 1): alpha2 = 0, alpha0 small, alpha1 large.

        That is softmax pooling at `temperature`; its output is below the maximum by at most
        temperature * log N, so choose it small against the spread of the features.
        """
        checks.number("temperature", temperature, positive=True)
        return cls._preset(dim, kwargs, K=1, alpha0=temperature, alpha1=1e4, alpha2=0.0, rho=temperature)

    @classmethod
    def attention(cls, dim: int, hidden: int | None = None, **kwargs: Any) -> UOTPooling:
        """Attention pooling of Ilse et al. (Proposition 1): q0 = softmax(w^T tanh(V X)), kept by the plan.

        The published setting, all weights equal, gives the square root of the attention instead: the sample
        marginal is q0^(alpha2 / (alpha0 + alpha2)). So alpha1 and alpha2 are large against alpha0.
        """
        q0 = SamplePrior(dim, hidden, device=kwargs.get("device"), dtype=kwargs.get("dtype"))
        return cls._preset(dim, kwargs, K=2, alpha0=1e4, alpha1=1e8, alpha2=1e8, rho=1e8, q0=q0)

    @classmethod
    def _preset(cls, dim: int, kwargs: dict[str, Any], rho: float, **settings: Any) -> UOTPooling:
        if kwargs.get("solver") in NEEDS_RHO:
            settings |= {"K": 4, "rho": rho}
        return cls(dim, **settings | kwargs)

    def extra_repr(self) -> str:
        parts = [f"{self.dim}, solver={self.rule.solver!r}, K={self.K!r}"]
        if self.rule.formulation != "exact":
            parts.append(f"formulation={self.rule.formulation!r}")
        if self.shared:
            parts.append("shared=True")
        for name in self._names:
            value = self._buffers.get(name)
            if value is not None:
                parts.append(f"{name}={value.tolist()}")
        for name in ("p0", "q0"):
            if getattr(self, name) is None:
                parts.append(f"{name}='uniform'")
        return ", ".join(parts)


def _prior(name: str, given: Prior, dim: int, learned: Callable[[], nn.Module]) -> nn.Module | None:
    if isinstance(given, (FeaturePrior, SamplePrior)) and given.dim != dim:
        raise ValueError(f"{name}: expected a prior for {dim} features (dim={dim}), got one for {given.dim}")
    if isinstance(given, nn.Module):
        return given
    if isinstance(given, str) and given in ("uniform", "learned"):
        return learned() if given == "learned" else None
    checks.fail(name, '"uniform", "learned" or a module', given)
    return None


def param_groups(module: nn.Module, weight_decay: float, **pool_options: Any) -> list[dict[str, Any]]:
    """Parameter groups for an optimiser: weight decay for all but the raw weights of UOT poolings.

    Decay would pull each raw weight to 0, that is each alpha to softplus(0) = 0.69, whatever the data say.

    Args:
        module: model that holds `UOTPooling` layers.
        weight_decay: for all other parameters.
        **pool_options: more for the group of the raw weights, for example `lr`.
    """
    raw: dict[int, nn.Parameter] = {}
    for layer in module.modules():
        if isinstance(layer, UOTPooling):
            raw |= {id(p): p for n, p in layer.named_parameters(recurse=False) if n.startswith("raw_")}
    rest: Iterable[nn.Parameter] = [p for p in module.parameters() if id(p) not in raw]
    return [
        {"params": rest, "weight_decay": weight_decay},
        {"params": list(raw.values()), "weight_decay": 0.0, **pool_options},
    ]
