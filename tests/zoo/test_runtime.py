"""Compilation, and the number of operations: no loop over sets."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests import tolerances as tol
from tests.zoo.cases import NAMES, backward, batch, small


@pytest.mark.parametrize("name", ["mean", "max", "attention", "deepset", "softmax"])
@pytest.mark.parametrize("ragged", [False, True])
def test_compiled_equals_eager(name, ragged):
    torch.compiler.reset()
    pool, sets = small(name), batch()
    X, mask, _ = sets.dense(fill=0.0)
    x, layout = (sets.x, {"index": sets.index, "dim_size": len(sets.sizes)}) if ragged else (X, {"mask": mask})
    want = backward(pool, x, **layout)
    pool.compile(backend="aot_eager")
    got = backward(pool, x, **layout)
    for a, b in zip([*got[:2], *got[2]], [*want[:2], *want[2]], strict=True):
        torch.testing.assert_close(a, b, rtol=tol.F64, atol=tol.F64)


class Counter(TorchDispatchMode):
    """Counts the operations that reach a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **kwargs or {})


@pytest.mark.parametrize("name", NAMES)
def test_operations_do_not_grow_with_sets(name):
    """Forward and backward take as many operations for 2000 sets as for 20."""
    pool = small(name, dtype=torch.float32)
    counts = []
    for B in (20, 2000):
        index = torch.arange(B).repeat_interleave(3)
        x = torch.randn(3 * B, 4, generator=torch.Generator().manual_seed(0))
        first = 3 * torch.arange(B)
        edges = torch.cat([torch.stack([first, first + 1]), torch.stack([first + 1, first + 2])], dim=1)
        with Counter() as counter:
            backward(pool, x, index=index, dim_size=B, edge_index=edges)
        counts.append(counter.count)
    assert counts[0] == counts[1] > 0
