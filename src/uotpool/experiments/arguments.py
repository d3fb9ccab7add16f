"""Values of command-line arguments that several commands take."""

from __future__ import annotations

import argparse
import json
from typing import Any


def names(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    if not names:
        raise argparse.ArgumentTypeError("expected names, by commas, got none")
    return names


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number >= 1, got {text}")
    return int(text)


def seeds(text: str) -> list[int]:
    """`3` is 0, 1, 2; `3,` and `0,3` are what they say."""
    if "," not in text:
        return list(range(positive(text)))
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"expected numbers >= 0, by commas, got {text!r}")
    return [int(part) for part in parts]


def setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got {text!r}")
    try:
        return name, json.loads(value, parse_constant=lambda constant: _refuse(name, constant))
    except json.JSONDecodeError:
        return name, value


def _refuse(name: str, constant: str) -> None:
    raise argparse.ArgumentTypeError(f"{name}: expected a finite number, got {constant}")
