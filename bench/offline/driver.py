"""Launch Triton kernels for a GPU that is not there, on CPU tensors: everything happens but the run.

    with driver.dry("sm_80") as launches:
        ...  # outputs are not written

A launch takes the real path of Triton's JIT, with its own specialisation (an integer that is 1 is a constant,
16 | n and aligned pointers are hints), and what would run is recorded. The driver is an undocumented
interface, which changes between versions of Triton: the version is checked.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime import jit
from triton.runtime.driver import driver

VERSION = "3.7.1"


class Device:
    """A GPU of data sheets: Triton's target, its processors, and the shared memory of a program."""

    def __init__(self, backend: str, arch: int | str, lanes: int, processors: int, shared: int) -> None:
        self.target = GPUTarget(backend, arch, lanes)
        self.lanes, self.processors, self.shared = lanes, processors, shared


DEVICES = {
    "sm_80": Device("cuda", 80, 32, 108, 166_912),  # A100
    "sm_90": Device("cuda", 90, 32, 132, 232_448),  # H100
    "gfx942": Device("hip", "gfx942", 64, 304, 65_536),  # MI300X
}


@dataclass(frozen=True, eq=False)
class Launch:
    """One launch: of which kernel, how many programs, and with which arguments.

    Attributes:
        target: the name of the device.
        name: the name of the kernel.
        grid: programs along each axis.
        arguments: what the kernel was called with, constants too.
        kernel: what the compiler made, with the text of every stage in `kernel.asm`.
    """

    target: str
    name: str
    grid: tuple[int, int, int]
    arguments: Mapping[str, Any]
    kernel: Any

    @property
    def threads(self) -> int:
        """Return the threads of a program."""
        return self.kernel.metadata.num_warps * DEVICES[self.target].lanes


class DryDriver(DriverBase):
    """A driver of Triton that records launches."""

    def __init__(self, name: str, launches: list[Launch]) -> None:
        super().__init__()
        self.name, self.device, self.launches = name, DEVICES[name], launches
        self.utils = self  # Triton asks this attribute for what loads and describes

    def launcher_cls(self, source: Any, metadata: Any) -> _Launcher:
        """Return what Triton calls to launch a kernel."""
        return _Launcher(self, source)

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[Any, ...]:
        """Return a module, a function, registers, spills and the most threads of a program."""
        return object(), object(), 0, 0, 1024

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {
            "max_shared_mem": self.device.shared,
            "multiprocessor_count": self.device.processors,
            "warpSize": self.device.lanes,
        }

    @classmethod
    def is_active(cls) -> bool:
        return True

    def get_current_target(self) -> GPUTarget:
        return self.device.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_benchmarker(self) -> Any:
        raise NotImplementedError("a dry launch takes no time that means anything")


class _Launcher:
    def __init__(self, owner: DryDriver, source: Any) -> None:
        self.owner, self.function = owner, source.fn

    def __call__(self, x: int, y: int, z: int, *more: Any) -> None:
        """Take what Triton hands to the driver: grid, stream, function, three kinds of metadata, arguments."""
        compiled = self.function.device_caches[0][0].values()
        kernel = next(one for one in compiled if one._run is self)
        arguments = dict(zip(self.function.arg_names, more[6:], strict=True))
        self.owner.launches.append(
            Launch(self.owner.name, self.function.__name__, (x, y, z), arguments, kernel)
        )


def unusable() -> str:
    """Say why kernels cannot be launched dry in this process; "" if they can."""
    if triton.__version__ != VERSION:
        return f"dry launches use an undocumented interface of triton {VERSION}, here is {triton.__version__}"
    if knobs.runtime.interpret:
        return "dry launches need Triton's compiler, and TRITON_INTERPRET is set"
    return ""


@contextmanager
def dry(name: str, cache: str | None = None) -> Iterator[list[Launch]]:
    """Record the launches of this process instead of running them.

    Args:
        name: one of `DEVICES`.
        cache: the folder in which compiled kernels are kept, a temporary one unless told.
    """
    if reason := unusable():
        raise RuntimeError(reason)
    launches: list[Launch] = []
    before = driver._active
    with tempfile.TemporaryDirectory() as folder, knobs.cache.scope():
        knobs.cache.dir = cache or folder
        driver.set_active(DryDriver(name, launches))
        _forget()
        try:
            yield launches
        finally:
            driver._active = before
            _forget()


def _forget() -> None:
    """Drop the kernels that were compiled for another device."""
    for function in jit._triton_jit_function_registry.values():
        function.device_caches.clear()
