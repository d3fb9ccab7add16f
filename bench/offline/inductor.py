"""Count the kernels and the memory of what torch.compile would make for CUDA, without a GPU.

A call is traced on the CPU, its graph is moved to a CUDA device that is not there, and Inductor lowers it
and writes its Triton code, which is not compiled. The graph is not split into a forward and a backward one,
so what is kept between them need not be written; Inductor's own passes before lowering are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor
from torch._dynamo.device_interface import CudaInterface
from torch._inductor import metrics
from torch._inductor.debug import DebugContext
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.utils._triton import has_triton

from bench.offline.driver import dry


class Compiled(NamedTuple):
    """What Inductor made: kernels that a call launches, and the bytes that they read and write."""

    launches: int
    bytes: int


class _Properties:
    """What Inductor asks of an A100."""

    name, gcnArchName = "A100", ""
    major, minor = 8, 0
    multi_processor_count, warp_size = 108, 32
    regs_per_multiprocessor, max_threads_per_multi_processor, max_threads_per_block = 65_536, 2_048, 1_024
    shared_memory_per_block, shared_memory_per_block_optin = 49_152, 166_912
    total_memory, L2_cache_size = 40 * 2**30, 40 * 2**20


def count(f: Callable[..., Any], *inputs: tuple[int, ...]) -> Compiled:
    """Count what Inductor makes of a function of tensors of these shapes, in float32."""
    mode = FakeTensorMode()
    with mode:
        graph = make_fx(f, decomposition_table=select_decomp_table())(*map(torch.empty, inputs))
    device = torch.device("cuda", 0)
    for node in graph.graph.nodes:
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": device}
    graph.recompile()
    with _cuda(), dry("sm_80"), mode:
        given: list[Tensor] = [torch.empty(shape, device=device) for shape in inputs]
    with _cuda(), dry("sm_80"), V.set_fake_mode(mode), V.set_debug_handler(DebugContext()):
        FakeTensorProp(graph, mode).propagate_dont_convert_inputs(*given)
        lowered = GraphLowering(graph, example_inputs=given)
        metrics.reset()
        with V.set_graph_handler(lowered):
            lowered.run(*given)
            code, _ = lowered.codegen()
            moved = lowered.count_bytes()[0]
    return Compiled(str(getattr(code, "value", code)).count(".run("), int(moved))


@contextmanager
def _cuda() -> Iterator[None]:
    """Let torch believe in a GPU while code is made for one."""
    answers: dict[str, Any] = {
        "get_device_properties": _Properties(),
        "get_compute_capability": 80,
        "current_device": 0,
    }
    with ExitStack() as stack:
        for owner in (CudaInterface, CudaInterface.Worker):
            for name, value in answers.items():
                if hasattr(owner, name):
                    stack.enter_context(mock.patch.object(owner, name, staticmethod(_returns(value))))
        answers |= {"is_available": True, "device_count": 1, "get_device_capability": (8, 0)}
        for name, value in answers.items():
            if hasattr(torch.cuda, name):
                stack.enter_context(mock.patch.object(torch.cuda, name, _returns(value)))
        # torch asks once for a GPU that Triton can use and keeps the answer, here and before.
        has_triton.cache_clear()
        stack.callback(has_triton.cache_clear)
        yield


def _returns(value: Any) -> Callable[..., Any]:
    return lambda *_: value
