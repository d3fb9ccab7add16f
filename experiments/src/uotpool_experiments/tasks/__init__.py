"""The tasks, one package each, and the list of them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uotpool_experiments.tasks.base import Task

# Maps the name of a task on the command line and in stored runs to its module and class. A module
# is imported when its task is loaded.
TASKS = {
    "mil": "uotpool_experiments.tasks.mil.task:MultiInstance",
    "graph": "uotpool_experiments.tasks.graph.task:GraphClassification",
    "image": "uotpool_experiments.tasks.image.task:ImageClassification",
    "regimes": "uotpool_experiments.tasks.regimes.task:Regimes",
    "bags": "uotpool_experiments.tasks.bags.task:BagsOfDigits",
}
# Settings that have an option of their own in `uotpool run`, with their help. They are here and not
# in the class, since the command line must know them before it imports a task.
SHORT_OPTIONS = {
    "graph": {"backbone": "adgcl (default) or gin, learned with labels"},
    "image": {"arch": "resnet-tiny (default), resnet18, ...", "recipe": "scratch (default) or two-stage"},
}


def load(name: str) -> Task:
    """Load the task of this name."""
    if not isinstance(name, str) or name not in TASKS:
        raise ValueError(f"task: expected one of {tuple(TASKS)}, got {name!r}")
    module, _, kind = TASKS[name].partition(":")
    found: Task = getattr(importlib.import_module(module), kind)()
    return found
