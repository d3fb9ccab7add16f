"""What is trained and tested: one package per task, and the list of them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uotpool_experiments.tasks.base import Task

# Name on the command line and in stored runs: module and class. A module is imported when its task
# is loaded.
TASKS = {
    "mil": "uotpool_experiments.tasks.mil.task:MultiInstance",
    "graph": "uotpool_experiments.tasks.graph.task:GraphClassification",
    "image": "uotpool_experiments.tasks.image.task:ImageClassification",
}


def load(name: str) -> Task:
    """The task of this name."""
    if not isinstance(name, str) or name not in TASKS:
        raise ValueError(f"task: expected one of {tuple(TASKS)}, got {name!r}")
    module, _, kind = TASKS[name].partition(":")
    found: Task = getattr(importlib.import_module(module), kind)()
    return found
