"""Executors of runs: processes of this machine, a Ray cluster, or processes that torchrun started.

An executor only hands back what happened; the scheduler stores it.
"""

from uotpool_experiments.runs.executors.base import Event, Executor, Failed, Finished, Progress, Started
from uotpool_experiments.runs.executors.local import LocalExecutor
from uotpool_experiments.runs.executors.ray import RayExecutor
from uotpool_experiments.runs.executors.torchrun import TorchrunExecutor

__all__ = [
    "Event",
    "Executor",
    "Failed",
    "Finished",
    "LocalExecutor",
    "Progress",
    "RayExecutor",
    "Started",
    "TorchrunExecutor",
]
