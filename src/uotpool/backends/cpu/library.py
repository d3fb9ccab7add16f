"""The compiled library of csrc/, loaded by ctypes: what csrc/uotpool.h declares, and whether it is there.

Environment variables, read once, at import:
    UOTPOOL_ISA: run the code for this instruction set (one of `ISAS`) instead of the best that the CPU has.
    UOTPOOL_LIBRARY: for developers: path of another build of the library, as `make sanitize` uses it.
"""

from __future__ import annotations

import ctypes
import os
import struct
import warnings
from ctypes import c_char_p, c_int, c_int64, c_void_p
from pathlib import Path

ABI = 8
ISAS = ("baseline", "avx2", "avx512")  # in the order of their codes in the header

OK, BAD_ARGUMENT, NULL_POINTER, MISALIGNED, NO_MEMORY, NO_SUCH_ISA = range(6)

_SLOTS = ("alpha0", "alpha1", "alpha2", "rho", "scale")


def _each(prefix: str) -> str:
    return " ".join(f"{prefix}_{slot}" for slot in _SLOTS)


_SIZES = f"dtype solver head K B M N D threads p0_shared {_each('transform')} {_each('length')}"
_ARRAYS = f"X ptr rows log_p0 log_q0 {_each('coefficient')} dout out dX dlog_p0 dlog_q0 {_each('dcoefficient')}"


def _struct(sizes: str, arrays: str) -> list[tuple[str, type]]:
    return [(name, c_int64) for name in sizes.split()] + [(name, c_void_p) for name in arrays.split()]


class Call(ctypes.Structure):
    """The struct `uotpool_call`, field by field. An array is the integer of its address, or None."""

    _fields_ = _struct(_SIZES, _ARRAYS)


# From all fields in their order, 0 for no array, to the bytes of a `Call`, which are passed in place of a
# pointer: making the object itself takes longer than a small solve.
_CALL = struct.Struct(f"{len(Call._fields_)}q")
assert _CALL.size == ctypes.sizeof(Call)  # pointers have 64 bits
pack = _CALL.pack

_SIGNATURES: dict[str, tuple[type, list[type]]] = {
    "uotpool_solver": (c_char_p, [c_int64]),
    "uotpool_isa": (c_int, []),
    "uotpool_has_isa": (c_int, [c_int]),
    "uotpool_set_isa": (c_int, [c_int]),
    "uotpool_forward": (c_int, [c_void_p]),
    "uotpool_backward": (c_int, [c_void_p]),
    "uotpool_scratch": (c_int64, [c_void_p, c_int]),
    "uotpool_group": (c_int, [c_void_p, c_void_p, c_int64, c_int64, c_int64, c_void_p, c_void_p]),
}

_AGAIN = "install uotpool once more from the folder of its source: pip install --force-reinstall --no-deps ."
_BUILD_ERROR = Path(__file__).parent / "build_error.txt"  # CMakeLists.txt writes it


def load() -> ctypes.CDLL | None:
    """Return the library, or None where `missing` has a reason.

    Raises:
        ValueError: UOTPOOL_ISA or UOTPOOL_LIBRARY names what is not there. To go on would hide the mistake.
    """
    if _mistake:
        raise ValueError(_mistake)
    return _library


def missing() -> str:
    """Say why the kernels cannot be used and how to get them; "" if they can be."""
    load()
    return _reason


def build_error() -> str:
    """Return what the compiler said where it failed at install time; "" where it did not."""
    return _BUILD_ERROR.read_text(errors="replace").strip() if missing() and _BUILD_ERROR.exists() else ""


def isa() -> str:
    """Return the instruction set in use."""
    return ISAS[_loaded().uotpool_isa()]


def usable_isas() -> tuple[str, ...]:
    """Return the instruction sets that are built in and that this CPU has."""
    library = _loaded()
    return tuple(name for code, name in enumerate(ISAS) if library.uotpool_has_isa(code))


def set_isa(name: str) -> None:
    """Use this instruction set from now on, in all threads."""
    _set_isa(_loaded(), "name", name)


def check(status: int) -> None:
    """Raise what a status of the library says."""
    if status == NO_MEMORY:
        raise MemoryError("the CPU kernel got no memory for its scratch")
    if status != OK:
        # The arguments were validated before: whatever is wrong is a mistake inside uotpool.
        what = {
            BAD_ARGUMENT: "a code, size or row number out of range",
            NULL_POINTER: "a null pointer",
            MISALIGNED: "a misaligned pointer",
            NO_SUCH_ISA: "an instruction set that is not built in or not of this CPU",
        }
        raise RuntimeError(f"the CPU kernel refused a call: {what.get(status, f'unknown status {status}')}")


def _loaded() -> ctypes.CDLL:
    library = load()
    if library is None:
        raise RuntimeError(f"the CPU kernel cannot be used: {_reason}")
    return library


def _set_isa(library: ctypes.CDLL, argument: str, name: str) -> None:
    if name not in ISAS or library.uotpool_set_isa(ISAS.index(name)) != OK:
        accepted = ", ".join(repr(isa) for code, isa in enumerate(ISAS) if library.uotpool_has_isa(code))
        raise ValueError(f"{argument}: expected one of {accepted} on this machine, got {name!r}")


def _open(path: Path) -> tuple[ctypes.CDLL | None, str]:
    """Return the library, or None and the reason."""
    try:
        library = ctypes.CDLL(str(path))
        abi = library.uotpool_abi()
        if abi != ABI:
            return None, f"{path.name} has interface version {abi}, but this uotpool needs {ABI}; {_AGAIN}"
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:  # of another machine; without one of the functions
        return None, f"{path.name} cannot be loaded ({str(error).replace(str(path), path.name)}); {_AGAIN}"
    return library, ""


def _not_built() -> str:
    """Say why there is no library, with the first error of its build."""
    if not _BUILD_ERROR.exists():
        return f"the kernels were never compiled: uotpool is not installed, or CMake did not start; {_AGAIN}"
    lines = _BUILD_ERROR.read_text(errors="replace").strip().splitlines()
    error = next((line for line in lines if "error: " in line.lower()), lines[0] if lines else "no message")
    return f"compiling the kernels failed at installation ({error.strip()}); mend that, then {_AGAIN}"


def _start() -> tuple[ctypes.CDLL | None, str, str]:
    """Return the library, why it is missing, and what is wrong with the environment.

    There is no error here: an import must pass.
    """
    other = os.environ.get("UOTPOOL_LIBRARY")
    path = Path(other or Path(__file__).parent / "libuotpool_native.so")
    library, reason = _open(path) if other or path.exists() else (None, _not_built())
    if library is None:
        if path.exists() and not other:
            warnings.warn(f"uotpool works without its CPU kernels, much slower: {reason}", stacklevel=2)
        return None, reason, f"UOTPOOL_LIBRARY: got {other!r}: {reason}" if other else ""
    name = os.environ.get("UOTPOOL_ISA")
    if name:
        try:
            _set_isa(library, "UOTPOOL_ISA", name)
        except ValueError as error:
            return library, "", str(error)
    return library, "", ""


# At import and not at the first call: torch.compile then sees constants, and a fork inherits the choice.
_library, _reason, _mistake = _start()


def _solvers() -> dict[str, int]:
    """Return the names of the solvers that the library has, with their codes."""
    names: list[str] = []
    while _library is not None and (name := _library.uotpool_solver(len(names))):
        names.append(name.decode())
    return {name: code for code, name in enumerate(names)}


SOLVERS = _solvers()
# What a call needs of the library; None where `missing` has a reason.
forward, backward = (
    None if _library is None or _mistake else getattr(_library, f"uotpool_{name}")
    for name in ("forward", "backward")
)
