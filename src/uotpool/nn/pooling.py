"""The pooling layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from uotpool import backends, checks
from uotpool.backends.call import Call
from uotpool.coefficients import Coefficient, Learned, transformed
from uotpool.inputs import as_sets, in_layout_of, log_priors
from uotpool.nn import config as configs
from uotpool.nn import scores
from uotpool.nn.learned import CoefficientPooling
from uotpool.nn.priors import FeaturePrior, Prior, SamplePrior, log_feature_prior, log_sample_prior, make_prior
from uotpool.problem import Problem
from uotpool.sets import Sets
from uotpool.solvers import BY_NAME, BregmanADMM, Sinkhorn, Solver, as_solver, published

# The coefficients of Proposition 1 are infinite. These are large against any features of a float32 network.
_MEAN = {"alpha0": 1e10, "alpha1": 1e10, "alpha2": 1e10}
_ATTENTION = {"alpha0": 1e8, "alpha1": 1e12, "alpha2": 1e12}


class UOTPooling(CoefficientPooling):
    r"""Global pooling by unbalanced optimal transport over (sample, feature) pairs.

    .. math::
        y_d &= \sum_n X_{nd}\, \frac{P_{nd}}{\sum_m P_{md}} \\
        P &= \arg\min_{P \ge 0,\ \sum P = 1} -\langle t X, P\rangle + \alpha_0 R(P) \\
        &\quad + \alpha_1 KL(\sum_n P \,|\, p_0) + \alpha_2 KL(\sum_d P \,|\, q_0)

    The scale t of each feature is learned. It decides how the feature is pooled: 0 gives the mean, a large
    scale the maximum, a negative one tends to the minimum. All scales start at 1. alpha2 keeps the mass of each
    sample near its prior, so that a feature averages over several of its largest samples, and alpha1 that of
    each feature; both are learned, too. At alpha2 = 0 each feature is pooled by a softmax of its own values.
    `docs/choosing.md` compares the layer with other poolings.

    Args:
        dim: number of features D.
        solver: "sinkhorn", "badmm-e" (both entropic R) or "badmm-q" (quadratic R); or an object, such as
            `Sinkhorn(K=8)`, `BregmanADMM("quadratic")`, `Newton()` for the optimum itself, or one of
            `uotpool.published` for the algorithms as published.
        alpha0, alpha1, alpha2, rho: a number, or one for each of the K steps, to fix the coefficient;
            `Learned(...)` to learn it. rho is the step size of Bregman ADMM, which alone has one; None:
            `Learned(5.0)` there.
        scale: t: `Learned(...)` has one value for each feature; a number, or D numbers, is fixed.
            With `Learned(0.0)` the layer starts as exact mean pooling.
        p0: prior over features: None for a uniform one, "learned" (softmax(U X 1)), or a module that maps the
            sums of the sets (B, D) to logits (B, D).
        q0: prior over samples: None, "learned" (softmax(w^T tanh(V X))), or a module from X to a logit per
            sample, (..., D) -> (..., 1), such as `SamplePrior(dim, hidden)`.
        reduce: "mean" for the weighted mean above; "sum" for N times that, with N the number of samples of the
            set, where its size matters, as in graphs.
        impl: "auto", "cpu", "triton" or "reference"; see `explain_impl`.
        device, dtype: of the parameters.

    These are refused: a list whose length is not K (D for scale), `per_step` with Newton or for scale, rho with
    Sinkhorn or Newton, transform="linear" for another than scale and any other for scale, and output="code" of
    a published solver with reduce="sum".

    Shape:
        X (B, N, D), or (M, D) with `index` or `ptr` -> (B, D).

    Example:
        >>> UOTPooling(64)(torch.rand(8, 20, 64)).shape  # 8 sets of 20 samples
        torch.Size([8, 64])
        >>> UOTPooling(64)(torch.rand(100, 64), torch.randint(8, (100,)), dim_size=8).shape
        torch.Size([8, 64])

    M. Cheng, H. Xu, "Revisiting global pooling through the lens of optimal transport", 2022.
    """

    def __init__(
        self,
        dim: int,
        solver: Solver | Literal["sinkhorn", "badmm-e", "badmm-q"] = "sinkhorn",
        *,
        alpha0: Coefficient = 1.0,
        alpha1: Coefficient = Learned(20.0),  # noqa: B008 # it is a value
        alpha2: Coefficient = Learned(5.0),  # noqa: B008
        rho: Coefficient | None = None,
        scale: Coefficient = Learned(1.0),  # noqa: B008
        p0: Prior = None,
        q0: Prior = None,
        reduce: Literal["mean", "sum"] = "mean",
        impl: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        options = {"alpha0": alpha0, "alpha1": alpha1, "alpha2": alpha2, "rho": rho, "scale": scale}
        device = checks.device("device", device)
        super().__init__(dim, solver, options, device, dtype)
        checks.one_of("reduce", reduce, ("mean", "sum"))
        if reduce == "sum" and self.solver.output == "code":
            checks.fail("reduce", '"mean" with output="code", which is a sum already', reduce)
        backends.check_impl(impl)
        self.p0 = make_prior("p0", p0, dim, device, dtype)
        self.q0 = make_prior("q0", q0, dim, device, dtype)
        self.reduce, self.impl = reduce, impl

    def reset_parameters(self) -> None:
        """Set the learned coefficients to their initial values and draw the priors anew."""
        self._draw()
        for prior in (self.p0, self.q0):
            if isinstance(prior, (FeaturePrior, SamplePrior)):
                prior.reset_parameters()

    def forward(
        self,
        X: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        dim_size: int | None = None,
        mask: Tensor | None = None,
        q0: Tensor | None = None,
    ) -> Tensor:
        """Return the pooled vector of each set, (B, D), in the dtype of X.

        Args:
            X, index, ptr, dim_size, mask: as in `Pooling.forward`.
            q0: prior over the samples of this X in place of the layer's, probabilities (B, N) or (M,).
        """
        kernel, call = self._call(X, q0, index, ptr, dim_size, mask)
        y = kernel.solve(call)
        if self.reduce == "sum":
            y = y * call.sets.squeeze(call.sizes(y))
        if not self.solver.is_exact:
            # The published output does not see the coefficients of the last step, nor any alpha1 and alpha2 of
            # Bregman ADMM. This keeps them in the graph, with gradient 0, so that DDP does not wait for them.
            y = y + 0.0 * sum(raw.sum() for raw in self.raw_parameters().values())
        return y if y.dtype == X.dtype else y.to(X.dtype)

    def _call(self, X: Tensor, q0: Tensor | None, *layout: Any) -> tuple[backends.Backend, Call]:
        """Validate X, q0 and index, ptr, dim_size and mask, and return the call and the backend for it."""
        if not isinstance(X, Tensor):
            as_sets(X, *layout)  # raises
        kernel = backends.choose(X, self.solver, self.impl)
        has_priors = self.p0 is not None or self.q0 is not None or q0 is not None
        raw = kernel.reads_raw and not has_priors  # priors need at least float32
        rows, sets = as_sets(X, *layout, dim=self.dim, raw=raw)
        log_p0 = log_q0 = None
        if has_priors:
            log_p0, log_q0, sets = self._priors(rows, sets, q0, X.dtype)
        return kernel, Call(rows, sets, log_p0, log_q0, self._coefficients(rows), self.solver, raw)

    def _priors(
        self, rows: Tensor, sets: Sets, q0: Tensor | None, dtype: torch.dtype
    ) -> tuple[Tensor | None, Tensor | None, Sets]:
        log_p0 = None if self.p0 is None else log_feature_prior(self.p0, rows, sets, dtype)
        if q0 is not None:
            _, log_q0, sets = log_priors(rows, sets, None, q0)
            return log_p0, log_q0, sets
        if self.q0 is None:
            return log_p0, None, sets
        return log_p0, *log_sample_prior(self.q0, rows, sets, dtype)

    def problem(
        self,
        X: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        dim_size: int | None = None,
        mask: Tensor | None = None,
        q0: Tensor | None = None,
    ) -> Problem:
        """Return the problem that the layer solves for this X, to compute gaps, objectives and statistics."""
        return Problem._of_call(X, self._call(X, q0, index, ptr, dim_size, mask)[1])

    def plan(
        self,
        X: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        dim_size: int | None = None,
        mask: Tensor | None = None,
        q0: Tensor | None = None,
    ) -> Tensor:
        """Return the transport plan of `forward` in the layout of X, in at least float32."""
        kernel, call = self._call(X, q0, index, ptr, dim_size, mask)
        return in_layout_of(X, kernel.solve(call, plan=True))

    @torch.no_grad()
    def scores(
        self,
        X: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        dim_size: int | None = None,
        mask: Tensor | None = None,
        output: Tensor | Callable[[Tensor], Tensor] | None = None,
        q0: Tensor | None = None,
    ) -> Tensor:
        """Return a score for each sample, for heat maps, in the layout of X without its features.

        Args:
            X, index, ptr, dim_size, mask, q0: as in `forward`.
            output: None for the mass of the plan on a sample, sum_d P_nd, which adds up to 1 in each set.
                Otherwise a function from the pooled vectors y (B, D) to one number per set, (B,) or (B, 1),
                such as `lambda y: head(y)[:, 1]`, or to several, (B, C); or the derivative g of such a function
                by y, (D,), (B, D) or (B, C, D). The score is then the contribution of the sample to that
                output, sum_d w_nd X_nd g_d, with w_nd = P_nd / sum_m P_md (N times that with `reduce="sum"`).
                The contributions to a set add up to sum_d y_d g_d: the output without its bias, if it is linear
                in y.

        Returns:
            (B, N), or (M,) for ragged sets, in at least float32, without a graph; 0 at absent samples. For
            several outputs one number for each, (B, N, C) or (M, C).
        """
        kernel, call = self._call(X, q0, index, ptr, dim_size, mask)
        if output is None:
            return in_layout_of(X, kernel.solve(call, plan=True).sum(-1))
        return in_layout_of(X, scores.contributions(call, self.reduce, output, X.dtype))

    @torch.no_grad()
    def diagnostics(
        self,
        X: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        dim_size: int | None = None,
        mask: Tensor | None = None,
    ) -> dict[str, Any]:
        """Return how far from mean pooling the layer is on this X, and its coefficients, as data for JSON.

        Returns:
            A dict, with None for a number that is not finite: `divergence`, that of `PlanStats`, and the `mass`
            of the plans, both means over the sets; `spread`, the standard deviation of the entries of X that
            are present; `scale`, the minimum, median and maximum of the scales unless they are fixed at 1;
            `weights`, the coefficients for each step.
        """
        problem = self.problem(X, index, ptr, dim_size, mask)
        rows, sets = as_sets(X, index, ptr, dim_size, mask)
        present = rows if sets.present is None else rows[sets.present.squeeze(-1)]
        stats = problem.stats(problem.plan(self.solver, impl=self.impl))
        numbers = {"divergence": stats.divergence.mean(), "mass": stats.mass.mean(), "spread": present.std()}
        result: dict[str, Any] = {name: _finite(value) for name, value in numbers.items()}
        if self._slots["scale"] != self._slot("scale", 1.0):
            scales = self.scales()
            result["scale"] = [_finite(value, 6) for value in (scales.min(), scales.median(), scales.max())]
        result["weights"] = {
            name: [round(float(value), 6) for value in values.expand(self.solver.K)]
            for name, values in self.coefficients().items()
        }
        return result

    def scales(self) -> Tensor:
        """Return the current scales t, one per feature, (D,)."""
        slot = self._slots["scale"]
        if slot.parameter:
            return transformed(getattr(self, slot.parameter), "linear")
        return torch.tensor(slot.value).expand(self.dim)

    @classmethod
    def mean(cls, dim: int, **options: Any) -> UOTPooling:
        """Make mean pooling (Proposition 1), with large coefficients and uniform priors."""
        return cls._preset(dim, Sinkhorn(K=1), options, rho=1e10, **_MEAN)

    @classmethod
    def max(cls, dim: int, temperature: float = 1e-3, **options: Any) -> UOTPooling:
        """Make max pooling (Proposition 1): alpha2 = 0, alpha0 small, alpha1 large.

        This is softmax pooling at `temperature`. The output of Sinkhorn is below the maximum by at most
        temperature * log N, so choose the temperature small against the spread of the features. The four steps
        of Bregman ADMM come within some hundredths of the spread.
        """
        checks.number("temperature", temperature, positive=True)
        return cls._preset(
            dim, Sinkhorn(K=1), options, rho=temperature, alpha0=temperature, alpha1=1e4, alpha2=0.0
        )

    @classmethod
    def attention(cls, dim: int, hidden: int | None = None, **options: Any) -> UOTPooling:
        """Make attention pooling of Ilse et al. (Proposition 1): the plan keeps q0 = softmax(w^T tanh(V X)).

        With all coefficients equal, as published, the layer would give the square root of the attention: the
        sample marginal is q0^(alpha2 / (alpha0 + alpha2)). So alpha1 and alpha2 are large against alpha0 here.
        """
        q0 = SamplePrior(dim, hidden, device=options.get("device"), dtype=options.get("dtype"))
        return cls._preset(dim, Sinkhorn(K=2), options, rho=1e12, q0=q0, **_ATTENTION)

    @classmethod
    def published(
        cls,
        dim: int,
        solver: Literal["sinkhorn", "badmm-e", "badmm-q"] = "sinkhorn",
        *,
        K: int = 4,
        output: Literal["equation", "code"] = "equation",
        **options: Any,
    ) -> UOTPooling:
        """Make the layer of the paper: its algorithm as printed, with coefficients learned as in its code.

        Args:
            dim: number of features.
            solver: the name of the algorithm.
            K: number of steps, which the paper calls modules.
            output: "equation" for eq. 4; "code" for what the authors' code puts out, see `published.Sinkhorn`.
            **options: of `UOTPooling`.
        """
        checks.one_of("solver", solver, tuple(BY_NAME))
        exact = BY_NAME[solver]
        algorithm: Solver = published.Sinkhorn(K, output)
        if isinstance(exact, BregmanADMM):
            algorithm = published.BregmanADMM(exact.regularizer, K, output)
        names = ("alpha0", "alpha1", "alpha2", *(("rho",) if algorithm.uses_rho else ()))
        learned = dict.fromkeys(names, Learned(transform="softplus", per_step=True))
        return cls(dim, algorithm, **{"scale": 1.0, **learned} | options)

    @classmethod
    def _preset(
        cls, dim: int, default: Sinkhorn, options: dict[str, Any], *, rho: float, **settings: Any
    ) -> UOTPooling:
        solver = as_solver(options.pop("solver", default))
        if solver.uses_rho:
            settings["rho"] = rho
        return cls(dim, solver, **{"scale": 1.0} | settings | options)

    def get_config(self) -> dict[str, Any]:
        """Return every option of the layer as plain data, ready for JSON; `from_config` makes it again.

        Defaults are named too, so that the layer does not change with them. Learned numbers are in the state
        dict; device and dtype are options of `from_config`. A prior that is your own module raises an error.
        """
        return configs.of(self)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], **options: Any) -> UOTPooling:
        """Make a layer from what `get_config` returned.

        Args:
            config: the options.
            **options: options that replace those of `config`, and device and dtype.
        """
        return cls(**configs.options(cls, config, options))

    def extra_repr(self) -> str:
        usual: dict[str, Any] = UOTPooling.__init__.__kwdefaults__ or {}
        parts = [str(self.dim), repr(self.solver)]
        for name, slot in self._slots.items():
            if slot != self._slot(name, Learned() if usual[name] is None else usual[name]):
                parts.append(f"{name}={slot.learned or slot.value}")
        for name in ("reduce", "impl"):
            if getattr(self, name) != usual[name]:
                parts.append(f"{name}={getattr(self, name)!r}")
        return ", ".join(parts)


def _finite(value: Tensor, digits: int | None = None) -> float | None:
    if not bool(value.isfinite()):
        return None
    return float(value) if digits is None else round(float(value), digits)
