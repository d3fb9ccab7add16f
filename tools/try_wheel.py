"""Tries the wheel of dist/ as a user has it, without a compiler: `make test-wheel`.

A new environment gets torch and the wheel, nothing else. There the code of README must run without
a warning, with the fused kernels; then the study is installed beside it and shows its demo, and the
kernel tests run against the installed library.
`--installed` runs README's code and the kernel tests in the environment of this interpreter, as
cibuildwheel calls it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / "build" / "try-wheel"
# What measures memory is in bench/, which cibuildwheel does not copy: it needs the study.
MEASURED = "--ignore=tests/backends/test_memory.py"
# Builds need a compiler.
BUILT = "--ignore=tests/backends/test_build.py"
COMPILERS = ("c++", "g++", "clang++", "cc", "gcc", "clang")


def run(python: Path, *words: str, where: Path = ROOT) -> None:
    """Run Python where PATH has its environment alone."""
    env = {name: value for name, value in os.environ.items() if name not in ("CC", "CXX", "PYTHONPATH")}
    env |= {"PATH": str(python.parent), "OMP_NUM_THREADS": "1"}
    assert not any(shutil.which(name, path=env["PATH"]) for name in COMPILERS)
    print("+", python.name, *(word.partition("\n")[0] for word in words), flush=True)
    if status := subprocess.run([str(python), *words], cwd=where, env=env, check=False).returncode:
        sys.exit(f"failed with status {status}")


def try_library(python: Path) -> None:
    """Check that the kernels are there and that the code of README runs without a warning.

    Torch is imported before: it warns by itself where there is no NumPy.
    """
    (code,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    strict = "import torch, warnings; warnings.simplefilter('error')\n"
    where = "import uotpool; print(uotpool.__file__); assert 'site-packages' in uotpool.__file__\n"
    used = "assert uotpool.explain_impl(torch.empty(0)) == 'cpu', 'the kernels do not load'\n"
    run(python, "-c", f"{strict}{where}{code}\n{used}")
    run(python, "-m", "uotpool", "info")


def try_study(python: Path) -> None:
    """Run the demo, which trains and compares, from the two wheels alone."""
    run(python, "-m", "uotpool", "demo", "--quick", "--seeds", "1", where=ENVIRONMENT)


def try_kernels(python: Path, *options: str) -> None:
    """Run the kernel tests. The installed package is tested, as src/ is not on the path."""
    run(python, "-m", "pytest", "-p", "no:cacheprovider", "tests/backends", BUILT, *options)


def new_environment() -> Path:
    """Return the Python of a new environment that has torch and the wheel."""
    shutil.rmtree(ENVIRONMENT, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(ENVIRONMENT)], check=True)
    python = ENVIRONMENT / "bin" / "python"
    install(python, "--only-binary", ":all:", wheel("uotpool"))
    return python


def wheel(project: str) -> str:
    """Return the path of the one wheel of a project in dist/."""
    found = list((ROOT / "dist").glob(f"{project}-*.whl"))
    if len(found) != 1:
        sys.exit(f"try_wheel.py: expected one wheel of {project} in dist/, got {len(found)}; run `make wheel`")
    return str(found[0])


def install(python: Path, *words: str) -> None:
    """Install packages in the versions of constraints.txt."""
    pip = [
        str(python),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-compile",
        "--constraint",
        str(ROOT / "constraints.txt"),
    ]
    subprocess.run([*pip, *words], check=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["--installed"]:
        here = Path(sysconfig.get_path("scripts")) / Path(sys.executable).name
        try_library(here)
        try_kernels(here, MEASURED)
    else:
        new = new_environment()
        try_library(new)
        install(new, wheel("uotpool_experiments"), "hypothesis", "pytest")
        try_study(new)
        try_kernels(new)
