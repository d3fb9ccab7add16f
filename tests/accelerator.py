"""A stand-in for a GPU that holds no data. Run as `python -m tests.accelerator`; prints a report in JSON.

The library runs on fake tensors of a device that is registered here. Shapes, dtypes and devices are those of a
real run, values do not exist, so whatever would make the host wait for a GPU is an error: to read a value, a
size that depends on data, a copy between host and device. The device is not called "cuda" because a CPU build
of torch has no guard for that name, which indexing and autograd need. The registration cannot be undone, hence
a process of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

from tests.cases import FORMULATIONS, SOLVERS, step
from uotpool import UOTPooling, uot_pool

DEVICE = "standin:0"
D, K = 3, 1
LAYOUTS = ("mask", "ptr", "index", "index without dim_size")


class Backend(_DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


class HostCopy(RuntimeError):
    pass


class Copies(TorchDispatchMode):
    """Raises at a copy between devices."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and args[0].device != out.device:
            raise HostCopy
        if func is torch.ops.aten.copy_.default and args[0].device != args[1].device:
            raise HostCopy
        return out


def batch(layout: str) -> tuple[torch.Tensor, dict[str, Any]]:
    if layout == "mask":
        X = torch.empty(4, 5, D, device=DEVICE, requires_grad=True)
        return X, {"mask": torch.empty(4, 5, dtype=torch.bool, device=DEVICE)}
    X = torch.empty(12, D, device=DEVICE, requires_grad=True)
    if layout == "ptr":
        return X, {"ptr": torch.empty(5, dtype=torch.int64, device=DEVICE)}
    size = {"dim_size": 6} if layout == "index" else {}
    return X, {"index": torch.empty(12, dtype=torch.int64, device=DEVICE), **size}


def function(solver: str, formulation: str, layout: str) -> None:
    X, sets = batch(layout)
    alpha0, rho = (torch.empty(K, device=DEVICE, requires_grad=True) for _ in range(2))
    sets["p0"], sets["q0"] = torch.empty(D, device=DEVICE), torch.empty(X.shape[:-1], device=DEVICE)
    how: dict[str, Any] = {"solver": solver, "formulation": formulation}
    uot_pool(X, alpha0, [0.5] * K, 1.0, step(solver, rho), **how, **sets).sum().backward()


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


def outcome(run: Callable[..., None], *args: str) -> str:
    """Return the name of the exception, or nothing."""
    try:
        with FakeTensorMode(), Copies():
            run(*args)
    except Exception as error:
        return type(error).__name__
    return ""


def main() -> None:
    _setup_privateuseone_for_python_backend("standin", Backend())
    report = {
        f"{solver} {formulation} {layout}": outcome(function, solver, formulation, layout)
        for solver in SOLVERS
        for formulation in FORMULATIONS
        for layout in LAYOUTS
    }
    for solver in SOLVERS:
        report[f"layer {solver}"] = outcome(layer, solver, "exact", "index")
    report["weights on the host"] = outcome(weights_on_the_host)
    report["converged"] = outcome(converged)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
