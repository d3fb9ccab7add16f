"""What `python -m bench` has measured, read from the CSV files that it writes."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from uotpool_experiments.tables.manifest import FOLDER, results_folder

Lines = Sequence[dict[str, str]]  # the cells of each line by the names of their columns


def path_of(measurement: str, source: Path | None = None) -> Path:
    """Return the file of a measurement: `source`, or without one that of the committed results."""
    return source or results_folder() / "bench" / f"{measurement}.csv"


def origin(measurement: str, source: Path | None = None) -> str:
    """Say which file a figure draws, and which command measures again."""
    renew = f"python -m bench {measurement}{'' if source else ' --renew'}"
    return f"drawn from {path_of(measurement, source)}; in a checkout `{renew}` measures it again"


def read(measurement: str, columns: Sequence[str], source: Path | None = None) -> Lines:
    """Read the lines of a measurement.

    Args:
        measurement: its name in `python -m bench`.
        columns: the columns that must be there.
        source: the file; without one, that of the committed results.
    """
    path = path_of(measurement, source)
    if not path.is_file():
        raise FileNotFoundError(
            f"expected the measurement {path}, got no such file: run it in the root of the project, set "
            f"{FOLDER} to the folder of the results, or give --from FILE. In a checkout of the project "
            f"`python -m bench {measurement}` writes out/bench/{measurement}.csv"
        )
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        missing = set(columns) - set(reader.fieldnames or ())
        lines = list(reader)
    if missing or not lines:
        got = f"none of {', '.join(sorted(missing))}" if missing else "no line"
        raise ValueError(
            f"{path}: expected what `python -m bench {measurement}` writes, with columns {', '.join(columns)}; "
            f"got {got}"
        )
    return lines
