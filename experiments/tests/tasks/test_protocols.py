"""Which samples train a model, which choose it, and which test it."""

from __future__ import annotations

import numpy as np
import pytest
from uotpool_experiments.tasks.protocols import FOLDS, PROTOCOLS, split, unpack

LABELS = {
    "even": np.arange(400) % 2,
    "rare": np.repeat([0, 1], [366, 34]),  # 91.5 % negative, as Function is
    "small": np.repeat([1, 0], [47, 45]),
}


@pytest.fixture(params=LABELS)
def y(request):
    return LABELS[request.param]


def shares(y, part):
    return float(y[part].mean())


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("seed", [0, 7])
def test_test_folds_partition_the_samples(y, protocol, seed):
    parts = [split(y, protocol, fold, seed) for fold in range(FOLDS)]
    assert sorted(np.concatenate([part.test for part in parts])) == list(range(len(y)))
    assert max(len(part.test) for part in parts) - min(len(part.test) for part in parts) <= 2


@pytest.mark.parametrize("fold", range(FOLDS))
def test_fair(y, fold):
    part = split(y, "fair", fold, 3)
    every = [part.train, part.validation, part.test]
    assert sorted(np.concatenate(every)) == list(range(len(y)))  # disjoint and covering
    assert set(part.validation) == set(split(y, "paper", fold, 3).train) - set(part.train)  # of the outer part
    assert np.array_equal(part.scaling, part.train)  # nothing of the others
    assert len(part.validation) == pytest.approx(0.2 * (len(y) - len(part.test)), abs=1)
    for indices in every:
        assert len(set(indices)) == len(indices)
        assert shares(y, indices) == pytest.approx(y.mean(), abs=1 / len(indices))


@pytest.mark.parametrize("fold", range(FOLDS))
def test_paper(y, fold):
    part = split(y, "paper", fold, 3)
    assert sorted(np.concatenate([part.train, part.test])) == list(range(len(y)))
    assert np.array_equal(part.validation, part.test)
    assert np.array_equal(part.scaling, np.arange(len(y)))
    assert shares(y, part.test) == pytest.approx(y.mean(), abs=1 / len(part.test))


def test_both_protocols_have_one_test_fold(y):
    for fold in range(FOLDS):
        assert np.array_equal(split(y, "paper", fold, 2).test, split(y, "fair", fold, 2).test)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_seed_decides(y, protocol):
    first, again, other = (split(y, protocol, 1, seed) for seed in (5, 5, 6))
    for name in ("train", "validation", "test", "scaling"):
        assert np.array_equal(getattr(first, name), getattr(again, name))
    assert not np.array_equal(first.test, other.test)


def test_another_fold_has_another_hold_out(y):
    held = [set(split(y, "fair", fold, 0).validation) for fold in range(FOLDS)]
    assert all(held[0] != other for other in held[1:])


def test_only_the_labels_decide_and_lists_will_do(y):
    assert np.array_equal(split(y.tolist(), "fair", 0, 0).train, split(y, "fair", 0, 0).train)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_packed_and_unpacked(y, protocol):
    part = split(y, protocol, 2, 1)
    packed = part.packed(len(y))
    assert set(packed) == {"train", "validation", "test"}
    for name, text in packed.items():
        assert isinstance(text, str)
        assert np.array_equal(unpack(text, len(y)), np.sort(getattr(part, name)))


@pytest.mark.parametrize("size", [1, 7, 8, 9, 16, 1001])
def test_packing_of_every_size(size):
    part = split(np.arange(max(size, 20)) % 2, "paper", 0, 0, folds=2)
    size = max(size, 20)
    assert np.array_equal(unpack(part.packed(size)["test"], size), np.sort(part.test))


@pytest.mark.parametrize("fold", [-1, 5, 100])
def test_a_fold_that_is_not_there(y, fold):
    with pytest.raises(ValueError, match=f"fold: expected 0 to 4, got {fold}"):
        split(y, "fair", fold, 0)


def test_an_unknown_protocol(y):
    with pytest.raises(ValueError, match=r"protocol: expected one of .*got 'honest'"):
        split(y, "honest", 0, 0)


def test_too_few_of_a_class():
    with pytest.raises(ValueError, match="n_splits"):
        split([0] * 3 + [1] * 3, "fair", 0, 0)
