"""Retrieval of images of classes that were never trained on: R@1 and R@5 by descriptor, some 15 CPU minutes.

Local descriptors are feature maps of EfficientNet-Lite0 with ImageNet's weights, frozen: of CIFAR-10 at 128 x
128 pixels, 64 positions with 112 channels. A head turns the positions of an image into one descriptor of length
1 and is trained by a supervised contrastive loss (temperature 0.1) on five classes, drawn for each seed. Then
every image of the other five classes looks for the nearest ones among all of these: R@k is the share of images
that have one of their own class among the first k.

All heads have the same batches and number of Adam steps; of two learning rates, each head and seed takes the
one with the larger R@1 on held-out images of its training classes. Pooled vectors are mapped to 512 numbers by
a linear layer; `netvlad` has 16 clusters of 112, `salad` and `UOTAssignment` 16 of 32. "untrained" is R@1 of
the same images before the first step. Heads that can be fitted begin with clusters of 500 training images.
`python -m bench retrieval-settings` is the development behind the settings of `UOTAssignment`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from uotpool_experiments.datasets import images, status
from uotpool_experiments.tasks.image import models

from bench.rows import PART, Finding
from bench.session import Session
from bench.witnesses import interval
from uotpool import Learned, UOTAssignment
from uotpool.zoo import Pooling, build

DATASET, SIDE, BLOCK = "cifar10-subset", 128, 10  # the last block whose map is 8 x 8
WIDTH, CLUSTERS, VALUES = 512, 16, 32
RATES, STEPS, PER_CLASS, TEMPERATURE = (1e-3, 3e-3), 200, 16, 0.1
TRAINED, CHECKED, SEARCHED = 250, 50, 200  # images of a class
FITTED = 500  # images to which clusters are fitted
TABLE = "retrieval from held-out classes, in per cent: mean over seeds (its 95 % interval)"


class Pooled(nn.Module):
    """A pooling of the zoo, a linear layer, length 1."""

    def __init__(self, name: str, dim: int, **options: Any) -> None:
        super().__init__()
        self.pool = build(name, dim, **options)
        self.linear = nn.Linear(self.pool.out_dim, WIDTH)

    def forward(self, X: Tensor) -> Tensor:
        return functional.normalize(self.linear(self.pool(X)), dim=-1)


Make = Callable[[int], nn.Module]


def assignment(**options: Any) -> Make:
    return lambda dim: UOTAssignment(dim, CLUSTERS, VALUES, **options)


HEADS: dict[str, Make] = {
    "mean": lambda dim: Pooled("mean", dim),
    "max": lambda dim: Pooled("max", dim),
    "gem": lambda dim: Pooled("gem", dim),
    "uotp-single": lambda dim: Pooled("uotp-single", dim),
    'uotp-single, start="mean"': lambda dim: Pooled("uotp-single", dim, scale=Learned(0.0)),
    "netvlad": lambda dim: build("netvlad", dim, clusters=CLUSTERS),
    "salad": lambda dim: build("salad", dim, clusters=CLUSTERS, value_dim=VALUES),
    "UOTAssignment": assignment(),
    "UOTAssignment, dustbin=False": assignment(dustbin=False),
}


class Part(NamedTuple):
    X: Tensor  # (images, positions, channels)
    y: Tensor


@torch.no_grad()
def feature_maps(session: Session, dataset: str, per_class: int) -> Part:
    """Return the descriptors of some images of each class, computed once and kept in the session's folder."""
    path = session.out / f"retrieval-{dataset}-{per_class}.pt"
    if path.exists():
        found = torch.load(path, weights_only=True)
        return Part(found["X"], found["y"])
    data = images.load(dataset)
    assert isinstance(data.x_train, Tensor)
    chosen = torch.cat([(data.y_train == c).nonzero().flatten()[:per_class] for c in range(data.classes)])
    net = models.make(models.EFFICIENTNET, 3, 0, SIDE, small_stem=False, trained=True, weights=None).eval()
    blocks: nn.ModuleList = net.net._blocks  # of the package
    last: list[Tensor] = []
    blocks[BLOCK].register_forward_hook(lambda module, given, out: last.append(out))
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in models.LITE)
    parts = []
    for some in session.track(chosen.split(50), "feature maps"):
        x = data.x_train[some]
        pixels = (x.unsqueeze(-1).expand(*x.shape, 3) if x.dim() == 3 else x).permute(0, 3, 1, 2).float() / 255
        net((functional.interpolate(pixels, SIDE, mode="bilinear") - mean) / std)
        parts.append(last.pop().flatten(2).transpose(1, 2).half())
    found = Part(torch.cat(parts), data.y_train[chosen])
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(found._asdict(), path)
    return found


def split(data: Part, seed: int, sizes: tuple[int, int, int]) -> tuple[Part, Part, Part]:
    """Return images to train on and to check on, of five classes, and images of the others to search."""
    order = torch.randperm(10, generator=torch.Generator().manual_seed(1000 + seed))
    trained, checked, searched = sizes

    def some(classes: Tensor, begin: int, end: int) -> Part:
        places = torch.cat([(data.y == c).nonzero().flatten()[begin:end] for c in classes])
        return Part(data.X[places].float(), data.y[places])

    ours, others = order[:5], order[5:]
    return some(ours, 0, trained), some(ours, trained, trained + checked), some(others, 0, searched)


def contrast(z: Tensor, y: Tensor) -> Tensor:
    """Return the supervised contrastive loss of descriptors (Khosla et al. 2020)."""
    itself = torch.eye(len(y), dtype=torch.bool)
    logits = (z @ z.T / TEMPERATURE).masked_fill(itself, -1e9)
    same = ((y[:, None] == y) & ~itself).float()
    return -((logits.log_softmax(1) * same).sum(1) / same.sum(1)).mean()


def start(make: Make, seed: int, part: Part, *, fit: bool = True) -> nn.Module:
    """Make a head, and fit it if it can be fitted to images of all classes."""
    torch.manual_seed(seed)
    head = make(part.X.shape[-1])
    if fit and isinstance(head, Pooling):
        head.fit(part.X[:: max(1, len(part.X) // FITTED)])
    return head


def train(head: nn.Module, seed: int, rate: float, part: Part, steps: int) -> nn.Module:
    optimizer = torch.optim.Adam(head.parameters(), lr=rate)
    draws = torch.Generator().manual_seed(2000 + seed)
    by_class = [(part.y == c).nonzero().flatten() for c in part.y.unique()]
    for _ in range(steps):
        batch = torch.cat([b[torch.randint(len(b), (PER_CLASS,), generator=draws)] for b in by_class])
        optimizer.zero_grad()
        contrast(head(part.X[batch]), part.y[batch]).backward()
        optimizer.step()
    return head


@torch.no_grad()
def recall(head: nn.Module, part: Part, ks: Sequence[int] = (1, 5)) -> list[float]:
    """Return, for each k, the share of images with one of their class among the k nearest others."""
    z = torch.cat([head(X) for X in part.X.split(200)])
    near = (z @ z.T).fill_diagonal_(-torch.inf).topk(max(ks)).indices
    hit = part.y[near] == part.y[:, None]
    return [100 * float(hit[:, :k].any(1).float().mean()) for k in ks]


def measure(session: Session) -> list[Finding]:
    if not status(DATASET).present:  # it cannot be fetched
        return []
    torch.set_num_threads(1)
    sizes, steps = amounts(session)
    data = feature_maps(session, DATASET, sum(sizes[:2]))
    rows: list[Finding] = []
    cases = [(seed, name) for seed in session.seeds for name in HEADS]
    for seed, name in session.track(cases, "retrieval"):
        training, check, search = split(data, seed, sizes)
        begin = start(HEADS[name], seed, training)
        untrained = recall(begin, search)[0]
        heads = [train(copy.deepcopy(begin), seed, rate, training, steps) for rate in RATES]
        rate, head = max(zip(RATES, heads, strict=True), key=lambda pair: recall(pair[1], check)[0])
        width = head(search.X[:1]).shape[1]
        first, fifth = recall(head, search)
        about: Finding = {PART: TABLE, "head": name, "width": width, "seed": seed, "lr": rate}
        rows.append({**about, "untrained": untrained, "R@1": first, "R@5": fifth})
    return rows


def amounts(session: Session) -> tuple[tuple[int, int, int], int]:
    """Return the numbers of images of a class, as `split` takes them, and that of steps."""
    return ((4, 2, 4), 1) if session.quick else ((TRAINED, CHECKED, SEARCHED), STEPS)


def summary(rows: Sequence[Finding]) -> list[Finding]:
    """Return one line per head."""
    lines: list[Finding] = []
    for name in dict.fromkeys(str(row["head"]) for row in rows):
        own = [row for row in rows if row["head"] == name]
        line: Finding = {PART: TABLE, "head": name, "width": own[0]["width"]}
        for column in ("untrained", "R@1", "R@5"):
            values = [float(row[column]) / 100 for row in own]
            low, high = interval(values)
            line[column] = f"{100 * sum(values) / len(values):.1f} ({100 * low:.1f} to {100 * high:.1f})"
        lines.append(line)
    return lines
