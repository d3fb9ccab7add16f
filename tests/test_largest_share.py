"""Pooling by the largest samples of each feature: what large weights of the transport do."""

from __future__ import annotations

import pytest
import torch

from tests import tolerances as tol
from tests.spelling import uot_plan, uot_pool

N, D = 32, 4


def own_samples(seed: int = 0) -> torch.Tensor:
    """Return a set in which every feature is large at samples of its own, N / D of them, in any order."""
    generator = torch.Generator().manual_seed(seed)
    X = 0.1 * torch.rand(N, D, generator=generator, dtype=torch.float64)
    owner = torch.arange(N) % D
    X[torch.arange(N), owner] += 1.0 + torch.rand(N, generator=generator, dtype=torch.float64)
    return X[torch.randperm(N, generator=generator)][None]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_feature_is_the_mean_of_its_share_of_the_samples(seed):
    X = own_samples(seed)
    y = uot_pool(X, 1.0, 1e4, 1e4, scale=100.0, K="converged")
    largest = X.topk(N // D, dim=1).values.mean(1)
    torch.testing.assert_close(y, largest, rtol=0, atol=tol.LARGEST_SHARE)
    assert (X.amax(1) - largest).min() > 0.1
    assert (largest - X.mean(1)).min() > 0.5


def test_without_transport_it_is_the_maximum():
    X = own_samples()
    y = uot_pool(X, 1.0, 1e4, 0.0, scale=100.0, K=1)
    torch.testing.assert_close(y, X.amax(1), rtol=0, atol=tol.NEARLY_MAX)


@pytest.mark.parametrize("alpha", [3.0, 10.0, 1e3])
def test_no_sample_holds_more_the_larger_alpha2_is(alpha):
    X = own_samples()
    most = [uot_plan(X, 1.0, 1e4, a, scale=100.0, K="converged").sum(-1).max() for a in (alpha, 3 * alpha)]
    assert most[1] < most[0]
    assert most[1] > 1 / N
