"""A trained layer in other runtimes: exported, compiled, in onnxruntime. Prints the table of docs/deploy.md."""

from __future__ import annotations

import io
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bench.cases import WrongAnswerError, show
from bench.rows import Case, Comparison, cost
from bench.session import Session
from bench.timing import FORWARD, samples
from uotpool import AdaptiveUOTPool2d
from uotpool.backends.cpu import library

Run = Callable[[Tensor], Tensor]
SHAPE, QUICK = (32, 512, 7, 7), (2, 8, 3, 3)  # what a ResNet has before its global pool
EAGER = "eager, kernels"
CALLS = 3  # in a turn
NOTE = (
    "AdaptiveUOTPool2d, Sinkhorn, K = 4, forward without gradients, exported with a dynamic batch; processor "
    "time; compiled ones with --compile some or all"
)


def measure(session: Session) -> list[Comparison]:
    if library.missing():
        return []  # there is nothing to compare with
    X = samples(QUICK if session.quick else SHAPE)
    torch.set_num_threads(1)
    with torch.no_grad(), warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")  # exporters warn of their own parts
        runtimes = _runtimes(X, Path(folder), compiled=session.compile != "none")
        _verify(runtimes, X)
        seconds = _processor_seconds(runtimes, X, session.repeats)
    about = Case("deploy", show(X.shape), "sinkhorn", FORWARD, 1)
    return [
        cost(about, name, EAGER, seconds[name], seconds[EAGER], None, NOTE)
        for name in runtimes
        if name != EAGER
    ]


def _runtimes(X: Tensor, folder: Path, *, compiled: bool) -> dict[str, Run]:
    torch.manual_seed(0)
    layer = AdaptiveUOTPool2d(X.shape[1]).eval()
    plain = AdaptiveUOTPool2d(X.shape[1], impl="reference").eval()
    plain.load_state_dict(layer.state_dict())
    exported = {"kernels": _exported(layer, X), "reference": _exported(plain, X)}
    found: dict[str, Run] = {
        EAGER: layer,
        "eager, reference": plain,
        "torch.export, kernels": exported["kernels"].module(),
        "onnxruntime": _onnx(layer, X),
    }
    if compiled:
        found["torch.compile, kernels"] = torch.compile(layer)
        found["torch.compile, reference"] = torch.compile(plain)
        for name, program in exported.items():
            path = str(folder / f"{name}.pt2")
            torch._inductor.aoti_compile_and_package(program, package_path=path)
            found[f"AOTInductor, {name}"] = torch._inductor.aoti_load_package(path)
    return found


def _exported(layer: nn.Module, X: Tensor) -> Any:
    return torch.export.export(layer, (X,), dynamic_shapes=({0: torch.export.Dim("B")},))


def _onnx(layer: nn.Module, X: Tensor) -> Run:
    """Export by tracing: the other exporter takes longer and makes a graph of the same operations."""
    import onnxruntime  # noqa: PLC0415 (of the extra dev alone)

    file: Any = io.BytesIO()
    axes = {"x": {0: "B"}}
    torch.onnx.export(layer, (X,), file, dynamo=False, input_names=["x"], dynamic_axes=axes)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(file.getvalue(), options)
    return lambda x: torch.from_numpy(session.run(None, {"x": x.numpy()})[0])


def _processor_seconds(runtimes: dict[str, Run], X: Tensor, repeats: int) -> dict[str, float]:
    """Return the least of several turns. With one thread, an idle machine would take this time."""
    least = dict.fromkeys(runtimes, float("inf"))
    for _ in range(repeats):
        for name, runtime in runtimes.items():
            start = time.process_time()
            for _ in range(CALLS):
                runtime(X)
            least[name] = min(least[name], (time.process_time() - start) / CALLS)
    return least


def _verify(runtimes: dict[str, Run], X: Tensor) -> None:
    want = runtimes[EAGER](X)
    for name, runtime in runtimes.items():
        if not torch.allclose(runtime(X), want, rtol=1e-4, atol=1e-4):
            raise WrongAnswerError(
                f"bench: {name} and {EAGER} differ on X of shape {tuple(X.shape)}; not timed"
            )
