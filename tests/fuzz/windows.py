"""Windows of images, as of `UOTPool2d`: the kernel for them against unfolding and the reference."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tests import tolerances as tol
from tests.fuzz.found import Found
from tests.fuzz.sets import GRIDS, SPREADS, draw_scale
from tests.kernels.harness import rand
from tests.kernels.windows import Windows, fused, output_size, reference, solved

FORMATS = (torch.contiguous_format, torch.channels_last)


class Case(NamedTuple):
    grid: str
    dtype: torch.dtype
    memory_format: torch.memory_format
    windows: Windows  # in float64, of numbers that float32 has

    def describe(self) -> str:
        p = self.windows
        scale = None if p.scale is None else p.scale.tolist()
        weights = [[f"{x:.0e}" for x in row] for row in p.weights]
        return (
            f"windows {self.grid} {self.dtype} {self.memory_format} {tuple(p.X.shape)} kernel={p.kernel_size} "
            f"stride={p.stride} padding={p.padding} out={p.output_size} scale={scale} {weights}"
        )


def draw(seed: int) -> Case:
    g = torch.Generator().manual_seed(seed)

    def choose(options: Any) -> Any:
        return options[int(torch.randint(len(options), (1,), generator=g))]

    def size(most: int, least: int = 1) -> int:
        return int(torch.randint(least, most + 1, (1,), generator=g))

    grid = choose(tuple(GRIDS))
    kernel = (size(4), size(4))
    stride = choose((kernel, (1, 1), (size(4), size(4))))
    padding = (size(kernel[0] // 2, 0), size(kernel[1] // 2, 0))
    shape = (size(2), size(20), size(kernel[0] + 5, kernel[0]), size(kernel[1] + 9, kernel[1]))
    times, plus = SPREADS[choose(tuple(SPREADS))]
    X = (times * rand(*shape, seed=seed) + plus).float().double()
    low, high = GRIDS[grid]
    weights = (10.0 ** torch.randint(low, high + 1, (3, size(6)), generator=g).double()).float().double()
    number = choose((None, 0.0, 0.25, -1.5))
    scale = draw_scale(seed, shape[1]) if seed % 5 == 3 else None
    if scale is None and number is not None:
        scale = torch.tensor([number]).double()
    out = output_size(shape[2:], kernel, stride, padding, ceil=choose((False, True)))
    p = Windows(X, weights, scale, kernel, stride, padding, out)
    return Case(grid, choose((torch.float32, torch.float64)), choose(FORMATS), p)


def check(case: Case) -> Found:
    """Check that results are finite, within the range of each channel, and as exact as those of torch."""
    found = Found()
    own = case.windows.to(case.dtype, case.memory_format)
    results = {"cpu": solved(own, fused), "reference": solved(own, reference)}
    most, least = (f(own.X, (2, 3)).double()[..., None, None] for f in (torch.amax, torch.amin))
    slack = tol.F32 * float((most - least).max() + own.X.abs().max())
    for impl, result in results.items():
        found.wrong += [f"{impl}: {name} is not finite" for name, t in result.items() if not t.isfinite().all()]
        value = result["value"].double()
        if bool((value > most + slack).any() or (value < least - slack).any()):
            found.wrong.append(f"{impl}: an output that is no mean of the samples")
    if found.wrong or case.grid != "promised":
        return found
    p = case.windows
    exponent = float(p.X.abs().max() * (1.0 if p.scale is None else p.scale.abs().max()) / p.weights[0].min())
    found.compare_all(case.dtype, results, partial(in_units, case), partial(errors, case), exponent)
    return found


def in_units(case: Case, unit: float) -> dict[str, Tensor]:
    """As for sets: the reference in float64 with X and weights times `unit`."""
    p = case.windows
    results = solved(p._replace(X=unit * p.X, weights=unit * p.weights), reference)
    return {name: t / (unit if name in ("value", "scale") else 1.0) for name, t in results.items()}


def errors(case: Case, got: dict[str, Tensor], want: dict[str, Tensor]) -> dict[str, float]:
    """Return errors in units of the natural scales, which are those of sets; the plan is that of scale X."""
    p = case.windows
    width = max(float(p.X.max() - p.X.min()), 1e-3)
    scale = 1.0 if p.scale is None else float(p.scale.abs().max())
    scales = {"X": 1.0 + width * scale / float(p.weights[0][-1])}
    if p.scale is not None:
        scales["scale"] = width * max(1.0, width / float(p.weights[0][-1]))
    found = {}
    for name, w in want.items():
        by_logarithm = p.weights if name == "weights" else 1.0
        error, most = (float((t * by_logarithm).abs().max()) for t in (got[name].double() - w, w))
        found[name] = error / max(scales.get(name, width), most)
    return found
