"""Where and with what something was measured: the last columns of every CSV file."""

from __future__ import annotations

import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path

import torch

import uotpool
from uotpool.backends.cpu import library

ROOT = Path(__file__).resolve().parent.parent


def facts(repeats: int) -> dict[str, str]:
    """Return the machine, the versions and the commit of the project, by the names of their columns."""
    return {
        "machine": _cpu_model(),
        "isa": _isa(),
        "implementation": uotpool.explain_impl(torch.empty(1, 1, 1)).partition(";")[0],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_geometric": _version("torch_geometric"),
        "pot": _version("POT"),
        "uotpool": uotpool.__version__,
        "commit": _commit(),
        "repeats": str(repeats),
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _cpu_model() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()


def _isa() -> str:
    """Return the instruction set of the kernels, else that of torch's own."""
    if library.missing():
        return f"torch: {torch.backends.cpu.get_cpu_capability().lower()}"
    return library.isa()


def _commit() -> str:
    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        # What measurements themselves write does not count.
        changed = git("status", "--porcelain", "--", ".", ":!docs", ":!results")
        return git("rev-parse", "--short", "HEAD") + ("+dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
