"""What the paper claims of UOT pooling, and what the committed runs say of each claim."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from uotpool_experiments.analysis.paired import BEST, POWER, Ahead, best_others, paired
from uotpool_experiments.analysis.samples import Samples, samples
from uotpool_experiments.runs.rows import Row
from uotpool_experiments.solvers import SOLVERS
from uotpool_experiments.tables.manifest import Manifest
from uotpool_experiments.tables.settings import flat, written
from uotpool_experiments.tables.table import EMPTY, Cell, Column, Lead, Line, Number, Table, Text

MARGIN = 2.0  # points: a difference that is smaller counts as none
DEFAULT_MODULES = 4  # the K of a run whose settings say nothing
SOCIAL = ("COLLAB", "IMDB-BINARY", "IMDB-MULTI", "REDDIT-BINARY", "REDDIT-MULTI-5K")
BEST_ON_SOCIAL = "UOTP with BADMM is best on the five social networks"
LIKE_OTHERS_ON_BAGS = "UOTP is comparable with other poolings on bags"
CONSISTENT = "UOTP is consistently near the best"
FLAT_IN_K = "the number of modules K hardly matters"
FLAT_IN_PRIORS = "learned and fixed priors are alike"
HOLDS, FAILS, OPEN, NOT_RUN = "holds", "does not hold", "open", "not run"


@dataclass(frozen=True)
class Finding:
    """One comparison that speaks for or against a claim.

    Attributes:
        claim: what the paper says.
        compared: what is compared, the first less the second.
        datasets: the data sets that have both.
        ahead: the difference over these; None if there are none.
        of_no_difference: whether the claim is that the two are alike, not that the first is better.
    """

    claim: str
    compared: str
    datasets: tuple[str, ...] = ()
    ahead: Ahead | None = None
    of_no_difference: bool = False

    @property
    def verdict(self) -> str:
        """What the interval says: a lead must be above 0, and no difference within `MARGIN` on both sides."""
        if self.ahead is None:
            return NOT_RUN
        low, high = self.ahead.points.low, self.ahead.points.high
        if self.of_no_difference:
            if max(-low, high) < MARGIN:
                return HOLDS
            return FAILS if low > MARGIN or high < -MARGIN else OPEN
        return HOLDS if low > 0 else FAILS if high < 0 else OPEN


def claims_table(manifests: Sequence[Manifest]) -> Table:
    """Make one line for each comparison, with its interval, its power and its verdict."""
    table = Table(
        "the paper's claims",
        [
            *map(Column.label, ("claim", "compared")),
            *map(Column, ("data sets", "difference", "would have been shown", "verdict")),
        ],
    )
    for one in findings(manifests):
        cells: tuple[Cell, Cell] = (EMPTY, EMPTY)
        if one.ahead is not None:
            points = one.ahead.points
            power = Number(one.ahead.smallest, ".1f") if math.isfinite(one.ahead.smallest) else EMPTY
            cells = Lead(points.value, points.low, points.high), power
        line = (Text(one.compared), Text(", ".join(one.datasets)), *cells, Text(one.verdict))
        table.lines.append(Line.of(one.claim, *line))
    table.notes += [
        "differences in points of accuracy on the runs that both have, bags under the fair protocol, graphs "
        "under the paper's; intervals: 95 %, Student's t over the data sets (over runs on one alone; none "
        "for a single run)",
        f"a lead {HOLDS} if its interval is above 0; no difference {HOLDS} if the interval is within "
        f"{MARGIN:g} points on both sides, and {FAILS} if it is wholly outside; else the claim is {OPEN}",
        f"would have been shown: a difference of this size has an interval without 0 in {100 * POWER:.0f} % of "
        "such studies",
        f"{BEST} pooling of a seed is the one that is best on the other seeds of its data set; with a single "
        "seed nothing says which is best",
        "intervals on a single data set are over its seeds or folds, with the correction of Nadeau and Bengio "
        "for the data that these share, as in tables of comparisons; no verdict is corrected for their number",
        *_social_without_verdict(manifests),
    ]
    return table


def _social_without_verdict(manifests: Sequence[Manifest]) -> list[str]:
    """Say which social networks have no line, and why."""
    graphs = {
        key: s for found in manifests if found.task == "graph" for key, s in found.compared_samples().items()
    }
    run, judged = {d for _, d in graphs}, {d for _, d in best_others(graphs)}
    reasons = {
        "too few seeds to say which other pooling is best": [d for d in SOCIAL if d in run - judged],
        "not run": [d for d in SOCIAL if d not in run],
    }
    without = [f"{', '.join(names)} ({reason})" for reason, names in reasons.items() if names]
    return [f"social networks without a verdict: {'; '.join(without)}"] if without else []


def findings(manifests: Sequence[Manifest]) -> Iterator[Finding]:
    """Compare what each claim is about, in the paper's order."""
    by_task = {found.task: found for found in manifests}
    compared = {task: found.compared_samples() for task, found in by_task.items()}
    graphs, bags = compared.get("graph", {}), compared.get("mil", {})
    social = {(p, d): sample for (p, d), sample in graphs.items() if d in SOCIAL}
    for solver in ("badmm-e", "badmm-q"):
        yield from _on_each(BEST_ON_SOCIAL, social, f"uotp-{solver}-paper", BEST)
    for solver in SOLVERS:
        yield _finding(LIKE_OTHERS_ON_BAGS, bags, f"uotp-{solver}-paper", "mean", of_no_difference=True)
    for solver in SOLVERS:
        yield from _on_each(CONSISTENT, graphs | bags, f"uotp-{solver}-paper", BEST, of_no_difference=True)
    layers = [f"uotp-{solver}{suffix}" for suffix in ("-paper", "") for solver in SOLVERS]
    rows = [row for found in manifests if found.compared for row in _with_any_settings(found)]
    for layer in layers:
        found = _by_setting(rows, layer, "pool.K")
        most, least = _most_modules(layer, found), f"{layer} with pool.K=1"
        yield from _on_each(FLAT_IN_K, found, most, least, of_no_difference=True)
    for layer in layers:
        found = _by_setting(rows, layer, "pool.p0", "pool.q0")
        learned, fixed = f"{layer} with pool.p0=learned, pool.q0=learned", f"{layer} as it is"
        yield from _on_each(FLAT_IN_PRIORS, found, learned, fixed, of_no_difference=True)


def _finding(claim: str, found: Samples, first: str, other: str, *, of_no_difference: bool = False) -> Finding:
    """Compare two poolings, of which the other may be `BEST`."""
    known = found | best_others(found)
    compared = f"{first} less {other.removeprefix(f'{first.split(maxsplit=1)[0]} ')}"
    datasets = tuple(d for p, d in known if p == first and (other, d) in known)
    if not datasets:
        return Finding(claim, compared, of_no_difference=of_no_difference)
    return Finding(claim, compared, datasets, paired(known, first, other).every, of_no_difference)


def _on_each(
    claim: str, found: Samples, first: str, other: str, *, of_no_difference: bool = False
) -> Iterator[Finding]:
    """Compare on each data set by itself: the claim is about each, or there are two that may agree by luck."""
    datasets = dict.fromkeys(dataset for _, dataset in found)
    parts = [{key: sample for key, sample in found.items() if key[1] == dataset} for dataset in datasets]
    compared = [_finding(claim, part, first, other, of_no_difference=of_no_difference) for part in parts]
    run = [one for one in compared if one.ahead is not None]
    yield from run or [_finding(claim, {}, first, other, of_no_difference=of_no_difference)]


def _most_modules(layer: str, found: Samples) -> str:
    """Name the largest K, which is compared with K = 1, the least that transports anything."""
    given = [name.rpartition("=")[2] for name, _ in found if "=" in name]
    counts = [int(count) for count in given if count.isdecimal()]  # not "converged"
    return f"{layer} with pool.K={max(counts, default=DEFAULT_MODULES)}"


def _with_any_settings(found: Manifest) -> list[Row]:
    """Return the runs under the protocol of those that are compared."""
    assert found.compared is not None
    rows, _ = found.source.select_all(found.task)
    return [row for row in rows if row.spec.protocol == found.compared.protocol]


def _by_setting(rows: Sequence[Row], pooling: str, *names: str) -> Samples:
    """Return the accuracies of runs of a pooling that differ in nothing but these settings."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        options = flat(json.loads(row.spec.settings))
        if row.spec.pooling == pooling and set(options) <= set(names):
            groups.setdefault(
                f"{pooling} with {written(options)}" if options else f"{pooling} as it is", []
            ).append(row)
    return {
        (name, dataset): sample
        for name, group in groups.items()
        for (_, dataset), sample in samples(group, "accuracy").items()
    }
