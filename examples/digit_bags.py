"""Is there a 9 in the bag? Six global poolings compared on bags of handwritten digits.

Shows how a UOT pooling layer goes into a model (`BagClassifier`), into an optimiser (`train`), and how to look at
what it has learned (`evaluate`, `draw_plans`). A bag is a set of 5 to 15 images of scikit-learn's digits; the
label says whether the given digit is among them. Bags are of different sizes, so a batch is ragged: the images of
all bags as rows, and `index` with the bag of each row; nothing is padded.

The images are split before bags are drawn: no image is in a bag of both parts. All poolings get the same bags,
the same initial backbone and the same settings, found on validation bags drawn from the training images.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import uotpool
from uotpool import UOTPooling

DIM = 32  # features that are pooled
SIZES = (5, 15)  # smallest and largest bag
BATCH = 64
LR = 1e-2
WEIGHT_DECAY = 1e-4


class Bags(NamedTuple):
    members: list[Tensor]  # for each bag the numbers of its images
    labels: Tensor  # 1.0 if the digit is in the bag

    def ragged(self, images: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
        """The images of some bags as rows (M, 64), and the bag of each row (M,)."""
        members = [self.members[i] for i in which.tolist()]
        index = torch.repeat_interleave(torch.tensor([len(m) for m in members]))
        return images[torch.cat(members)], index


class Result(NamedTuple):
    accuracy: float
    divergence: float | None  # of UOT poolings only
    parameters: int
    seconds: float
    model: BagClassifier


def draw_bags(ids: Tensor, digits: Tensor, target: int, count: int, generator: torch.Generator) -> Bags:
    """Bags of the images `ids`, every other one positive, the first included."""
    is_target = digits[ids] == target
    targets, others = ids[is_target], ids[~is_target]
    labels = (torch.arange(count) + 1) % 2
    members = []
    for label in labels.tolist():
        size = int(torch.randint(SIZES[0], SIZES[1] + 1, (), generator=generator))
        pool = ids if label else others
        bag = pool[torch.randperm(len(pool), generator=generator)[:size]]
        if label and not (digits[bag] == target).any():
            place = torch.randint(size, (), generator=generator)
            bag[place] = targets[torch.randint(len(targets), (), generator=generator)]
        members.append(bag)
    return Bags(members, labels.float())


def make_bags(digits: Tensor, target: int, count: int, seed: int) -> tuple[Bags, Bags]:
    """Bags to train on and bags to test on, of different images."""
    parts = train_test_split(range(len(digits)), test_size=0.4, stratify=digits, random_state=seed)
    generator = torch.Generator().manual_seed(seed)
    train_bags, test_bags = (draw_bags(torch.tensor(p), digits, target, count, generator) for p in parts)
    return train_bags, test_bags


def sum_bags(x: Tensor, index: Tensor, dim_size: int) -> Tensor:
    return x.new_zeros(dim_size, x.shape[1]).index_add(0, index, x)


class MeanPooling(nn.Module):
    def forward(self, x: Tensor, index: Tensor, dim_size: int) -> Tensor:
        return sum_bags(x, index, dim_size) / index.bincount(minlength=dim_size)[:, None]


class MaxPooling(nn.Module):
    def forward(self, x: Tensor, index: Tensor, dim_size: int) -> Tensor:
        out = x.new_zeros(dim_size, x.shape[1])
        return out.scatter_reduce(0, index[:, None].expand_as(x), x, "amax", include_self=False)


class AttentionPooling(nn.Module):
    """softmax(w^T tanh(V x)) over the bag, Ilse et al. 2018."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.score = nn.Sequential(nn.Linear(dim, dim, bias=False), nn.Tanh(), nn.Linear(dim, 1, bias=False))

    def forward(self, x: Tensor, index: Tensor, dim_size: int) -> Tensor:
        score = self.score(x)
        weight = (score - score.max()).exp()
        return sum_bags(weight * x, index, dim_size) / sum_bags(weight, index, dim_size)


POOLINGS: dict[str, Callable[[], nn.Module]] = {
    "mean": MeanPooling,
    "max": MaxPooling,
    "attention": lambda: AttentionPooling(DIM),
    "UOT sinkhorn": lambda: UOTPooling(DIM, solver="sinkhorn"),
    "UOT badmm-e": lambda: UOTPooling(DIM, solver="badmm-e"),
    "UOT badmm-q": lambda: UOTPooling(DIM, solver="badmm-q"),
}


class BagClassifier(nn.Module):
    def __init__(self, make_pool: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, DIM), nn.ReLU())
        self.head = nn.Linear(DIM, 1)
        self.pool = make_pool()  # last, so that backbone and head start alike for every pooling

    def forward(self, rows: Tensor, index: Tensor, num_bags: int) -> Tensor:
        """One logit for each bag."""
        return self.head(self.pool(self.backbone(rows), index, dim_size=num_bags)).squeeze(-1)


def train(
    model: BagClassifier, images: Tensor, bags: Bags, epochs: int, seed: int, tick: Callable[[], None]
) -> None:
    # Weight decay would pull the raw weights of a UOT pooling to 0, which means alpha = 0.69.
    optimiser = torch.optim.Adam(uotpool.param_groups(model, weight_decay=WEIGHT_DECAY), lr=LR)
    order = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for which in torch.randperm(len(bags.labels), generator=order).split(BATCH):
            logits = model(*bags.ragged(images, which), len(which))
            loss = nn.functional.binary_cross_entropy_with_logits(logits, bags.labels[which])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        tick()


@torch.no_grad()
def evaluate(model: BagClassifier, images: Tensor, bags: Bags) -> tuple[float, float | None]:
    """Accuracy, and for a UOT pooling how far its plans are from mean pooling."""
    count = len(bags.labels)
    rows, index = bags.ragged(images, torch.arange(count))
    correct = (model(rows, index, count) > 0) == bags.labels.bool()
    divergence = None
    if isinstance(model.pool, UOTPooling):
        features = model.backbone(rows)
        plan = model.pool.plan(features, index, dim_size=count)
        # A ReLU that never opens gives a feature of zeros: its part of the plan is arbitrary and has no effect.
        stats = uotpool.plan_stats(plan[:, features.any(0)], index=index, dim_size=count)
        divergence = float(stats.divergence.mean())
    return float(correct.float().mean()), divergence


def run(
    name: str,
    images: Tensor,
    train_bags: Bags,
    test_bags: Bags,
    epochs: int,
    seed: int,
    tick: Callable[[], None],
) -> Result:
    torch.manual_seed(seed)  # the initial weights
    start = time.perf_counter()
    model = BagClassifier(POOLINGS[name])
    train(model, images, train_bags, epochs, seed, tick)
    accuracy, divergence = evaluate(model, images, test_bags)
    parameters = sum(p.numel() for p in model.pool.parameters())
    return Result(accuracy, divergence, parameters, time.perf_counter() - start, model)


def make_table(results: dict[str, list[Result]], target: int) -> Table:
    seeds = len(next(iter(results.values())))
    table = Table(
        "pooling", title=f"Is there a {target} in the bag? Mean ± standard deviation of {seeds} seeds"
    )
    for column in ("test accuracy %", "divergence nats", "parameters", "seconds a run"):
        table.add_column(column, justify="right")
    for name, runs in results.items():
        accuracy = [100 * r.accuracy for r in runs]
        spread = f" ± {statistics.stdev(accuracy):.1f}" if len(runs) > 1 else ""
        divergence = [r.divergence for r in runs if r.divergence is not None]
        table.add_row(
            name,
            f"{statistics.mean(accuracy):.1f}{spread}",
            f"{statistics.mean(divergence):.2f}" if divergence else "-",
            f"{runs[0].parameters:,}",
            f"{statistics.mean(r.seconds for r in runs):.1f}",
        )
    return table


@torch.no_grad()
def draw_plans(
    models: dict[str, BagClassifier], images: Tensor, digits: Tensor, bag: Tensor, target: int
) -> Figure:
    """The images of a bag and, below, the share p(n|d) that each UOT pooling gives them in each feature."""
    size = len(bag)
    figure = Figure(figsize=(3.2 + 0.55 * size, 9.5), dpi=150, layout="constrained")
    panels = figure.subplots(1 + len(models), 1, sharex=True, height_ratios=[1.1, *[4] * len(models)])
    strip = torch.cat(list(images[bag].view(size, 8, 8)), dim=1)
    panels[0].imshow(strip.numpy(), cmap="gray_r", extent=(-0.5, size - 0.5, 1, 0), aspect="auto")
    panels[0].set(yticks=[], title=f"A test bag of {size} digits; orange: every {target}")
    heats = []
    for panel, (name, model) in zip(panels[1:], models.items(), strict=True):
        assert isinstance(model.pool, UOTPooling)
        features = model.backbone(images[bag])
        plan = model.pool.plan(features)  # rows without an index are one set
        vote = model.head.weight[0]
        shown = [d for d in vote.argsort().tolist() if features[:, d].any()]  # the others are 0 in this bag
        share = (plan / plan.sum(0)).T[shown]
        heats.append(panel.imshow(share.numpy(), cmap="viridis", aspect="auto", origin="lower"))
        against = int((vote[shown] < 0).sum())
        panel.axhline(against - 0.5, color="white", linestyle=":")
        panel.set_yticks(
            [against / 2 - 0.5, (against + len(shown)) / 2 - 0.5],
            [f"speak against\na {target}", f"speak for\na {target}"],
        )
        chance = float(model(images[bag], torch.zeros_like(bag), 1).sigmoid())
        panel.set(ylabel="features d", title=f"{name}, probability of a {target}: {chance:.2f}")
    for panel in panels:
        panel.tick_params(length=0)
        for n in (digits[bag] == target).nonzero().flatten().tolist():
            panel.axvspan(n - 0.5, n + 0.5, fill=False, edgecolor="tab:orange", linewidth=2.5, clip_on=False)
    panels[-1].set(
        xlabel="samples n (the digit they show)", xticks=range(size), xticklabels=digits[bag].tolist()
    )
    norm = Normalize(0, max(heat.get_array().max() for heat in heats))
    for heat in heats:
        heat.set_norm(norm)  # one scale, so that the panels can be compared
    bar = figure.colorbar(heats[0], ax=panels[1:], label="p(n | d), share of sample n in feature d")
    bar.ax.axhline(1 / size, color="white", linewidth=2)
    bar.ax.text(-0.2, 1 / size, "mean\npooling", ha="right", va="center")
    return figure


def at_least_one(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number >= 1, got {text}")
    return int(text)


def main(argv: list[str] | None = None) -> dict[str, list[Result]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=at_least_one, default=5, help="runs of each pooling (default 5)")
    parser.add_argument("--epochs", type=at_least_one, default=30, help="epochs of a run (default 30)")
    parser.add_argument(
        "--bags", type=at_least_one, default=500, help="bags to train on, and to test on (default 500)"
    )
    parser.add_argument("--digit", type=int, default=9, choices=range(10), help="the digit to find (default 9)")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the picture (default out)")
    args = parser.parse_args(argv)

    torch.set_num_threads(1)  # the tensors are small: threads would cost more than they bring
    uotpool.check(True)  # a NaN ends the program with a clear error
    data = load_digits()
    images, digits = torch.tensor(data.data / 16, dtype=torch.float32), torch.tensor(data.target)
    parts = [make_bags(digits, args.digit, args.bags, seed) for seed in range(args.seeds)]

    console = Console()
    results: dict[str, list[Result]] = {name: [] for name in POOLINGS}
    columns = (TextColumn("{task.description:20}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=args.seeds * len(POOLINGS) * args.epochs)
        tick = partial(progress.advance, task)
        for seed, (train_bags, test_bags) in enumerate(parts):
            for name, runs in results.items():
                progress.update(task, description=f"seed {seed}, {name}")
                runs.append(run(name, images, train_bags, test_bags, args.epochs, seed, tick))

    console.print(make_table(results, args.digit))
    sizes = [len(bag) for _, test_bags in parts for bag in test_bags.members]
    console.print(
        "Divergence of p(n|d) from uniform, mean over the features in use and the test bags: 0 is mean pooling, "
        f"{statistics.mean(map(math.log, sizes)):.2f} (log N) max pooling."
    )

    largest = max(parts[0][1].members[::2], key=len)  # every other bag is positive
    models = {name: runs[0].model for name, runs in results.items() if runs[0].divergence is not None}
    picture = args.out / "digit_bags_plans.png"
    picture.parent.mkdir(parents=True, exist_ok=True)
    draw_plans(models, images, digits, largest, args.digit).savefig(picture)
    console.print(f"Plans of a bag: {picture}", soft_wrap=True)
    console.print(
        "Next: README.md, this file (examples/digit_bags.py), or `python -m uotpool info`.", soft_wrap=True
    )
    return results


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("Stopped.")
