"""Values of command-line arguments that several commands take."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from uotpool_experiments.runs.sweep import MOST_RUNS, MOST_SEED

DIGITS = 18  # of a number: what is longer does not fit in 64 bits


def names(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    if not names:
        raise argparse.ArgumentTypeError("expected names, by commas, got none")
    return names


def seed(text: str) -> int:
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
    """`3` is 0, 1, 2; `3,` and `0,3` are what they say."""
    if "," not in text:
        count = positive(text)
        if count > MOST_RUNS:
            raise argparse.ArgumentTypeError(f"expected at most {MOST_RUNS} seeds, got {count}")
        return range(count)
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise argparse.ArgumentTypeError(f"expected numbers >= 0, by commas, got {text!r}")
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
