"""Make the specs of runs from a table of choices, which a sweep file or the command line gives."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from uotpool.zoo import entry
from uotpool_experiments import toml_file
from uotpool_experiments.tasks import load
from uotpool_experiments.tasks.poolings import PAPER, UOTP
from uotpool_experiments.tasks.protocols import FOLDS, PROTOCOLS
from uotpool_experiments.tasks.spec import RunSpec, canonical

MOST_RUNS = 100_000  # of a sweep: enough to keep a machine busy for years, and few enough to be listed
MOST_SEED = 2**32 - 1  # the largest seed of numpy, which draws the folds
BLOCK = {"task", "dataset", "pooling", "protocol", "seeds", "folds", "settings"}


def pooling_names(task: str, given: str | Sequence[str]) -> list[str]:
    """Return names of poolings, with the groups "all", "paper" (its Table 1) and "exact" (our exact
    ones) spelled out.
    """
    known = load(task).poolings()
    groups = {"all": known, "paper": [name for name in PAPER if name in known], "exact": list(UOTP)}
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
    """Return all combinations of the choices.

    Seeds vary slowest, so that a sweep that is stopped has all poolings on some seeds.
    """
    datasets, protocols = _several("dataset", dataset), _several("protocol", protocol)
    chosen = load(task)
    for name in datasets:
        chosen.check_dataset(name)
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
    # We count the combinations before we make them. Some tasks have fewer runs than folds.
    choices = (seed_numbers, datasets, protocols, variants, poolings, fold_numbers)
    _check_count("seeds x data sets x protocols x settings x poolings x folds", math.prod(map(len, choices)))
    clean = [
        {name: canonical(chosen.clean_settings(name, variant)) for name in poolings} for variant in variants
    ]
    for text, rule in itertools.product(dict.fromkeys(t for c in clean for t in c.values()), protocols):
        chosen.check_protocol(rule, json.loads(text))
    combinations = itertools.product(seed_numbers, datasets, protocols, clean, poolings)
    specs = [
        RunSpec(task, data, name, rule, fold, seed, settings[name])
        for seed, data, rule, settings, name in combinations
        for fold in fold_numbers
        if fold < chosen.folds(rule, json.loads(settings[name]))
    ]
    if not specs:
        raise ValueError(
            f"folds: expected 0, as these runs are tested on all folds at once, got {list(fold_numbers)}"
        )
    return list(dict.fromkeys(specs))


def _variants(given: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None) -> list[Mapping[str, Any]]:
    several = [given or {}] if given is None or isinstance(given, Mapping) else given
    tables = isinstance(several, (list, tuple)) and all(isinstance(one, Mapping) for one in several)
    if not tables or not several:
        raise ValueError(f"settings: expected a table or a list of tables, got {given!r}")
    return list(several)


def _check_count(where: object, count: int) -> None:
    if count > MOST_RUNS:
        raise ValueError(f"{where}: expected at most {MOST_RUNS} runs, got {count}; make several sweeps")


def _numbers(name: str, given: int | Sequence[int], count: int, largest: int) -> Sequence[int]:
    """Return the numbers from 0 to `given` - 1, or those of a list. A huge count makes no list."""
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
    """Read the runs of a sweep file, in order, none twice."""
    return list(dict.fromkeys(spec for block in read_blocks(path) for spec in block))


def read_blocks(path: Path) -> list[list[RunSpec]]:
    """Read the runs of each table `[[runs]]` of a sweep file. Its keys are the arguments of `expand`."""
    content = toml_file.read(path)
    blocks = content.get("runs")
    tables = isinstance(blocks, list) and blocks and all(isinstance(block, dict) for block in blocks)
    if not tables or set(content) != {"runs"}:
        raise ValueError(f"{path}: expected tables [[runs]], got {sorted(content)}")
    found: list[list[RunSpec]] = []
    for i, block in enumerate(blocks or []):
        names = set(block)
        if unknown := sorted(names - BLOCK):
            raise ValueError(f"{path}: [[runs]] {i + 1}: expected names among {sorted(BLOCK)}, got {unknown}")
        if missing := sorted({"task", "dataset", "pooling"} - names):
            raise ValueError(f"{path}: [[runs]] {i + 1}: expected task, dataset and pooling, got no {missing}")
        try:
            found.append(expand(**block))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ValueError(f"{path}: [[runs]] {i + 1}: {error}") from error
        _check_count(path, sum(len(specs) for specs in found))
    return found
