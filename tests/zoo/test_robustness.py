"""The zoo under hooks, threads, parametrizations, with one set that is much larger, and at odd scales."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from tests import tolerances as tol
from tests.zoo.cases import batch, call, small
from uotpool import zoo
from uotpool.sets import DenseSets, RaggedSets
from uotpool.sets.padding import pool_padded
from uotpool.zoo.transport import transport_plan

PADDED = ("set-transformer", "gmt", "otk", "wegl", "swe", "covariance")
LEARNED = ("attention", "deepset", "set2set", "set-transformer", "otk", "diffpool")


@pytest.mark.parametrize("name", LEARNED)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_hooks_run_once_in_another_precision(name, dtype):
    pool, sets = small(name, dtype=torch.float32), batch()
    counts = {"before": 0, "after": 0, "inside": 0}

    def count(what):
        def hook(*_):
            counts[what] += 1

        return hook

    pool.register_forward_pre_hook(count("before"))
    pool.register_forward_hook(count("after"))
    inner = [module for module in pool.modules() if module is not pool and not list(module.children())]
    for module in inner[:1]:
        module.register_forward_hook(count("inside"))
    call(pool, sets.x.float(), sets.index, edge_index=sets.edges)
    once = dict(counts)
    assert once["before"] == once["after"] == 1
    call(pool, sets.x.to(dtype), sets.index, edge_index=sets.edges)
    assert counts == {what: 2 * n for what, n in once.items()}


@pytest.mark.parametrize("name", LEARNED)
def test_threads_with_different_precision_leave_the_module_alone(name):
    pool, sets = small(name, dtype=torch.float32), batch()
    state = {n: t.clone() for n, t in pool.state_dict().items()}
    layout = {"index": sets.index, "edge_index": sets.edges}
    expected = {
        d: call(pool, sets.x.to(d), **layout).detach() for d in (torch.float32, torch.float64, torch.bfloat16)
    }
    errors: list[object] = []

    def work(dtype):
        for _ in range(30):
            try:
                y = call(pool, sets.x.to(dtype), **layout)
                if not torch.equal(y, expected[dtype]):
                    errors.append((dtype, "another value"))
            except Exception as error:
                errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=work, args=(dtype,)) for dtype in expected for _ in range(2)]
    try:
        for thread in threads:
            thread.start()
    finally:
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
    assert not errors
    for n, t in pool.state_dict().items():
        assert t.dtype == state[n].dtype
        assert torch.equal(t, state[n])


@pytest.mark.parametrize("name", ["deepset", "nin", "gated-attention", "covariance"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_parametrized_layers(name, dtype):
    pool, sets = small(name, dtype=torch.float32), batch()
    for module in list(pool.modules()):
        if isinstance(module, nn.Linear):
            parametrizations.weight_norm(module)
    pool.reset_parameters()
    x = sets.x.to(dtype).requires_grad_()
    pool(x, sets.index).float().square().sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in pool.parameters())


@pytest.mark.parametrize("name", PADDED)
def test_one_large_set_among_small_ones(name):
    """The same as set by set; and what is padded is less than twice what is there."""
    sizes = (200, *(1, 2, 3, 5) * 5, 0, 17)
    pool, sets = small(name), batch(sizes)
    y = pool(sets.x, sets.index, dim_size=len(sizes))
    for b in (0, 1, 4, 20, 22):
        alone = pool(sets.x[sets.index == b][None])[0]
        torch.testing.assert_close(y[b], alone, rtol=tol.F64, atol=tol.F64)
    seen: list[int] = []

    def measure(rows, layout):
        seen.append(rows.shape[0] * rows.shape[1])
        return rows.sum(1)

    pooled = pool_padded(measure, sets.x, RaggedSets(sets.index, len(sizes), None))
    assert torch.equal(pooled != 0, y.new_tensor([[n > 0] for n in sizes]).bool().expand_as(pooled))
    assert sum(seen) < 2 * sum(sizes) + sizes.count(0)
    assert 1 < len(seen) <= 9


@pytest.mark.parametrize("name", zoo.names())
def test_numpy_integers(name):
    pool = zoo.build(name, np.int64(4), np.int64(3))
    assert type(pool.dim) is int
    sets = batch((3, 2), 4)
    assert call(pool, sets.x.float(), sets.index, edge_index=sets.edges).shape == (2, pool.out_dim)


def test_a_name_means_what_it_says():
    for name in ("uotp-sinkhorn", "uotp-badmm-e-paper"):
        with pytest.raises(TypeError, match=r"^solver: "):
            zoo.build(name, 4, solver="badmm-e")


@pytest.mark.parametrize("name", ["lse", "gem", "softmax", "mean", "covariance", "dynamic"])
@pytest.mark.parametrize("scale", [1e-8, 1e-4, 1e-2, 1.0, 1e4, 1e18])
def test_relative_accuracy_in_float32(name, scale):
    """The error against float64 is relative to the size of the result, whatever the size of x."""
    pool, sets = small(name, dtype=torch.float32), batch((7, 4))
    x = (scale * sets.x.abs()).float()
    if name == "covariance" and not 1e-6 < scale < 1e16:
        pytest.skip("squares of these overflow, or are as small as what is added to the diagonal, in float32")
    got, want = pool(x, sets.index), pool(x.double(), sets.index)
    assert (got - want).abs().max() <= tol.F32_RELATIVE * want.abs().max()


@pytest.mark.parametrize(
    ("ratio", "N", "kept"), [(0.07, 100, 7), (0.14, 50, 7), (0.5, 5, 3), (1.0, 6, 6), (1e-6, 9, 1)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_how_many_nodes_are_kept(ratio, N, kept, dtype):
    pool = zoo.build("sagp", 2, ratio=ratio).to(dtype)
    x = torch.stack([torch.ones(N), torch.arange(N) + 1.0], 1).to(dtype)
    with torch.no_grad():
        pool.gnn.lin.weight.copy_(torch.tensor([[0.0, 1.0]]))
        pool.gnn.bias.fill_(50.0)  # tanh is 1: the mean of what is kept is that of the largest
    y = call(pool, x, edge_index=torch.zeros(2, 0, dtype=torch.long))
    assert float(y[0, 1].detach()) == pytest.approx(float(x[N - kept :, 1].mean()), rel=1e-6)


def test_fit_in_half_precision_of_large_features():
    pool = zoo.build("otk", 4, 3, references=2).half()
    x = 200 * torch.randn(50, 4)
    pool.fit(x)
    assert pool.log_s.isfinite()
    near, far = pool(x[None, :20].half()), pool(-3 * x[None, :20].half())
    assert (near - far).abs().max() > 0.05  # a kernel that is 1 everywhere would not tell them apart


def test_a_plan_has_finite_derivatives_beside_absent_rows():
    """The present row needs a large potential for its second column, and the absent one gets it too."""
    score = torch.tensor([[[0.0, -1e3], [0.0, 0.0]]], requires_grad=True)
    sets = DenseSets(1, torch.tensor([[[True], [False]]]))
    P = transport_plan(score, sets, epsilon=1.0, steps=1)
    (dscore,) = torch.autograd.grad(P[..., 0].sum(), score)
    assert P[0, 1].tolist() == [0.0, 0.0]
    assert dscore.isfinite().all()
