"""Keep the state of a long run in a file, so that a killed process loses a minute and not a day."""

from __future__ import annotations

import time
from typing import Any

import torch

from uotpool_experiments.tasks import checkpoints
from uotpool_experiments.tasks.fingerprint import fingerprint
from uotpool_experiments.tasks.spec import RunSpec

SECONDS = 60.0  # between two states; a shorter run writes none


class Checkpoint:
    """The file of a run.

    Its name depends on all that decides the numbers: choices, code and version of torch.
    """

    def __init__(self, spec: RunSpec) -> None:
        self._key = spec.key(fingerprint(spec.task, spec.pooling))
        self._path = checkpoints.folder() / f"{self._key}.torch-{torch.__version__}.pt"
        self._last = time.monotonic()

    def read(self) -> dict[str, Any] | None:
        return checkpoints.read(self._path)

    def is_due(self) -> bool:
        """Return whether it is time to write the state again."""
        return time.monotonic() - self._last >= SECONDS

    def write(self, state: dict[str, Any]) -> None:
        checkpoints.write(self._path, state)
        self._last = time.monotonic()

    def remove(self) -> None:
        """Remove the file: the run is finished."""
        checkpoints.remove(self._key)
