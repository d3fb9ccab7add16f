"""Do one run in this process, and measure what it costs and where it ran."""

from __future__ import annotations

import platform
import subprocess
import time
from collections.abc import Sequence
from functools import lru_cache
from importlib import metadata
from pathlib import Path

import torch

import uotpool
from uotpool_experiments.tasks import load
from uotpool_experiments.tasks.spec import Report, Result, RunSpec, canonical

PACKAGES = ("torch", "numpy", "scikit-learn", "scipy", "torch_geometric", "transformers")


def execute(specs: Sequence[RunSpec], report: Report) -> list[Result]:
    """Do the runs with one thread, since workers share the machine and no result may depend on their number.

    Several specs differ in their seeds only. Each is said to have taken its share of the time.
    """
    torch.set_num_threads(1)
    task = load(specs[0].task)
    reset_peak()
    start = time.perf_counter()
    results = [task.run(specs[0], report)] if len(specs) == 1 else task.run_seeds(specs, report)
    seconds, peak = (time.perf_counter() - start) / len(specs), peak_mib()
    for result in results:
        result.seconds, result.peak_mib = seconds, peak
    return results


def reset_peak() -> None:
    """Count the peak of memory from now on."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:  # another system, or it is not allowed: then the peak counts from the start of the process
        return


def peak_mib() -> float:
    """Return the peak of memory since `reset_peak` in MiB, 0 where the system does not say."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:")), 0.0)


@lru_cache
def facts() -> dict[str, str]:
    """Return the versions, the machine and the commit of this process, for the store."""
    versions = {"uotpool": uotpool.__version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    backend = uotpool.explain_impl(torch.empty(1, 1, 1)).partition(";")[0]
    machine = f"{platform.system()} {platform.machine()}, {backend}"
    return {"versions": canonical(versions), "machine": machine, "commit_id": _commit()}


def _commit() -> str:
    """Return the commit of the source tree that this package runs from; empty for an installed package."""
    root = Path(uotpool.__file__).parents[2]
    if not (root / ".git").exists():
        return ""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        # We take no locks: many workers ask, and none may block a person who commits.
        changed = git("--no-optional-locks", "status", "--porcelain")
        return git("rev-parse", "HEAD") + ("+dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return ""
