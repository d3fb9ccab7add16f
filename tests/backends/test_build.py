"""The compiled library matches its header and keeps to itself; without a compiler, an install goes without."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from uotpool import coefficients
from uotpool.backends import ops
from uotpool.backends.cpu import library

ROOT = Path(__file__).parents[2]
HEADER = (ROOT / "csrc" / "uotpool.h").read_text()
LIBRARY = Path(library.__file__).parent / "libuotpool_native.so"
OBJECTS = ROOT / "build" / "editable" / "CMakeFiles"

needs_library = pytest.mark.skipif(bool(library.missing()), reason=library.missing())


def run(*command: object, **env: str) -> str:
    """What a command prints; it may fail."""
    words = [str(word) for word in command]
    done = subprocess.run(words, env=os.environ | env, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


# ---------------------------------------------------------------------------------------------------------
# The header and its mirror


def codes(prefix: str) -> list[str]:
    """Names of the enum whose first name is this, in the order of their values."""
    (names,) = re.findall(rf"enum \{{\s*({prefix} = 0.*?)\}}", HEADER, re.DOTALL)
    found = re.findall(r"(UOTPOOL_\w+) = (\d+)", names)
    assert [int(value) for _, value in found] == list(range(len(found)))
    return [name.removeprefix("UOTPOOL_") for name, _ in found]


def test_the_call_mirrors_the_header():
    (body,) = re.findall(r"typedef struct uotpool_call \{(.*?)\} uotpool_call;", HEADER, re.DOTALL)
    fields = []
    for declaration in re.sub(r"/\*.*?\*/", "", body, flags=re.DOTALL).split(";"):
        if words := declaration.split(maxsplit=1):
            pointer = "*" in declaration
            assert pointer or words[0] == "int64_t"
            kind = ctypes.c_void_p if pointer else ctypes.c_int64
            start = r"\*" if pointer else ""
            for name, array in re.findall(rf"{start}(\w+)(\[UOTPOOL_COEFFICIENTS\])?", words[1]):
                if name != "UOTPOOL_COEFFICIENTS":
                    names = [f"{name}_{slot}" for slot in ops.SLOTS] if array else [name]
                    fields += [(each, kind) for each in names]
    assert fields == library.Call._fields_


def test_constants_mirror_the_header():
    assert f"#define UOTPOOL_ABI {library.ABI}\n" in HEADER
    assert codes("UOTPOOL_BASELINE") == [name.upper() for name in library.ISAS]
    assert [getattr(library, name) for name in codes("UOTPOOL_OK")] == list(range(6))
    assert [name.lower() for name in codes("UOTPOOL_NONE")] == list(ops.TRANSFORMS)
    (slots,) = re.findall(r"enum \{ (UOTPOOL_ALPHA0 = 0.*?), UOTPOOL_COEFFICIENTS \}", HEADER)
    assert [slot.lower() for slot in re.findall(r"UOTPOOL_(\w+)", slots)] == list(ops.SLOTS)
    assert ops.SLOTS == library._SLOTS == coefficients.NAMES
    for name in ("FLOOR", "RATE", "LIMIT"):
        (value,) = re.findall(rf"#define UOTPOOL_{name} (\S+)", HEADER)
        assert float(value) == getattr(coefficients, name)


def test_every_function_of_the_header_is_declared():
    declared = set(re.findall(r"^(?:int\w* |const char \*)(uotpool_\w+)\(", HEADER, re.MULTILINE))
    assert declared == {*library._SIGNATURES, "uotpool_abi"}


# ---------------------------------------------------------------------------------------------------------
# The library keeps to itself


def symbols(*command: object) -> set[str]:
    if sys.platform != "linux" or not shutil.which("nm"):
        pytest.skip("needs nm, and the names that Linux has")
    return {line.split()[-1] for line in run("nm", "--defined-only", *command).splitlines() if line.strip()}


def test_a_library_that_is_there_loads():
    """Else all tests that need it would be skipped, and nobody would know."""
    assert not LIBRARY.exists() or library.missing() == ""


@needs_library
def test_exports_the_c_interface_only():
    assert symbols("--dynamic", LIBRARY) == {*library._SIGNATURES, "uotpool_abi"}


@pytest.mark.parametrize("isa", library.ISAS)
def test_kernel_objects_share_nothing(isa):
    """An inline function of an AVX object that the linker takes for all would crash a lesser CPU."""
    objects = list((OBJECTS / f"kernels_{isa}.dir").rglob("*.o"))
    if not objects:
        pytest.skip("not built here by `make`")
    found = symbols("--extern-only", *objects)
    assert found
    assert {name for name in found if not re.fullmatch(rf"uotpool_\w+_{isa}", name)} == set()


# ---------------------------------------------------------------------------------------------------------
# What a user is told


INFO = """
import torch, uotpool
print("imported", flush=True)
from uotpool.cli import main
try:
    main(["info"])
except SystemExit:
    pass
"""
USE = "uotpool.uot_pool(torch.ones(1, 2, 3), 1.0, 1.0, 1.0)"


@needs_library
def test_nonsense_as_isa_in_the_environment():
    """The import passes, the first use says it. What "baseline" gives is in test_invariance.py."""
    text = run(sys.executable, "-c", INFO + USE, UOTPOOL_ISA="sse9")
    assert text.startswith("imported\n")
    said, _, raised = text.partition("Traceback")
    assert "UOTPOOL_ISA: expected one of 'baseline'" in said
    assert "got 'sse9'" in said
    assert "ValueError: UOTPOOL_ISA" in raised


@needs_library
def test_a_library_of_another_version_is_refused(monkeypatch):
    monkeypatch.setattr(library, "ABI", library.ABI + 1)
    loaded, reason = library._open(LIBRARY)
    assert loaded is None
    assert reason.startswith(f"libuotpool_native.so has interface version {library.ABI - 1}, ")
    assert f"needs {library.ABI}" in reason


@pytest.mark.parametrize(
    ("status", "error", "text"),
    [
        (library.BAD_ARGUMENT, RuntimeError, "out of range"),
        (library.NULL_POINTER, RuntimeError, "null pointer"),
        (library.MISALIGNED, RuntimeError, "misaligned"),
        (library.NO_MEMORY, MemoryError, "no memory"),
        (library.NO_SUCH_ISA, RuntimeError, "instruction set"),
        (99, RuntimeError, "unknown status 99"),
    ],
)
def test_status_becomes_an_error(status, error, text):
    library.check(library.OK)
    with pytest.raises(error, match=text):
        library.check(status)


# ---------------------------------------------------------------------------------------------------------
# Without a compiler


def install(folder: Path, **env: str) -> str:
    """What is printed by `SHOW` with a wheel installed that was built from a copy of the source."""
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "CMakeLists.txt", "README.md", "LICENSE", ".gitignore"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, source)
    for name in ("src", "csrc"):  # with any library that `make` left in src: it must stay out
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    wheels = folder / "wheels"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    env |= {"PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
    log = run(*pip, "wheel", "--no-deps", "--wheel-dir", wheels, source, **env)
    found = list(wheels.glob("*.whl"))
    assert [wheel.name.endswith("-py3-none-any.whl") for wheel in found] == [True], log

    installed = folder / "installed"
    with zipfile.ZipFile(found[0]) as wheel:
        assert not [name for name in wheel.namelist() if name.endswith((".so", ".cpp", ".h"))]
        wheel.extractall(installed)
    # -S: without the hook of the editable install, which would come first.
    path = os.pathsep.join([str(installed), *filter(None, sys.path)])
    text = run(sys.executable, "-S", "-c", SHOW, PYTHONPATH=path)
    assert text.startswith(str(installed)), text
    assert re.search(r"^  reference +available \(used by impl='auto'", text, re.MULTILINE), text
    return text


SHOW = """
import torch, uotpool
from uotpool.cli import info
print(uotpool.__file__)
print(info())
try:
    uotpool.UOTPooling(3, impl="cpu")
except ValueError as error:
    print("ValueError:", error)
"""


def test_install_without_compiler(tmp_path):
    """A wheel for every machine, which says what is missing and how to get it. Some 10 s."""
    text = install(tmp_path, CC="false", CXX="false")
    reason = "compiling the kernels failed .*error: no working C\\+\\+ compiler was found.*pip install"
    assert re.search(rf"^  cpu +not available: {reason}", text, re.MULTILINE), text
    assert re.search(rf"^ValueError: impl: 'cpu' cannot be used: {reason}", text, re.MULTILINE), text
