"""Many runs: from a table of choices to specs, and from specs to finished runs in the store."""

from __future__ import annotations

import importlib
import itertools
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from uotpool.zoo import ENTRIES, entry
from uotpool_experiments import toml_file
from uotpool_experiments.analysis import published_results as paper
from uotpool_experiments.runs import same_code
from uotpool_experiments.runs.executors import Executor, Failed, Finished, Progress, Started
from uotpool_experiments.runs.fingerprint import TASKS, fingerprint
from uotpool_experiments.runs.progress import Display
from uotpool_experiments.runs.rows import Row
from uotpool_experiments.runs.same_code import SameCode
from uotpool_experiments.runs.store import Store
from uotpool_experiments.tasks.protocols import FOLDS, PROTOCOLS
from uotpool_experiments.tasks.spec import RunSpec, canonical

MOST_RUNS = 100_000  # of a sweep: enough for years of a machine, and few enough to be listed
MOST_SEED = 2**32 - 1  # numpy's, which draws the folds
UOTP = ("uotp-sinkhorn", "uotp-badmm-e", "uotp-badmm-q")
BLOCK = {"task", "dataset", "pooling", "protocol", "seeds", "folds", "settings"}


def task_module(task: str) -> Any:
    if not isinstance(task, str) or task not in TASKS:
        raise ValueError(f"task: expected one of {tuple(TASKS)}, got {task!r}")
    return importlib.import_module(TASKS[task])


def pooling_names(task: str, given: str | Sequence[str]) -> list[str]:
    """Names; "all" is all of the task's, "paper" those of the paper's Table 1, "uotp" the exact ones."""
    known = task_module(task).poolings()
    groups = {
        "all": known,
        "paper": [name for name in paper.POOLINGS if name in known],
        "uotp": list(UOTP),
    }
    found: list[str] = []
    for name in _several("pooling", given):
        found += groups.get(name, [name])
    for name in found:
        entry(name)
        if name not in known:
            raise ValueError(f"pooling: expected one that task {task!r} can use, got {name!r}")
    return list(dict.fromkeys(found))


def expand(
    task: str,
    dataset: str | Sequence[str],
    pooling: str | Sequence[str],
    protocol: str | Sequence[str] = "fair",
    seeds: int | Sequence[int] = 1,
    folds: int | Sequence[int] = FOLDS,
    settings: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
) -> list[RunSpec]:
    """All combinations. Seeds vary slowest, so that a sweep that is stopped has all poolings on some seeds."""
    datasets, protocols = _several("dataset", dataset), _several("protocol", protocol)
    module = task_module(task)
    for name in datasets:
        module.check_dataset(name)
    for name in protocols:
        if name not in PROTOCOLS:
            raise ValueError(f"protocol: expected one of {PROTOCOLS}, got {name!r}")
    poolings = pooling_names(task, pooling)
    variants = _variants(settings)
    seed_numbers = _numbers("seeds", seeds, MOST_RUNS, MOST_SEED)
    fold_numbers = _numbers("folds", folds, FOLDS, FOLDS - 1)
    for what, given in (("dataset", datasets), ("protocol", protocols), ("pooling", poolings)):
        if not given:
            raise ValueError(f"{what}: expected at least one, got none")
    # Before anything is made of them. Some tasks have fewer runs than folds.
    choices = (seed_numbers, datasets, protocols, variants, poolings, fold_numbers)
    _check_count("seeds x data sets x protocols x settings x poolings x folds", math.prod(map(len, choices)))
    clean = [
        {name: canonical(clean_settings(task, name, variant)) for name in poolings} for variant in variants
    ]
    combinations = itertools.product(seed_numbers, datasets, protocols, clean, poolings)
    specs = [
        RunSpec(task, data, name, rule, fold, seed, settings[name])
        for seed, data, rule, settings, name in combinations
        for fold in fold_numbers
        if fold < fold_count(module, rule, settings[name])
    ]
    if not specs:
        raise ValueError(
            f"folds: expected 0, as these runs are tested on all folds at once, got {list(fold_numbers)}"
        )
    return list(dict.fromkeys(specs))


def clean_settings(task: str, pooling: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """As the task's, which makes the pooling to see whether that can be; here its parameters take no memory."""
    module = task_module(task)
    try:
        with torch.device("meta"):
            found: dict[str, Any] = module.clean_settings(pooling, settings)
    except RuntimeError as error:  # torch's, of a size beyond 64 bits
        raise ValueError(f"settings: expected those of a pooling that can be made, got {error}") from error
    return found


def fold_count(module: Any, protocol: str, settings: str) -> int:
    """Runs of a seed: as many as the task says, or one for each fold."""
    count = getattr(module, "folds", None)
    return FOLDS if count is None else count(protocol, json.loads(settings))


def _variants(given: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None) -> list[Mapping[str, Any]]:
    several = [given or {}] if given is None or isinstance(given, Mapping) else given
    tables = isinstance(several, (list, tuple)) and all(isinstance(one, Mapping) for one in several)
    if not tables or not several:
        raise ValueError(f"settings: expected a table or a list of tables, got {given!r}")
    return list(several)


def _check_count(where: object, count: int) -> None:
    if count > MOST_RUNS:
        raise ValueError(f"{where}: expected at most {MOST_RUNS} runs, got {count}; make several sweeps of it")


def _numbers(name: str, given: int | Sequence[int], count: int, largest: int) -> Sequence[int]:
    """A number of them, from 0, or a list of them; a number is not written out, as it may be anything."""
    if type(given) is int and 1 <= given <= count:
        return range(given)
    several = isinstance(given, (list, tuple, range)) and len(given) > 0
    if several and all(type(n) is int and 0 <= n <= largest for n in given):  # type: ignore[union-attr]
        return given  # type: ignore[return-value]
    raise ValueError(
        f"{name}: expected a number (1 to {count}) or a list of numbers (0 to {largest}), got {given!r}"
    )


def _several(name: str, given: str | Sequence[str]) -> list[str]:
    several = [given] if isinstance(given, str) else given
    if not isinstance(several, (list, tuple)) or not all(isinstance(one, str) for one in several):
        raise ValueError(f"{name}: expected a name or a list of names, got {given!r}")
    return list(several)


def read(path: Path) -> list[RunSpec]:
    """The runs of a sweep file, in order, none twice."""
    return list(dict.fromkeys(spec for block in read_blocks(path) for spec in block))


def read_blocks(path: Path) -> list[list[RunSpec]]:
    """The runs of each table `[[runs]]` of a sweep file; what is in one are the arguments of `expand`."""
    content = toml_file.read(path)
    blocks = content.get("runs")
    tables = isinstance(blocks, list) and blocks and all(isinstance(block, dict) for block in blocks)
    if not tables or set(content) != {"runs"}:
        raise ValueError(f"{path}: expected tables [[runs]], got {sorted(content)}")
    found: list[list[RunSpec]] = []
    for i, block in enumerate(blocks or []):
        names = set(block)
        if names - BLOCK or not {"task", "dataset", "pooling"} <= names:
            raise ValueError(
                f"{path}: [[runs]] {i + 1}: expected names among {sorted(BLOCK)}, got {sorted(names)}"
            )
        try:
            found.append(expand(**block))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ValueError(f"{path}: [[runs]] {i + 1}: {error}") from error
        _check_count(path, sum(len(specs) for specs in found))
    return found


@dataclass(frozen=True)
class Plan:
    """What a sweep has to do."""

    todo: list[RunSpec]
    done: int
    core_seconds: float | None  # of what is to do, from like runs in the store; None if there are none

    def __str__(self) -> str:
        hours = "unknown (no like run in the store yet)"
        if self.core_seconds is not None:
            hours = f"{self.core_seconds / 3600:.2f}" if self.core_seconds >= 36 else "under 0.01"
        return f"{len(self.todo)} runs to do, {self.done} done before; core-hours, estimated: {hours}"


def plan(
    specs: Sequence[RunSpec],
    store: Store,
    stored: Iterable[Row] = (),
    like: Iterable[Row] = (),
    same: SameCode = same_code.NONE,
) -> Plan:
    """What is to do.

    Args:
        specs: the runs that are wanted.
        store: those that are finished are in it.
        stored: more finished runs, of a CSV file; those by the present code, or by what is listed as the same.
        like: more runs to estimate from, whatever code they are of.
        same: the list.
    """
    stored = list(stored)
    done = {row.spec for row in stored if is_present(row, same)}
    todo = [spec for spec in _unfinished(specs, store) if spec not in done]
    seconds = _estimate(todo, [*store.rows(), *stored, *like]) if todo else 0.0
    return Plan(todo, len(set(specs)) - len(todo), seconds)


def is_present(row: Row, same: SameCode) -> bool:
    """Whether the present code made this run, or code that is listed as the same."""
    task, pooling = row.spec.task, row.spec.pooling
    if pooling not in ENTRIES:
        return False
    return same.code(task, pooling, row.fingerprint) == same.code(task, pooling, fingerprint(task, pooling))


def _unfinished(specs: Sequence[RunSpec], store: Store) -> list[RunSpec]:
    keys = {spec: spec.key(fingerprint(spec.task, spec.pooling)) for spec in specs}
    done = store.finished(keys.values())
    return [spec for spec, key in keys.items() if key not in done]


def _estimate(todo: Sequence[RunSpec], known: Iterable[Row]) -> float | None:
    """Median seconds, of CPU where known, of the runs most like each: same pooling, else data set, else any.

    Of graphs those of an epoch, as data sets differ in how many they have.
    """
    seen: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for row in known:
        for like in _likes(row.spec):
            seen[like].append((row.cpu_seconds or row.seconds or 0.0) / _epochs(row.spec))
    total = 0.0
    for spec in todo:
        found = next((seen[like] for like in _likes(spec) if like in seen), None)
        if found is None:
            return None
        total += statistics.median(found) * _epochs(spec)
    return total


def _epochs(spec: RunSpec) -> int:
    """By which the seconds of a run grow; 1 where like runs have like numbers of epochs."""
    if spec.task != "graph":
        return 1
    settings = importlib.import_module("uotpool_experiments.tasks.graph.settings").Settings
    epochs: int = settings.from_options(spec.options).epochs_on(spec.dataset)
    return epochs


def _likes(spec: RunSpec) -> list[tuple[str, ...]]:
    """What it has in common with others, the most first."""
    same = (spec.task, spec.dataset, spec.protocol, spec.pooling)
    return [same, same[:3], same[:1]]


@dataclass
class Outcome:
    """How a sweep ended."""

    finished: int = 0
    failed: int = 0
    interrupted: bool = False


def run(todo: Sequence[RunSpec], store: Store, executor: Executor, display: Display) -> Outcome:
    """Do them, and keep each as soon as it is finished.

    Ctrl-C stops the workers, and so does a store that cannot be written; what is finished is kept.
    """
    outcome = Outcome()
    with store.writing(), display:
        todo = _unfinished(todo, store)  # another sweep may have done some since they were planned
        events = executor.run(todo)
        display.begin(len(todo), executor.workers)
        try:
            for event in events:
                spec = event.spec
                code = fingerprint(spec.task, spec.pooling)
                if isinstance(event, Started):
                    display.started(spec)
                elif isinstance(event, Progress):
                    display.progress(spec, event.done, event.total)
                else:
                    error = event.error if isinstance(event, Failed) else _save(event, code, store)
                    if error is None:
                        outcome.finished += 1
                        display.finished(spec)
                    else:
                        store.save_failure(spec, code, error, event.facts)
                        outcome.failed += 1
                        display.failed(spec, error)
        except KeyboardInterrupt:
            outcome.interrupted = True
        finally:
            events.close()  # type: ignore[attr-defined]
    return outcome


def _save(event: Finished, code: str, store: Store) -> str | None:
    """Keep the result, or say why that cannot be."""
    if event.code != code:
        return "the code of this run changed after the sweep had started; start it again"
    try:
        store.save(event.spec, code, event.result, event.facts, event.cpu_seconds)
    except (TypeError, ValueError) as error:  # NaN, say: not JSON
        return f"a result that cannot be stored: {error}"
    return None
