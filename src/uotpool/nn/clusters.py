"""Initial values by k-means for layers with references or clusters."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from uotpool import checks

MAX_ROWS = 20_000  # for k-means, drawn at random where there are more
RATIO = 100.0  # of the nearest and the second centre in a softmax of `nearest_scores`, on average


def check_enough(rows: Tensor, k: int, name: str) -> None:
    if rows.shape[0] < k:
        checks.fail("X", f"at least {k} samples, one for each of {name}={k}", rows)


def k_means(rows: Tensor, k: int, name: str) -> Tensor:
    """Return k centres of the rows by scikit-learn, seeded from torch's generator."""
    try:
        from sklearn.cluster import KMeans  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("fit needs scikit-learn: install the extra `zoo`", name=error.name) from error
    check_enough(rows, k, name)
    if rows.shape[0] > MAX_ROWS:
        rows = rows[torch.randperm(rows.shape[0])[:MAX_ROWS].to(rows.device)]
    seed = int(torch.randint(2**31 - 1, (1,)))
    centres = KMeans(k, n_init=1, random_state=seed).fit(rows.cpu().double().numpy()).cluster_centers_
    return torch.from_numpy(centres).to(rows)


def squared_distances(X: Tensor, Z: Tensor) -> Tensor:
    """Return squared distances: (..., N, D), (M, D) -> (..., N, M)."""
    # We take a matrix product around the middle of Z, since |x|^2 - 2 x.z + |z|^2 loses its digits far from 0.
    middle = Z.mean(0)
    X, Z = X - middle, Z - middle
    return (X.square().sum(-1, keepdim=True) - 2 * X @ Z.T + Z.square().sum(-1)).clamp_min(0.0)


def nearest_scores(rows: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weight 2 a c and the bias -a |c|^2 of a linear layer whose softmax prefers the nearest centre.

    `RATIO` decides a.
    """
    a = 1.0
    if centres.shape[0] > 1:
        near = squared_distances(rows, centres).topk(2, largest=False).values
        gap = float((near[:, 1] - near[:, 0]).mean())
        a = math.log(RATIO) / gap if gap > 0 else 1.0
    return 2 * a * centres, -a * centres.square().sum(-1)
