"""What the plans of trained UOT poolings look at in a bag of handwritten digits."""

from __future__ import annotations

import statistics
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from sklearn.datasets import load_digits
from torch import Tensor

from uotpool import UOTPooling
from uotpool_experiments.datasets import digits
from uotpool_experiments.figures.problems import LABELS
from uotpool_experiments.solvers import SOLVERS
from uotpool_experiments.tasks.mil import training
from uotpool_experiments.tasks.mil.task import MultiInstance
from uotpool_experiments.tasks.spec import RunSpec

MARK = "#D55E00"  # Okabe and Ito
SHOWN = 24  # features: those with the largest weights in the vote


def draw(seed: int, quick: bool) -> tuple[Figure, list[str]]:
    """Train each layer on the first fold, show its plan of the largest positive test bag."""
    fitted = {solver: _fit(solver, seed, quick) for solver in SOLVERS}
    first = next(iter(fitted.values()))
    positive = [b for b in range(len(first.test)) if first.test.y[b]]
    chosen = max(positive, key=lambda b: int(first.test.sizes[b]))  # the first of the largest
    data, bags = load_digits(), digits.members()
    assert first.parts is not None  # these bags are of a data set
    members = [bags[bag] for bag in first.parts.test]
    nines = [[i for i, image in enumerate(bag) if data.target[image] == digits.TARGET] for bag in members]
    images, targets = members[chosen], nines[chosen]

    size: dict[str, Any] = {"figsize": (2.6 + 0.5 * len(images), 8.6), "layout": "constrained", "sharex": True}
    figure, axes = plt.subplots(1 + len(fitted), 1, height_ratios=[1.1, *[3.2] * len(fitted)], **size)
    _strip(axes[0], torch.from_numpy(data.images[images] / 16))
    axes[0].set_title(f"A test bag of {len(images)} digits; framed: each {digits.TARGET}", fontsize=10)
    words, heats = [], []
    for ax, (solver, found) in zip(axes[1:], fitted.items(), strict=True):
        shares, chances, divergence = _plans(found)
        share, chance = shares[chosen], chances[chosen]
        vote = found.model.head.weight[0].detach()
        order = vote.abs().argsort(descending=True)[:SHOWN]
        order = order[vote[order].argsort()]
        heats.append(ax.imshow(share[:, order].T.numpy(), cmap="viridis", aspect="auto", origin="lower"))
        _votes(ax, int((vote[order] < 0).sum()), len(order))
        ax.set_title(f"{LABELS[solver]}: probability of a {digits.TARGET} is {chance:.2f}", fontsize=10)
        voting = [_share_of_rows(shares[b][:, vote > 0], nines[b]) for b in (chosen, *positive)]
        uniform = statistics.mean(len(nines[b]) / len(members[b]) for b in positive)
        words.append(
            f"{LABELS[solver]}: in features that vote for a {digits.TARGET}, the {digits.TARGET}s have "
            f"{voting[0]:.0%} of the mass in this bag ({len(targets)} of {len(images)} samples), and "
            f"{statistics.mean(voting[1:]):.0%} on average over {len(positive)} positive test bags "
            f"(mean pooling: {uniform:.0%}); plans are {divergence:.2f} nats from uniform"
        )
    most = max(float(heat.get_array().max()) for heat in heats)
    for heat in heats:
        heat.set_clim(0, most)  # one scale, so that the panels can be compared
    for ax in axes:
        ax.tick_params(length=0)
        low, high = sorted(ax.get_ylim())
        for n in targets:
            frame = Rectangle((n - 0.5, low), 1, high - low, fill=False, edgecolor=MARK, linewidth=2.5)
            ax.add_patch(frame).set_clip_on(False)
    axes[-1].set_xticks(range(len(images)), [str(data.target[image]) for image in images])
    axes[-1].set_xlabel("samples n (the digit they show)")
    bar = figure.colorbar(heats[0], ax=axes[1:], label="p(n | d), share of sample n in feature d", shrink=0.7)
    bar.ax.axhline(1 / len(images), color="white", linewidth=2)
    place: dict[str, Any] = {"xytext": (-4, 0), "textcoords": "offset points", "ha": "right", "va": "center"}
    bar.ax.annotate("mean\npooling", (0, 1 / len(images)), fontsize=8, **place)
    return figure, words


def _fit(solver: str, seed: int, quick: bool) -> training.Fitted:
    settings = {"epochs": 2} if quick else {}
    dataset = MultiInstance.default_dataset
    choices = {"task": "mil", "dataset": dataset, "pooling": f"uotp-{solver}", "protocol": "fair"}
    torch.set_num_threads(1)
    return training.fit(RunSpec.make(settings, **choices, fold=0, seed=seed), lambda done, total: None)


@torch.no_grad()
def _plans(found: training.Fitted) -> tuple[list[Tensor], list[float], float]:
    """p(n|d) and the probability of a 9 for each test bag, and the mean divergence from uniform."""
    uot = found.model.pool
    assert isinstance(uot, UOTPooling)
    test = found.test
    problem = uot.problem(found.model.features(test.X), ptr=test.ptr)
    P = problem.plan(uot.solver)
    shares = [own / own.sum(0) for own in P.split(test.sizes.tolist())]
    chances = found.model(test.X, test.ptr).sigmoid().tolist()
    return shares, chances, float(problem.stats(P).divergence.mean())


def _share_of_rows(share: Tensor, rows: list[int]) -> float:
    """How much of the mass of some features is on these samples of a bag."""
    return float(share[rows].sum() / share.sum())


def _strip(ax: Axes, images: Tensor) -> None:
    """The images side by side, each as wide as a column of the plans below."""
    strip = torch.cat(list(images), dim=1)
    ax.imshow(strip.numpy(), cmap="gray_r", extent=(-0.5, len(images) - 0.5, 0, 1), aspect="auto")
    ax.set_yticks([])


def _votes(ax: Axes, against: int, features: int) -> None:
    """Label the features that vote against a 9, below, and for it, above."""
    ax.axhline(against - 0.5, color="white", linestyle=":")
    middles = {against / 2 - 0.5: against, (against + features) / 2 - 0.5: features - against}
    names = [f"against a {digits.TARGET}", f"for a {digits.TARGET}"]
    there = [(place, name) for (place, count), name in zip(middles.items(), names, strict=True) if count]
    ax.set_yticks([place for place, _ in there], [f"vote\n{name}" for _, name in there])
    ax.set_ylabel("features d")
