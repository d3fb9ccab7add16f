"""Where the host waits for a GPU in plain torch: `python -m bench.offline.syncs` prints lists in JSON.

The library runs on fake tensors of a device that is registered here. Shapes, dtypes and devices are those
of a real run, values do not exist. To read a value and to copy between host and device makes the host wait:
both are listed by the function that asks for it. A size that depends on data ends the call, and its
exception is listed. The device is not called "cuda" because a CPU build of torch has no guard for that
name, which indexing and autograd need. The registration cannot be undone, hence a process of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

from bench.offline.counting import caller
from uotpool import UOTPooling, uot_pool
from uotpool.solvers import FORMULATIONS, SOLVERS

DEVICE = "standin:0"
D, K, SETS = 3, 1, 6
LAYOUTS = ("dense", "mask", "ptr", "index", "index without dim_size")
MOST = 3  # values that a call reads before it is ended


class Backend(_DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


class TooManyError(RuntimeError):
    """A loop waits for the data each time."""


class Syncs(TorchDispatchMode):
    """List whatever makes the host wait, and go on with a number that could have been read."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            self.found.append(f"{caller()}: a value is read")
            if len(self.found) == MOST:
                raise TooManyError
            return False if args[0].dtype == torch.bool else SETS - 1
        out = func(*args, **(kwargs or {}))
        copied = {torch.ops.aten._to_copy.default: (args[:1], out), torch.ops.aten.copy_.default: (args, None)}
        for sources, result in [copied[func]] if func in copied else []:
            tensors = [x for x in (*sources, result) if isinstance(x, torch.Tensor)]
            if len({x.device for x in tensors}) > 1:
                self.found.append(f"{caller()}: a copy between host and device")
        return out


def batch(layout: str) -> tuple[torch.Tensor, dict[str, Any]]:
    if layout in ("dense", "mask"):
        X = torch.empty(4, 5, D, device=DEVICE, requires_grad=True)
        return X, {} if layout == "dense" else {"mask": torch.empty(4, 5, dtype=torch.bool, device=DEVICE)}
    X = torch.empty(12, D, device=DEVICE, requires_grad=True)
    if layout == "ptr":
        return X, {"ptr": torch.empty(5, dtype=torch.int64, device=DEVICE)}
    size = {"dim_size": SETS} if layout == "index" else {}
    return X, {"index": torch.empty(12, dtype=torch.int64, device=DEVICE), **size}


def function(solver: str, formulation: str, layout: str) -> None:
    X, sets = batch(layout)
    alpha0, rho = (torch.empty(K, device=DEVICE, requires_grad=True) for _ in range(2))
    sets["p0"], sets["q0"] = torch.empty(D, device=DEVICE), torch.empty(X.shape[:-1], device=DEVICE)
    how: dict[str, Any] = {"solver": solver, "formulation": formulation}
    uot_pool(
        X, alpha0, [0.5] * K, 1.0, rho if SOLVERS[solver].needs_rho else None, **how, **sets
    ).sum().backward()


def layer(solver: str, formulation: str, layout: str) -> None:
    X, sets = batch(layout)
    with torch.device(DEVICE):
        pool = UOTPooling.classic(D, solver=solver, formulation=formulation, K=K, p0="learned", q0="learned")
    pool(X, **sets).sum().backward()


def weights_on_the_host() -> None:
    X, sets = batch("mask")
    uot_pool(X, torch.ones(K), 1.0, 1.0, **sets)


def converged() -> None:
    X, sets = batch("mask")
    uot_pool(X, 1.0, 1.0, 1.0, K="converged", **sets)


def listed(run: Callable[..., None], *args: str) -> list[str]:
    """Return what made the host wait, and the exception that ended the call if there was one."""
    syncs = Syncs()
    try:
        with FakeTensorMode(), syncs:
            run(*args)
    except Exception as error:
        return [*syncs.found, type(error).__name__]
    return syncs.found


def main() -> None:
    _setup_privateuseone_for_python_backend("standin", Backend())
    report = {
        f"{solver} {formulation} {layout}": listed(function, solver, formulation, layout)
        for solver in SOLVERS
        for formulation in FORMULATIONS
        for layout in LAYOUTS
    }
    for solver in SOLVERS:
        report[f"layer {solver}"] = listed(layer, solver, "exact", "index")
    report["weights on the host"] = listed(weights_on_the_host)
    report["converged"] = listed(converged)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
