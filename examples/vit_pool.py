"""A small vision transformer of transformers, trained on handwritten digits with three poolings.

"class" takes the class token (ViT), "mean" averages the patch tokens (the ViT of I-JEPA), and "uot" is the
second with UOT pooling of the patch tokens, which begins as the mean. Run it with

    python -m examples.vit_pool
    python -m examples.vit_pool --pools uot --seeds 0 --epochs 5
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from transformers import IJepaConfig, IJepaForImageClassification, ViTConfig, ViTForImageClassification

from uotpool import Learned, UOTPooling, param_groups

POOLS = ("class", "mean", "uot")
SIZES = {
    **{"image_size": 8, "patch_size": 2, "num_channels": 1, "num_labels": 10},
    **{"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64},
}


class Pooled(nn.Module):
    """A transformer and a classifier with UOT pooling of the patch tokens between them.

    Args:
        encoder: model of transformers that returns `last_hidden_state`.
        classifier: what makes logits of the pooled features.
        prefix: number of class and register tokens, which are not pooled.
    """

    def __init__(self, encoder: Any, classifier: nn.Module, prefix: int = 0) -> None:
        super().__init__()
        self.encoder, self.classifier, self.prefix = encoder, classifier, prefix
        self.pool = UOTPooling(encoder.config.hidden_size, scale=Learned(0.0))

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.encoder(images).last_hidden_state
        return self.classifier(self.pool(tokens[:, self.prefix :]))


def make(pool: str) -> Any:
    if pool == "class":
        return ViTForImageClassification(ViTConfig(**SIZES))
    model = IJepaForImageClassification(IJepaConfig(**SIZES))
    return Pooled(model.ijepa, model.classifier) if pool == "uot" else model


def logits(model: nn.Module, x: Tensor) -> Tensor:
    out = model(x)
    return out if isinstance(out, Tensor) else out.logits


def load() -> tuple[Tensor, Tensor]:
    data = load_digits()
    return torch.tensor(data.images / 8 - 1, dtype=torch.float32).unsqueeze(1), torch.tensor(data.target)


def train(model: Any, x: Tensor, y: Tensor, epochs: int) -> None:
    # No weight decay on the scales of the pool: it would pull them back to where they start.
    optimizer = torch.optim.AdamW(param_groups(model, weight_decay=0.05), lr=2e-3)
    batches = -(-len(x) // 100)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=epochs * batches)
    model.train()
    for _ in range(epochs):
        for which in torch.randperm(len(x)).split(100):
            optimizer.zero_grad()
            nn.functional.cross_entropy(logits(model, x[which]), y[which]).backward()
            optimizer.step()
            schedule.step()


@torch.no_grad()
def accuracy(model: Any, x: Tensor, y: Tensor) -> float:
    return float((logits(model.eval(), x).argmax(1) == y).float().mean())


def main(argv: Sequence[str] | None = None) -> dict[str, list[float]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pools", nargs="+", choices=POOLS, default=list(POOLS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=30)
    args = parser.parse_args(argv)

    x, y = load()
    found: dict[str, list[float]] = {pool: [] for pool in args.pools}
    for seed in args.seeds:
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
        test, rest = order[:500], order[500:]
        for pool in args.pools:
            torch.manual_seed(seed)
            model = make(pool)
            train(model, x[rest], y[rest], args.epochs)
            found[pool].append(accuracy(model, x[test], y[test]))
    for pool, values in found.items():
        print(f"{pool:5} {100 * statistics.mean(values):.1f} % of 500 test images, seeds:", end=" ")
        print(*(f"{100 * value:.1f}" for value in values))
    return found


if __name__ == "__main__":
    main()
