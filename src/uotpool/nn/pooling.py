"""The pooling layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from uotpool import backends, checks
from uotpool.functional import plan_stats
from uotpool.inputs import Modules, Weight, as_sets, computed, in_layout_of
from uotpool.nn import config as configs
from uotpool.nn import scores
from uotpool.nn.priors import (
    FeaturePrior,
    Prior,
    SamplePrior,
    log_feature_prior,
    log_sample_prior,
    make_prior,
)
from uotpool.nn.weights import LayerWeight, WeightedPooling, is_log, refuse_step
from uotpool.problem import LOG, RATE, LearnedScale, Problem
from uotpool.solvers import SOLVERS

Output = Callable[[Tensor], Tensor]

# The weights of Proposition 1 are infinite. These are large against any features of a float32 network.
MEAN = {"alpha0": 1e10, "alpha1": 1e10, "alpha2": 1e10, "rho": 1e10}
# The layer of version 0.1: four modules, all weights learned, one scale for all features.
CLASSIC: dict[str, Any] = {"K": 4, **dict.fromkeys(("alpha0", "alpha1", "alpha2", "rho", "scale"))}
DEFAULT_K = 4
ATTENTION = {"alpha0": 1e8, "alpha1": 1e12, "alpha2": 1e12, "rho": 1e12}


class UOTPooling(WeightedPooling):
    r"""Global pooling by unbalanced optimal transport over (sample, feature) pairs.

    .. math::
        y_d &= \sum_n X_{nd}\, \frac{P_{nd}}{\sum_m P_{md}} \\
        P &= \arg\min_{P \ge 0,\ \sum P = 1} -\langle X, P\rangle + \alpha_0 R(P) \\
        &\quad + \alpha_1 KL(\sum_n P \,|\, p_0) + \alpha_2 KL(\sum_d P \,|\, q_0)

    By default the plan is that of s_d X_nd, with a learned scale s_d for each feature. It decides how
    a feature is pooled: 0 is the mean, large is the maximum, negative is towards the minimum. All
    start at 1, between the two. The transport shares out the samples among the features: alpha2 holds the
    mass of every sample near its prior, so that a feature averages over several of its largest samples, and
    alpha1 that of every feature. Both are learned, too. At alpha2 = 0 each feature is pooled alone, by a
    softmax.
    `docs/choosing.md` says how it compares with other poolings. `UOTPooling.classic`
    is the layer of the paper and of version 0.1.

    The problem is solved by K unrolled steps, with weights of their own if these are learned.

    Args:
        dim: number of features D.
        solver: "sinkhorn", "badmm-e" (both entropic R) or "badmm-q" (quadratic R).
        K: number of modules, or "converged" for the optimum with implicit gradients. Default: 4.
        scale: "feature" for a learned scale per feature, s = 10 raw_scale, or None for none.
        formulation: "exact", or "paper" for the algorithms as published.
        shared: whether all modules share one value of each learned weight.
        alpha0, alpha1, alpha2, rho: a number, or K numbers, to fix the weight at exactly that value (a
            buffer `alpha0`, ...); None to learn it as the paper does (softplus of a parameter `raw_alpha0`,
            ...); "log" to learn its logarithm, one value for all modules, exp(10 raw_log_alpha2), which Adam
            moves ten times as fast as other parameters; it stays between 1e-6 and 1e6. Only Bregman ADMM has
            a `rho`.
        p0: prior over features: "uniform", "learned" (softmax(U X 1)), or a module that maps the
            sums of the sets (B, D) to logits (B, D).
        q0: prior over samples: "uniform", "learned" (softmax(w^T tanh(V X))), {"hidden": H} for a
            learned one of that width, or a module from X to a logit per sample, (..., D) -> (..., 1).
        init: initial values of learned weights, for example `{"alpha0": 0.1}`; a number or K
            numbers each, one for a weight that is "log". Default: softplus(0.1 randn) from torch's seed, as
            in the authors' code; for "log" 1, 20, 5 and 5.
            With s the spread of the features,
            `{"alpha0": 0.1 * s, "alpha1": 10 * s, "alpha2": 0.01 * s}` begins nearly at max pooling
            and can leave it; `alpha0=...` and `UOTPooling.max` are fixed.
        start: "mean" to begin as mean pooling, exactly (as sum pooling with `readout="sum"`), and to
            learn from there: scales are 0 at first. Their gradient does not vanish there, while that of
            a weight of 1e4 would. With `scale=None` the layer then has one learned number `scale` for
            all features.
        readout: "conditional" for the weighted mean above; "sum" for N times that, with N the number of
            samples of the set, where its size matters, as in graphs; "authors" with
            `formulation="paper"`; see `uot_pool`.
        tol, max_iter: limits of `K="converged"`; see `uot_plan`.
        impl: see `resolve_impl`.

    Shape:
        X (B, N, D), or (M, D) with `index` or `ptr` -> (B, D).

    Example:
        >>> UOTPooling(dim=64)(torch.rand(8, 20, 64)).shape  # 8 sets of 20 samples
        torch.Size([8, 64])
        >>> UOTPooling(dim=64)(torch.rand(100, 64), torch.randint(8, (100,)), dim_size=8).shape
        torch.Size([8, 64])

    M. Cheng, H. Xu, "Revisiting global pooling through the lens of optimal transport", 2022.
    """

    def __init__(
        self,
        dim: int,
        *,
        solver: str = "sinkhorn",
        K: Modules = None,
        scale: str | None = "feature",
        formulation: str = "exact",
        shared: bool = False,
        alpha0: LayerWeight = 1.0,
        alpha1: LayerWeight = LOG,
        alpha2: LayerWeight = LOG,
        rho: LayerWeight = LOG,
        p0: Prior = "uniform",
        q0: Prior = "uniform",
        init: Mapping[str, Weight] | None = None,
        start: str | None = None,
        readout: str = "conditional",
        tol: float | None = None,
        max_iter: int | None = None,
        impl: str = "auto",
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        checks.flag("shared", shared)
        checks.floating_dtype("dtype", dtype)
        checks.one_of("solver", solver, tuple(SOLVERS))
        if K is None:
            K = DEFAULT_K
        checks.converged(K, optional=False)
        checks.only("scale", scale, "feature")
        options = backends.solver_options(solver, K, formulation, tol, max_iter, impl, readout)
        given = {"alpha0": alpha0, "alpha1": alpha1, "alpha2": alpha2}
        if options.solver.needs_rho and not options.converged:
            given["rho"] = rho
        else:
            refuse_step(rho, solver, K)
        super().__init__(dim, options.solver, K, shared, given, init, device, dtype)
        if is_log(rho):
            self._given_logs.add("rho")  # for `get_config`, also where there is no step
        self.options = options
        self.p0 = make_prior("p0", p0, dim, device, dtype)
        self.q0 = make_prior("q0", q0, dim, device, dtype)
        if start is not None:
            self._check_start(start)
        self.start = start
        per_feature = scale is not None and K != 0  # without a module nothing is scaled
        one = start is not None and not per_feature
        self.scale: nn.Parameter | None
        self.raw_scale: nn.Parameter | None
        for name, shape in (("scale", () if one else None), ("raw_scale", (dim,) if per_feature else None)):
            zeros = None if shape is None else torch.zeros(shape, device=device, dtype=dtype)
            self.register_parameter(name, None if zeros is None else nn.Parameter(zeros))
        self._scaled = "one" if one else "feature" if per_feature else ""
        self._start_scales()

    def _check_start(self, start: str) -> None:
        checks.only("start", start, "mean")
        if self.K == 0 or self.q0 is not None or self.options.readout == "authors":
            q0 = "uniform" if self.q0 is None else self.q0
            came = f"K={self.K!r}, q0={q0!r}, readout={self.options.readout!r}"
            raise ValueError(
                f'start: "mean" goes with K >= 1, q0="uniform" and readout="conditional" or "sum", got {came}'
            )

    def _start_scales(self) -> None:
        if self.scale is not None:
            nn.init.zeros_(self.scale)
        if self.raw_scale is not None:
            nn.init.constant_(self.raw_scale, 0.0 if self.start == "mean" else 1 / RATE)

    def reset_parameters(self) -> None:
        """Set the learned weights and scales to their initial values and draw the priors anew."""
        self._draw()
        self._start_scales()
        for prior in (self.p0, self.q0):
            if isinstance(prior, (FeaturePrior, SamplePrior)):
                prior.reset_parameters()

    def _problem(
        self, X: Tensor, index: Tensor | None, ptr: Tensor | None, dim_size: int | None, mask: Tensor | None
    ) -> Problem:
        # A prior may read all rows of X, in at least float32.
        as_is = self.p0 is None and self.q0 is None and isinstance(X, Tensor)
        as_is = as_is and backends.reads_as_is(X, self.options)
        rows, sets = as_sets(X, index, ptr, dim_size, mask, as_is=as_is)
        self._check_dim(X)
        log_p0 = log_q0 = None
        if self.p0 is not None:
            log_p0 = log_feature_prior(self.p0, rows, sets, X.dtype)
        if self.q0 is not None:
            log_q0, sets = log_sample_prior(self.q0, rows, sets, X.dtype)
        like = computed(rows)
        return Problem(rows, sets, log_p0, log_q0, self._weights_for(like), self._scale_for(like), as_is)

    def forward(
        self,
        X: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        dim_size: int | None = None,
        mask: Tensor | None = None,
        edge_index: Tensor | None = None,
        edge_weight: Tensor | None = None,
    ) -> Tensor:
        """Return the pooled vector of each set, (B, D), in the dtype of X; edges are ignored."""
        y = backends.pool(self._problem(X, index, ptr, dim_size, mask), self.options)
        if self.options.formulation == "paper":
            # The published output does not see the last module's weights, nor any alpha1 and alpha2
            # of Bregman ADMM. This keeps them in the graph, with gradient 0, so that DDP does not
            # wait for them.
            y = y + 0.0 * sum(raw.sum() for raw in self.raw_weights().values())
        return y if y.dtype == X.dtype else y.to(X.dtype)

    def plan(
        self,
        X: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        dim_size: int | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Return the transport plan behind `forward`, in the layout and dtype of X."""
        P = backends.plan(self._problem(X, index, ptr, dim_size, mask), self.options).to(X.dtype)
        return in_layout_of(X, P)

    @torch.no_grad()
    def scores(
        self,
        X: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        dim_size: int | None = None,
        *,
        mask: Tensor | None = None,
        kind: str = "marginal",
        output: Tensor | Output | None = None,
    ) -> Tensor:
        """Return one number per sample, for heat maps, in the layout of X without its features.

        Args:
            X, index, ptr, dim_size, mask: as in `forward`.
            kind: "marginal" is the share of the plan's mass that lies on a sample, sum_d P_nd, which
                adds up to 1 in each set. "gradient" is what a sample contributes to an output of the
                network, sum_d w_nd X_nd g_d, with w_nd = P_nd / sum_m P_md its weights in the pooled
                vector y (N times that with `readout="sum"`), and g the derivative of the output by y. The
                contributions to a set add up to sum_d y_d g_d, which is the output itself, without its
                bias, if it is linear in y.
            output: for "gradient": a function from y (B, D) to one number per set, (B,) or (B, 1), such
                as `lambda y: head(y)[:, 1]`; or g itself, (D,) or (B, D).

        Returns:
            (B, N), or (M,) for ragged sets, without a graph; 0 at absent samples.
        """
        checks.one_of("kind", kind, scores.KINDS)
        problem = self._problem(X, index, ptr, dim_size, mask)
        if kind == "marginal":
            if output is not None:
                checks.fail("output", 'None unless kind="gradient"', output)
            found = backends.plan(problem, self.options).sum(-1)
        else:
            found = scores.contributions(problem, self.options, output, X.dtype)
        return in_layout_of(X, found.to(X.dtype))

    @torch.no_grad()
    def diagnostics(
        self,
        X: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        dim_size: int | None = None,
        mask: Tensor | None = None,
    ) -> dict[str, Any]:
        """Tell whether the layer does more than mean pooling on this X, and with what weights, ready for JSON.

        Returns:
            By name, with None for a number that is not finite: `divergence`, the distance of the plans
            from uniform ones in nats (see `plan_stats`), and their `mass`, both means over the sets;
            `spread`, the standard deviation of the entries of X that are present; `scale`, the least,
            the median and the largest of the scales, if there are any; `weights`, the values in force.
        """
        rows, sets = as_sets(X, index, ptr, dim_size, mask)
        there = rows if sets.present is None else rows[sets.present.squeeze(-1)]
        layout = {"index": index, "ptr": ptr, "dim_size": dim_size, "mask": mask}
        stats = plan_stats(self.plan(X, **layout), **layout)  # type: ignore[arg-type]
        numbers = {"divergence": stats.divergence.mean(), "mass": stats.mass.mean(), "spread": there.std()}
        known: dict[str, Any] = {
            name: float(value) if bool(value.isfinite()) else None for name, value in numbers.items()
        }
        scales = self.scales()
        if scales is not None:
            found = (scales.min(), scales.median(), scales.max())
            known["scale"] = [round(float(s), 6) if bool(s.isfinite()) else None for s in found]
        weights = self.weights()._asdict().items()
        return known | {"weights": {n: [round(float(v), 6) for v in w] for n, w in weights if w is not None}}

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Load state dicts of version 0.1 too, where the zoo had this layer as `uot` inside an adapter."""
        old = f"{prefix}uot."
        for key in [key for key in state_dict if key.startswith(old)]:
            state_dict[prefix + key.removeprefix(old)] = state_dict.pop(key)
        old_weights = any(f"{prefix}raw_{name}" in state_dict for name in self._names)
        if self.raw_scale is not None and f"{prefix}raw_scale" not in state_dict and old_weights:
            raise RuntimeError(
                f"state_dict: expected {prefix}raw_scale, got weights of version 0.1, whose default was "
                "another: load them into UOTPooling.classic(dim, ...), or make the layer with **uotpool.CLASSIC"
            )
        self._check_forms(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def scales(self) -> Tensor | None:
        """Return the scales in force, one per feature, (D,), or one for all, (); None where there are none."""
        if self._scaled != "feature":
            return self.scale
        return cast(Tensor, self.raw_scale) * RATE

    def _scale_for(self, like: Tensor) -> Tensor | LearnedScale | None:
        """Return the scales of a problem with this X: the parameter, if there is one for each feature."""
        if not self._scaled:
            return None
        name, shape = ("scale", ()) if self._scaled == "one" else ("raw_scale", (self.dim,))
        parameter = self._parameter(name, like)
        if parameter.shape != shape:
            checks.fail(name, f"a parameter of shape {shape}", parameter)
        return LearnedScale(parameter) if shape else parameter

    @classmethod
    def classic(cls, dim: int, **kwargs: Any) -> UOTPooling:
        """Make the layer of the paper and of version 0.1: four modules, all weights learned, no scales.

        Args:
            dim: number of features.
            **kwargs: options of `UOTPooling`.
        """
        return cls(dim, **CLASSIC | kwargs)

    @classmethod
    def mean(cls, dim: int, **kwargs: Any) -> UOTPooling:
        """Make mean pooling (Proposition 1): all weights large, uniform priors."""
        return cls._preset(dim, kwargs, K=1, **MEAN)

    @classmethod
    def max(cls, dim: int, temperature: float = 1e-3, **kwargs: Any) -> UOTPooling:
        """Make max pooling (Proposition 1): alpha2 = 0, alpha0 small, alpha1 large.

        This is softmax pooling at `temperature`. The output of Sinkhorn is below the maximum by at
        most temperature * log N, so choose the temperature small against the spread of the
        features. The four steps of Bregman ADMM come within some hundredths of the spread.
        """
        checks.number("temperature", temperature, positive=True)
        return cls._preset(dim, kwargs, K=1, alpha0=temperature, alpha1=1e4, alpha2=0.0, rho=temperature)

    @classmethod
    def attention(cls, dim: int, hidden: int | None = None, **kwargs: Any) -> UOTPooling:
        """Make attention pooling of Ilse et al. (Proposition 1): the plan keeps q0 = softmax(w^T tanh(V X)).

        With all weights equal, as published, the layer would give the square root of the attention:
        the sample marginal is q0^(alpha2 / (alpha0 + alpha2)). So alpha1 and alpha2 are large
        against alpha0 here.
        """
        q0 = SamplePrior(dim, hidden, device=kwargs.get("device"), dtype=kwargs.get("dtype"))
        return cls._preset(dim, kwargs, K=2, **ATTENTION, q0=q0)

    @classmethod
    def _preset(cls, dim: int, kwargs: dict[str, Any], rho: float, **settings: Any) -> UOTPooling:
        solver = SOLVERS.get(kwargs.get("solver", ""))
        if solver is not None and solver.needs_rho and kwargs.get("K") != "converged":
            settings |= {"K": 4, "rho": rho}
        return cls(dim, **{"scale": None} | settings | kwargs)

    def get_config(self) -> dict[str, Any]:
        """Return every option of the layer as plain data, ready for JSON; `from_config` makes it again.

        Every option is named, defaults too, so that a layer stays what it is if these change. Fixed
        weights have the values in force. Learned numbers are in the state dict; device and dtype are
        options of `from_config`. A module of your own as p0 or q0 is "module" here.
        """
        return configs.of(self)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], **options: Any) -> UOTPooling:
        """Make a layer from what `get_config` returned.

        Args:
            config: the options.
            **options: options to take in place of those of `config`, or that it cannot hold: a module
                as p0 or q0, device, dtype.
        """
        return cls(**configs.options(cls, config, options))

    def extra_repr(self) -> str:
        return configs.text(self.get_config())
