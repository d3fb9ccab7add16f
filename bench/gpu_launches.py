"""The GPU kernels on CPU tensors, dry: launches of a call, and where the host would wait for a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from typing import Any

import torch

from bench.machine import ROOT
from bench.offline.counting import Counter, as_on_a_gpu
from bench.offline.driver import DEVICES, dry, unusable
from bench.offline.figures import Subject, Window, arguments, choices, images
from bench.rows import PART, Finding
from bench.session import Session
from uotpool import UOTPool2d, check, uot_pool
from uotpool.backends.triton import calls, window_calls
from uotpool.backends.triton.arguments import KERNELS
from uotpool.backends.triton.choice import Choice

MODULES = (1, 2, 4)
D = 8
BY_SET, BY_CHUNK = "a program for each set", "a program for each chunk"
WINDOWS = {"windows side by side": Window(2, 2, False), "windows that overlap": Window(3, 2, False)}
LAYOUTS = ("dense", "mask", "ptr", "index", "index without dim_size")
LAUNCHES, WAITS = "launches of a call", "where the host waits for the GPU, forward and backward"


def measure(session: Session) -> list[Finding]:
    if reason := unusable():
        raise SystemExit(f"bench: {reason}")
    targets = ("sm_80",) if session.quick else tuple(DEVICES)
    modules = MODULES[:1] if session.quick else MODULES
    cases = [(target, solver, K) for target in targets for solver in KERNELS for K in modules]
    with tempfile.TemporaryDirectory() as cache:
        rows = [
            _row(target, solver, K, how, *launches(target, solver, K, how, cache))
            for target, solver, K in session.track(cases, "gpu-launches")
            for how in regimes(solver)
        ]
        for target in targets:
            for how, window in WINDOWS.items():
                found = launches_of_windows(target, window, modules[-1], cache)
                rows.append(_row(target, "sinkhorn", modules[-1], how, *found))
        for layout in LAYOUTS:
            rows += [_waits("triton", solver, layout, waits(solver, layout, cache)) for solver in KERNELS]
        rows.append(_waits("triton", "sinkhorn", "UOTPool2d", waits_of_windows(cache)))
    plain = plain_waits()
    for layout in LAYOUTS:
        rows += [_waits("reference", solver, layout, plain[f"{solver} exact {layout}"]) for solver in KERNELS]
    return rows


def summary(rows: list[Finding]) -> list[Finding]:
    """Leave out targets that do not differ."""
    return list({tuple(row.items()): row for row in (_short(row) for row in rows)}.values())


def _short(row: Finding) -> Finding:
    return {name: cell for name, cell in row.items() if name != "target"}


def regimes(solver: str) -> list[str]:
    """Return the names of the regimes of a solver."""
    return [BY_SET] if solver == "badmm-q" else [BY_SET, BY_CHUNK]


def _regime(subject: Subject, how: str) -> Choice:
    return next(one for one in choices(subject) if bool(one.chunk) == (how == BY_CHUNK))


def _row(target: str, solver: str, K: int, how: str, forward: int, backward: int, counter: Counter) -> Finding:
    about: Finding = {PART: LAUNCHES, "solver": solver, "K": K, "regime": how, "target": target}
    torch_too = f"{counter.operations} beside them"
    return about | {"forward": forward, "backward": backward, "torch operations": torch_too}


def launches(target: str, solver: str, K: int, how: str, cache: str | None = None) -> tuple[int, int, Counter]:
    """Count the launches of a call forward and backward, and what torch does beside them."""
    subject = Subject(target, D, solver=solver)
    p, regime = arguments(subject, modules=K), _regime(subject, how)
    wanted = [tensor is not None for tensor in p.differentiable()]
    with dry(target, cache) as found, Counter() as counter:
        out, saved = calls.forward(p, choice=regime)
        forward = len(found)
        assert saved is not None
        calls.backward(out, p, saved, wanted, choice=regime)
    return forward, len(found) - forward, counter


def launches_of_windows(
    target: str, window: Window, K: int, cache: str | None = None
) -> tuple[int, int, Counter]:
    """Do the same for windows of images."""
    p = images(Subject(target, D, window=window), K)
    with dry(target, cache) as found, Counter() as counter:
        out, rows = window_calls.forward(p)
        forward = len(found)
        assert rows is not None
        window_calls.backward(out, p, rows, [True, True, False])
    return forward, len(found) - forward, counter


def waits(solver: str, layout: str, cache: str | None = None) -> list[str]:
    """List where a call of `uot_pool` with impl="triton" would make the host wait, forward and backward."""
    X, sets = _batch(layout)
    weights = [torch.ones(2, requires_grad=True) for _ in range(4)]
    rho = None if solver == "sinkhorn" else weights[3]
    # Checks of values, which are off by default, read all of X.
    with check(False), dry("sm_80", cache) as found, as_on_a_gpu(), Counter() as counter:
        y = uot_pool(X, weights[0], weights[1], weights[2], rho, solver=solver, impl="triton", **sets)
        torch.autograd.grad(y, [X, *weights[:3]], torch.ones_like(y))
    assert len(found) >= 2
    return counter.waits


def waits_of_windows(cache: str | None = None) -> list[str]:
    """List where a layer for windows would make the host wait, forward and backward."""
    layer, X = UOTPool2d(D, 3, 2, 1, K=2, impl="triton"), torch.zeros(2, D, 7, 7, requires_grad=True)
    with check(False), dry("sm_80", cache) as found, as_on_a_gpu(), Counter() as counter:
        y = layer(X)
        torch.autograd.grad(y, [X, *layer.parameters()], torch.ones_like(y))
    assert len(found) == 3
    return counter.waits


def _batch(layout: str) -> tuple[torch.Tensor, dict[str, Any]]:
    index = torch.tensor([0, 0, 1, 1, 1, 4, 0, 1, 4, 4, 2, 2])
    if layout in ("dense", "mask"):
        X = torch.zeros(3, 4, D, requires_grad=True)
        return X, {} if layout == "dense" else {"mask": index.reshape(3, 4) != 2}
    X = torch.zeros(12, D, requires_grad=True)
    if layout == "ptr":
        return X, {"ptr": torch.tensor([0, 4, 4, 12])}
    return X, {"index": index, **({"dim_size": 6} if layout == "index" else {})}


def plain_waits() -> dict[str, list[str]]:
    """List the same for plain torch, from a process of its own (see `bench.offline.syncs`)."""
    command = [sys.executable, "-m", "bench.offline.syncs"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


def _waits(implementation: str, solver: str, layout: str, found: list[str]) -> Finding:
    about: Finding = {PART: WAITS, "implementation": implementation, "solver": solver, "layout": layout}
    return about | {"waits": len(found), "where": "; ".join(found)}
