"""The command `uotpool` (also `python -m uotpool`)."""

from __future__ import annotations

import argparse
import platform
from importlib import metadata

import torch

import uotpool
from uotpool.dispatch import SOLVERS, available
from uotpool.kernels import library


def info() -> str:
    """Versions, and which implementations can be used here."""
    lines = [
        f"uotpool {uotpool.__version__}",
        f"python  {platform.python_version()} on {platform.system()} {platform.machine()}",
        f"torch   {torch.__version__}, {torch.get_num_threads()} threads",
        f"pyg     {_version('torch_geometric') or 'not installed (extra pyg, for UOTAggregation)'}",
        f"solvers {', '.join(SOLVERS)}",
        "implementations",
    ]
    chosen = uotpool.resolve_impl(torch.empty(0), SOLVERS[0])
    for name, missing in available().items():
        state = f"not available: {missing}" if missing else "available"
        if name == "cpu" and not missing:
            state += f" ({library.isa()}; usable here: {', '.join(library.usable_isas())})"
        used = " (impl='auto' takes it for CPU tensors)" if name == chosen else ""
        lines.append(f"  {name:10}{state}{used}")
    return "\n".join(lines)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="uotpool", description=uotpool.__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("info", help="versions and active implementations")
    parser.parse_args(argv)
    try:
        print(info())
    except ValueError as error:  # an environment variable of uotpool.kernels.library
        parser.error(str(error))
