"""Which parts of `UOTAssignment` matter for retrieval, by development data: some 10 CPU minutes for 5 seeds.

As `bench/retrieval.py`, but on Fashion-MNIST: five classes to train on, images of the five others to search, so
that the images and classes of that measurement stay untouched. One learning rate, the smaller one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from uotpool_experiments.datasets import status

from bench.retrieval import (
    HEADS,
    RATES,
    Make,
    amounts,
    assignment,
    feature_maps,
    recall,
    split,
    start,
    train,
)
from bench.retrieval import summary as summary_of
from bench.rows import PART, Finding
from bench.session import Session

DATASET, CLASSES = "fashion-mnist", 100  # the seeds of classes begin here
TABLE = "development on Fashion-MNIST, R@1 in per cent: mean over seeds (its 95 % interval)"
FREE, BALANCED = 0.0, 1e6
NOT_FITTED = ", not fitted"
SETTINGS: dict[str, Make] = {
    "mean": HEADS["mean"],
    "uotp-single": HEADS["uotp-single"],
    'uotp-single, start="mean"': HEADS['uotp-single, start="mean"'],
    "netvlad": HEADS["netvlad"],
    "salad": HEADS["salad"],
    f"hidden layer, no centres{NOT_FITTED}": lambda dim: assignment(hidden=dim, centred=False)(dim),
    f"no centres{NOT_FITTED}": assignment(centred=False),
    f"alpha0 = 0.1, no centres{NOT_FITTED}": assignment(alpha0=0.1, centred=False),
    f"with centres{NOT_FITTED}": assignment(),
    "no centres, fitted": assignment(centred=False),
    "the default: with centres, fitted": assignment(),
    "dustbin=False": assignment(dustbin=False),
    "dustbin=False, balanced": assignment(dustbin=False, alpha1=BALANCED, alpha2=BALANCED),
    "dustbin=False, softmax over clusters": assignment(dustbin=False, alpha1=FREE, alpha2=BALANCED),
}


def measure(session: Session) -> list[Finding]:
    if not status(DATASET).present:
        return []
    torch.set_num_threads(1)
    sizes, steps = amounts(session)
    data = feature_maps(session, DATASET, sum(sizes[:2]))
    rows: list[Finding] = []
    cases = [(seed, name) for seed in session.seeds for name in SETTINGS]
    for seed, name in session.track(cases, "retrieval-settings"):
        training, _, search = split(data, CLASSES + seed, sizes)
        begin = start(SETTINGS[name], seed, training, fit=NOT_FITTED not in name)
        untrained = recall(begin, search)[0]
        first, fifth = recall(train(begin, seed, RATES[0], training, steps), search)
        width = begin(search.X[:1]).shape[1]
        about: Finding = {PART: TABLE, "head": name, "width": width, "seed": seed}
        rows.append({**about, "untrained": untrained, "R@1": first, "R@5": fifth})
    return rows


def summary(rows: Sequence[Finding]) -> list[Finding]:
    """Return one line per setting."""
    return [{**line, PART: TABLE} for line in summary_of(rows)]
