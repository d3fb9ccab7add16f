"""Which pooling of a frozen sentence encoder tells good reviews from bad ones? Prints the table of the docs.

The encoder is MiniLM (all-MiniLM-L6-v2, 22 million weights, 384 features), which was trained with mean pooling.
It stays as it is: a pooling and a linear head are trained on its token embeddings. The texts are 4,500 IMDB
reviews, half of them good, cut off after 128 tokens; `bench/reviews.py` says where they are from.

Mean, maximum and class token are the package's own module `Pooling`, attention is that of the zoo, and the UOT
pooling is the module for sentence-transformers. The head is the same linear layer for all. A seed decides which
500 of the 2,500 training reviews are for validation, the first weights and the order of the batches. The
validation reviews choose the epoch by their loss (training ends after three epochs without a lower one); those
of the first seed also choose one of three learning rates for each pooling. The 2,000 test reviews, the same for
all, test each chosen model once. The three rates were taken before the first test: on another split of the
training reviews, mean, maximum and class token had the least validation loss of five rates (up to 0.1) at one
of these, and `uotp-single`, the default layer then, that of three (up to 0.03). Attention had no such trial.
The layer with a learned prior over tokens, of the form of that attention, was added when the test accuracy of
attention was known. Runs that are in the CSV file already are not repeated, and token embeddings are kept in
the folder of results.
"""

from __future__ import annotations

import copy
import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from scipy import stats
from torch import Tensor, nn

from bench import reviews
from bench.report import markdown
from bench.reviews import Sizes, Tokens
from bench.rows import PART, Finding
from bench.session import Session
from uotpool import Learned, SamplePrior, param_groups
from uotpool.zoo import build, entry

LEARNING_RATES = (1e-3, 3e-3, 1e-2)
EPOCHS, PATIENCE, BATCH = 20, 3, 32
HIDDEN = 64  # of attention
TABLE = "test accuracy in per cent: mean over seeds (its 95 % interval)"
MEAN = "mean"
SINGLE = dict(entry("uotp-single").options)  # the default layer when this was measured first


class Zoo(nn.Module):
    """A pooling of the zoo with the call of the modules of sentence-transformers."""

    def __init__(self, name: str, dim: int) -> None:
        super().__init__()
        self.pool = build(name, dim, HIDDEN)

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        pooled = self.pool(features["token_embeddings"], mask=features["attention_mask"])
        return features | {"sentence_embedding": pooled}


def _own(mode: str) -> Callable[[int], nn.Module]:
    def make(dim: int) -> nn.Module:
        from sentence_transformers.sentence_transformer.modules import Pooling  # noqa: PLC0415 (takes seconds)

        module: nn.Module = Pooling(dim, pooling_mode=mode)
        return module

    return make


def _uot(hidden: int = 0, **options: Any) -> Callable[[int], nn.Module]:
    def make(dim: int) -> nn.Module:
        from uotpool.integrations.sentence_transformers import UOTPooling  # noqa: PLC0415 (takes seconds)

        prior = {"q0": SamplePrior(dim, hidden)} if hidden else {}
        module: nn.Module = UOTPooling(dim, **SINGLE | options | prior)
        return module

    return make


POOLINGS: dict[str, Callable[[int], nn.Module]] = {
    MEAN: _own("mean"),
    "max": _own("max"),
    "class token": _own("cls"),
    "attention": lambda dim: Zoo("attention", dim),
    "uotp-single": _uot(),
    'uotp-single, start="mean"': _uot(scale=Learned(0.0)),
    "uotp-single, learned q0": _uot(HIDDEN),
}


@dataclass(frozen=True)
class Run:
    """A line of the CSV file."""

    pooling: str
    seed: int
    learning_rate: float  # the chosen one
    epoch: int  # the chosen one, from 1
    validation_loss: float
    accuracy: float  # of the test reviews


class Classifier(nn.Module):
    def __init__(self, pool: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.pool, self.head = pool, head

    def forward(self, features: dict[str, Any]) -> Tensor:
        logits: Tensor = self.head(self.pool(features)["sentence_embedding"])
        return logits


class Pooled(nn.Module):
    """What takes the place of a pooling that learns nothing: its output is computed once for all reviews."""

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        return features


@dataclass(frozen=True)
class Embeddings:
    """Reviews that are pooled already."""

    pooled: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def features(self, chosen: Tensor) -> dict[str, Any]:
        return {"sentence_embedding": self.pooled[chosen]}


Data = Tokens | Embeddings


@torch.no_grad()
def pooled(pool: nn.Module, data: Tokens) -> Embeddings:
    parts = [pool(data.features(some))["sentence_embedding"] for some in torch.arange(len(data)).split(256)]
    return Embeddings(torch.cat(parts), data.y)


@torch.no_grad()
def logits(model: Classifier, data: Data, chosen: Tensor) -> Tensor:
    return torch.cat([model(data.features(some)) for some in chosen.split(256)])


def fit(
    model: Classifier, data: Data, train: Tensor, validation: Tensor, rate: float, epochs: int, seed: int
) -> tuple[float, int, Classifier]:
    """Train; return the least loss of the validation reviews, its epoch, and the model of that epoch."""
    groups = [group for group in param_groups(model, 0.0) if group["params"]]
    optimizer = torch.optim.Adam(groups, lr=rate)
    order = torch.Generator().manual_seed(2000 + seed)
    best, epoch, chosen = math.inf, 0, model
    for step in range(1, epochs + 1):
        for some in train[torch.randperm(len(train), generator=order)].split(BATCH):
            loss = nn.functional.cross_entropy(model(data.features(some)), data.y[some])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        found = float(nn.functional.cross_entropy(logits(model, data, validation), data.y[validation]))
        if found < best:
            best, epoch, chosen = found, step, copy.deepcopy(model)
        elif step - epoch == PATIENCE:
            break
    return best, epoch, chosen


def run(
    pooling: str, seed: int, rates: Sequence[float], data: Data, test: Data, sizes: Sizes, dim: int, epochs: int
) -> Run:
    """Choose one of the learning rates and the epoch by the validation reviews, and test once."""
    split = torch.randperm(len(data), generator=torch.Generator().manual_seed(1000 + seed))
    train, validation = split[: sizes.train], split[sizes.train :]
    fits = []
    for rate in rates:
        torch.manual_seed(seed)
        head = nn.Linear(dim, 2)  # before the pooling, so that all poolings get the same
        pool = Pooled() if isinstance(data, Embeddings) else POOLINGS[pooling](dim)
        fits.append((*fit(Classifier(pool, head), data, train, validation, rate, epochs, seed), rate))
    loss, epoch, model, rate = min(fits, key=lambda found: found[0])
    right = logits(model, test, torch.arange(len(test))).argmax(1) == test.y
    return Run(pooling, seed, rate, epoch, loss, float(right.double().mean()))


def read(path: Path) -> list[Run]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        kinds = {"pooling": str, "seed": int, "epoch": int}
        return [
            Run(**{f.name: kinds.get(f.name, float)(row[f.name]) for f in fields(Run)})
            for row in csv.DictReader(file)
        ]


def append(path: Path, done: Run) -> None:
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Run)], lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(asdict(done))


def cell(values: Sequence[float], sign: str = "") -> str:
    """Return the mean in per cent with its 95 % interval by Student's t."""
    points = 100 * torch.tensor(values, dtype=torch.float64)
    text = f"{float(points.mean()):{sign}.2f}"
    if len(values) < 2:
        return text
    half = float(stats.t.ppf(0.975, len(values) - 1)) * float(points.std()) / math.sqrt(len(values))
    low, high = float(points.mean()) - half, float(points.mean()) + half
    return f"{text} ({low:{sign}.2f} to {high:{sign}.2f})"


def lines(runs: Sequence[Run]) -> list[Finding]:
    """Return one line per pooling: accuracy, and its difference from mean pooling, seed by seed."""
    by = {name: {found.seed: found for found in runs if found.pooling == name} for name in POOLINGS}
    table: list[Finding] = []
    for name, own in by.items():
        if not own:
            continue
        both = [seed for seed in own if seed in by[MEAN]]
        differences = [own[seed].accuracy - by[MEAN][seed].accuracy for seed in both]
        line: Finding = {PART: TABLE, "pooling": name}
        line["accuracy"] = cell([found.accuracy for found in own.values()])
        line["difference from mean"] = "" if name == MEAN else cell(differences, "+")
        line["learning rate"] = f"{next(iter(own.values())).learning_rate:g}"
        table.append(line)
    return table


def page(runs: Sequence[Run], sizes: Sizes) -> str:
    seeds = len({found.seed for found in runs})
    rates = ", ".join(f"{rate:g}" for rate in LEARNING_RATES)
    return f"""# Poolings of a sentence encoder

Written by `python -m bench sentences`; `bench/sentences.py` says what is trained, `bench/reviews.py` where the
texts are from. Every run is in `runs.csv`. Frozen MiniLM, {sizes.train} IMDB reviews for training,
{sizes.validation} for the choice of the epoch (of at most {EPOCHS}) and, by the first seed, of the learning
rate (of {rates}), {sizes.test} for the test, at most {sizes.length} tokens each; {HIDDEN} hidden units in
attention; {seeds} seeds.

Test accuracy in per cent: the mean over seeds with its 95 % interval (Student's t), which says what training
leaves to chance. The test reviews are the same for all seeds: another {sizes.test} would move all poolings
together, by some {100 * math.sqrt(0.25 * 0.75 / sizes.test):.1f} points (one standard deviation, at 75 %).
The learned prior was added when the accuracy of attention was known.

{markdown(lines(runs))}
"""


def measure(session: Session) -> list[Finding]:
    """Goes on with the runs that are there, and writes the table beside them."""
    torch.set_num_threads(1)
    sizes = reviews.TINY if session.quick else Sizes()
    epochs = 1 if session.quick else EPOCHS
    folder = session.runs / "sentences"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "runs.csv"
    done = {(found.pooling, found.seed) for found in read(path)}
    missing = {name: [seed for seed in session.seeds if (name, seed) not in done] for name in POOLINGS}
    if any(missing.values()):
        data, test = reviews.load(sizes, session.out / "sentences", tiny=session.quick)
        dim = data.X.shape[-1]
        for name, seeds in missing.items():
            pool = POOLINGS[name](dim)
            parts: tuple[Data, Data] = (data, test)
            if seeds and not list(pool.parameters()):
                parts = pooled(pool, data), pooled(pool, test)
            for seed in session.track(seeds, name):
                chosen = [found.learning_rate for found in read(path) if found.pooling == name][:1]
                append(path, run(name, seed, chosen or LEARNING_RATES, *parts, sizes, dim, epochs))
    runs = read(path)
    (folder / "README.md").write_text(page(runs, sizes))
    return [{PART: TABLE} | asdict(found) for found in runs]


def summary(rows: Sequence[Finding]) -> list[Finding]:
    """Return one line per pooling."""
    names = [field.name for field in fields(Run)]
    return lines([Run(**{name: row[name] for name in names}) for row in rows])  # type: ignore[arg-type]
