"""Tables of stored runs."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence

from uotpool.zoo import ENTRIES
from uotpool_experiments.analysis import published_results as paper
from uotpool_experiments.analysis.ranking import ranking
from uotpool_experiments.analysis.statistics import Sample, common, outcomes, samples, sign, together
from uotpool_experiments.runs import same_code
from uotpool_experiments.runs.rows import Row
from uotpool_experiments.runs.same_code import SameCode
from uotpool_experiments.tables.table import Table
from uotpool_experiments.tasks import load
from uotpool_experiments.tasks.fingerprint import fingerprint
from uotpool_experiments.tasks.protocols import PROTOCOLS

# The last two are of the hold-out and of the plan of a UOT pooling.
METRICS = ("accuracy", "balanced_accuracy", "top5", "auc", "loss", "validation_loss", "divergence")
Samples = dict[tuple[str, str], Sample]  # by pooling and data set
PLAIN = ("loss", "validation_loss", "divergence")  # not in per cent


def _found(rows: Sequence[Row], protocol: str, metric: str) -> Samples:
    """The samples, or what is missing."""
    chosen = [row for row in rows if row.spec.protocol == protocol]
    if not chosen:
        raise ValueError(f"protocol: expected one with runs, got {protocol!r}, with no run")
    if not (found := samples(chosen, metric)):
        raise ValueError(f"metric: expected one that these runs have, got {metric!r}")
    return found


def _settings(rows: Sequence[Row]) -> str:
    return rows[0].spec.settings if len({row.spec.settings for row in rows}) == 1 else "several"


def with_settings(rows: Sequence[Row]) -> str:
    """For a title: what all runs were set to, if that is not the default."""
    return "" if (found := _settings(rows)) == "{}" else f", settings {found}"


def optimistic(rows: Sequence[Row]) -> str:
    return load(rows[0].spec.task).optimism


class MixedCodeError(ValueError):
    """Runs of several versions of the code would stand in one table."""


def select(
    found: Iterable[Row],
    task: str,
    *,
    stored: bool = False,
    settings: str | None = "{}",
    same: SameCode = same_code.NONE,
) -> tuple[list[Row], list[str]]:
    """The runs to show, and what must be said of them. Only those of the present code, but for `stored`.

    Those with these settings, or with any, for None. What `same` lists as the same code is one version of it;
    of a run that both have, the later one counts.
    """

    def code(row: Row) -> str:
        return same.code(task, row.spec.pooling, row.fingerprint)

    rows = [row for row in found if row.spec.task == task and settings in (None, row.spec.settings)]
    if stored:
        by_pooling: dict[str, set[str]] = {}
        for row in rows:
            by_pooling.setdefault(row.spec.pooling, set()).add(code(row))
        for name, codes in by_pooling.items():
            if len(codes) > 1:
                what = f"the store has runs of {name!r} by {len(codes)} versions of the code"
                raise MixedCodeError(f"{what}; run the sweep again, or show only those of the present code")
        note = "stored runs: one version of the code for each pooling, perhaps not the same one for all"
        return _once(rows), [note, *_joined(rows)]
    names = {row.spec.pooling for row in rows if row.spec.pooling in ENTRIES}
    present = {name: same.code(task, name, fingerprint(task, name)) for name in names}
    now = [row for row in rows if code(row) == present.get(row.spec.pooling)]
    left = len(rows) - len(now)
    notes = [f"{left} runs of other versions of the code are left out"] if left else []
    return _once(now), notes + _joined(now)


def _once(rows: Iterable[Row]) -> list[Row]:
    """Each run once, by the code that ran it last."""
    return list({row.spec: row for row in rows}.values())


def _joined(rows: Iterable[Row]) -> list[str]:
    """Which poolings have runs of several fingerprints that are listed as the same code."""
    codes: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        codes[row.spec.pooling].add(row.fingerprint)
    names = sorted(name for name, found in codes.items() if len(found) > 1)
    what = "runs of several versions of the code, the same by a repeated run (same_code.toml)"
    return [f"{what}: {', '.join(names)}"] if names else []


def on_common_runs(found: Samples) -> Samples:
    """On each data set only the runs that all poolings there have; without data sets that have no such run."""
    shared: Samples = {}
    for dataset in dict.fromkeys(d for _, d in found):
        keys = [key for key in found if key[1] == dataset]
        parts = common([found[key] for key in keys])
        shared |= {key: part for key, part in zip(keys, parts, strict=True) if len(part)}
    return shared


def accuracy_table(
    rows: Sequence[Row], protocol: str, metric: str = "accuracy", *, own_runs: bool = False
) -> Table:
    """Poolings by data sets, mean +- standard deviation in per cent, with the paper's numbers and ranks.

    A cell is of the runs that all poolings have on the data set, as ranks and tests are; with `own_runs`, of
    all that the pooling has.
    """
    every = _found(rows, protocol, metric)
    found = every if own_runs else on_common_runs(every)
    poolings = _ordered(every)
    datasets = list(dict.fromkeys(d for _, d in every))
    ranked = ranking(found, sign(metric))
    mean_ranks = {} if ranked is None else dict(zip(ranked.poolings, ranked.mean, strict=True))
    most = {d: max([len(s) for (_, name), s in found.items() if name == d], default=0) for d in datasets}
    beside = metric == "accuracy" and protocol == "paper" and _settings(rows) == "{}"
    head = ["pooling" if protocol == "fair" else f"pooling ({protocol} protocol, optimistic)"]
    for name in datasets:
        head.append(name)
        if beside and any((p, name) in paper.TABLE_1 for p in poolings):
            head += [f"{name}, {what}" for what in ("published", "difference")]
    table = Table(f"{metric}, protocol {protocol}{with_settings(rows)}", [*head, "mean rank"], [])
    for p in poolings:
        cells = [p]
        for column, name in enumerate(head[1:], 1):
            dataset, _, what = name.partition(", ")
            number, sample = paper.TABLE_1.get((p, dataset)), found.get((p, dataset))
            if what == "published":
                cells.append(f"{number.mean:.2f} ± {number.std:.2f}" if number else "")
            elif what == "difference":
                cells.append(_difference(table, (len(table.rows), column), sample, number))
            else:
                cells.append(cell(sample, metric, most[dataset]))
        table.rows.append([*cells, f"{mean_ranks[p]:.1f}" if p in mean_ranks else ""])
    _mark_best(table, found, poolings, head, sign(metric))
    if metric == "accuracy":
        table.rows.append(_majority_row(rows, protocol, head, found))
    unit = "" if metric in PLAIN else ", per cent"
    runs = sorted({(len(s), s.seeds) for s in found.values()})
    brackets = ", in brackets where they are fewer than others'" if len(runs) > 1 else ""
    alone = all(load(row.spec.task).stands_alone(row.spec) for row in rows if row.spec.protocol == protocol)
    over = "seeds" if alone else "folds and seeds"
    whose = "" if own_runs else " that all poolings of the table have"
    table.notes.append(
        f"mean ± standard deviation over {over}{whose}{unit}; runs a cell{brackets}: " + _counts(runs)
    )
    left = sum(map(len, every.values())) - sum(map(len, found.values()))
    if left:
        table.notes.append(f"{left} runs that not all poolings have are left out (--runs own shows them)")
    if any(name.endswith(", difference") for name in head):
        table.notes.append(
            "difference: ours less the published one, in points; ▲ ▼ where it is more than two standard "
            "deviations, of both together (with one run of ours, its own taken as that of the paper)"
        )
    if ranked is not None:
        where = ", ".join(ranked.datasets)
        table.notes.append(f"mean rank: on the runs that all poolings have, over {where}")
    table.notes += _diverged([row for row in rows if row.spec.protocol == protocol])
    if protocol == "paper":
        table.notes.append(optimistic(rows))
    return table


def _difference(
    table: Table, place: tuple[int, int], sample: Sample | None, number: paper.Published | None
) -> str:
    """Ours less the published one, marked in the table where chance alone does not explain it."""
    if sample is None or number is None:
        return ""
    points = 100 * sample.mean - number.mean
    own = 100 * sample.std if len(sample) > 1 else number.std
    if abs(points) > 2 * math.hypot(own, number.std):
        table.marks[place] = "above" if points > 0 else "below"
    return f"{points:+.2f}"


def cell(sample: Sample | None, metric: str, most: int = 0) -> str:
    """With the number of runs in brackets where it is less than `most`."""
    if sample is None:
        return ""
    unit, digits = (1, 3) if metric in PLAIN else (100, 2)
    fewer = f" [{len(sample)}]" if len(sample) < most else ""
    spread = f" ± {unit * sample.std:.{digits}f}" if len(sample) > 1 else ""
    return f"{unit * sample.mean:.{digits}f}{spread}{fewer}"


def _diverged(rows: Iterable[Row]) -> list[str]:
    """Which poolings had runs whose loss was not finite at some time."""
    runs: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        runs[row.spec.pooling].append(row)
    found = []
    for pooling, theirs in runs.items():
        some = sum(bool(row.details.get("diverged")) for row in theirs)
        never = sum(row.details.get("epoch") == 0 for row in theirs)
        if some:
            found.append(f"{pooling} in {some} of {len(theirs)} runs ({never} of them without a finite epoch)")
    return [f"a loss was not finite: {'; '.join(found)}"] if found else []


def _counts(runs: Sequence[tuple[int, int]]) -> str:
    return ", ".join(f"{n} ({seeds} seed{'s' if seeds > 1 else ''})" for n, seeds in runs) or "none"


def _ordered(found: Samples) -> list[str]:
    present = {p for p, _ in found}
    first = [p for p in paper.POOLINGS if p in present]
    return first + sorted(present - set(first))


def _majority_row(rows: Sequence[Row], protocol: str, head: Sequence[str], found: Samples) -> list[str]:
    """On the runs of the cells above it."""
    share = samples([row for row in rows if row.spec.protocol == protocol], "majority")
    cells = ["(majority class)"]
    for name in head[1:]:
        above = {case for (_, d), s in found.items() if d == name for case in s.values}
        known = {c: v for (_, d), s in share.items() if d == name for c, v in s.values.items() if c in above}
        cells.append(cell(Sample(known), "majority") if known else "")
    return [*cells, ""]


def _mark_best(
    table: Table,
    found: Samples,
    poolings: Sequence[str],
    head: Sequence[str],
    better: int,
) -> None:
    for column, name in enumerate(head[1:], 1):
        means = {i: found[p, name].mean for i, p in enumerate(poolings) if (p, name) in found}
        if means:
            best = max(better * mean for mean in means.values())
            table.best |= {(i, column) for i, mean in means.items() if better * mean == best}


def optimism_table(rows: Sequence[Row], metric: str = "accuracy") -> Table:
    """The paper's protocol less the fair one, in points, on the folds and seeds that both have.

    Of graphs under "paper" a run is the mean of all folds, so seeds are compared.
    """
    by_protocol = {p: samples([row for row in rows if row.spec.protocol == p], metric) for p in PROTOCOLS}
    by_seed = any(load(row.spec.task).stands_alone(row.spec) for row in rows)
    gaps = {
        key: _gap(ours, by_protocol["fair"].get(key), by_seed) for key, ours in by_protocol["paper"].items()
    }
    both = [key for key, gap in gaps.items() if gap is not None]
    if not both:
        raise ValueError("protocol: expected the same runs under both protocols, got no such run")
    datasets = list(dict.fromkeys(d for _, d in both))
    fair = [row for row in rows if row.spec.protocol == "fair"]
    title = f"protocol paper less protocol fair ({metric}, points{with_settings(fair)})"
    table = Table(title, ["pooling", *datasets], [])
    for p in _ordered({key: by_protocol["fair"][key] for key in both}):
        found = [gaps.get((p, d)) for d in datasets]
        table.rows.append([p, *("" if gap is None else f"{100 * gap:+.2f}" for gap in found)])
    table.notes.append(optimistic(rows))
    return table


def _gap(paper_runs: Sample, fair_runs: Sample | None, by_seed: bool) -> float | None:
    """On the folds and seeds that both have, or the seeds."""
    if fair_runs is None:
        return None
    if by_seed:
        paper_runs, fair_runs = paper_runs.by_seed(), fair_runs.by_seed()
    both = common([paper_runs, fair_runs])
    return both[0].mean - both[1].mean if len(both[0]) else None


def comparison_table(
    rows: Sequence[Row], pooling: str, protocol: str = "fair", metric: str = "accuracy"
) -> Table:
    """One pooling against all others: difference in points and the verdict of the corrected test."""
    found = _found(rows, protocol, metric)
    datasets = [d for (p, d) in found if p == pooling]
    if not datasets:
        raise ValueError(f"pooling: expected one with runs under {protocol!r}, got {pooling!r}, with no run")
    scale, unit = (1, "") if metric in PLAIN else (100, ", points")
    table = Table(
        f"{pooling} less each other pooling ({metric}{unit}; protocol {protocol}{with_settings(rows)})",
        ["against", *datasets, "wins", "ties", "losses"],
        [],
    )
    found_out = outcomes(found, pooling, sign(metric))
    for other in _ordered(found):
        if other == pooling:
            continue
        cells, verdicts = [], []
        for d in datasets:
            outcome = found_out.get((other, d))
            cells.append(f"{scale * outcome.difference:+.2f} ({outcome.p_value:.2f})" if outcome else "")
            verdicts.append(outcome.verdict if outcome else "")
        table.rows.append([other, *cells, *(str(verdicts.count(v)) for v in ("win", "tie", "loss"))])
    table.notes.append(
        "in brackets: p of the paired t-test with the correction of Nadeau and Bengio; verdicts at 5 %, "
        "each test by itself"
    )
    table.notes.append(_in_words(together(found_out)))
    if protocol == "paper":
        table.notes.append(optimistic(rows))
    return table


def _in_words(verdicts: dict[tuple[str, str], str]) -> str:
    counts = []
    for verdict, plural in (("win", "wins"), ("loss", "losses")):
        cases = [f"{other} on {dataset}" for (other, dataset), v in verdicts.items() if v == verdict]
        counts.append(f"{len(cases)} {plural}" + (f" ({', '.join(cases)})" if cases else ""))
    n = len(verdicts)
    few = f"some {n / 20:.0f} come" if n >= 20 else "fewer than one comes"
    chance = f"of {n} tests {few} out at 5 % by chance"
    return f"{chance}; after Holm's correction of all of them: {', '.join(counts)}"


def cost_table(rows: Sequence[Row], protocol: str = "fair") -> Table:
    """Seconds of a run by pooling and data set, as a multiple of mean pooling too, and parameters."""
    chosen = [row for row in rows if row.spec.protocol == protocol and row.seconds is not None]
    if not chosen:
        raise ValueError(f"protocol: expected one with runs, got {protocol!r}, with no run")
    seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
    parameters: dict[str, int] = {}
    for row in chosen:
        seconds[row.spec.pooling, row.spec.dataset].append(row.cpu_seconds or row.seconds or 0.0)
        parameters[row.spec.pooling] = max(parameters.get(row.spec.pooling, 0), row.parameters or 0)
    datasets = list(dict.fromkeys(d for _, d in seconds))
    median = {key: statistics.median(values) for key, values in seconds.items()}
    table = Table(
        f"seconds of a run, protocol {protocol}{with_settings(chosen)}",
        ["pooling", *datasets, "parameters"],
        [],
    )
    for pooling in sorted(parameters, key=by_pooling):
        cells = [pooling]
        for d in datasets:
            own, base = median.get((pooling, d)), median.get(("mean", d))
            times = f" ({own / base:.2f} x)" if own is not None and base else ""
            cells.append("" if own is None else f"{own:.1f}{times}")
        table.rows.append([*cells, str(parameters[pooling])])
    table.notes.append(
        "median over folds and seeds, one thread; in brackets: as a multiple of mean pooling; "
        "parameters of the whole model, the largest of these data sets"
    )
    return table


def by_pooling(pooling: str) -> tuple[int, str]:
    known = pooling in paper.POOLINGS
    return (paper.POOLINGS.index(pooling) if known else len(paper.POOLINGS), pooling)
