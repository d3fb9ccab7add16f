"""Read stored runs from a run store or from a CSV file."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from uotpool_experiments.runs import export
from uotpool_experiments.runs.rows import Row
from uotpool_experiments.runs.store import Store


def read_rows(store: Path, task: str = "TASK") -> list[Row]:
    """Read the runs of a run store or of a CSV file.

    Args:
        store: a file that `uotpool run` or `uotpool export` made.
        task: a task whose committed runs the message names if the file does not exist.
    """
    if not store.exists():
        raise ValueError(
            f"store: expected a run store, got {store}, which does not exist; `uotpool run {task}` makes one, "
            f"and a checkout of the project has committed runs: --store {Path('results', task, 'runs.csv')}"
        )
    if is_csv(store):
        return export.read(store)
    if not store.is_file():
        raise ValueError(f"store: expected a file, got {store}, which is none")
    with closing(Store(store, readonly=True)) as opened:
        return opened.rows()


def is_csv(store: Path) -> bool:
    return store.suffix == ".csv"
