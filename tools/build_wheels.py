"""Builds what would be published, into dist/, and checks it: `make wheel`.

The library's wheel promises to run with glibc 2.28. A compiler links against the glibc of its own
machine, which is newer; Zig's has the interfaces of all versions, so that no container with an old
system is needed. The workflow `wheels.yml` builds the same wheels with GCC in the containers of
manylinux, for more machines.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
UNREPAIRED = ROOT / "build" / "wheels"
GLIBC = "2.28"


def run(*command: object, **env: str) -> str:
    """Run a command of this environment and return what it printed. A command that fails ends the build."""
    words = [str(word) for word in command]
    print("+", *words, flush=True)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        words, cwd=ROOT, env=os.environ | {"PATH": path} | env, check=False, text=True, stdout=subprocess.PIPE
    )
    print(done.stdout, end="", flush=True)
    if done.returncode:
        sys.exit(f"{words[0]} failed with status {done.returncode}")
    return done.stdout


def build_library() -> None:
    """Build the source distribution and the wheel from it, which auditwheel repairs and names."""
    machine = platform.machine()
    options = ["-Ccmake.define.UOTPOOL_WERROR=ON"]
    if machine == "x86_64":
        # Zig's runtime has no `__cpu_model`, from which the kernels know the CPU. That of GCC has.
        gcc = os.environ.get("CXX", "c++")
        runtime = subprocess.check_output([gcc, "-print-libgcc-file-name"], text=True).strip()
        options.append(f"-Ccmake.define.CMAKE_MODULE_LINKER_FLAGS={runtime}")
    run(
        *(sys.executable, "-m", "build", "--outdir", UNREPAIRED, *options, ROOT),
        CXX=str(ROOT / "tools" / "zig-c++"),
        ZIG_PYTHON=sys.executable,
        ZIG_TARGET=f"{machine}-linux-gnu.{GLIBC}",
        ZIG_GLOBAL_CACHE_DIR=str(ROOT / "build" / "zig"),
    )
    (wheel,) = UNREPAIRED.glob("*.whl")
    if not wheel.name.endswith(f"-py3-none-linux_{machine}.whl"):
        sys.exit(f"{wheel.name} has no kernels: what the compiler said is in its build_error.txt")
    policy = f"manylinux_{GLIBC.replace('.', '_')}_{machine}"
    run("auditwheel", "repair", "--plat", policy, "--only-plat", "--wheel-dir", DIST, wheel)
    (source,) = UNREPAIRED.glob("*.tar.gz")
    shutil.copy(source, DIST)


def check() -> None:
    """Ask the tools of the package index whether it would take the files."""
    run("validate-pyproject", "pyproject.toml", "experiments/pyproject.toml")
    wheels = sorted(DIST.glob("*.whl"))
    run("check-wheel-contents", *wheels)
    run("twine", "check", "--strict", *wheels, *sorted(DIST.glob("*.tar.gz")))
    for wheel in wheels:
        if "manylinux" in wheel.name:
            run("auditwheel", "show", wheel)


if __name__ == "__main__":
    if sys.platform != "linux":
        sys.exit("build_wheels.py: only on Linux; elsewhere `python -m build` or cibuildwheel builds a wheel")
    for folder in (DIST, UNREPAIRED):
        shutil.rmtree(folder, ignore_errors=True)
    build_library()
    run(sys.executable, "-m", "build", "--outdir", DIST, ROOT / "experiments")
    check()
    for file in sorted(DIST.iterdir()):
        print(f"{file.stat().st_size / 1e6:6.2f} MB  dist/{file.name}")
