"""The kernels compile for GPUs that are not here: the interpreter accepts what the compiler refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from uotpool.backends.ops import Arguments
from uotpool.backends.triton.backend import TRITON

triton = pytest.importorskip("triton", reason="the package triton is not installed")
compiler = pytest.importorskip("triton.backends.compiler")

TARGETS = {"A100": ("cuda", 80, 32), "MI300": ("hip", "gfx942", 64)}
TYPES = {torch.float32: "*fp32", torch.float16: "*fp16", torch.int64: "*i64", torch.uint8: "*u8", int: "i32"}


def launches(monkeypatch, plan):
    """Return the kernels of a call, forward and backward, with their arguments, instead of running them."""
    from uotpool.backends.triton import launch

    calls: list[tuple[Any, dict[str, Any]]] = []
    monkeypatch.setattr(
        launch, "_launch", lambda kernel, grid, values, **more: calls.append((kernel, values | more))
    )
    X, mask = torch.empty(9, 40).half(), torch.ones(9, dtype=torch.bool)
    priors = (torch.empty(2, 40), torch.empty(9)) if plan else (None, None)
    made_of = ([torch.empty(1), torch.empty(2), torch.empty(40)], [4, 1, 2, 0, 5], [1.0], [1, 1, 2, 0, 40])
    ptr = torch.tensor([0, 4, 9])
    a = Arguments("triton", X, ptr, None, mask, 0, *priors, *made_of, 2, "sinkhorn", 2, plan)
    out, *saved = TRITON.forward(a, save=True)
    TRITON.backward(out, a, saved, [True] * 6)
    return calls


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("plan", [False, True])
def test_every_kernel_compiles(monkeypatch, tmp_path, plan, target):
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))
    backend, _, _ = TARGETS[target]
    names = set()
    for kernel, values in launches(monkeypatch, plan):
        signature, constants = {}, {}
        for parameter in kernel.params:
            value = values[parameter.name]
            fixed = parameter.is_constexpr or value is None
            if fixed:
                constants[parameter.name] = value
            kind = value.dtype if isinstance(value, torch.Tensor) else type(value)
            signature[parameter.name] = "constexpr" if fixed else TYPES[kind]
        constants |= {"FAST": backend == "cuda"} if "FAST" in constants else {}
        source = triton.compiler.ASTSource(kernel, signature, constants)
        options = {"num_warps": values["num_warps"]}
        made = triton.compile(source, target=compiler.GPUTarget(*TARGETS[target]), options=options)
        assert made.asm["cubin" if backend == "cuda" else "hsaco"]
        names.add(kernel.__name__)
    passes = {"first_pass", "forward_pass", "backward_pass", "backward_finish"} | (
        {"plan_pass"} if plan else set()
    )
    assert names == passes | {"forward_merge", "backward_merge"}
