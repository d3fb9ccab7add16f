"""Arguments that several commands take, and their values."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from uotpool_experiments.tasks import TASKS

STORE = Path("out/runs.sqlite")
DIGITS = 18  # a longer number does not fit in 64 bits


def add_task(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("task", choices=tuple(TASKS))


def add_source(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which stored runs a command reads."""
    parser.add_argument(
        "--stored", action="store_true", help="runs of earlier code too, if not of several versions"
    )
    parser.add_argument(
        "--store", type=Path, default=STORE, help="or a CSV file made by uotpool export (default: %(default)s)"
    )


def add_execution(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say how a command does its runs."""
    parser.add_argument(
        "--workers",
        type=positive,
        default=None,
        help="processes; with --ray, runs at a time at most (default: as many as CPUs, here or in the cluster)",
    )
    parser.add_argument(
        "--ray",
        metavar="ADDRESS",
        default=None,
        help="run on a Ray cluster: HOST:PORT, or auto for the one of this machine; local starts one",
    )
    parser.add_argument(
        "--timeout",
        type=positive,
        default=None,
        metavar="SECONDS",
        help="a run without a result after this time is stopped and counts as failed (default: none)",
    )
    parser.add_argument("--store", type=Path, default=STORE, help="default: %(default)s")
    parser.add_argument(
        "--done",
        type=Path,
        action="append",
        default=[],
        metavar="CSV",
        help="runs that uotpool export wrote: those by the present code count as done (may be repeated)",
    )
    parser.add_argument(
        "--like",
        type=Path,
        action="append",
        default=[],
        metavar="CSV",
        help="runs that uotpool export wrote, of any code: the estimate learns from them (may be repeated)",
    )


def names(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    if not names:
        raise argparse.ArgumentTypeError("expected names separated by commas, got none")
    return names


def seed(text: str) -> int:
    from uotpool_experiments.runs.sweep import MOST_SEED

    if not text.isdecimal() or len(text) > DIGITS or int(text) > MOST_SEED:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to {MOST_SEED}, got {_short(text)}")
    return int(text)


def positive(text: str) -> int:
    if len(text) > DIGITS:
        raise argparse.ArgumentTypeError(f"expected a number of at most {DIGITS} digits, got {_short(text)}")
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number >= 1, got {text}")
    return int(text)


def seeds(text: str) -> Sequence[int]:
    """Read seeds: `3` means 0, 1 and 2, while `3,` and `0,3` are lists."""
    from uotpool_experiments.runs.sweep import MOST_RUNS

    if "," not in text:
        count = positive(text)
        if count > MOST_RUNS:
            raise argparse.ArgumentTypeError(f"expected at most {MOST_RUNS} seeds, got {count}")
        return range(count)
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise argparse.ArgumentTypeError(f"expected numbers >= 0 separated by commas, got {text!r}")
    return [seed(part) for part in parts]


def setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got {text!r}")
    try:
        return name, json.loads(value, parse_constant=lambda constant: _refuse(name, constant))
    except json.JSONDecodeError:
        return name, value
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, lists a thousand deep
        raise argparse.ArgumentTypeError(f"{name}: expected a value as JSON, got {_short(value)}") from error


def _refuse(name: str, constant: str) -> None:
    raise argparse.ArgumentTypeError(f"{name}: expected a finite number, got {constant}")


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."
