"""Is there a 9 in the bag? Six global poolings compared on bags of handwritten digits.

Shows how a UOT pooling goes into a model (`BagClassifier`) and its optimiser (`train`), and how to look at what
it has learned (`evaluate`, `draw_plans`). A bag is a set of 5 to 15 of scikit-learn's digits, its label says
whether a given digit is among them. A batch of bags is ragged: the images of all bags as rows, and `index` with
the bag of each row; nothing is padded.

The images are split before bags are drawn, so no image is both trained and tested on. All poolings get the same
bags, the same initial weights around them and the same settings, which were chosen by the mean accuracy of all
six on validation bags drawn from the training images.
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
DATA = load_digits()
IMAGES = torch.tensor(DATA.data / 16, dtype=torch.float32)  # (1797, 64)
DIGITS = torch.tensor(DATA.target)


class Bags(NamedTuple):
    members: list[Tensor]  # for each bag the numbers of its images
    labels: Tensor  # 1.0 if the digit is in the bag, else 0.0

    def ragged(self, which: Tensor) -> tuple[Tensor, Tensor]:
        """Some bags as a batch: their images as rows (M, 64), and the bag of each row (M,)."""
        members = [self.members[i] for i in which.tolist()]
        index = torch.repeat_interleave(torch.tensor([len(m) for m in members]))
        return IMAGES[torch.cat(members)], index


def draw_bags(ids: Tensor, target: int, count: int, generator: torch.Generator) -> Bags:
    """Bags from the images `ids`; the first, third, ... are positive."""
    there = DIGITS[ids] == target
    labels = (torch.arange(count) + 1) % 2
    members = []
    for label in labels.tolist():
        size = int(torch.randint(5, 16, (), generator=generator))
        pool = ids if label else ids[~there]
        bag = pool[torch.randperm(len(pool), generator=generator)[:size]]
        if label and not (DIGITS[bag] == target).any():
            place = torch.randint(size, (), generator=generator)
            bag[place] = ids[there][torch.randint(int(there.sum()), (), generator=generator)]
        members.append(bag)
    return Bags(members, labels.float())


def make_bags(target: int, count: int, seed: int) -> tuple[Bags, Bags]:
    """Bags to train on and bags to test on, of different images."""
    parts = train_test_split(range(len(DIGITS)), test_size=0.4, stratify=DIGITS, random_state=seed)
    generator = torch.Generator().manual_seed(seed)
    train_bags, test_bags = (draw_bags(torch.tensor(ids), target, count, generator) for ids in parts)
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
    """Each sample weighed by softmax(w^T tanh(V x)) over its bag, Ilse et al. 2018."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.score = nn.Sequential(nn.Linear(dim, dim, bias=False), nn.Tanh(), nn.Linear(dim, 1, bias=False))

    def forward(self, x: Tensor, index: Tensor, dim_size: int) -> Tensor:
        weight = self.score(x).exp()  # tanh keeps the score small
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
        self.backbone = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, DIM))
        self.head = nn.Linear(DIM, 1)
        self.pool = make_pool()  # last, so that backbone and head start alike for every pooling

    def forward(self, rows: Tensor, index: Tensor, num_bags: int) -> Tensor:
        """One logit for each bag."""
        return self.head(self.pool(self.backbone(rows), index, dim_size=num_bags)).squeeze(-1)


def train(model: BagClassifier, bags: Bags, epochs: int, seed: int, tick: Callable[[], None]) -> None:
    # No weight decay for the raw weights of a UOT pooling: it would pull every alpha to 0.69.
    optimiser = torch.optim.Adam(uotpool.param_groups(model, weight_decay=1e-4), lr=1e-2)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for which in torch.randperm(len(bags.labels), generator=generator).split(64):
            logits = model(*bags.ragged(which), len(which))
            loss = nn.functional.binary_cross_entropy_with_logits(logits, bags.labels[which])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        tick()


@torch.no_grad()
def evaluate(model: BagClassifier, bags: Bags) -> tuple[float, float | None]:
    """Accuracy, and for a UOT pooling how far its plans are from mean pooling."""
    count = len(bags.labels)
    rows, index = bags.ragged(torch.arange(count))
    right = (model(rows, index, count) > 0) == bags.labels.bool()
    divergence = None
    if isinstance(model.pool, UOTPooling):
        plan = model.pool.plan(model.backbone(rows), index, dim_size=count)
        divergence = float(uotpool.plan_stats(plan, index=index, dim_size=count).divergence.mean())
    return float(right.double().mean()), divergence


class Result(NamedTuple):
    model: BagClassifier
    accuracy: float
    divergence: float | None
    seconds: float


def run(name: str, bags: tuple[Bags, Bags], epochs: int, seed: int, tick: Callable[[], None]) -> Result:
    train_bags, test_bags = bags
    torch.manual_seed(seed)  # the initial weights
    start = time.perf_counter()
    model = BagClassifier(POOLINGS[name])
    train(model, train_bags, epochs, seed, tick)
    return Result(model, *evaluate(model, test_bags), time.perf_counter() - start)


def make_table(results: dict[str, list[Result]], target: int) -> Table:
    table = Table("pooling", title=f"Is there a {target} in the bag?")
    for column in ("test\naccuracy %", "divergence\nnats", "pooling\nparameters", "seconds\na run"):
        table.add_column(column, justify="right")
    for name, runs in results.items():
        accuracy = [100 * r.accuracy for r in runs]
        spread = f" ± {statistics.stdev(accuracy):.1f}" if len(runs) > 1 else ""
        divergence = [r.divergence for r in runs if r.divergence is not None]
        table.add_row(
            name,
            f"{statistics.mean(accuracy):.1f}{spread}",
            f"{statistics.mean(divergence):.2f}" if divergence else "-",
            str(sum(p.numel() for p in runs[0].model.pool.parameters())),
            f"{statistics.mean(r.seconds for r in runs):.1f}",
        )
    return table


@torch.no_grad()
def draw_plans(models: dict[str, BagClassifier], bag: Tensor, target: int) -> Figure:
    """The images of a bag and, below, the share p(n|d) that each UOT pooling gives them in each feature."""
    size = len(bag)
    figure = Figure(figsize=(3.2 + 0.55 * size, 9.5), dpi=150, layout="constrained")
    panels = figure.subplots(1 + len(models), 1, sharex=True, height_ratios=[1.1, *[4] * len(models)])
    strip = torch.cat(list(IMAGES[bag].view(size, 8, 8)), dim=1)
    panels[0].imshow(strip.numpy(), cmap="gray_r", extent=(-0.5, size - 0.5, 1, 0), aspect="auto")
    panels[0].set(yticks=[], title=f"A test bag of {size} digits; orange: every {target}")
    heats = []
    for panel, (name, model) in zip(panels[1:], models.items(), strict=True):
        assert isinstance(model.pool, UOTPooling)
        plan = model.pool.plan(model.backbone(IMAGES[bag]))  # rows without an index are one set
        vote, order = model.head.weight[0].sort()  # the weight of a feature in the logit
        share = (plan / plan.sum(0))[:, order].T
        heats.append(panel.imshow(share.numpy(), cmap="viridis", aspect="auto", origin="lower"))
        against = int((vote < 0).sum())
        panel.axhline(against - 0.5, color="white", linestyle=":")
        middles = [against / 2 - 0.5, (against + DIM) / 2 - 0.5]
        panel.set_yticks(middles, [f"vote against\na {target}", f"vote for\na {target}"])
        chance = float(model(IMAGES[bag], torch.zeros_like(bag), 1).sigmoid())
        panel.set(ylabel="features d", title=f"{name}, probability of a {target}: {chance:.2f}")
    for panel in panels:
        panel.tick_params(length=0)
        for n in (DIGITS[bag] == target).nonzero().flatten().tolist():
            panel.axvspan(n - 0.5, n + 0.5, fill=False, edgecolor="tab:orange", linewidth=2.5, clip_on=False)
    panels[-1].set_xticks(range(size), [str(digit) for digit in DIGITS[bag].tolist()])
    panels[-1].set_xlabel("samples n (the digit they show)")
    norm = Normalize(0, max(heat.get_array().max() for heat in heats))
    for heat in heats:
        heat.set_norm(norm)  # one scale, so that the panels can be compared
    bar = figure.colorbar(heats[0], ax=panels[1:], label="p(n | d), share of sample n in feature d")
    bar.ax.axhline(1 / size, color="white", linewidth=2)
    bar.ax.text(-0.2, 1 / size, "mean\npooling", ha="right", va="center")
    return figure


def at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number >= 1, got {text}")
    return int(text)


def main(argv: list[str] | None = None) -> dict[str, list[Result]]:
    parser = argparse.ArgumentParser(description="Poolings compared on bags of handwritten digits.")
    parser.add_argument("--seeds", type=at_least_one, default=5, help="runs of each pooling (%(default)s)")
    parser.add_argument("--epochs", type=at_least_one, default=30, help="epochs of a run (%(default)s)")
    parser.add_argument("--bags", type=at_least_one, default=500, help="bags of each part (%(default)s)")
    parser.add_argument("--digit", type=int, choices=range(10), default=9, help="digit to find (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the picture (%(default)s)")
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)

    torch.set_num_threads(1)  # the tensors are small: more threads cost more than they bring
    uotpool.check(True)  # a NaN in the features is an error at once
    all_bags = [make_bags(args.digit, args.bags, seed) for seed in range(args.seeds)]
    results: dict[str, list[Result]] = {name: [] for name in POOLINGS}
    console = Console()
    columns = (TextColumn("{task.description:20}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=args.seeds * len(POOLINGS) * args.epochs)
        tick = partial(progress.advance, task)
        for seed, bags in enumerate(all_bags):
            for name, runs in results.items():
                progress.update(task, description=f"seed {seed}, {name}")
                runs.append(run(name, bags, args.epochs, seed, tick))
    console.print(make_table(results, args.digit))
    log_n = statistics.mean(math.log(len(bag)) for _, test_bags in all_bags for bag in test_bags.members)
    console.print("Accuracy: mean ± standard deviation over the seeds.")
    console.print(f"Divergence of p(n|d) from uniform: 0 is mean pooling, {log_n:.2f} (log N) max pooling.")

    models = {name: runs[0].model for name, runs in results.items() if name.startswith("UOT")}
    bag = max(all_bags[0][1].members[::2], key=len)  # the first of the largest positive bags
    picture = args.out / "digit_bags_plans.png"
    draw_plans(models, bag, args.digit).savefig(picture)
    console.print(f"Plans of one test bag: {picture}", soft_wrap=True)
    console.print("Next: README.md, the code of this in examples/, or `.venv/bin/python -m uotpool info`.")
    return results


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("Stopped.")
