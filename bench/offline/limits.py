"""What the machine code of a kernel may take. A test compiles some sizes, `python -m bench gpu-static` all."""

from __future__ import annotations

import torch

from bench.offline.figures import Figure, Window

FEATURES = (64, 100, 128, 256, 512, 1024)
CHANNELS = (64, 256, 1024)
SIDE_BY_SIDE, OVERLAPPING = (
    tuple(Window(side, stride, last) for last in (False, True)) for side, stride in ((2, 2), (3, 1))
)
DTYPES = (torch.float32, torch.bfloat16)
# With a scale for each feature or without, and of which dtypes: a scale is the harder case, but instructions
# are limited without one too.
KINDS = {
    "sinkhorn": [*((False, dtype) for dtype in DTYPES), (True, torch.float32)],
    "badmm-e": [(True, dtype) for dtype in DTYPES],
    "badmm-q": [(True, dtype) for dtype in DTYPES],
}
TARGETS = ("sm_80", "sm_90", "gfx942")

SPILLS = 8
CONVERSIONS = 0
# Of the forward pass over large sets in float32, on NVIDIA: instructions for each entry from so many features.
INSTRUCTIONS = {256: 20.0, 100: 24.0}
FOR_A_SCALE = 2.0  # more instructions with a scale per feature
SPECIAL = 2.6


def broken(figure: Figure) -> list[str]:
    """Return a sentence for each limit that a kernel breaks."""
    limits: list[tuple[str, float, float]]
    limits = [("spills", figure.spills, SPILLS), ("conversions", figure.conversions, CONVERSIONS)]
    target, D, dtype, scale, solver, _ = figure.subject
    counted = target.startswith("sm") and dtype == torch.float32 and solver == "sinkhorn"
    if counted and figure.kernel.startswith("forward_pass"):
        most = [INSTRUCTIONS[least] for least in sorted(INSTRUCTIONS) if D >= least]
        if most:
            limit = most[-1] + (FOR_A_SCALE if scale else 0.0)
            limits += [("instructions", figure.instructions, limit), ("special", figure.special, SPECIAL)]
    return [
        f"{figure.kernel} of {figure.subject}: {name} {value:g}, at most {limit:g}"
        for name, value, limit in limits
        if value > limit
    ]
