"""Large sets, on which the kernels work in place instead of in a copy; the checks are those of small sets."""

from __future__ import annotations

from typing import Any

import torch

from tests.backends.harness import dense, masked, ragged
from tests.fuzz import sets
from tests.fuzz.sets import Case

CHUNK = 131072  # entries; a set of more rows than a chunk has is large (csrc/api.cpp)
FEATURES = (1, 3, 17, 128, 1000, 33000, 40000)

check = sets.check


def draw(seed: int) -> Case:
    """Small weights and priors as of `sets`, at most 2 modules, and one or two sets beside a small one."""
    small = sets.draw(seed)
    g = torch.Generator().manual_seed(seed)

    def below(most: int) -> int:
        return int(torch.randint(most, (1,), generator=g))

    D = FEATURES[below(len(FEATURES))]
    N = max(4, CHUNK // D // 4 * 4) + 1 + below(3)
    priors: dict[str, Any] = {"p0": ("each", "shared", "uniform")[below(3)], "q0": below(2) == 0}
    layout = ("dense", "mask", "ptr", "index")[below(4)]
    if layout == "dense":
        problem = dense(1, N, D, seed, **priors)
    elif layout == "mask":
        # More rows, since three in ten are absent.
        problem = masked(1, 2 * N, D, seed, **priors)
    else:
        problem = ragged(layout, [N, 1 + below(4), 0], D, seed, **priors)
    times, plus = tuple(sets.SPREADS.values())[below(len(sets.SPREADS))]
    X = (times * problem.X + plus).float().double()
    weights = [None if w is None else w[:2] for w in small.weights]
    scale = sets.draw_scale(seed, D)
    return Case(small.solver, small.grid, small.dtype, small.plan, problem._replace(X=X, scale=scale), weights)
