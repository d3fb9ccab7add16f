"""The cases of the golden values, and how the API of the day computes them.

`solve` and `_module` are all that knows the API. The numbers, inputs included, are in values.npz. To add a
case, compute it with a version whose numbers are known to be right, and say in the commit which one.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.zoo.cases import SMALL, batch
from uotpool import BregmanADMM, Learned, Newton, Problem, Sinkhorn, UOTPooling, published, zoo

FILE = Path(__file__).with_name("values.npz")
SOLVERS = ("sinkhorn", "badmm-e", "badmm-q")
DTYPES = {"float64": torch.float64, "float32": torch.float32}
LAYOUTS = ("dense", "mask", "index", "ptr")
B, N, D, K = 3, 4, 5, 3
SOLVER = {
    "sinkhorn": Sinkhorn(K),
    "badmm-e": BregmanADMM("entropic", K),
    "badmm-q": BregmanADMM("quadratic", K),
}
PUBLISHED = {
    "sinkhorn": published.Sinkhorn(K),
    "badmm-e": published.BregmanADMM("entropic", K),
    "badmm-q": published.BregmanADMM("quadratic", K),
}
LEARNED = Learned(transform="softplus", per_step=True)
OF_PAPER: dict[str, Any] = {"scale": 1.0, "alpha0": LEARNED, "alpha1": LEARNED, "alpha2": LEARNED}
SHARED = Learned(transform="softplus")
LAYERS: dict[str, Callable[[], UOTPooling]] = {
    "default": lambda: UOTPooling(D),
    "single": lambda: UOTPooling(D, Sinkhorn(1), alpha1=0.7, alpha2=0.7),
    "mean": lambda: UOTPooling(D, scale=Learned(0.0)),
    "numbers": lambda: UOTPooling(D, Sinkhorn(2), scale=1.0, alpha0=0.3, alpha1=[0.5, 1.0], alpha2=2.0),
    "priors": lambda: UOTPooling(D, p0="learned", q0="learned"),
    "sum": lambda: UOTPooling(D, reduce="sum"),
    "converged": lambda: UOTPooling(D, Newton()),
    "badmm-e": lambda: UOTPooling(D, "badmm-e"),
    "badmm-q": lambda: UOTPooling(D, "badmm-q"),
    "softplus": lambda: UOTPooling(D, **OF_PAPER),
    "shared": lambda: UOTPooling(D, scale=1.0, alpha0=SHARED, alpha1=SHARED, alpha2=SHARED),
    "K0": lambda: UOTPooling(D, Sinkhorn(0), **OF_PAPER),
    **{
        f"published-{solver}-{readout}": partial(UOTPooling.published, D, solver, output=output)  # type: ignore[arg-type]
        for solver in SOLVERS
        for readout, output in (("conditional", "equation"), ("authors", "code"))
    },
}


def inputs() -> dict[str, Tensor]:
    """Draw X, priors, coefficients and the derivative by the output. Tests read them from the file."""
    g = torch.Generator().manual_seed(17)
    draw: dict[str, Any] = {"generator": g, "dtype": torch.float64}
    return {
        "X": torch.randn(B, N, D, **draw),
        "p0": torch.randn(B, D, **draw).softmax(-1),
        "q0": torch.randn(B, N, **draw).softmax(-1),
        "alphas": torch.rand(3, K, **draw) * 2 + 0.3,
        "rho": torch.rand(K, **draw) * 2 + 0.3,
        "scale": torch.randn(D, **draw),
        "dy": torch.randn(B, D, **draw),
        "dP": torch.randn(B, N, D, **draw),
    }


def _there() -> Tensor:
    return torch.arange(N) < torch.tensor([[4], [2], [3]])


def laid_out(layout: str, X: Tensor, *samples: Tensor) -> tuple[list[Tensor], dict[str, Any]]:
    """Return X and values per sample in a layout, with its arguments. The sets have 4, 2 and 3 rows."""
    there = _there()
    if layout == "dense":
        return [X, *samples], {}
    if layout == "mask":
        return [X, *samples], {"mask": there}
    rows = [x[there] for x in (X, *samples)]
    if layout == "ptr":
        return rows, {"ptr": torch.tensor([0, 4, 6, 9])}
    order = torch.tensor([5, 0, 8, 2, 1, 7, 3, 6, 4])
    index = torch.arange(B).repeat_interleave(torch.tensor([4, 2, 3]))
    return [x[order] for x in rows], {"index": index[order]}


def solved() -> Iterator[tuple[str, dict[str, Any]]]:
    """Name the cases of plain calls."""
    kinds = [(s, f) for s in SOLVERS for f in ("exact", "paper")] + [
        ("sinkhorn", "converged"),
        ("badmm-q", "converged"),
    ]
    for (solver, kind), layout, dtype in itertools.product(kinds, LAYOUTS, DTYPES):
        yield (
            f"solve/{solver}/{kind}/{layout}/{dtype}",
            {"solver": solver, "kind": kind, "layout": layout, "dtype": dtype},
        )


def solve(given: dict[str, Tensor], solver: str, kind: str, layout: str, dtype: str) -> dict[str, Tensor]:
    """Return the pooled output and the plan, with all of their derivatives."""
    q0 = given["q0"] if layout == "dense" else given["q0"] * _there()
    given = given | {"q0": q0 / q0.sum(-1, keepdim=True)}
    to = {name: x.to(DTYPES[dtype]) for name, x in given.items()}
    converged = kind == "converged"
    alphas = list(to["alphas"][:, :1] if converged else to["alphas"])
    (X, q0, dP), where = laid_out(layout, to["X"], to["q0"], to["dP"])
    names = ["X", "p0", "q0", "scale", "alpha0", "alpha1", "alpha2"]
    leaves = [X, to["p0"], q0, to["scale"], *alphas]
    if solver != "sinkhorn" and not converged:
        names.append("rho")
        leaves.append(to["rho"])
    result = {}
    for what, upstream in (("y", to["dy"]), ("P", dP)):
        own = dict(zip(names, [x.detach().clone().requires_grad_() for x in leaves], strict=True))
        algorithm = (PUBLISHED if kind == "paper" else SOLVER)[solver]
        if converged:
            algorithm = Newton("quadratic" if solver == "badmm-q" else "entropic")
        with torch.enable_grad():
            problem = Problem(**own, **where)
            out = problem.pool(algorithm) if what == "y" else problem.plan(algorithm)
            grads = torch.autograd.grad(out, list(own.values()), upstream, materialize_grads=True)
        result[what] = out.detach()
        result |= {f"d{what}/{name}": grad for name, grad in zip(names, grads, strict=True)}
    return result


def layer(given: dict[str, Tensor], name: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the output of a layer with these parameters (drawn now if there are none), and its derivatives."""
    torch.manual_seed(3)
    pool = LAYERS[name]().double()
    return _module(pool, given["X"], state, {}, laid_out("mask", given["X"])[1])


def pooling(name: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Do the same for a pooling of the zoo on ragged sets with edges."""
    sets = batch(dim=4)
    torch.manual_seed(3)
    pool = zoo.build(name, 4, **SMALL.get(name, {})).double().eval()
    where = {"index": sets.index, "dim_size": len(sets.sizes)}
    return _module(pool, sets.x, state, sets.ragged if pool.needs_edges else where, {})


def _module(
    pool: Any, X: Tensor, state: dict[str, Tensor], ragged: dict[str, Any], dense: dict[str, Any]
) -> dict[str, Tensor]:
    if state:
        own = pool.state_dict()
        assert sorted(map(_raw_name, own)) == sorted(state), "the names of the parameters have changed"
        pool.load_state_dict({key: state[_raw_name(key)].reshape(own[key].shape) for key in own})
    X = X.clone().requires_grad_()
    y = pool(X, **ragged, **dense)
    weights = torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).reshape(y.shape)
    parameters = dict(pool.named_parameters())
    grads = torch.autograd.grad(
        (y * weights).sum() + pool.aux_loss, [X, *parameters.values()], materialize_grads=True
    )
    result = {"y": y.detach(), "dX": grads[0]}
    result |= {f"state/{_raw_name(key)}": value for key, value in pool.state_dict().items()}
    return result | {f"grad/{_raw_name(key)}": g for key, g in zip(parameters, grads[1:], strict=True)}


def _raw_name(key: str) -> str:
    """Return the name that a parameter has in the file, which has those of 0.2."""
    return f"raw_{key}" if key.startswith("log_alpha") or key == "log_rho" else key


def read() -> dict[str, Tensor]:
    """Return the stored numbers by name."""
    with np.load(FILE) as file:
        numbers, index = torch.from_numpy(file["numbers"]), json.loads(str(file["index"]))
    values, start = {}, 0
    for name, shape in index.items():
        size = int(np.prod(shape))
        values[name] = numbers[start : start + size].reshape(shape)
        start += size
    return values


def write(values: dict[str, Tensor]) -> None:
    """Store numbers. float32 numbers are in float64, too, exactly."""
    index = json.dumps({name: list(value.shape) for name, value in values.items()})
    numbers = torch.cat([value.detach().double().flatten() for value in values.values()])
    np.savez_compressed(FILE, numbers=numbers.numpy(), index=index)
