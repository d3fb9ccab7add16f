"""The names of the poolings, and `build`."""

from __future__ import annotations

import difflib
import inspect
from dataclasses import replace
from functools import lru_cache
from importlib import import_module, metadata
from typing import Any, NamedTuple

from uotpool import checks
from uotpool.coefficients import Learned
from uotpool.nn.base import Pooling
from uotpool.nn.pooling import UOTPooling
from uotpool.solvers import BY_NAME, Sinkhorn, Solver, published


class Entry(NamedTuple):
    """A pooling of the registry.

    Attributes:
        where: module:class, below uotpool if it begins with zoo or nn.
        formula: of the pooled vector.
        paper: authors and year; the class has the full citation.
        source: where the code comes from.
        options: all options that decide what the name computes, so that another default of the class does not
            change it.
        fixed: the names of those options that cannot be passed to `build`.
    """

    where: str
    formula: str
    paper: str
    source: str = "uotpool"
    fixed: tuple[str, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def needs_pyg(self) -> bool:
        return self.where.partition(":")[0] in ("zoo.graphs", "zoo.pyg_sets")

    @property
    def needs_edges(self) -> bool:
        return self.where.startswith("zoo.graphs:")

    def load(self) -> type[Pooling]:
        """Import and return the class."""
        module, _, name = self.where.partition(":")
        try:
            return _imported(f"uotpool.{module}" if module.startswith(("zoo.", "nn.")) else module, name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "torch_geometric":
                raise
            hint = "it needs PyTorch Geometric: install the extra `pyg`"
            raise ModuleNotFoundError(f"uotpool.zoo.{name}: {hint}", name=error.name) from error


def _imported(module: str, name: str) -> type[Pooling]:
    kind: Any = getattr(import_module(module), name, None)
    if not (inspect.isclass(kind) and issubclass(kind, Pooling)):
        checks.fail("name", f"a subclass of uotpool.zoo.Pooling as {module}:{name}", kind, TypeError)
    return kind


LEE, ILSE, UOT = "Lee et al. 2016", "Ilse et al. 2018", "Cheng and Xu 2022"
PYG_LAYERS = "uotpool, layers of PyG"


# As the paper's authors learn coefficients: softplus(0.1 randn), one for each step.
_AS_PUBLISHED = dict.fromkeys(("alpha0", "alpha1", "alpha2"), Learned(transform="softplus", per_step=True))
_LEARNED = {"alpha0": 1.0, "alpha1": Learned(20.0, "exp"), "alpha2": Learned(5.0, "exp")}
_PER_FEATURE = {"scale": Learned(1.0, "linear"), "p0": None, "q0": None, "reduce": "mean"}


def _uot(formula: str, solver: Solver, options: dict[str, Any], fixed: tuple[str, ...] = ()) -> Entry:
    options = {"solver": solver, **_PER_FEATURE, **options}
    return Entry(
        "nn.pooling:UOTPooling", formula, UOT, fixed=("solver", *fixed), options=tuple(options.items())
    )


def _of_paper(solver: Solver) -> Entry:
    name = "badmm" if solver.uses_rho else "sinkhorn"
    as_published = "" if solver.is_exact else " as published"
    formula = f"sum_n x_nd P_nd / sum_m P_md, P: UOT plan ({solver.regularizer} R) by {name}{as_published}"
    rho = {"rho": Learned(transform="softplus", per_step=True)} if solver.uses_rho else {}
    return _uot(formula, solver, {**_AS_PUBLISHED, **rho, "scale": 1.0})


ENTRIES: dict[str, Entry] = {
    "add": Entry("zoo.simple:Add", "sum_n x_n", ""),
    "mean": Entry("zoo.simple:Mean", "1/N sum_n x_n", ""),
    "max": Entry("zoo.simple:Max", "max_n x_nd", ""),
    "mean-max": Entry("zoo.simple:MeanMax", "[mean_n x_n || max_n x_n]", ""),
    "mixed": Entry("zoo.simple:Mixed", "w mean_n x_n + (1 - w) max_n x_n", LEE),
    "gated-mixed": Entry("zoo.simple:GatedMixed", "mixed, w = sigmoid(v' mean_n x_n + b)", LEE),
    "deepset": Entry("zoo.networks:DeepSet", "rho(sum_n phi(x_n))", "Zaheer et al. 2017"),
    "set2set": Entry(
        "zoo.pyg_sets:Set2Set",
        "[q_T || sum_n softmax_n(x_n' q_T) x_n], q: LSTM",
        "Vinyals et al. 2016",
        "PyG Set2Set",
    ),
    "attention": Entry("zoo.attention:Attention", "sum_n softmax_n(w' tanh(V x_n)) x_n", ILSE),
    "gated-attention": Entry(
        "zoo.attention:GatedAttention", "sum_n softmax_n(w' (tanh(V x_n) * sigmoid(U x_n))) x_n", ILSE
    ),
    "dynamic": Entry(
        "zoo.attention:Dynamic", "v = squash(sum_n softmax_n(b) x_n), b_n += x_n' v", "Yan et al. 2018"
    ),
    "gnp": Entry("zoo.simple:GNP", "W (N^-q sum_n |x_nd|^p)^(1/p) + b", "Ko et al. 2021"),
    "sagp": Entry(
        "zoo.graphs:SAGPool",
        "mean || max of the top s_n x_n, s = tanh(GCN(X, A))",
        "Lee et al. 2019",
        PYG_LAYERS,
    ),
    "asap": Entry(
        "zoo.graphs:ASAP",
        "mean || max of the top phi_i c_i, c: attention over neighbours",
        "Ranjan et al. 2020",
        PYG_LAYERS,
    ),
    "uotp": _uot("sum_n x_nd P_nd / sum_m P_md, P: UOT plan of s_d x_nd", Sinkhorn(4), _LEARNED),
    "uotp-single": _uot(
        "uotp with one step and fixed coefficients, which costs less",
        Sinkhorn(1),
        {"alpha0": 1.0, "alpha1": 0.7, "alpha2": 0.7},
        ("K", "alpha1", "alpha2"),
    ),
    "uotp-sinkhorn": _of_paper(BY_NAME["sinkhorn"]),
    "uotp-badmm-e": _of_paper(BY_NAME["badmm-e"]),
    "uotp-badmm-q": _of_paper(BY_NAME["badmm-q"]),
    "uotp-sinkhorn-paper": _of_paper(published.Sinkhorn()),
    "uotp-badmm-e-paper": _of_paper(published.BregmanADMM("entropic")),
    "uotp-badmm-q-paper": _of_paper(published.BregmanADMM("quadratic")),
    "nin": Entry("zoo.networks:NetworkInNetwork", "1/N sum_n relu(W2 relu(W1 x_n))", "Lin et al. 2013"),
    "set-transformer": Entry(
        "zoo.pyg_sets:SetTransformer", "SAB(PMA_1(SAB(X)))", "Lee et al. 2019", "PyG SetTransformerAggregation"
    ),
    "otk": Entry(
        "zoo.transport:OTK", "sqrt(p) sum_n P_nj psi(x_n), P: transport to references", "Mialon et al. 2021"
    ),
    "wegl": Entry(
        "zoo.transport:WEGL",
        "(M sum_n P_nj x_n - z_j) / sqrt(M), P: transport to references",
        "Kolouri et al. 2021",
    ),
    "diffpool": Entry(
        "zoo.graphs:DiffPool",
        "mean_c GCN(S' Z, S' A S), S = softmax(GCN(X, A))",
        "Ying et al. 2018",
        PYG_LAYERS,
    ),
    "gem": Entry("zoo.simple:GeM", "(1/N sum_n max(x_nd, eps)^p)^(1/p)", "Radenovic et al. 2018"),
    "gem-per-feature": Entry(
        "zoo.per_feature:GeMPerFeature", "(1/N sum_n max(x_nd, eps)^p_d)^(1/p_d)", "Radenovic et al. 2018"
    ),
    "median": Entry("zoo.ranks:Quantile", "median_n x_nd", "", fixed=("q",), options=(("q", 0.5),)),
    "quantile": Entry("zoo.ranks:Quantile", "quantile q of x_nd over n", "", options=(("q", 0.9),)),
    "topk-mean": Entry("zoo.ranks:TopKMean", "mean of the k largest x_nd", "", options=(("k", 8),)),
    "std": Entry("zoo.ranks:Std", "(1/N sum_n (x_nd - mean_n x_nd)^2)^(1/2)", ""),
    "half-mean-max": Entry(
        "zoo.per_feature:HalfMeanMax", "mean of half of the features, max of the others", ""
    ),
    "softmax": Entry("zoo.simple:Softmax", "sum_n softmax_n(t x_nd) x_nd", "Li et al. 2020"),
    "softmax-per-feature": _uot(
        "sum_n softmax_n(s_d x_nd) x_nd, uotp without transport",
        Sinkhorn(1),
        {"alpha0": 1.0, "alpha1": 0.7, "alpha2": 0.0},  # alpha1 changes nothing where alpha2 = 0
        ("K", "alpha1", "alpha2"),
    ),
    "lse": Entry("zoo.simple:LogSumExp", "1/r log(1/N sum_n exp(r x_nd))", "Pinheiro and Collobert 2015"),
    "vpa": Entry("zoo.simple:VariancePreserving", "1/sqrt(N) sum_n x_n", "Schneckenreiter et al. 2024"),
    "gmt": Entry(
        "zoo.pyg_sets:GraphMultisetTransformer",
        "PMA_1(SAB(PMA_k(X)))",
        "Baek et al. 2021",
        "PyG GraphMultisetTransformer",
    ),
    "swe": Entry(
        "zoo.transport:SlicedWasserstein",
        "sum_m w_m (Q_l(m) - r_ml), Q_l: quantiles",
        "Naderializadeh et al. 2021",
    ),
    "netvlad": Entry(
        "zoo.vlad:NetVLAD", "[sum_n a_m(x_n) (x_n - c_m)]_m, a: softmax", "Arandjelovic et al. 2016"
    ),
    "salad": Entry(
        "zoo.vlad:SALAD", "[sum_n P_nm v(x_n)]_m, P: transport to clusters", "Izquierdo and Civera 2024"
    ),
    "map": Entry(
        "zoo.queries:MAP",
        "z + MLP(LN(z)), z = W [sum_n softmax_n(x_n' k_h) V_h x_n]_h, k: of a learned query",
        "Zhai et al. 2022",
    ),
    "ep": Entry("zoo.queries:EfficientProbing", "[sum_n softmax_n(x_n' q_j) V_j x_n]_j", "Psomas et al. 2026"),
    "simpool": Entry(
        "zoo.queries:SimPool",
        "(sum_n a_n v_nd^g)^(1/g), a: attention of the mean, v: LN(x_n) less its minimum",
        "Psomas et al. 2023",
    ),
    "covariance": Entry("zoo.covariance:Covariance", "triu(cov_n(W x_n)^(1/2))", "Li et al. 2018"),
}


# Entry points by which another package adds poolings: name = "package.module:Class".
GROUP = "uotpool.poolings"


@lru_cache
def _added() -> dict[str, Entry]:
    """Return the poolings that installed packages add."""
    points = [point for point in metadata.entry_points(group=GROUP) if point.name not in ENTRIES]
    return {point.name: Entry(point.value, "", "", point.module) for point in points}


def names() -> list[str]:
    """Return all names that `build` takes, beside "package.module:Class"."""
    return [*ENTRIES, *_added()]


SYNONYMS = {
    "sum": "add",
    "average": "mean",
    "avg": "mean",
    "uot": "uotp",
    "sinkhorn": "uotp-sinkhorn",
    "attentionpoollatent": "map",
}


def entry(name: str) -> Entry:
    """Return the entry of a name; raise an error with the nearest names for an unknown one."""
    if isinstance(name, str):
        registered = ENTRIES.get(name) or _added().get(name)
        if registered is not None:
            return registered
        module, colon, attribute = name.partition(":")
        if colon and all(part.isidentifier() for part in [*module.split("."), attribute]):
            return Entry(name, "", "", module)
    lower = str(name).lower()
    near = [SYNONYMS[lower]] if lower in SYNONYMS else []
    near += difflib.get_close_matches(lower, names(), n=3, cutoff=0.4)
    hint = f"; did you mean {', '.join(map(repr, dict.fromkeys(near)))}?" if near else ""
    raise ValueError(
        f"name: expected a pooling of uotpool.zoo or package.module:Class, got {checks.describe(name)}{hint} "
        f"(all: {', '.join(names())})"
    )


def build(name: str, dim: int, hidden: int | None = None, **options: Any) -> Pooling:
    """Make a pooling by its name.

    Args:
        name: one of `names()`, which `uotpool poolings` lists, or "package.module:Class" for a pooling of your
            own.
        dim: number of features of a sample.
        hidden: width of the hidden layer; default `dim`, but 4 `dim` for "map". Poolings without a hidden layer
            ignore it.
        **options: options of the pooling's class, for example `ratio=0.8` for "sagp", or those of
            `UOTPooling` for "uotp-...", see `options_of`.

    Example:
        >>> pool = build("gem", dim=64)
        >>> pool(torch.rand(8, 20, 64)).shape  # 8 sets of 20 samples
        torch.Size([8, 64])
        >>> build("gated-attention", dim=64, hidden=32).out_dim
        64
    """
    kind = entry(name).load()
    dim = int(checks.count("dim", dim, 1))
    if hidden is not None:
        hidden = int(checks.count("hidden", hidden, 1))
    if "hidden" in inspect.signature(kind).parameters:
        options["hidden"] = hidden
    return kind(dim, **options_of(name, options))


def options_of(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return all arguments of the class of a name: the options of the name, and these.

    `UOTPooling` takes also K, readout ("conditional", "sum" or "authors") and "uniform" priors, as stored runs
    have them.
    """
    registered = entry(name)
    kind = registered.load()
    is_uot = kind is UOTPooling
    known = set(inspect.signature(kind).parameters) - {"dim"} | ({"K", "readout"} if is_uot else set())
    for option, value in options.items():
        if option in registered.fixed:
            raise TypeError(f"{option}: expected none, {name!r} sets it, got {value!r}")
        if option not in known:
            close = difflib.get_close_matches(option, known, n=1)
            accepted = ", ".join(sorted(known - set(registered.fixed))) or "none"
            hint = f", did you mean {close[0]!r}?" if close else ""
            raise TypeError(f"{option}: expected an option of {name!r} ({accepted}{hint}), got {option!r}")
    merged = dict(registered.options) | options
    return _as_arguments(merged) if is_uot else merged


def _as_arguments(options: dict[str, Any]) -> dict[str, Any]:
    """Return arguments of `UOTPooling` from options of stored runs."""
    options = dict(options)
    solver = options["solver"]
    if "K" in options:
        solver = replace(solver, K=options.pop("K"))
    readout = options.pop("readout", "conditional")
    checks.one_of("readout", readout, ("conditional", "sum", "authors"))
    if readout == "authors":
        if solver.is_exact:
            checks.fail("readout", '"authors" with a published solver only', readout)
        solver = replace(solver, output="code")
    elif readout == "sum":
        options["reduce"] = "sum"
    for name in ("p0", "q0"):
        if isinstance(options[name], str) and options[name] == "uniform":
            options[name] = None
    return options | {"solver": solver}
