"""Networks that leave Python by ONNX or torch.export, run on other sizes than those of the example."""

from __future__ import annotations

import io
import shutil
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from tests import tolerances as tol
from tests.cases import SOLVERS
from tests.spelling import classic
from uotpool import (
    AdaptiveUOTPool2d,
    Sinkhorn,
    UOTPool2d,
)
from uotpool.zoo import build

D = 4

# The exporters warn of their own age and parts, and tracing of every check of a shape.
pytestmark = pytest.mark.filterwarnings("ignore")


def randn(*size: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(sum(size)))


def close(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want.detach(), rtol=tol.ONNX_F32, atol=tol.ONNX_F32)


def traced(model: nn.Module, args: tuple[Any, ...], axes: dict[str, dict[int, str]] | None = None) -> Any:
    """The model in onnxruntime, exported by tracing (`dynamo=False`); inputs that are None are left out."""
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    given = [*args[:-1], *args[-1].values()] if isinstance(args[-1], dict) else args
    names = [f"in{i}" for i, t in enumerate(given) if t is not None]
    file: Any = io.BytesIO()
    axes = None if axes is None else {name: axes[str(i)] for i, name in enumerate(names) if str(i) in axes}
    torch.onnx.export(
        model.eval(), args, file, input_names=names, output_names=["y"], dynamic_axes=axes, dynamo=False
    )
    session = runtime.InferenceSession(file.getvalue())

    def run(*inputs: Tensor) -> Tensor:
        (y,) = session.run(None, {name: x.numpy() for name, x in zip(names, inputs, strict=True)})
        return torch.from_numpy(y)

    return run


# --- ONNX by tracing

SETS = {"0": {0: "B", 1: "N"}, "1": {0: "B", 1: "N"}}
IMAGES = {"0": {0: "B", 2: "H", 3: "W"}}
# Of two modules: a loop, and half of the time that exporters take for the default of four.
LAYERS: dict[str, Any] = {
    f"UOTPooling {s}": lambda s=s: classic(D, solver=s, K=2, p0="learned", q0="learned") for s in SOLVERS
}
LAYERS |= {
    "start": lambda: classic(D, K=2, start="mean"),
    "zoo": lambda: build("gated-attention", D),
}
POOLS = {
    "global": lambda: AdaptiveUOTPool2d(D, solver=Sinkhorn(2)),
    "adaptive": lambda: AdaptiveUOTPool2d(D, (3, None), solver=Sinkhorn(2)),
    "2": lambda: UOTPool2d(D, 2, solver=Sinkhorn(2)),
    "3, 2, 1": lambda: UOTPool2d(D, 3, 2, 1, solver=Sinkhorn(2)),
    "ceil": lambda: UOTPool2d(D, 3, 2, ceil_mode=True, solver=Sinkhorn(2)),
}
SIZES = ((2, D, 8, 8), (1, D, 9, 12), (3, D, 11, 7))  # of which the first is the example


@pytest.mark.parametrize("name", LAYERS)
def test_onnx_by_tracing(name):
    layer = LAYERS[name]()
    run = traced(layer, (randn(2, 5, D),), SETS)
    for B, N in ((2, 5), (1, 1), (7, 40)):
        close(run(randn(B, N, D)), layer(randn(B, N, D)))


def test_onnx_by_tracing_with_a_mask():
    def mask(B, N):
        return torch.arange(N) < torch.arange(B)[:, None] % N + 1

    layer = classic(D)
    for args in ((randn(2, 5, D), {"mask": mask(2, 5)}), (randn(2, 5, D), None, None, None, mask(2, 5))):
        axes = {str(i): SETS["0"] for i in range(5)}
        run = traced(layer, args, {"0": SETS["0"], "1": SETS["0"]} if len(args) == 2 else axes)
        for B, N in ((2, 5), (1, 1), (7, 9)):
            close(run(randn(B, N, D), mask(B, N)), layer(randn(B, N, D), mask=mask(B, N)))


def test_onnx_by_tracing_of_ragged_sets():
    """Torch's exporter writes an index_add that forgets repeated indices: the model was silently wrong."""
    layer = classic(D)
    run = traced(layer, (randn(9, D), torch.arange(9) % 3), {"0": {0: "M"}, "1": {0: "M"}})
    for M in (9, 20):
        close(run(randn(M, D), torch.arange(M) % 3), layer(randn(M, D), torch.arange(M) % 3))
    ptr = torch.tensor([0, 3, 9])
    run = traced(layer, (randn(9, D), None, ptr), {"0": {0: "M"}, "1": {0: "B"}, "2": {0: "B"}})
    for M, offsets in ((9, ptr), (20, torch.tensor([0, 1, 5, 20]))):
        close(run(randn(M, D), offsets), layer(randn(M, D), ptr=offsets))


@pytest.mark.parametrize("name", POOLS)
def test_onnx_by_tracing_of_images(name):
    layer = POOLS[name]()
    run = traced(layer, (randn(*SIZES[0]),), IMAGES)
    for size in SIZES:
        close(run(randn(*size)), layer(randn(*size)))


# --- torch.export, and ONNX by it


def dynamic() -> dict[int, Any]:
    """As for torch's own pools: an output of one position would be another program."""
    return {0: Dim("B"), 2: Dim("H", min=5), 3: Dim("W", min=5)}


# The reference is traced operation by operation, for seconds; ONNX by export, below, has its other windows.
EXPORTED = [(name, "auto") for name in POOLS] + [("adaptive", "reference"), ("3, 2, 1", "reference")]


@pytest.mark.parametrize(("name", "impl"), EXPORTED)
def test_export_of_images_of_any_size(name, impl):
    layer = POOLS[name]()
    layer.pool.impl = impl
    program = torch.export.export(layer, (randn(*SIZES[0]),), dynamic_shapes=(dynamic(),)).module()
    for size in SIZES:
        close(program(randn(*size)), layer(randn(*size)))


class Poolings(nn.Module):
    """Poolings of sets, between other layers, and of windows, with few operations, as this exporter is slow."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(5, D)
        self.pools = nn.ModuleList(classic(D, solver=s, K=1, q0="learned") for s in SOLVERS)
        self.after = nn.Linear(len(SOLVERS) * D, 2)
        self.windows = nn.ModuleList(
            [UOTPool2d(D, 2, solver=Sinkhorn(1)), UOTPool2d(D, 3, 2, ceil_mode=True, solver=Sinkhorn(1))]
        )

    def forward(self, X: Tensor, images: Tensor) -> list[Tensor]:
        X = self.before(X.transpose(1, 2)).relu()
        pooled = torch.cat([pool(X) for pool in self.pools], -1)
        return [self.after(pooled), pooled, *(pool(images) for pool in self.windows)]


def test_onnx_by_export_of_sets_and_images_of_any_size():
    """Plain operations that any runtime has; the same as the kernels give. All by one export."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    model = Poolings().eval()
    sizes = ({0: Dim("sets"), 2: Dim("N")}, dynamic())
    example = (randn(3, 5, 6), randn(*SIZES[0]))
    program = torch.onnx.export(
        model, example, dynamo=True, dynamic_shapes=sizes, verbose=False, optimize=False
    )
    file = io.BytesIO()
    program.save(file)
    graph = onnx.load_from_string(file.getvalue())
    operators = [(n.domain, n.op_type) for f in (graph.graph, *graph.functions) for n in f.node]
    assert ("", "Exp") in operators
    assert not [name for name in operators if "uotpool" in str(name)]
    session = runtime.InferenceSession(file.getvalue())
    names = [i.name for i in session.get_inputs()]
    for (B, N), size in zip(((3, 6), (1, 1), (5, 40)), SIZES, strict=True):
        given = (randn(B, 5, N), randn(*size))
        results = session.run(None, dict(zip(names, (x.numpy() for x in given), strict=True)))
        for got, want in zip(results, model(*given), strict=True):
            close(torch.from_numpy(got), want)


# --- AOTInductor

needs_cxx = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="AOTInductor needs a C++ compiler"
)


class Both(nn.Module):
    """The layer by the kernels and by the reference."""

    def __init__(self) -> None:
        super().__init__()
        self.pools = nn.ModuleList([classic(D, K=1, impl=impl) for impl in ("auto", "reference")])

    def forward(self, X: Tensor) -> list[Tensor]:
        return [pool(X) for pool in self.pools]


@needs_cxx
@pytest.mark.skipif(
    not hasattr(torch._inductor, "aoti_compile_and_package"), reason="this torch has no packages of AOTInductor"
)
def test_aotinductor_on_another_number_of_sets(inductor, tmp_path):
    """With the kernels it is a call of their operator; the reference is compiled. Both by one compilation."""
    model = Both().eval()
    program = torch.export.export(model, (randn(2, 5, D),), dynamic_shapes=({0: Dim("B")},))
    assert "uotpool.solve" in str(program.graph)
    path = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "layer.pt2"))
    compiled = torch._inductor.aoti_load_package(path)
    for B in (2, 7):
        for got, want in zip(compiled(randn(B, 5, D)), model(randn(B, 5, D)), strict=True):
            close(got, want)


# --- TorchScript


@pytest.mark.parametrize("name", LAYERS)
def test_traced_layers_on_other_sizes(name):
    layer = LAYERS[name]().eval()
    traced = saved(torch.jit.trace(layer, (randn(2, 5, D),)))
    for B, N in ((2, 5), (1, 1), (7, 40)):
        close(traced(randn(B, N, D)), layer(randn(B, N, D)))


def saved(traced: Any) -> Any:
    """Save and load the model, as another process would get it."""
    file = io.BytesIO()
    torch.jit.save(traced, file)
    file.seek(0)
    return torch.jit.load(file)
