"""Tries the wheel of dist/ as a user has it, without a compiler: `make test-wheel`.

A new environment gets torch and the wheel, nothing else. There the code of README must run without
a warning, with the fused kernels; then the kernel tests run against the installed library.
`--installed` does the second part in the environment of this interpreter, as cibuildwheel calls it.
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
# The tests of torch.compile need a compiler by themselves: they are no tests of the wheel.
TESTS = ["tests/kernels", "--ignore=tests/kernels/test_torch.py"]
TEST_TOOLS = ["hypothesis", "numpy", "pytest"]
COMPILERS = ("c++", "g++", "clang++", "cc", "gcc", "clang")


def run(python: Path, *words: str) -> None:
    """Run Python where PATH has its environment alone and warnings are errors."""
    env = {name: value for name, value in os.environ.items() if name not in ("CC", "CXX", "PYTHONPATH")}
    env |= {"PATH": str(python.parent), "PYTHONWARNINGS": "error", "OMP_NUM_THREADS": "1"}
    assert not any(shutil.which(name, path=env["PATH"]) for name in COMPILERS)
    print("+", python.name, *(word.partition("\n")[0] for word in words), flush=True)
    if status := subprocess.run([str(python), *words], cwd=ROOT, env=env, check=False).returncode:
        sys.exit(f"failed with status {status}")


def try_library(python: Path) -> None:
    """Check that the kernels are there and that the code of README runs."""
    (code,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    where = "import uotpool, pathlib; print(uotpool.__file__); assert 'site-packages' in uotpool.__file__\n"
    used = "assert uotpool.resolve_impl(torch.empty(0), 'sinkhorn') == 'cpu', uotpool.cli.info()\n"
    run(python, "-c", f"{where}{code}\n{used}")
    run(python, "-m", "uotpool", "info")


def try_kernels(python: Path) -> None:
    """Run the kernel tests. The installed package is tested, as src/ is not on the path."""
    options = ["-p", "no:cacheprovider", "-W", "ignore::DeprecationWarning"]
    run(python, "-m", "pytest", *options, *TESTS)


def new_environment() -> Path:
    """Return the Python of a new environment that has torch and the wheel."""
    shutil.rmtree(ENVIRONMENT, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(ENVIRONMENT)], check=True)
    python = ENVIRONMENT / "bin" / "python"
    wheels = [path for path in (ROOT / "dist").glob("uotpool-*.whl") if not path.name.endswith("-any.whl")]
    if len(wheels) != 1:
        sys.exit(
            f"try_wheel.py: expected one wheel of uotpool in dist/, got {len(wheels)}; `make wheel` builds it"
        )
    install(python, "--only-binary", ":all:", str(wheels[0]))
    return python


def install(python: Path, *words: str) -> None:
    """Install packages in the versions of constraints.txt."""
    pip = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt")]
    subprocess.run([*pip, *words], check=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["--installed"]:
        here = Path(sysconfig.get_path("scripts")) / Path(sys.executable).name
        try_library(here)
        try_kernels(here)
    else:
        new = new_environment()
        try_library(new)
        install(new, *TEST_TOOLS)
        try_kernels(new)
