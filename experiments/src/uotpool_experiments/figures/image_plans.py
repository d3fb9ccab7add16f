"""Where the learned plan of a pretrained network looks, on test images of each class."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from uotpool import AdaptiveUOTPool2d
from uotpool_experiments.datasets import images as data
from uotpool_experiments.datasets import status
from uotpool_experiments.datasets.images import DIGITS, Images
from uotpool_experiments.tasks import checkpoints
from uotpool_experiments.tasks.image.recipes import Job, two_stage
from uotpool_experiments.tasks.image.settings import Settings
from uotpool_experiments.tasks.spec import RunSpec, canonical

DATASET = "cifar10-subset"
POOLING = "uotp-badmm-e"  # the paper's choice for images
EACH = 3  # images of a class
CLASSES = 10
TEST_BATCH = 64
# The pool alone learns, on what the frozen network gives it once, so that epochs are cheap.
SETTINGS: dict[str, Any] = {"recipe": "two-stage", "pool_epochs": 20, "optimizer2": "adam", "lr2": 0.01}
PRETRAINED = SETTINGS | {"arch": "efficientnet-lite0", "size": 160, "epochs": 20, "train_size": 2000}


def draw(seed: int, quick: bool) -> tuple[Figure, list[str]]:
    """On CIFAR-10 with ImageNet's weights where the images are at hand, else on digits, trained here."""
    pretrained = status(DATASET).present and not quick
    here = SETTINGS | ({"epochs": 1, "pool_epochs": 2} if quick else {"epochs": 10})
    dataset, options = (DATASET, PRETRAINED) if pretrained else (DIGITS, here)
    settings = Settings(**options)
    images = data.load(dataset).of_size(settings.train_size)
    spec = RunSpec("image", dataset, POOLING, "fair", 0, seed, canonical(options))
    job = Job.of(spec, settings, images, lambda done, total: None)
    result = two_stage(job)
    checkpoints.remove(job.key)
    chosen = torch.stack([(job.test.y == c).nonzero()[:EACH, 0] for c in range(CLASSES)])  # (CLASSES, EACH)
    maps = torch.stack([_maps(job, row) for row in chosen])  # (CLASSES, EACH, h, w)
    everywhere = _maps(job, torch.arange(min(1000, len(job.test.y))))
    labels = job.test.y[: len(everywhere)]
    by_class = torch.stack([everywhere[labels == c].mean(0) for c in range(CLASSES)])
    spread = everywhere.flatten(1).max(1).values.mean() / everywhere.flatten(1).min(1).values.mean()
    words = [
        f"{dataset}, {settings.arch}, {POOLING} after {settings.stage_two_epochs} epochs of the pool alone: "
        f"accuracy {100 * result.details['accuracy_before']:.1f} % with the average, "
        f"{100 * result.metrics['accuracy']:.1f} % with the plan; divergence from uniform "
        f"{result.details['divergence']:.3f} nats; the heaviest position of an image weighs {spread:.2f} times "
        "the lightest"
    ]
    return _figure(images, chosen, maps, by_class), words


@torch.no_grad()
def _maps(job: Job, which: Tensor) -> Tensor:
    """Mass of each position, (B, h, w), as a multiple of a uniform plan's."""
    network = job.network.eval()
    pool = network.pool
    assert isinstance(pool, AdaptiveUOTPool2d)
    parts = [pool.plan(network.features(job.test.batch(part))).sum(1) for part in which.split(TEST_BATCH)]
    q = torch.cat(parts)
    return q * q[0].numel()


def _figure(images: Images, chosen: Tensor, maps: Tensor, by_class: Tensor) -> Figure:
    assert isinstance(images.x_test, Tensor)
    figure, axes = plt.subplots(2 * EACH + 1, CLASSES, figsize=(11, 8), layout="constrained")
    away = float((maps - 1).abs().max())
    shades = {"cmap": "PuOr_r", "vmin": 1 - away, "vmax": 1 + away}
    for column in range(CLASSES):
        for row in range(EACH):
            i = int(chosen[column, row])
            picture = images.x_test[i].numpy()
            gray = picture if picture.ndim == 2 or picture.shape[-1] == 3 else picture[..., 0]
            axes[2 * row, column].imshow(gray, cmap="gray", interpolation="nearest")
            ax = axes[2 * row + 1, column]
            shown = ax.imshow(maps[column, row].numpy(), interpolation="nearest", **shades)
        axes[-1, column].imshow(by_class[column].numpy(), interpolation="nearest", **shades)
        axes[0, column].set_title(f"class {column}", fontsize=9)
    for row, label in ((0, "image"), (1, "mass"), (2 * EACH, "mean of\nthe class")):
        axes[row, 0].set_ylabel(label, fontsize=9)
    for ax in axes.flat:
        ax.set_xticks([])
        ax.set_yticks([])
    figure.colorbar(shown, ax=axes, label="mass of a position, 1 = average pooling", shrink=0.5, pad=0.01)
    return figure
