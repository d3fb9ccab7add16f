"""What the launches of all kernels share: the GPU that they go to, and the arguments that kernels have."""

from __future__ import annotations

import contextlib
from functools import cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from uotpool.backends.triton.arguments import Arguments
from uotpool.backends.triton.choice import LANES, Choice, Tile, power_of_two
from uotpool.backends.triton.kernels import tiles

MERGED_CHUNKS = 16  # at once
MERGED_COLUMNS = 32  # of a program


class Target(NamedTuple):
    """What a launch has to know of a GPU: processors, lanes of a warp, and whether NVIDIA made it."""

    processors: int
    lanes: int
    nvidia: bool


def target(device: torch.device) -> Target:
    """Return the processor that a launch for a tensor on this device goes to."""
    if interpreted():
        return Target(108, LANES, False)
    if device.type == "cuda":
        return _gpu(device.index if device.index is not None else torch.cuda.current_device())
    from triton.runtime.driver import driver  # noqa: PLC0415 # a stand-in, which launches for CPU tensors

    found = driver.active.get_current_target()
    processors = driver.active.utils.get_device_properties(0)["multiprocessor_count"]
    return Target(processors, found.warp_size, found.backend == "cuda")


@cache
def _gpu(index: int) -> Target:
    properties = torch.cuda.get_device_properties(index)
    return Target(properties.multi_processor_count, properties.warp_size, torch.version.hip is None)


def interpreted() -> bool:
    """Say whether the kernels are interpreted on the CPU: the JIT decided it when they were defined."""
    return not isinstance(tiles.columns, triton.JITFunction)


def on(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Launch on this device, whatever the current one is."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def precision(dtype: torch.dtype) -> dict[str, Any]:
    """Return the type that kernels compute in, and what stands for minus infinity in it."""
    double = dtype == torch.float64
    return {"CT": tl.float64 if double else tl.float32, "LOW": -4e307 if double else -8e37}


def fast(dtype: torch.dtype, device: torch.device) -> bool:
    """Say whether there is a fast logarithm for this dtype; see `tiles.log2`."""
    return dtype == torch.float32 and target(device).nvidia


def warps(count: int, device: torch.device) -> int:
    """Return how many warps of this device have the lanes of so many warps of `LANES`."""
    return max(1, count * LANES // target(device).lanes)


def numbers(p: Arguments) -> dict[str, Any]:
    """Return the arguments that all kernels for sets have."""
    return {
        "PTR": p.ptr,
        "WEIGHTS": p.weights,
        "SCALE": p.scale,
        "K": p.K,
        "M": p.X.shape[0],
        "N": p.N,
        "B": p.num_sets,
        "STEP": int(p.scale is not None and p.scale.shape[0] > 1),
        "D": p.X.shape[1],
        **precision(p.dtype),
    }


def rows(p: Arguments) -> dict[str, Any]:
    """Return the arguments of kernels that read rows."""
    present = None if p.present is None else p.present.view(torch.uint8)
    return {"X": p.X, "ORDER": p.order, "PRESENT": present, "LOGQ": p.log_q0, "FAST": fast(p.dtype, p.X.device)}


def prior(p: Arguments) -> dict[str, Any]:
    """Return log p0, and how far it is from one set to the next."""
    step = 0 if p.log_p0 is None or p.log_p0.dim() == 1 else p.X.shape[1]
    return {"LOGP": p.log_p0, "p_step": step}


def tile(p: Arguments, shape: Tile) -> dict[str, int]:
    """Return the shape of a tile, and the warps of a program."""
    R, C, W, BL, count = shape
    return {"R": R, "C": C, "W": W, "BL": BL, "num_warps": warps(count, p.X.device)}


def new(p: Arguments, *shape: int) -> Tensor:
    """Return memory in the dtype of computation."""
    return torch.empty(shape, dtype=p.dtype, device=p.X.device)


def slots(p: Arguments, chunk: int) -> int:
    """Return the number of slots for chunks; see `kernels.slots`."""
    if p.ptr is None:
        return p.num_sets * max(-(-p.N // chunk), 1)
    return p.X.shape[0] // chunk + p.num_sets


def merging(p: Arguments, choice: Choice) -> tuple[tuple[int, int], dict[str, Any]]:
    """Return the grid of a merge and the arguments that only merges have."""
    width = min(power_of_two(p.X.shape[1]), MERGED_COLUMNS)
    widths = -(-p.X.shape[1] // width)
    return (p.num_sets, widths), {
        "CHUNKS": MERGED_CHUNKS,
        "WIDTH": width,
        "CHUNK": choice.chunk,
        "num_warps": 4,
    }


def by_prior(dp: Tensor | None, p: Arguments) -> Tensor | None:
    """Return the derivative by log p0 from that of each set."""
    return dp.sum(0) if dp is not None and p.log_p0 is not None and p.log_p0.dim() == 1 else dp


def by_scale(ds: Tensor | None, p: Arguments) -> Tensor | None:
    """Return the derivative by the scale from parts for each feature."""
    if ds is None or p.scale is None:
        return None
    return ds.sum(0) if p.scale.shape[0] == p.X.shape[1] else ds.sum().reshape(1)
