from __future__ import annotations

import numpy as np
import pytest
import torch
from uotpool_experiments.datasets import Bags, BagStatistics


def make() -> Bags:
    return Bags("some", torch.randn(9, 3), torch.tensor([0, 2, 2, 5, 9]), torch.tensor([1, 0, 0, 1]))


def test_counts():
    bags = make()
    assert len(bags) == 4
    assert bags.sizes.tolist() == [2, 0, 3, 4]
    assert bags.index.tolist() == [0, 0, 2, 2, 2, 3, 3, 3, 3]
    assert bags.statistics() == BagStatistics(3, 4, 2, 2, 9, 0, 4)


@pytest.mark.parametrize("which", [[0], [3, 1, 0], [2, 2, 3], [1], [], [0, 1, 2, 3]])
@pytest.mark.parametrize("form", [torch.tensor, np.array, list])
def test_subset_is_the_bags_one_by_one(which, form):
    bags = make()
    part = bags.subset(form(which))
    rows = [bags.X[bags.ptr[b] : bags.ptr[b + 1]] for b in which]
    assert torch.equal(part.X, torch.cat([*rows, bags.X[:0]]))
    assert part.sizes.tolist() == [len(r) for r in rows]
    assert part.y.tolist() == [int(bags.y[b]) for b in which]
    assert (part.y.dtype, part.ptr.dtype, part.name) == (torch.int64, torch.int64, "some")
    assert len(part) == len(which)


@pytest.mark.parametrize(
    ("which", "error"),
    [([4], ValueError), ([-1], ValueError), ([0.5], TypeError), ([True, False, True, False], TypeError)],
)
def test_subset_refuses(which, error):
    with pytest.raises(error, match="ind"):
        make().subset(which)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X", torch.randn(9, 3).double()),
        ("X", torch.randn(9)),
        ("ptr", torch.tensor([0, 2, 2, 5, 8])),
        ("ptr", torch.tensor([0.0, 2, 2, 5, 9])),
        ("y", torch.tensor([1, 0, 0])),
        ("y", torch.tensor([1, -1, -1, 1])),
    ],
)
def test_refuses_what_are_no_bags(name, value):
    parts = vars(make()) | {name: value}
    with pytest.raises(ValueError, match=f"^{name}: expected"):
        Bags(**parts)


def test_label_columns_are_found_however_they_are_coded():
    bags = make()
    y = bags.y[bags.index].float()[:, None]
    assert bags.label_columns() == []
    leaky = Bags("leaky", torch.cat([2 * y - 1, bags.X, y, 0 * y, 5 - y], 1), bags.ptr, bags.y)
    assert leaky.label_columns() == [0, 4, 6]
    assert bags.subset([0, 3]).label_columns() == []  # one class only
