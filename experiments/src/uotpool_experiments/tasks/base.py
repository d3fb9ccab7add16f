"""The Task protocol: everything that the study must know of a task, said in one class per task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from uotpool_experiments.tasks.spec import Options, Report, Result, RunSpec


class Task(ABC):
    """A kind of experiment, such as multi-instance learning. An object of it has no state.

    A new task is a module with a subclass, and its line in `tasks.TASKS`.

    Attributes:
        title: heading of the task's results in a report.
        default_dataset: the data set of `uotpool run` where none is named.
        optimism: why the numbers of the protocol "paper" are optimistic. Every table of such
            numbers says it.
        settings: the dataclass of what can be set for a run.
        pooling_settings: names of the settings that only some poolings have.
        paper_settings: settings that the protocol "paper" implies, and "fair" must be told.
        trains_together: whether processes that torchrun started can train one run together.
    """

    title: ClassVar[str]
    default_dataset: ClassVar[str]
    optimism: ClassVar[str]
    settings: ClassVar[type[Options]]
    pooling_settings: ClassVar[frozenset[str]] = frozenset({"pool"})
    paper_settings: ClassVar[Mapping[str, Any]] = {}
    trains_together: ClassVar[bool] = False

    @abstractmethod
    def poolings(self) -> list[str]:
        """Names of the zoo that the task can use."""

    @abstractmethod
    def check_dataset(self, name: str) -> None:
        """Refuse a name that is no data set of this task."""

    @abstractmethod
    def prepare(self, dataset: str) -> None:
        """Fetch the data set, or say what is missing, before a sweep starts."""

    @abstractmethod
    def check_settings(self, pooling: str, settings: Any) -> None:
        """Refuse settings that a run with this pooling would refuse; called on torch's meta device."""

    def check_protocol(self, protocol: str, options: Mapping[str, Any]) -> None:  # noqa: B027 - most have none
        """Refuse options that contradict the protocol."""

    @abstractmethod
    def folds(self, protocol: str, options: Mapping[str, Any]) -> int:
        """How many runs a seed has: one for each fold, or 1 where one run is tested on everything."""

    def epochs(self, spec: RunSpec) -> int:
        """A number that the time of a run grows with; 1 where like runs have like numbers of epochs."""
        return 1

    @abstractmethod
    def run(self, spec: RunSpec, report: Report) -> Result:
        """Train and test."""

    def clean_settings(self, pooling: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options that differ from the defaults; refuses what a run would refuse.

        Most tasks make the pooling to see whether it can be made. On the meta device it takes no
        memory.
        """
        try:
            with torch.device("meta"):
                self.check_settings(pooling, self.settings.from_options(options))
        except TypeError as error:
            raise ValueError(str(error)) from error
        except RuntimeError as error:  # torch raises it for a size beyond 64 bits
            raise ValueError(f"settings: expected those of a pooling that can be made, got {error}") from error
        return self.settings.differing(options)

    def stands_alone(self, spec: RunSpec) -> bool:
        """Whether a seed has one run only, so that runs differ in their seeds and not in their folds."""
        return self.folds(spec.protocol, spec.options) == 1


# What a task says in words or for other parts of the study. It decides no number, and is not
# hashed.
DESCRIPTIVE = frozenset(Task.__annotations__) - {"settings"}
