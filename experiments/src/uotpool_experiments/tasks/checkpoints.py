"""Files that outlive a killed process: states of training, and finished first stages of image runs."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import torch

from uotpool_experiments.datasets.fetch import cache_folder


def folder() -> Path:
    """Return the folder UOTPOOL_CHECKPOINTS, or one in the user's cache."""
    given = os.environ.get("UOTPOOL_CHECKPOINTS")
    found = Path(given).expanduser() if given else cache_folder() / "checkpoints"
    found.mkdir(parents=True, exist_ok=True)
    return found


def write(path: Path, state: dict[str, Any]) -> None:
    """Write all of the state or nothing, even if the machine stops."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def read(path: Path) -> dict[str, Any] | None:
    """Read the state that was written, None if there is none."""
    if not path.exists():
        return None
    try:
        found: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise ValueError(f"{path}: expected a checkpoint of uotpool, found another file. Delete it.") from error
    return found


def remove(key: str) -> None:
    """Remove the states of a finished run."""
    for pattern in (f"{key}.*.pt", f".{key}.*.part"):
        for path in folder().glob(pattern):
            path.unlink(missing_ok=True)
