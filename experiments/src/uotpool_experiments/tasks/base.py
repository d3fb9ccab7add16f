"""The Task protocol. One class per task holds everything that the study must know about the task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from uotpool_experiments.tasks.spec import Options, Report, Result, RunSpec


class Task(ABC):
    """A kind of experiment, such as multi-instance learning. Its objects have no state.

    A new task needs a module with a subclass, and a line in `tasks.TASKS`.

    Attributes:
        title: heading of the task's results in a report.
        default_dataset: the data set that `uotpool run` takes if none is named.
        optimism: the reason why the numbers of the protocol "paper" are optimistic. Every table of
            such numbers shows it.
        settings: the dataclass of what can be set for a run.
        pooling_settings: names of the settings that only some poolings have.
        paper_settings: settings that the protocol "paper" implies and that "fair" needs explicitly.
        trains_together: whether processes that torchrun started can train one run together.
        metric: what tables show of the task by default.
        table_kind: the kind of table that they are by default.
        quick: the data sets, poolings and seeds of `uotpool run TASK --quick`; None if it has none.
        draws_data: whether each seed draws data of its own, so that runs of several seeds are independent.
        seeds_together: the most runs, alike but for their seeds, that `run_seeds` does at a time.
    """

    title: ClassVar[str]
    default_dataset: ClassVar[str]
    optimism: ClassVar[str]
    settings: ClassVar[type[Options]]
    pooling_settings: ClassVar[frozenset[str]] = frozenset({"pool"})
    paper_settings: ClassVar[Mapping[str, Any]] = {}
    trains_together: ClassVar[bool] = False
    metric: ClassVar[str] = "accuracy"
    table_kind: ClassVar[str] = "results"
    quick: ClassVar[Mapping[str, Any] | None] = None
    draws_data: ClassVar[bool] = False
    seeds_together: ClassVar[int] = 1

    @abstractmethod
    def poolings(self) -> list[str]:
        """Return the names of the poolings of the zoo that the task can use."""

    @abstractmethod
    def check_dataset(self, name: str) -> None:
        """Refuse a name that is no data set of this task."""

    @abstractmethod
    def prepare(self, dataset: str) -> None:
        """Fetch the data set, or say what is missing, before a sweep starts."""

    @abstractmethod
    def check_settings(self, pooling: str, settings: Any) -> None:
        """Refuse settings that a run with this pooling would refuse. It is called on torch's meta device."""

    def check_protocol(self, protocol: str, options: Mapping[str, Any]) -> None:  # noqa: B027 - most have none
        """Refuse options that contradict the protocol."""

    def check_packages(self, options: Mapping[str, Any]) -> None:  # noqa: B027 - most need none
        """Raise if a run with these options needs a missing package. Stored runs can be read without."""

    @abstractmethod
    def folds(self, protocol: str, options: Mapping[str, Any]) -> int:
        """Return the number of runs of a seed: one per fold, or 1 where one run is tested on all folds."""

    def epochs(self, spec: RunSpec) -> int:
        """Return a number to which the time of a run is proportional; 1 where like runs have as many epochs."""
        return 1

    @abstractmethod
    def run(self, spec: RunSpec, report: Report) -> Result:
        """Train and test."""

    def run_seeds(self, specs: Sequence[RunSpec], report: Report) -> list[Result]:
        """Do several runs that differ in their seeds only; each must come out as it does alone."""
        return [self.run(spec, report) for spec in specs]

    def clean_settings(self, pooling: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options that differ from the defaults; refuse those that a run would refuse.

        Most tasks build the pooling to see whether that works. On the meta device it takes no
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
        """Return whether a seed has one run only, so that runs differ in their seeds and not in their folds."""
        return self.folds(spec.protocol, spec.options) == 1


# The attributes that describe a task to readers or to other parts of the study. They decide no
# number, so they are not hashed.
DESCRIPTIVE = frozenset(Task.__annotations__) - {"settings"}
