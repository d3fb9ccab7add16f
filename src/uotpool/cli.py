"""The command `uotpool` (also `python -m uotpool`)."""

from __future__ import annotations

import argparse
import errno
import io
import os
import platform
import sys
from collections.abc import Callable
from importlib import metadata
from typing import Any

import torch

import uotpool
from uotpool.backends import available
from uotpool.backends.cpu import library
from uotpool.backends.triton import backend as triton
from uotpool.solvers import BY_NAME
from uotpool.zoo import ENTRIES, build

# Other packages add commands by a function (commands) -> None in this group of entry points.
COMMANDS = "uotpool.commands"
EXPERIMENTS = "uotpool-experiments"
OF_EXPERIMENTS = (
    *("demo", "run", "sweep", "table", "tables", "claims", "same-code", "report", "export", "figure"),
    "datasets",
)
BROKEN_PIPE = 128 + 13  # the status that a shell gives a program that SIGPIPE ended
INTERRUPTED = 130
CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # full disk or quota, or a failing device


def info() -> str:
    """Describe the versions, and the implementations that can be used here."""
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
        used = " (impl='auto' takes it for CPU tensors)" if name == chosen else ""
        lines.append(f"  {name:10}{state}{used}")
    if error := library.build_error():
        lines += ["", "what the build of the cpu kernels said", *(f"  {line}" for line in error.splitlines())]
    return "\n".join(lines)


def poolings(dim: int, hidden: int | None) -> str:
    """List the poolings of the zoo, one per line."""
    rows = [("name", "out_dim", "parameters", "edges", "code", "paper", "formula")]
    for name, entry in ENTRIES.items():
        facts = ("?", "?", "?")
        source = entry.source
        if entry.needs_pyg and _version("torch_geometric") is None:
            source += " (install the extra pyg)"
        else:
            with torch.device("meta"):  # numbers alone, without memory
                pool = build(name, dim, hidden)
            numbers = sum(parameter.numel() for parameter in pool.parameters())
            facts = (str(pool.out_dim), str(numbers), "needed" if pool.needs_edges else "-")
        rows.append((name, *facts, source, entry.paper or "-", entry.formula))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    of = f"of dim={dim}" + (f", hidden={hidden}" if hidden else "")
    return "\n".join(
        [*lines, "", f"out_dim and parameters are those {of}. uotpool.zoo.build(name, dim) makes one."]
    )


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


class _Parser(argparse.ArgumentParser):
    """Takes options by their whole names only: a command without `--store` must not read it as `--stored`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False} | options)


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of our commands and of those that other packages add."""
    added = _added_commands()
    names = ", ".join(OF_EXPERIMENTS)
    more = f"`pip install {EXPERIMENTS}` adds commands that train and compare poolings: {names}."
    parser = _Parser(prog="uotpool", description=uotpool.__doc__, epilog=None if added else more)
    parser.add_argument("--version", action="version", version=f"uotpool {uotpool.__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("info", help="versions and active implementations")
    command = commands.add_parser("poolings", help="the poolings of uotpool.zoo")
    command.add_argument("--dim", type=int, default=64, help="features of a sample (default: %(default)s)")
    command.add_argument("--hidden", type=int, default=None, help="width of hidden layers (default: dim)")
    for add_parsers in added:
        add_parsers(commands)
    if not added:
        commands.metavar = "{info,poolings}"
        for name in OF_EXPERIMENTS:
            # No option has this prefix, so all arguments are taken as they are.
            elsewhere = commands.add_parser(name, prefix_chars="\0", add_help=False)
            elsewhere.add_argument("rest", nargs=argparse.REMAINDER)
            elsewhere.set_defaults(elsewhere=True)
    return parser


def _added_commands() -> list[Callable[[Any], None]]:
    """Return what other packages add, except where a package that they need is missing."""
    found = []
    for entry_point in metadata.entry_points(group=COMMANDS):
        try:
            found.append(entry_point.load())
        except ModuleNotFoundError as error:
            missing = (error.name or "uotpool").partition(".")[0]
            if missing.startswith("uotpool"):
                raise
            print(f"uotpool: {entry_point.module} is left out: it needs {missing}", file=sys.stderr)
    return found


def main(argv: list[str] | None = None) -> None:
    """Run the command, and end without a traceback if its output cannot be written."""
    if sys.stdout is None:
        sys.exit("uotpool: error: expected an open standard output, got a closed one")
    try:
        try:
            _main(argv)
        finally:  # flush here: at its end Python would complain of an error
            sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `| head`, has closed the pipe
        _forget_output()
        sys.exit(BROKEN_PIPE)
    except OSError as error:
        if error.errno not in CANNOT_WRITE:  # the user cannot mend it
            raise
        _forget_output()
        sys.exit(f"uotpool: error: cannot write the output: {error}")
    except KeyboardInterrupt:  # while the commands are imported, before one of them runs
        sys.stderr.write("stopped\n")
        sys.exit(INTERRUPTED)


def _main(argv: list[str] | None) -> None:
    parser = make_parser()
    args = parser.parse_args(argv)
    if getattr(args, "elsewhere", False):
        parser.exit(1, f"uotpool {args.command}: comes with another package: pip install {EXPERIMENTS}\n")
    try:
        status = _run(args)
    except BrokenPipeError:
        raise
    except ValueError as error:  # a wrong argument, file or environment variable
        parser.exit(2, _message(args, error))
    except OSError as error:
        if not _of_a_file(error):
            raise
        parser.exit(2, _message(args, error))
    except ModuleNotFoundError as error:
        parser.exit(1, _message(args, error))
    except KeyboardInterrupt:  # a sweep answers Ctrl-C itself
        parser.exit(INTERRUPTED, "stopped\n")
    if status is not None:
        sys.exit(status)


def _run(args: argparse.Namespace) -> int | None:
    """Run the command; return its exit status if it has one."""
    if args.command == "info":
        print(info())
    elif args.command == "poolings":
        print(poolings(args.dim, args.hidden))
    else:
        status: int = args.command_function(args)
        return status
    return None


def _of_a_file(error: OSError) -> bool:
    """Return whether the error names a file, or is in words (without a number), as those of this package are.

    An error with a number but without a file, such as a closed descriptor, is a bug and gets a
    traceback.
    """
    return error.filename is not None or error.errno is None or error.errno in CANNOT_WRITE


def _message(args: argparse.Namespace, error: Exception) -> str:
    """Return one line that names the command."""
    words = str(error)
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        words = f"{error.filename}: {error.strerror[0].lower()}{error.strerror[1:]}"  # without its number
    return f"uotpool {args.command}: error: {words}\n"


def _forget_output() -> None:
    """Drop the output that nobody reads; Python would complain of it at its end."""
    try:
        output = sys.stdout.fileno()
    except (AttributeError, io.UnsupportedOperation):  # an output in memory, as in a test runner or an editor
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, output)
    os.close(nowhere)
