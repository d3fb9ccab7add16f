"""The command `uotpool` (also `python -m uotpool`)."""

from __future__ import annotations

import argparse
import errno
import io
import os
import platform
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import metadata
from typing import Any

import torch

import uotpool
from uotpool.backends import available
from uotpool.backends.cpu import library
from uotpool.backends.triton import backend as triton
from uotpool.solvers import BY_NAME
from uotpool.zoo import ENTRIES, build

# Other packages add commands by a function (subparsers) -> None in this group of entry points.
COMMANDS = "uotpool.commands"
BROKEN_PIPE = 128 + 13  # the status that a shell gives a program that SIGPIPE ended
INTERRUPTED = 128 + 2
CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # full disk or quota, or a failing device


def info() -> str:
    """Return the versions and the available implementations."""
    lines = [
        f"uotpool {uotpool.__version__}",
        f"python  {platform.python_version()} on {platform.system()} {platform.machine()}",
        f"torch   {torch.__version__}, {torch.get_num_threads()} threads",
        f"pyg     {_version('torch_geometric') or 'not installed (extra pyg, for UOTAggregation)'}",
        f"solvers {', '.join(BY_NAME)}",
        "implementations",
    ]
    chosen = uotpool.explain_impl(torch.empty(0)).partition(";")[0]
    for name, missing in available().items():
        state = f"not available: {missing}" if missing else "available"
        if name == "cpu" and not missing:
            state += f" ({library.isa()}; usable here: {', '.join(library.usable_isas())})"
        if name == "triton" and not missing:
            state += f" ({triton.describe()})"
        use = " (used by impl='auto' for CPU tensors)" if name == chosen else ""
        lines.append(f"  {name:10}{state}{use}")
    if error := library.build_error():
        lines += ["", "error of the build of the cpu kernels", *(f"  {line}" for line in error.splitlines())]
    return "\n".join(lines)


def poolings(dim: int, hidden: int | None) -> str:
    """Return a table of the poolings of the zoo."""
    rows = [("name", "out_dim", "parameters", "edges", "code", "paper", "formula")]
    for name, entry in ENTRIES.items():
        facts = ("?", "?", "?")
        source = entry.source
        if entry.needs_pyg and _version("torch_geometric") is None:
            source += " (install the extra pyg)"
        else:
            with torch.device("meta"):  # shapes without memory
                pool = build(name, dim, hidden)
            parameters = sum(parameter.numel() for parameter in pool.parameters())
            facts = (str(pool.out_dim), str(parameters), "needed" if pool.needs_edges else "-")
        rows.append((name, *facts, source, entry.paper or "-", entry.formula))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    sizes = f"dim={dim}" + (f", hidden={hidden}" if hidden else "")
    note = f"out_dim and parameters are for {sizes}. uotpool.zoo.build(name, dim) makes a pooling."
    return "\n".join([*lines, "", note])


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


class _Parser(argparse.ArgumentParser):
    """A parser without abbreviations: a command without `--store` must not read it as `--stored`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False} | options)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of our commands and of those of other packages. Without a command it prints help."""
    parser = _Parser(prog="uotpool", description=uotpool.__doc__)
    parser.add_argument("--version", action="version", version=f"uotpool {uotpool.__version__}")
    parser.set_defaults(command_function=lambda args: parser.print_help())
    commands = parser.add_subparsers(dest="command")
    command = commands.add_parser("info", help="versions and available implementations")
    command.set_defaults(command_function=lambda args: print(info()))
    command = commands.add_parser("poolings", help="the poolings of uotpool.zoo")
    command.add_argument("--dim", type=int, default=64, help="features of a sample (default: %(default)s)")
    command.add_argument("--hidden", type=int, default=None, help="width of hidden layers (default: dim)")
    command.set_defaults(command_function=lambda args: print(poolings(args.dim, args.hidden)))
    for add_parsers in _commands_of_other_packages():
        add_parsers(commands)
    return parser


def _commands_of_other_packages() -> list[Callable[[Any], None]]:
    """Return the functions that add commands, except where a package that they import is missing."""
    functions = []
    for entry_point in metadata.entry_points(group=COMMANDS):
        try:
            functions.append(entry_point.load())
        except ModuleNotFoundError as error:
            missing = (error.name or "uotpool").partition(".")[0]
            if missing.startswith("uotpool"):
                raise
            print(f"uotpool: {entry_point.module} is left out: it needs {missing}", file=sys.stderr)
    return functions


def main(argv: list[str] | None = None) -> None:
    """Run a command. What the user can correct ends with one line of error, all else with a traceback."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        try:
            args = make_parser().parse_args(argv)
            status = args.command_function(args)
        finally:  # at exit, errors of the output could not be handled
            print(end="", flush=True)
    except BrokenPipeError:  # the reader, such as `| head`, has closed the pipe
        status = BROKEN_PIPE
        _discard_output()
    except KeyboardInterrupt:  # a sweep handles Ctrl-C itself
        status = INTERRUPTED
        print("stopped", file=sys.stderr)
    except (ValueError, ModuleNotFoundError, OSError) as error:  # a wrong argument or file, a missing package
        if not _is_of_user(error):
            raise
        status = 1 if isinstance(error, ModuleNotFoundError) else 2
        print(f"{' '.join(['uotpool', *argv[:1]])}: error: {_message(error)}", file=sys.stderr)
        if isinstance(error, OSError) and error.errno in CANNOT_WRITE:
            _discard_output()
    if status is not None:
        sys.exit(status)


def _is_of_user(error: Exception) -> bool:
    """Whether a user can correct this: not a missing module of ours, nor an OSError of no file."""
    if isinstance(error, ModuleNotFoundError):
        return not (error.name or "uotpool").startswith("uotpool")
    if isinstance(error, OSError):
        return error.filename is not None or error.errno is None or error.errno in CANNOT_WRITE
    return True


def _message(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror[0].lower()}{error.strerror[1:]}"  # without its number
    return str(error)


def _discard_output() -> None:
    """Drop output that cannot be written, which Python would try again at exit."""
    with suppress(AttributeError, io.UnsupportedOperation):  # an output in memory has no file descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
