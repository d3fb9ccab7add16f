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
# Settings that are options of `uotpool run` by themselves, with their help. They stand here and not
# in the class, as the command line must know them before it imports a task.
SHORT_OPTIONS = {
    "graph": {"backbone": "adgcl (default) or gin, learned with labels"},
    "image": {"arch": "resnet-tiny (default), resnet18, ...", "recipe": "scratch (default) or two-stage"},
}


def load(name: str) -> Task:
    """The task of this name."""
    if not isinstance(name, str) or name not in TASKS:
        raise ValueError(f"task: expected one of {tuple(TASKS)}, got {name!r}")
    module, _, kind = TASKS[name].partition(":")
    found: Task = getattr(importlib.import_module(module), kind)()
    return found
