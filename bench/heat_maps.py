"""Which instances decide: torchmil's attention model and ours on bags of digits, AUC of bags and of instances.

Bags of 20 to 60 of scikit-learn's handwritten digits; a positive bag has one to three 9s among its images, a
negative one none. Labels of bags are all that a model is trained on; which images are 9s is known to the test
alone. Both models are of torchmil's kind (`ABMIL`, and `UOTMIL` of uotpool.integrations), with the same encoder
of instances, training bags and steps: an epoch of 160 bags in batches of 16, the epoch chosen by the loss of 80
other bags, the test on 160 more, with images of their own.

An instance is scored by the attention of `ABMIL`, and for ours by the mass that the plan puts on it
("marginal") and by what it adds to the logit ("gradient"). The AUC of instances is over the images of positive
test bags.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torchmil.models import ABMIL

from bench.rows import PART, Finding
from bench.session import Session
from bench.witnesses import interval
from uotpool.integrations.torchmil import UOTMIL

TARGET, WIDTH = 9, 32
LEARNING_RATE, BATCH, EPOCHS = 3e-3, 16, 40
PARTS = (160, 80, 160)  # bags for training, for the choice of the epoch, for the test
TABLE = "AUC of bags and of instances: mean over seeds (its 95 % interval)"


class Bags(NamedTuple):
    X: Tensor  # (bags, most images, 64)
    mask: Tensor
    y: Tensor
    witnesses: Tensor  # which images are 9s


def make_bags(count: int, images: Tensor, labels: Tensor, generator: torch.Generator) -> Bags:
    nines, others = images[labels == TARGET], images[labels != TARGET]
    sizes = torch.randint(20, 61, (count,), generator=generator)
    mask = torch.arange(60) < sizes[:, None]
    X = others[torch.randint(len(others), (count, 60), generator=generator)]
    y = torch.arange(count) % 2
    hits = torch.randint(1, 4, (count,), generator=generator) * y
    witnesses = torch.arange(60) < hits[:, None]
    X[witnesses] = nines[torch.randint(len(nines), (int(witnesses.sum()),), generator=generator)]
    return Bags(X * mask.unsqueeze(-1), mask, y, witnesses)


def make_parts(seed: int, counts: tuple[int, int, int] = PARTS) -> list[Bags]:
    """Make bags for training, choice and test, of images that no other part has."""
    generator = torch.Generator().manual_seed(1000 + seed)
    data = load_digits()
    order = torch.randperm(len(data.target), generator=generator)
    images = torch.tensor(data.data / 16, dtype=torch.float32)[order]
    labels = torch.tensor(data.target)[order]
    bounds = [0, 800, 1200, len(order)]
    return [
        make_bags(count, images[begin:end], labels[begin:end], generator)
        for count, begin, end in zip(counts, bounds, bounds[1:], strict=False)
    ]


def encoder() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, WIDTH), nn.ReLU())


MODELS: dict[str, Callable[[], nn.Module]] = {
    "ABMIL (torchmil)": lambda: ABMIL((64,), att_dim=WIDTH, feat_ext=encoder()),
    "ABMIL, gated": lambda: ABMIL((64,), att_dim=WIDTH, gated=True, feat_ext=encoder()),
    "UOTMIL": lambda: UOTMIL((64,), encoder()),
    "UOTMIL, q0 learned": lambda: UOTMIL((64,), encoder(), q0="learned"),
}


def loss_of(model: nn.Module, bags: Bags) -> Tensor:
    (loss,) = model.compute_loss(bags.y, bags.X, bags.mask)[1].values()  # type: ignore[operator]
    return loss


def train(name: str, seed: int, training: Bags, validation: Bags, epochs: int) -> nn.Module:
    torch.manual_seed(seed)
    model = MODELS[name]()
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    order = torch.Generator().manual_seed(2000 + seed)
    best, chosen = math.inf, model
    for _ in range(epochs):
        for some in torch.randperm(len(training.y), generator=order).split(BATCH):
            optimizer.zero_grad()
            loss_of(model, Bags(*(part[some] for part in training))).backward()
            optimizer.step()
        with torch.no_grad():
            found = float(loss_of(model, validation))
        if found < best:
            best, chosen = found, copy.deepcopy(model)
    return chosen


def scores(model: nn.Module, bags: Bags) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the logits of bags, and the scores of instances by their names."""
    with torch.no_grad():
        logits, attention = model(bags.X, bags.mask, return_att=True)
        if not isinstance(model, UOTMIL):
            return logits, {"attention": attention}
        return logits, {"marginal": attention, "gradient": model.predict(bags.X, bags.mask)[1]}


def measure(session: Session) -> list[Finding]:
    torch.set_num_threads(1)
    counts, epochs = ((16, 8, 16), 1) if session.quick else (PARTS, EPOCHS)
    rows: list[Finding] = []
    cases = [(seed, name) for seed in session.seeds for name in MODELS]
    for seed, name in session.track(cases, "heat maps"):
        training, validation, test = make_parts(seed, counts)
        logits, by_kind = scores(train(name, seed, training, validation, epochs), test)
        bag_auc = float(roc_auc_score(test.y.numpy(), logits.numpy()))
        there = test.mask & (test.y == 1).unsqueeze(-1)
        for kind, found in by_kind.items():
            auc = float(roc_auc_score(test.witnesses[there].numpy(), found[there].numpy()))
            rows.append(
                {PART: TABLE, "model": name, "score": kind, "seed": seed, "bags": bag_auc, "instances": auc}
            )
    return rows


def summary(rows: Sequence[Finding]) -> list[Finding]:
    """Return one line per model and score."""
    lines: list[Finding] = []
    for name, kind in dict.fromkeys((str(row["model"]), str(row["score"])) for row in rows):
        own = [row for row in rows if (row["model"], row["score"]) == (name, kind)]
        line: Finding = {PART: TABLE, "model": name, "score of instances": kind}
        for column in ("bags", "instances"):
            values = [float(row[column]) for row in own]
            low, high = interval(values)
            line[column] = f"{sum(values) / len(values):.3f} ({low:.3f} to {high:.3f})"
        lines.append(line)
    return lines
