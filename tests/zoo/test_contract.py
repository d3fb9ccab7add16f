"""What every pooling of the zoo promises, by name: layouts, order, gradients, precision, errors, state."""

from __future__ import annotations

import copy
import itertools
import pickle
import re

import pytest
import torch
from torch import nn
from torch.func import functional_call

import uotpool
from tests import tolerances as tol
from tests.zoo.cases import (
    FITTED,
    GRAPHS,
    NAMES,
    SIZES,
    SMALL,
    backward,
    batch,
    call,
    gradients_finite,
    small,
    weighed,
)
from uotpool import zoo

every = pytest.mark.parametrize("name", NAMES)
graphs = pytest.mark.parametrize("name", GRAPHS)
D = 4


def close(got, want, bound=tol.F64):
    torch.testing.assert_close(got, want, rtol=bound, atol=bound)


def all_close(got, want, bound=tol.F64):
    for g, w in zip(got, want, strict=True):
        close(g, w, bound)


def test_the_registry_has_all_names():
    solvers = ["uotp-sinkhorn", "uotp-badmm-e", "uotp-badmm-q"]
    tables = "add mean max mixed gated-mixed deepset set2set attention gated-attention dynamic gnp sagp asap"
    text = "mean-max nin set-transformer otk wegl diffpool"
    ours = "uotp uotp-single softmax-per-feature"
    today = "gem gem-per-feature half-mean-max softmax lse vpa gmt swe covariance"
    retrieval = "netvlad salad"
    ranks = "median quantile topk-mean std"
    transformers = "map ep simpool"
    published = [f"{name}-paper" for name in solvers]
    assert set(NAMES) == {
        *tables.split(),
        *solvers,
        *published,
        *text.split(),
        *ours.split(),
        *today.split(),
        *retrieval.split(),
        *ranks.split(),
        *transformers.split(),
    }
    assert set(GRAPHS) == {"sagp", "asap", "diffpool"}
    assert set(FITTED) == {"otk", "wegl", "netvlad"}


# ---------------------------------------------------------------------------------------------------------
# shape, dtype, layout


@every
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_shape_and_dtype(name, dtype):
    pool, sets = small(name, dtype=torch.float32), batch()
    y = call(pool, sets.x.to(dtype), **sets.ragged)
    assert y.shape == (len(SIZES), pool.out_dim)
    assert y.dtype == dtype
    assert y.isfinite().all()


@every
@pytest.mark.parametrize("seed", range(2))
def test_layouts_agree(name, seed):
    """Index, unsorted index, ptr, dense with NaN in its holes, set by set: values and gradients."""
    pool, sets = small(name), batch(seed=seed)
    y, dx, rest = backward(pool, sets.x, **sets.ragged)
    assert (y[[1, 5]] == 0).all()  # empty sets: one in the middle, one at the end

    all_close(backward(pool, sets.x, ptr=sets.ptr, edge_index=sets.edges)[0:1], [y])
    all_close(backward(pool, sets.x, ptr=sets.ptr.int(), edge_index=sets.edges.int())[2], rest)

    order = torch.randperm(len(sets.x), generator=torch.Generator().manual_seed(seed))
    place = torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))
    moved = {"index": sets.index[order], "dim_size": len(SIZES), "edge_index": place[sets.edges]}
    y2, dx2, rest2 = backward(pool, sets.x[order], **moved)
    all_close([y2, dx2, *rest2], [y, dx[order], *rest])

    X, mask, edges = sets.dense()
    y3, dX, rest3 = backward(pool, X, mask=mask, edge_index=edges)
    all_close([y3, dX[mask], *rest3], [y, dx, *rest])
    assert (dX[~mask] == 0).all()
    # Absent rows of a ragged batch, and the edges at them, are as if not there.
    kept = torch.arange(len(sets.x)).repeat_interleave(2)[1:]
    there = torch.arange(len(kept)) % 2 == 0
    kept[0] = 0
    rows = torch.where(there[:, None], sets.x[kept], torch.nan)
    edges = torch.cat([2 * sets.edges, torch.tensor([[0, 1], [1, 0]])], dim=1)
    y4, dx4, rest4 = backward(
        pool, rows, index=sets.index[kept], dim_size=len(SIZES), mask=there, edge_index=edges
    )
    all_close([y4, dx4[there], *rest4], [y, dx, *rest])


@every
def test_batch_mates_and_padding_do_not_matter(name):
    pool, sets = small(name), batch()
    y, dx, _ = backward(pool, sets.x, **sets.ragged)
    auxiliary = name == "diffpool"  # its loss is a mean over the sets
    for b, n in enumerate(SIZES):
        rows, edges, _ = sets.alone(b)
        if n:
            alone, d_alone, _ = backward(pool, rows, edge_index=edges)
            close(alone[0], y[b])
            if not auxiliary:
                close(d_alone, dx[sets.index == b])
    X, mask, edges = sets.dense(extra=0)
    longer, longer_mask, longer_edges = sets.dense(extra=9)
    close(
        call(pool, X, mask=mask, edge_index=edges),
        call(pool, longer, mask=longer_mask, edge_index=longer_edges),
    )


@every
@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_the_order_of_samples_does_not_matter(name, scale):
    """Also where activations saturate (scale 100)."""
    for seed in range(4):
        check_order(name, seed, scale)


def check_order(name, seed, scale):
    pool, sets = small(name, seed=seed), batch((9,), seed=seed, scale=scale)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(seed))
    place = torch.empty_like(order).scatter_(0, order, torch.arange(9))
    y, dx, rest = backward(pool, sets.x, edge_index=sets.edges)
    shuffled = torch.randperm(sets.edges.shape[1], generator=torch.Generator().manual_seed(seed))
    y2, dx2, rest2 = backward(pool, sets.x[order], edge_index=place[sets.edges][:, shuffled])
    bound = tol.ZOO_ORDER
    for got, want in zip([y2, dx2, *rest2], [y, dx[order], *rest], strict=True):
        torch.testing.assert_close(got, want, rtol=bound, atol=bound * float(want.abs().max().clamp_min(1)))


@graphs
@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_saturated_scores_do_not_see_batch_mates(name, scale):
    """float32, where tanh is 1 from 9 on: many nodes tie."""
    sizes = (17, 18, 19, 20, 17, 18)
    pool, sets = small(name, dtype=torch.float32), batch(sizes, scale=scale)
    x = sets.x.float()
    y = call(pool, x, **sets.ragged)
    for b in range(len(sizes)):
        rows, edges, _ = sets.alone(b)
        close(call(pool, rows.float(), edge_index=edges)[0] / scale, y[b] / scale, tol.F32)


@pytest.mark.parametrize("name", GRAPHS)
def test_nodes_that_tie_by_their_neighbours(name):
    """In a complete graph all scores are equal. Which nodes sagp keeps depends on their order, as it says."""
    pool, N = small(name), 6
    x = batch((N,)).x
    edges = torch.tensor([[i, j] for i in range(N) for j in range(N) if i != j]).T
    y = call(pool, x, edge_index=edges)
    for seed in range(3):
        order = torch.randperm(N, generator=torch.Generator().manual_seed(seed))
        again = call(pool, x[order], edge_index=edges)
        if name == "sagp":
            assert again.isfinite().all()
        else:
            close(again, y)
    assert ("scores tie" in type(pool).__doc__) == (name == "sagp")


def test_edge_weights_that_make_no_degree_are_refused_under_check():
    pool, sets = small("sagp"), batch()
    for bad in (-1.0, float("nan"), float("inf")):
        weight = torch.ones(sets.edges.shape[1], dtype=torch.float64)
        weight[0] = bad
        with pytest.raises(ValueError, match="edge_weight: expected finite numbers >= 0"):
            call(pool, sets.x, sets.index, edge_index=sets.edges, edge_weight=weight)


@every
def test_a_strided_x_and_no_side_effects(name):
    pool, sets = small(name), batch((6, 6))
    x = sets.x.reshape(2, 6, D)
    strided = x.transpose(1, 2).contiguous().transpose(1, 2)
    before, state = strided.clone(), torch.get_rng_state()
    parameters = copy.deepcopy(pool.state_dict())
    y = call(pool, strided, edge_index=sets.edges)
    assert torch.equal(y, call(pool, x, edge_index=sets.edges))
    assert torch.equal(strided, before)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(t, parameters[n]) for n, t in pool.state_dict().items())


@every
def test_evaluation_equals_training(name):
    """No dropout, and the inference paths of torch's own layers give the same."""
    pool, sets = small(name, dtype=torch.float32), batch()
    X, mask, edges = sets.dense()
    y = call(pool, X.float(), mask=mask, edge_index=edges)
    with torch.no_grad():
        assert not call(pool.eval(), X.float(), mask=mask, edge_index=edges).requires_grad
        close(call(pool, X.float(), mask=mask, edge_index=edges), y, tol.F32)
    with torch.inference_mode():
        close(call(pool, X.float(), mask=mask, edge_index=edges), y, tol.F32)


# ---------------------------------------------------------------------------------------------------------
# gradients


@every
def test_gradcheck(name):
    """By x, every parameter and the edge weights; the auxiliary loss too."""
    pool, sets = small(name, 2, seed=3), batch((4, 1), 2, seed=5)
    learned = dict(pool.named_parameters())
    with torch.no_grad():
        for parameter in learned.values():
            parameter.add_(0.1 * torch.randn_like(parameter))
    weight = sets.weight.clone().requires_grad_(name in GRAPHS)

    def function(x, w, *values):
        layout = sets.ragged | {"edge_weight": w} if pool.needs_edges else {"index": sets.index}
        y = functional_call(pool, dict(zip(learned, values, strict=True)), (x,), layout)
        return (y, pool.aux_loss) if name == "diffpool" else y

    inputs = (sets.x.clone().requires_grad_(), weight, *learned.values())
    assert torch.autograd.gradcheck(function, inputs)


# Parameters that the output, by its formula, does not see: the published algorithms end before the last use of
# some weights, and the published Bregman ADMM has no use for two.
UNSEEN = {
    "uotp-badmm-e-paper": {"raw_alpha1", "raw_alpha2"},
    "uotp-badmm-q-paper": {"raw_alpha1", "raw_alpha2"},
}


@every
def test_every_parameter_gets_a_gradient(name):
    """No gradient is None, for which DDP would wait, and none is 0."""
    pool, sets = small(name, 8), batch((7, 9, 3), 8)
    y = call(pool, sets.x.requires_grad_(), **sets.ragged, edge_weight=sets.weight)
    weighed(y.sin()).backward()
    gradients = {n: p.grad for n, p in pool.named_parameters()}
    assert [n for n, g in gradients.items() if g is None] == []
    assert {n for n, g in gradients.items() if g.abs().max() < tol.STRUCTURAL_ZERO} == UNSEEN.get(name, set())


@every
@pytest.mark.parametrize("sizes", [(1, 1), (2, 1, 0), (0, 0)])
def test_no_parameter_is_left_out(name, sizes):
    """Batches of sets of one sample, without edges, or of empty sets: DDP would wait for ever."""
    pool, sets = small(name), batch(sizes)
    no_edges = sets.ragged | {"edge_index": torch.empty(2, 0, dtype=torch.int64)}
    y = call(pool, sets.x, **no_edges)
    if list(pool.parameters()):
        y.sum().backward()
    assert [n for n, p in pool.named_parameters() if p.grad is None or not p.grad.isfinite().all()] == []


# ---------------------------------------------------------------------------------------------------------
# empty, single, constant, huge, NaN


@every
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_empty_sets_are_zero_with_zero_gradients(name, dtype):
    pool = small(name, dtype=dtype)
    edges = torch.empty(2, 0, dtype=torch.int64)
    nothing = torch.zeros(0, D, dtype=dtype)
    masked = torch.full((2, 3, D), torch.nan, dtype=dtype)
    layouts = [
        (nothing, {"index": torch.empty(0, dtype=torch.int64), "dim_size": 3}, 3),
        (nothing, {"ptr": torch.zeros(4, dtype=torch.int64)}, 3),
        (nothing, {"ptr": torch.zeros(1, dtype=torch.int64)}, 0),
        (nothing, {"index": torch.empty(0, dtype=torch.int64)}, 0),
        (nothing, {}, 1),
        (torch.zeros(2, 0, D, dtype=dtype), {}, 2),
        (torch.zeros(2, 0, D, dtype=dtype), {"mask": torch.zeros(2, 0, dtype=torch.bool)}, 2),
        (torch.zeros(0, 3, D, dtype=dtype), {}, 0),
        (torch.zeros(0, 0, D, dtype=dtype), {}, 0),
        (masked, {"mask": torch.zeros(2, 3, dtype=torch.bool)}, 2),
        (masked[0], {"index": torch.tensor([0, 1, 0]), "mask": torch.zeros(3).bool()}, 2),
    ]
    for x, layout, B in layouts:
        y, dx, rest = backward(pool, x, **layout, edge_index=edges)
        assert torch.equal(y, torch.zeros(B, pool.out_dim, dtype=dtype)), layout
        assert all((g == 0).all() for g in (dx, *rest)), layout
        assert pool.aux_loss == 0


@every
def test_empty_sets_change_nothing(name):
    pool, full, holes = small(name), batch((3, 4)), batch((0, 3, 0, 0, 4, 0))
    y, dx, rest = backward(pool, full.x, **full.ragged)
    y2, dx2, rest2 = backward(pool, full.x, **holes.ragged | {"edge_index": full.edges})
    close(y2[[1, 4]], y)
    assert (y2[[0, 2, 3, 5]] == 0).all()
    all_close([dx2, *rest2], [dx, *rest])


@every
@pytest.mark.parametrize("value", [0.0, -3.0, 1e4, 1e8], ids=str)
def test_constant_x(name, value):
    """Finite, with finite gradients; one feature and one sample among the cases."""
    for dim, sizes in itertools.product((1, 4), ((1,), (5, 1, 2))):
        pool, sets = small(name, dim, dtype=torch.float32), batch(sizes, dim)
        gradients_finite(pool, torch.full_like(sets.x, value, dtype=torch.float32), **sets.ragged)


@every
@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1e4, 1e8], ids=str)
def test_scales_of_x(name, scale):
    for dim, sizes in itertools.product((1, 4), ((1,), (5, 1, 2))):
        pool, sets = small(name, dim, dtype=torch.float32), batch(sizes, dim, scale=scale)
        gradients_finite(pool, sets.x.float(), **sets.ragged)


@every
@pytest.mark.parametrize("with_gradient", [False, True])
def test_a_nan_spoils_its_set_and_no_other(name, with_gradient):
    pool, sets = small(name), batch((4, 3, 5))
    clean = call(pool, sets.x, **sets.ragged).detach()
    x = sets.x.clone()
    x[5] = torch.nan  # of the second set
    x.requires_grad_(with_gradient)
    with uotpool.check(False):
        y = call(pool, x, **sets.ragged)
        X, mask, edges = sets.dense()
        X[mask] = x.detach()
        dense = call(pool, X.requires_grad_(with_gradient), mask=mask, edge_index=edges)
    for out in (y, dense):
        close(out[[0, 2]], clean[[0, 2]])
        assert out[1].isnan().any(), "a NaN must show"
    if with_gradient:
        (dx,) = torch.autograd.grad(weighed(y[[0, 2]]), x)
        (want,) = torch.autograd.grad(
            weighed(call(pool, a := sets.x.clone().requires_grad_(), **sets.ragged)[[0, 2]]), a
        )
        others = sets.index != 1
        close(dx[others], want[others])


@every
def test_a_nan_shows_the_same_with_and_without_a_gradient(name):
    pool, sets = small(name), batch((4, 3))
    x = sets.x.clone()
    x[1, 2] = torch.nan
    with uotpool.check(False), torch.no_grad():
        want = call(pool, x, **sets.ragged).isnan()
    with uotpool.check(False):
        got = call(pool, x.requires_grad_(), **sets.ragged).isnan()
    assert torch.equal(got, want)


@every
def test_values_are_checked(name):
    x = torch.randn(2, 3, D)
    x[1, 0, 0] = torch.inf
    with pytest.raises(ValueError, match="expected finite values"):
        call(small(name), x, edge_index=torch.tensor([[0], [1]]))


# ---------------------------------------------------------------------------------------------------------
# precision


@every
def test_float32_against_float64(name):
    pool, sets = small(name), batch((3, 5, 1, 8))
    y, dx, rest = backward(pool, sets.x, **sets.ragged)
    y32, dx32, rest32 = backward(pool.float(), sets.x.float(), **sets.ragged)
    for got, want in zip([y32, dx32, *rest32], [y, dx, *rest], strict=True):
        bound = tol.ZOO_F32 * float(want.abs().max().clamp_min(1.0))
        assert (got - want).abs().max() <= bound


@every
def test_float64_x_with_float32_parameters(name):
    """Computes in float64, whatever the parameters are in."""
    pool, sets = small(name, dtype=torch.float32), batch()
    y, dx, rest = backward(pool, sets.x, **sets.ragged)
    assert {g.dtype for g in rest} <= {torch.float32}
    y64, dx64, _ = backward(pool.double(), sets.x, **sets.ragged)
    # UOTPooling makes its weights from the raw ones in their own precision.
    all_close([y, dx], [y64, dx64], tol.F32 if name.startswith("uotp-") else tol.F64)


@every
@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_half_precision(name, half):
    """The very numbers of float32, rounded: the computation is the same."""
    pool, sets = small(name, dtype=torch.float32), batch()
    x = sets.x.to(half)
    y = call(pool, x.float(), **sets.ragged)
    assert torch.equal(call(pool, x, **sets.ragged), y.to(half))
    halved = pool.to(half)
    y, dx, rest = backward(halved, x, **sets.ragged)
    assert {t.dtype for t in (y, dx, *rest)} == {half}
    assert all(t.isfinite().all() for t in (y, dx, *rest))
    assert torch.equal(y, call(halved, x.float(), **sets.ragged).to(half))
    close(
        y.float(), call(pool.float(), x.float(), **sets.ragged), tol.F16 if half is torch.float16 else tol.BF16
    )


@every
def test_autocast_changes_nothing(name):
    pool, sets = small(name, dtype=torch.float32), batch()
    x = sets.x.float().requires_grad_()
    inputs = [x, *pool.parameters()]
    found = []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            y = call(pool, x, **sets.ragged)
            loss = weighed(y) + pool.aux_loss
        found.append([y, *torch.autograd.grad(loss, inputs, materialize_grads=True)])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


# ---------------------------------------------------------------------------------------------------------
# edges


@graphs
@pytest.mark.parametrize(
    ("edge_index", "edge_weight", "error", "argument"),
    [
        (None, None, TypeError, "edge_index"),
        ([[0], [1]], None, TypeError, "edge_index"),
        (torch.zeros(3, 2, dtype=torch.int64), None, ValueError, "edge_index"),
        (torch.zeros(2, dtype=torch.int64), None, ValueError, "edge_index"),
        (torch.zeros(2, 3), None, TypeError, "edge_index"),
        (torch.zeros(2, 3, dtype=torch.bool), None, TypeError, "edge_index"),
        (torch.tensor([[0], [6]]), None, ValueError, "edge_index"),
        (torch.tensor([[-1], [1]]), None, ValueError, "edge_index"),
        (torch.tensor([[0, 2], [1, 3]]), None, ValueError, "edge_index"),  # between sets
        (torch.tensor([[0], [1]]), torch.ones(2), ValueError, "edge_weight"),
        (torch.tensor([[0], [1]]), torch.ones(1, 1), ValueError, "edge_weight"),
        (torch.tensor([[0], [1]]), torch.ones(1, dtype=torch.int64), TypeError, "edge_weight"),
        (torch.tensor([[0], [1]]), 1.0, TypeError, "edge_weight"),
    ],
)
def test_wrong_edges(name, edge_index, edge_weight, error, argument):
    pool, x = small(name), torch.randn(2, 3, D)
    for rows, layout in ((x, {}), (x.flatten(0, 1), {"ptr": torch.tensor([0, 3, 6])})):
        with pytest.raises(error, match=f"^{argument}: expected"):
            call(pool, rows, **layout, edge_index=edge_index, edge_weight=edge_weight)


@graphs
def test_edges_between_sets_are_found_beside_masked_rows(name):
    x = torch.randn(2, 3, D)
    mask = torch.tensor([[True, False, True], [True, True, True]])
    with pytest.raises(ValueError, match=r"^edge_index: expected edges within a set.*\(0, 1\)"):
        call(small(name), x, mask=mask, edge_index=torch.tensor([[0, 2], [2, 4]]))


@graphs
def test_the_order_of_edges_does_not_matter(name):
    """Nor with parallel edges and loops of different weights."""
    pool, sets = small(name), batch((6, 7))
    more = torch.tensor([[0, 0, 2, 2, 8, 8], [0, 0, 3, 3, 8, 8]])
    edges = torch.cat([sets.edges, more], dim=1)
    weight = torch.cat([sets.weight, torch.tensor([0.5, 2.0, 0.5, 2.0, 3.0, 1.0], dtype=torch.float64)])
    y = call(pool, sets.x, **sets.ragged | {"edge_index": edges}, edge_weight=weight)
    flipped = sets.ragged | {"edge_index": edges.flip(1)}
    close(call(pool, sets.x, **flipped, edge_weight=weight.flip(0)), y)


@graphs
def test_edges_count(name):
    pool, sets = small(name), batch((6, 7))
    y = call(pool, sets.x, **sets.ragged)
    fewer = call(pool, sets.x, **sets.ragged | {"edge_index": sets.edges[:, 2:]})
    assert (fewer[0] - y[0]).abs().max() > 1e-6
    assert torch.equal(call(pool, sets.x, **sets.ragged, edge_weight=torch.ones(sets.edges.shape[1])), y)
    assert (call(pool, sets.x, **sets.ragged, edge_weight=sets.weight) - y).abs().min(1).values.max() > 1e-6


# ---------------------------------------------------------------------------------------------------------
# errors


@every
def test_wrong_x(name):
    pool, edges = small(name), torch.tensor([[0], [1]])
    with pytest.raises(ValueError, match=f"^X: expected {D} features"):
        call(pool, torch.randn(2, 3, D + 1), edge_index=edges)
    with pytest.raises(ValueError, match=r"^X: expected a floating tensor"):
        call(pool, torch.randn(D), edge_index=edges)
    with pytest.raises(TypeError, match=r"^X: expected a floating tensor"):
        call(pool, torch.ones(2, 3, D, dtype=torch.int64), edge_index=edges)
    with pytest.raises(TypeError, match=r"^X: expected a floating tensor"):
        call(pool, [[1.0] * D], edge_index=edges)
    with pytest.raises(ValueError, match=r"^mask: expected"):
        call(pool, torch.randn(2, 3, D), mask=torch.ones(2, 2).bool(), edge_index=edges)
    with pytest.raises(ValueError, match=r"^X: expected"):
        pool.fit(torch.randn(2, 3, D + 1))


@every
def test_wrong_dim_and_hidden(name):
    wrong = [(0, ValueError), (-1, ValueError), (True, TypeError), (2.0, TypeError), ("4", TypeError)]
    for dim, error in [*wrong, (None, TypeError), ([4], TypeError)]:
        with pytest.raises(error, match=r"^dim: expected an integer >= 1"):
            zoo.build(name, dim)
    for hidden, error in wrong:
        with pytest.raises(error, match=r"^hidden: expected an integer >= 1"):
            zoo.build(name, D, hidden)


@pytest.mark.parametrize(
    ("name", "option", "value", "error"),
    [
        ("sagp", "ratio", 0, ValueError),
        ("sagp", "ratio", 1.5, ValueError),
        ("asap", "ratio", -0.5, ValueError),
        ("asap", "ratio", "0.5", TypeError),
        ("asap", "ratio", float("nan"), ValueError),
        ("dynamic", "steps", 0, ValueError),
        ("set2set", "steps", 1.5, TypeError),
        ("wegl", "steps", 0, ValueError),
        ("otk", "steps", 0, ValueError),
        ("wegl", "references", 0, ValueError),
        ("otk", "references", 0, ValueError),
        ("otk", "references", 2.5, TypeError),
        ("swe", "references", 0, ValueError),
        ("wegl", "epsilon", 0.0, ValueError),
        ("otk", "epsilon", -1.0, ValueError),
        ("gmt", "seeds", 0, ValueError),
        ("gmt", "heads", 3, ValueError),
        ("set-transformer", "heads", 0, ValueError),
        ("diffpool", "clusters", 0, ValueError),
        ("map", "heads", 3, ValueError),
        ("map", "heads", 0, ValueError),
        ("ep", "queries", 3, ValueError),
        ("ep", "queries", 1.5, TypeError),
        ("simpool", "gamma", 0.0, ValueError),
        ("simpool", "gamma", "2", TypeError),
        ("covariance", "rank", 0, ValueError),
        ("uotp-sinkhorn", "K", -1, ValueError),
    ],
)
def test_wrong_options(name, option, value, error):
    with pytest.raises(error, match=f"^{option}: expected"):
        zoo.build(name, D, **{option: value})


@every
def test_unknown_options(name):
    with pytest.raises(TypeError, match="sharpness"):
        zoo.build(name, D, sharpness=2)


def test_unknown_options_are_answered_with_the_known_ones():
    with pytest.raises(TypeError, match=r"^stepz: .*\(epsilon, references, steps, did you mean 'steps'"):
        zoo.build("wegl", D, stepz=3)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("gate-mixed", "'gated-mixed'"),
        ("sinkhorn", "'uotp-sinkhorn'"),
        ("Mean", "'mean'"),
        ("set_transformer", "'set-transformer'"),
        ("badmm-e", "'uotp-badmm-e'"),
        ("SAGPool", "'sagp'"),
        ("sum", "'add'"),
        ("avg", "'mean'"),
        ("uot", "'uotp'"),
        ("", "all: add, mean"),
        (None, "all: add, mean"),
        (["mean"], "all: add, mean"),
    ],
)
def test_unknown_names(name, near):
    with pytest.raises(ValueError, match=f"^name: expected a pooling.*{re.escape(near)}"):
        zoo.build(name, D)


# ---------------------------------------------------------------------------------------------------------
# state


def randomised(name, seed):
    torch.manual_seed(seed)
    return zoo.build(name, 8, **SMALL.get(name, {}))


def state(pool):
    return {name: t.clone() for name, t in pool.state_dict().items()}


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@every
def test_reset_parameters(name):
    """Draws all anew, reproducibly, and what starts at a constant (biases, gates) starts there again."""
    pool = randomised(name, 0)
    start = state(pool)
    fixed = {"alpha0", "alpha1", "alpha2"}  # the numbers that a layer was made with
    learned = ({n for n, _ in pool.named_parameters()} | set(start)) - fixed
    with torch.no_grad():
        for t in pool.state_dict().values():
            t.fill_(7.5)
    torch.manual_seed(1)
    pool.reset_parameters()
    first = state(pool)
    assert [n for n in learned if (first[n] == 7.5).any()] == []
    constant = [n for n, t in start.items() if t.numel() > 1 and (t == t.flatten()[0]).all()]
    assert [n for n in constant if not torch.equal(first[n], start[n])] == []
    for n, t in first.items():
        if t.numel() >= 16 and n not in constant:
            assert 0.5 < float(t.std() / start[n].std()) < 2.0, n
    torch.manual_seed(1)
    pool.reset_parameters()
    assert equal(state(pool), first)


@every
def test_the_same_seed_builds_the_same(name):
    assert equal(state(randomised(name, 3)), state(randomised(name, 3)))


@every
def test_state_dict_round_trip(name):
    one, other, sets = randomised(name, 0), randomised(name, 1), batch(dim=8)
    with torch.no_grad():
        for t in one.state_dict().values():
            t.add_(0.01)
    other.load_state_dict(one.state_dict())
    assert torch.equal(call(one, sets.x, **sets.ragged), call(other, sets.x, **sets.ragged))


@every
def test_copies_and_pickles(name):
    """After a forward and a backward, which must leave nothing behind that cannot be copied."""
    pool, sets = small(name), batch()
    before = backward(pool, sets.x, **sets.ragged)
    for twin in (copy.deepcopy(pool), pickle.loads(pickle.dumps(pool))):
        after = backward(twin, sets.x, **sets.ragged)
        assert all(
            torch.equal(a, b) for a, b in zip([*before[:2], *before[2]], [*after[:2], *after[2]], strict=True)
        )
        assert twin.out_dim == pool.out_dim


@every
def test_conversion(name):
    pool = zoo.build(name, D, **SMALL.get(name, {})).to(torch.float64)
    assert all(t.dtype == torch.float64 for t in pool.state_dict().values())
    assert (
        call(pool, torch.randn(2, 3, D, dtype=torch.float64), edge_index=torch.tensor([[0], [1]])).dtype
        == torch.float64
    )


@every
def test_repr_and_docstring(name):
    pool, entry = small(name), zoo.entry(name)
    text = repr(pool)
    assert text.startswith(type(pool).__name__ + "(")
    assert len(text) < 1200
    assert str(D) in pool.extra_repr()
    doc = type(pool).__doc__ or ""
    assert ":math:" in doc or ".. math::" in doc
    assert entry.formula
    assert all(year in doc for year in re.findall(r"\d{4}", entry.paper))
    assert bool(re.search(r"\d{4}", entry.paper)) == (
        name
        not in ("add", "mean", "max", "mean-max", "half-mean-max", "median", "quantile", "topk-mean", "std")
    )
    for surname in re.findall(r"[A-Z][a-z]+", entry.paper):
        assert surname in doc


@every
def test_aux_loss_is_always_there(name):
    pool, sets = small(name), batch()
    assert pool.aux_loss == 0.0
    call(pool, sets.x, **sets.ragged)
    assert (float(torch.as_tensor(pool.aux_loss).detach()) > 0) == (name == "diffpool")


# ---------------------------------------------------------------------------------------------------------
# training


@every
def test_training_lowers_the_loss(name):
    """Whether the first feature is large on average: the same model for all names."""
    torch.manual_seed(0)
    sets = batch((4, 7, 5) * 8, 5)
    x, y = sets.x.float(), torch.arange(24) % 2
    x = x + torch.where(y == 1, 0.8, -0.8)[sets.index][:, None]
    first = nn.Linear(5, D)
    pool = zoo.build(name, D, **SMALL.get(name, {}))
    pool.fit(first(x).detach(), sets.index)
    last = nn.Linear(pool.out_dim, 2)
    optimiser = torch.optim.Adam([*first.parameters(), *pool.parameters(), *last.parameters()], 0.02)
    losses = []
    for _ in range(25):
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(last(call(pool, first(x), **sets.ragged)), y) + pool.aux_loss
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.9 * losses[0]


# ---------------------------------------------------------------------------------------------------------
# fit


@pytest.mark.parametrize("name", FITTED)
def test_fit(name):
    """Changes references, reproducibly, from the rows that are present and from no others."""
    sets = batch((9, 0, 12, 8))
    X, mask, _ = sets.dense()
    pool = small(name)
    start = state(pool)
    torch.manual_seed(5)
    assert pool.fit(sets.x, sets.index) is pool
    fitted = state(pool)
    assert not any(torch.equal(fitted[n], start[n]) for n in start)
    for rows, layout in ((sets.x, {"ptr": sets.ptr}), (X, {"mask": mask})):
        twin = small(name)
        torch.manual_seed(5)
        twin.fit(rows, **layout)
        assert equal(state(twin), fitted)
    assert all(p.requires_grad and p.grad is None for p in pool.parameters())
    gradients_finite(pool, sets.x, **sets.ragged)


def test_wegl_references_are_the_centres_of_clusters():
    centres = torch.tensor([[0.0, 9.0], [9.0, 0.0], [-9.0, 0.0]], dtype=torch.float64)
    x = (centres + 0.1 * torch.randn(20, 3, 2, dtype=torch.float64)).flatten(0, 1)
    pool = zoo.build("wegl", 2, references=3).double().fit(x)
    order = torch.cdist(centres, pool.Z).argmin(1)
    assert sorted(order.tolist()) == [0, 1, 2]
    close(pool.Z[order], x.reshape(20, 3, 2).mean(0), tol.F64)


def test_otk_takes_its_width_from_the_data():
    """s is the mean squared distance of two rows, and the kernel does not change with the unit of x."""
    x = torch.randn(30, D, dtype=torch.float64)
    pools = []
    for scale in (1.0, 1e3):
        torch.manual_seed(0)
        pools.append(small("otk"))
        torch.manual_seed(0)
        pools[-1].fit(scale * x)
    close(pools[0].log_s.exp(), torch.cdist(x, x).square().mean(), tol.F64)
    close(pools[1](1e3 * x[None]), pools[0](x[None]))


@pytest.mark.parametrize("name", FITTED)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_fit_in_any_precision(name, dtype):
    sets = batch((9, 12))
    pool = small(name, dtype=dtype).fit(sets.x.to(dtype), sets.index)
    assert {t.dtype for t in state(pool).values()} == {dtype}
    assert pool(sets.x.to(dtype), sets.index).isfinite().all()
    mixed = small(name, dtype=torch.float32).fit(sets.x.to(dtype), sets.index)
    assert mixed(sets.x.to(dtype), sets.index).isfinite().all()


@pytest.mark.parametrize("name", FITTED)
def test_fit_needs_enough_samples_and_else_changes_nothing(name):
    pool = small(name)
    before = state(pool)
    with pytest.raises(ValueError, match=r"^X: expected at least .* samples"):
        pool.fit(torch.randn(2, 5, D), mask=torch.tensor([[1, 0, 0, 0, 0], [0, 0, 0, 0, 0]]))
    assert equal(state(pool), before)
    count = "clusters" if name == "netvlad" else "references"
    many = zoo.build(name, D, **{count: 8})
    before = state(many)
    with pytest.raises(ValueError, match=rf"^X: expected at least 8 samples, one for each of {count}=8"):
        many.fit(torch.randn(6, D))
    assert equal(state(many), before)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in FITTED])
def test_fit_does_nothing_for_the_others(name):
    pool = small(name)
    before, seed = state(pool), torch.get_rng_state()
    assert pool.fit(torch.randn(2, 3, D, generator=torch.Generator())) is pool
    assert equal(state(pool), before)
    assert torch.equal(torch.get_rng_state(), seed)
