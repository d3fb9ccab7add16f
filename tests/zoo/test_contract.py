"""What every pooling of the zoo promises: `check_pooling` for all names, and what that does not look at."""

from __future__ import annotations

import copy
import itertools
import pickle
import re

import numpy as np
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
from uotpool.sets import RaggedSets
from uotpool.sets.padding import pool_padded
from uotpool.testing import check_pooling

D = 4
# One for each mechanism: a statistic, attention, padded layers of PyG, transport, a graph with a loss, UOT.
MECHANISMS = ("softmax", "gated-attention", "set-transformer", "wegl", "diffpool", "uotp")

every = pytest.mark.parametrize("name", NAMES)
mechanisms = pytest.mark.parametrize("name", MECHANISMS)
graphs = pytest.mark.parametrize("name", GRAPHS)
with_layers = pytest.mark.parametrize("name", ["set2set", *sorted({*GRAPHS, *MECHANISMS})])
fitted = pytest.mark.parametrize("name", FITTED)


def close(got, want, bound=tol.F64):
    torch.testing.assert_close(got, want, rtol=bound, atol=bound)


def all_close(got, want, bound=tol.F64):
    for g, w in zip(got, want, strict=True):
        close(g, w, bound)


def state(pool):
    return {name: t.clone() for name, t in pool.state_dict().items()}


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


class WithEdges(nn.Module):
    """A pooling of graphs as one of sets: edges from each sample to those of a larger first feature."""

    def __init__(self, pool):
        super().__init__()
        self.pool = pool

    def forward(self, X, index=None, ptr=None, dim_size=None, mask=None):
        first = X[..., 0].detach().flatten()
        if X.dim() == 3:
            sets = torch.arange(len(first)) // max(X.shape[1], 1)
        else:
            sets = torch.arange(len(ptr) - 1).repeat_interleave(ptr.diff()) if index is None else index
        there = torch.ones(len(first), dtype=torch.bool) if mask is None else mask.flatten()
        pairs = (sets[:, None] == sets) & there[:, None] & there & (first[:, None] < first)
        return self.pool(X, index, ptr, dim_size, mask, edge_index=pairs.nonzero().T)


@every
def test_promises(name):
    check_pooling(WithEdges(small(name)) if name in GRAPHS else small(name), D)


def test_the_registry_has_all_names():
    assert len(NAMES) == 46
    assert {"mean", "uotp", "uotp-sinkhorn", "uotp-badmm-e", "uotp-badmm-q", "uotp-sinkhorn-paper"} < set(NAMES)
    assert set(GRAPHS) == {"sagp", "asap", "diffpool"}
    assert set(FITTED) == {"otk", "wegl", "netvlad"}


# --- layouts


@with_layers
def test_layouts_agree_with_their_gradients(name):
    """int32 offsets, rows in another order, holes in a dense batch, absent rows of a ragged one; with edges."""
    pool, sets = small(name), batch()
    y, dx, rest = backward(pool, sets.x, **sets.ragged)
    assert (y[[1, 5]] == 0).all()
    all_close(backward(pool, sets.x, ptr=sets.ptr.int(), edge_index=sets.edges.int())[2], rest)

    order = torch.randperm(len(sets.x))
    place = order.argsort()
    moved = {"index": sets.index[order], "dim_size": len(SIZES), "edge_index": place[sets.edges]}
    y2, dx2, rest2 = backward(pool, sets.x[order], **moved)
    all_close([y2, dx2, *rest2], [y, dx[order], *rest])

    X, mask, edges = sets.dense()
    y3, dX, rest3 = backward(pool, X, mask=mask, edge_index=edges)
    all_close([y3, dX[mask], *rest3], [y, dx, *rest])
    assert (dX[~mask] == 0).all()

    kept = torch.arange(len(sets.x)).repeat_interleave(2)[1:]
    there = torch.arange(len(kept)) % 2 == 0
    kept[0] = 0
    rows = torch.where(there[:, None], sets.x[kept], torch.nan)
    edges = torch.cat([2 * sets.edges, torch.tensor([[0, 1], [1, 0]])], dim=1)  # two at absent rows
    layout = {"index": sets.index[kept], "dim_size": len(SIZES), "mask": there, "edge_index": edges}
    y4, dx4, rest4 = backward(pool, rows, **layout)
    all_close([y4, dx4[there], *rest4], [y, dx, *rest])


@every
def test_no_side_effects_and_evaluation_equals_training(name):
    """No dropout; the inference paths of torch's own layers give the same; strides do not matter."""
    pool, sets = small(name), batch((6, 6))
    x = sets.x.reshape(2, 6, D)
    strided = x.transpose(1, 2).contiguous().transpose(1, 2)
    before, seed, parameters = strided.clone(), torch.get_rng_state(), state(pool)
    assert pool.aux_loss == 0.0
    y = call(pool, strided, edge_index=sets.edges)
    assert (float(torch.as_tensor(pool.aux_loss).detach()) > 0) == (name == "diffpool")
    assert torch.equal(y, call(pool, x, edge_index=sets.edges))
    assert torch.equal(strided, before)
    assert torch.equal(torch.get_rng_state(), seed)
    assert equal(parameters, state(pool))
    with torch.no_grad():
        close(call(pool.eval(), x, edge_index=sets.edges), y)
    with torch.inference_mode():
        close(call(pool, x, edge_index=sets.edges), y)


@pytest.mark.parametrize("name", ["set-transformer", "gmt", "otk", "wegl", "swe", "covariance"])
def test_one_large_set_among_small_ones(name):
    """The same as set by set; and what is padded is less than twice what is there."""
    sizes = (200, *(1, 2, 3, 5) * 5, 0, 17)
    pool, sets = small(name), batch(sizes)
    y = pool(sets.x, sets.index, dim_size=len(sizes))
    for b in (0, 1, 4, 20, 22):
        close(y[b], pool(sets.x[sets.index == b][None])[0])
    seen = []

    def measure(rows, layout):
        seen.append(rows.shape[0] * rows.shape[1])
        return rows.sum(1)

    pool_padded(measure, sets.x, RaggedSets(sets.index, len(sizes), None))
    assert sum(seen) < 2 * sum(sizes) + sizes.count(0)
    assert 1 < len(seen) <= 9


@pytest.mark.parametrize("name", ["mean", "attention", "deepset"])
@pytest.mark.parametrize("ragged", [False, True])
def test_compiled_equals_eager(name, ragged):
    torch.compiler.reset()
    pool, sets = small(name), batch()
    X, mask, _ = sets.dense(fill=0.0)
    x, layout = (sets.x, {"index": sets.index, "dim_size": len(SIZES)}) if ragged else (X, {"mask": mask})
    y, dx, rest = backward(pool, x, **layout)
    pool.compile(backend="aot_eager")
    y2, dx2, rest2 = backward(pool, x, **layout)
    all_close([y2, dx2, *rest2], [y, dx, *rest])


class Counter(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts the operations that reach a kernel."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **kwargs or {})


@every
def test_operations_do_not_grow_with_sets(name):
    """Forward and backward take as many operations for 2000 sets as for 20: there is no loop over sets."""
    pool, counts = small(name, dtype=torch.float32), []
    for B in (20, 2000):
        index, first = torch.arange(B).repeat_interleave(3), 3 * torch.arange(B)
        x = torch.randn(3 * B, 4, generator=torch.Generator().manual_seed(0))
        edges = torch.cat([torch.stack([first, first + 1]), torch.stack([first + 1, first + 2])], dim=1)
        with Counter() as counter:
            backward(pool, x, index=index, dim_size=B, edge_index=edges)
        counts.append(counter.count)
    assert counts[0] == counts[1] > 0


# --- gradients


@with_layers
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

    assert torch.autograd.gradcheck(function, (sets.x.clone().requires_grad_(), weight, *learned.values()))


# The published Bregman ADMM has no use for two of its coefficients.
UNSEEN = {name: {"raw_alpha1", "raw_alpha2"} for name in ("uotp-badmm-e-paper", "uotp-badmm-q-paper")}


@every
def test_every_parameter_gets_a_gradient(name):
    """None is None, for which DDP would wait: also without edges, for sets of one sample and empty sets."""
    pool, sets = small(name, 8), batch((7, 9, 3), 8)
    weighed(call(pool, sets.x.requires_grad_(), **sets.ragged, edge_weight=sets.weight).sin()).backward()
    gradients = {n: p.grad for n, p in pool.named_parameters()}
    assert [n for n, g in gradients.items() if g is None] == []
    assert {n for n, g in gradients.items() if g.abs().max() < tol.STRUCTURAL_ZERO} == UNSEEN.get(name, set())
    for sizes in ((1, 1), (2, 1, 0), (0, 0)):
        pool, sets = small(name), batch(sizes)
        y = call(pool, sets.x, **sets.ragged | {"edge_index": torch.empty(2, 0, dtype=torch.int64)})
        if list(pool.parameters()):
            y.sum().backward()
        assert [n for n, p in pool.named_parameters() if p.grad is None or not p.grad.isfinite().all()] == []


# --- precision, constant and extreme values, NaN


@every
def test_float32_at_extremes_is_finite(name):
    """Constants and scales, with one feature and with one sample among the cases."""
    for dim, sizes in itertools.product((1, 4), ((1,), (5, 1, 2))):
        pool, sets = small(name, dim, dtype=torch.float32), batch(sizes, dim)
        inputs = [torch.full_like(sets.x, value) for value in (0.0, -3.0, 1e4, 1e8)]
        inputs += [scale * sets.x for scale in (1e-30, 1e-6, 1e4, 1e8)]
        for x in inputs:
            gradients_finite(pool, x.float(), **sets.ragged)


@every
def test_precisions(name):
    """float32 is near float64; half precision is float32, rounded; float64 x is computed in float64."""
    pool, sets = small(name), batch((3, 5, 1, 8))
    y, dx, _ = backward(pool, sets.x, **sets.ragged)
    pool = pool.float()
    for got, want in zip(backward(pool, sets.x.float(), **sets.ragged)[:2], (y, dx), strict=True):
        assert (got - want).abs().max() <= tol.ZOO_F32 * float(want.abs().max().clamp_min(1.0))
    # UOTPooling makes its coefficients from the raw ones in their own precision.
    single = tol.F32 if name.startswith("uotp-") else tol.ZOO_F32
    y64, dx64, rest = backward(pool, sets.x, **sets.ragged)
    assert {g.dtype for g in rest} <= {torch.float32}
    for got, want in zip((y64, dx64), (y, dx), strict=True):
        assert (got - want).abs().max() <= single * float(want.abs().max().clamp_min(1.0))
    for half in (torch.float16, torch.bfloat16):
        x = sets.x.to(half)
        assert torch.equal(call(pool, x, **sets.ragged), call(pool, x.float(), **sets.ragged).to(half))


@every
def test_a_nan_spoils_its_set_and_no_other(name):
    """The same entries with and without a gradient; under `check` it is an error."""
    pool, sets = small(name), batch((4, 3, 5))
    clean = sets.x.clone().requires_grad_()
    want = call(pool, clean, **sets.ragged)
    (d_want,) = torch.autograd.grad(weighed(want[[0, 2]]), clean)
    x = sets.x.clone()
    x[5] = torch.nan  # of the second set
    with pytest.raises(ValueError, match=r"^X: "):
        call(pool, x, **sets.ragged)
    with uotpool.check(False):
        with torch.no_grad():
            still = call(pool, x, **sets.ragged)
        y = call(pool, x.requires_grad_(), **sets.ragged)
        X, mask, edges = sets.dense()
        X[mask] = x.detach()
        dense = call(pool, X, mask=mask, edge_index=edges)
    assert torch.equal(still.isnan(), y.isnan())
    for out in (y, dense):
        close(out[[0, 2]], want[[0, 2]])
        assert out[1].isnan().any(), "a NaN must show"
    (dx,) = torch.autograd.grad(weighed(y[[0, 2]]), x)
    others = sets.index != 1
    close(dx[others], d_want[others])


# --- edges


@graphs
@pytest.mark.parametrize(
    ("edge_index", "edge_weight", "argument"),
    [
        (None, None, "edge_index"),
        ([[0], [1]], None, "edge_index"),
        (torch.zeros(3, 2, dtype=torch.int64), None, "edge_index"),
        (torch.zeros(2, dtype=torch.int64), None, "edge_index"),
        (torch.zeros(2, 3), None, "edge_index"),
        (torch.zeros(2, 3, dtype=torch.bool), None, "edge_index"),
        (torch.tensor([[0], [6]]), None, "edge_index"),
        (torch.tensor([[-1], [1]]), None, "edge_index"),
        (torch.tensor([[0, 2], [1, 3]]), None, "edge_index"),  # between sets
        (torch.tensor([[0], [1]]), torch.ones(2), "edge_weight"),
        (torch.tensor([[0], [1]]), torch.ones(1, 1), "edge_weight"),
        (torch.tensor([[0], [1]]), torch.ones(1, dtype=torch.int64), "edge_weight"),
        (torch.tensor([[0], [1]]), 1.0, "edge_weight"),
        (torch.tensor([[0], [1]]), torch.tensor([-1.0]), "edge_weight"),
        (torch.tensor([[0], [1]]), torch.tensor([torch.nan]), "edge_weight"),
    ],
)
def test_wrong_edges(name, edge_index, edge_weight, argument):
    pool, x = small(name), torch.randn(2, 3, D)
    for rows, layout in ((x, {}), (x.flatten(0, 1), {"ptr": torch.tensor([0, 3, 6])})):
        with pytest.raises((TypeError, ValueError), match=f"^{argument}: "):
            call(pool, rows, **layout, edge_index=edge_index, edge_weight=edge_weight)


@graphs
def test_edges_between_sets_are_found_beside_masked_rows(name):
    mask = torch.tensor([[True, False, True], [True, True, True]])
    with pytest.raises(ValueError, match=r"^edge_index: "):
        call(small(name), torch.randn(2, 3, D), mask=mask, edge_index=torch.tensor([[0, 2], [2, 4]]))


@graphs
def test_edges_count_and_their_order_does_not(name):
    """Nor with parallel edges and loops of different weights."""
    pool, sets = small(name), batch((6, 7))
    y = call(pool, sets.x, **sets.ragged)
    fewer = call(pool, sets.x, **sets.ragged | {"edge_index": sets.edges[:, 2:]})
    assert (fewer[0] - y[0]).abs().max() > 1e-6
    assert torch.equal(call(pool, sets.x, **sets.ragged, edge_weight=torch.ones(sets.edges.shape[1])), y)
    assert (call(pool, sets.x, **sets.ragged, edge_weight=sets.weight) - y).abs().min(1).values.max() > 1e-6
    edges = torch.cat([sets.edges, torch.tensor([[0, 0, 2, 2, 8, 8], [0, 0, 3, 3, 8, 8]])], dim=1)
    weight = torch.cat([sets.weight, torch.tensor([0.5, 2.0, 0.5, 2.0, 3.0, 1.0], dtype=torch.float64)])
    y = call(pool, sets.x, **sets.ragged | {"edge_index": edges}, edge_weight=weight)
    flipped = sets.ragged | {"edge_index": edges.flip(1)}
    close(call(pool, sets.x, **flipped, edge_weight=weight.flip(0)), y)


@graphs
@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_saturated_scores_do_not_see_batch_mates(name, scale):
    """float32, where tanh is 1 from 9 on: many nodes tie."""
    sizes = (17, 18, 19, 20, 17, 18)
    pool, sets = small(name, dtype=torch.float32), batch(sizes, scale=scale)
    y = call(pool, sets.x.float(), **sets.ragged)
    for b in range(len(sizes)):
        rows, edges, _ = sets.alone(b)
        close(call(pool, rows.float(), edge_index=edges)[0] / scale, y[b] / scale, tol.F32)


@graphs
@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_the_order_of_nodes_does_not_matter(name, scale):
    """Also where activations saturate. In a complete graph scores tie: sagp says so."""
    pool, sets = small(name), batch((9,), scale=scale)
    order = torch.randperm(9)
    y = call(pool, sets.x, edge_index=sets.edges)
    again = call(pool, sets.x[order], edge_index=order.argsort()[sets.edges])
    torch.testing.assert_close(again, y, rtol=tol.ZOO_ORDER, atol=tol.ZOO_ORDER * float(y.detach().abs().max()))
    complete = torch.tensor([[i, j] for i in range(9) for j in range(9) if i != j]).T
    y, again = (call(pool, x, edge_index=complete) for x in (sets.x, sets.x[order]))
    assert again.isfinite().all()
    assert ("scores tie" in type(pool).__doc__) == (name == "sagp")
    if name != "sagp":
        torch.testing.assert_close(
            again, y, rtol=tol.ZOO_ORDER, atol=tol.ZOO_ORDER * float(y.detach().abs().max())
        )


@pytest.mark.parametrize(("ratio", "N", "kept"), [(0.07, 100, 7), (0.5, 5, 3), (1.0, 6, 6), (1e-6, 9, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_how_many_nodes_are_kept(ratio, N, kept, dtype):
    pool = zoo.build("sagp", 2, ratio=ratio).to(dtype)
    x = torch.stack([torch.ones(N), torch.arange(N) + 1.0], 1).to(dtype)
    with torch.no_grad():
        pool.gnn.lin.weight.copy_(torch.tensor([[0.0, 1.0]]))
        pool.gnn.bias.fill_(50.0)  # tanh is 1: the mean of what is kept is that of the largest
    y = call(pool, x, edge_index=torch.zeros(2, 0, dtype=torch.long))
    assert float(y[0, 1].detach()) == pytest.approx(float(x[N - kept :, 1].mean()), rel=tol.INIT)


# --- refusals


@mechanisms
@pytest.mark.parametrize(
    ("argument", "X", "layout"),
    [
        ("X", torch.randn(2, 3, D + 1), {}),
        ("X", torch.randn(D), {}),
        ("X", torch.ones(2, 3, D, dtype=torch.int64), {}),
        ("X", [[1.0] * D], {}),
        ("mask", torch.randn(2, 3, D), {"mask": torch.ones(2, 2).bool()}),
    ],
)
def test_wrong_x(name, argument, X, layout):
    with pytest.raises((TypeError, ValueError), match=rf"^{argument}: "):
        call(small(name), X, **layout, edge_index=torch.tensor([[0], [1]]))


OPTIONS = [
    *((name, "dim", dim) for name in MECHANISMS for dim in (0, True, 2.0, "4", None)),
    *((name, "hidden", hidden) for name in MECHANISMS for hidden in (0, 2.0)),
    *(("sagp", "ratio", 0), ("sagp", "ratio", 1.5), ("asap", "ratio", "0.5"), ("asap", "ratio", float("nan"))),
    *(("dynamic", "steps", 0), ("set2set", "steps", 1.5), ("wegl", "steps", 0), ("otk", "steps", 0)),
    *(("wegl", "references", 0), ("otk", "references", 2.5), ("swe", "references", 0)),
    *(("wegl", "epsilon", 0.0), ("otk", "epsilon", -1.0), ("gmt", "seeds", 0), ("gmt", "heads", 3)),
    *(("set-transformer", "heads", 0), ("diffpool", "clusters", 0), ("map", "heads", 3), ("ep", "queries", 3)),
    *(("simpool", "gamma", 0.0), ("simpool", "gamma", "2"), ("covariance", "rank", 0)),
    *(("uotp-sinkhorn", "K", -1), ("uotp-sinkhorn", "solver", "badmm-e"), ("wegl", "stepz", 3)),
]


@pytest.mark.parametrize(("name", "option", "value"), OPTIONS)
def test_wrong_options(name, option, value):
    with pytest.raises((TypeError, ValueError), match=f"^{option}: "):
        zoo.build(name, **{"dim": D, option: value})


@every
def test_unknown_options(name):
    with pytest.raises(TypeError, match="sharpness"):
        zoo.build(name, D, sharpness=2)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        *(("gate-mixed", "gated-mixed"), ("sinkhorn", "uotp-sinkhorn"), ("Mean", "mean"), ("SAGPool", "sagp")),
        *(("set_transformer", "set-transformer"), ("sum", "add"), ("avg", "mean"), ("uot", "uotp")),
        *(("", "add"), (None, "add"), (["mean"], "add")),
    ],
)
def test_unknown_names_are_answered_with_near_ones(name, near):
    with pytest.raises(ValueError, match=f"^name: .*{re.escape(near)}"):
        zoo.build(name, D)


# --- state


def drawn(name, seed):
    torch.manual_seed(seed)
    return zoo.build(name, 8, **SMALL.get(name, {}))


@every
def test_reset_parameters(name):
    """Draws all anew, reproducibly, and what starts at a constant (biases, gates) starts there again."""
    pool = drawn(name, 0)
    start = state(pool)
    with torch.no_grad():
        for t in pool.state_dict().values():
            t.fill_(7.5)
    torch.manual_seed(1)
    pool.reset_parameters()
    first = state(pool)
    assert [n for n in start if (first[n] == 7.5).any()] == []
    constant = [n for n, t in start.items() if t.numel() > 1 and (t == t.flatten()[0]).all()]
    assert [n for n in constant if not torch.equal(first[n], start[n])] == []
    for n, t in first.items():
        if t.numel() >= 16 and n not in constant:
            assert 0.5 < float(t.std() / start[n].std()) < 2.0, n
    torch.manual_seed(1)
    pool.reset_parameters()
    assert equal(state(pool), first)
    assert equal(state(drawn(name, 3)), state(drawn(name, 3)))


@every
def test_copies_pickles_and_state_dicts(name):
    """After a forward and a backward pass, which must leave nothing behind that cannot be copied."""
    pool, other, sets = drawn(name, 0), drawn(name, 1), batch(dim=8)
    with torch.no_grad():
        for t in pool.state_dict().values():
            t.add_(0.01)
    y, dx, rest = backward(pool, sets.x.float(), **sets.ragged)
    other.load_state_dict(pool.state_dict())
    for twin in (other, copy.deepcopy(pool), pickle.loads(pickle.dumps(pool))):
        y2, dx2, rest2 = backward(twin, sets.x.float(), **sets.ragged)
        assert all(torch.equal(a, b) for a, b in zip([y, dx, *rest], [y2, dx2, *rest2], strict=True))
        assert twin.out_dim == pool.out_dim


@every
def test_repr_docstring_and_numpy_integers(name):
    pool, entry = zoo.build(name, np.int64(D), np.int64(3)), zoo.entry(name)
    assert type(pool.dim) is int
    assert repr(pool).startswith(type(pool).__name__ + "(")
    assert len(repr(pool)) < 1200
    assert str(D) in pool.extra_repr()
    doc = type(pool).__doc__ or ""
    assert ":math:" in doc or ".. math::" in doc
    assert entry.formula
    assert all(word in doc for word in re.findall(r"\d{4}|[A-Z][a-z]+", entry.paper))


@pytest.mark.parametrize("name", ["attention", "deepset", "set-transformer", "diffpool"])
def test_hooks_run_once_in_another_precision(name):
    pool, sets, counts = small(name, dtype=torch.float32), batch(), []
    inner = next(module for module in pool.modules() if module is not pool and not list(module.children()))
    for module in (pool, inner):
        module.register_forward_hook(lambda module, *_: counts.append(module is pool))
    call(pool, sets.x.float(), sets.index, edge_index=sets.edges)
    once = sorted(counts)
    assert sum(once) == 1
    for dtype in (torch.float16, torch.float64):
        counts.clear()
        call(pool, sets.x.to(dtype), sets.index, edge_index=sets.edges)
        assert len(counts) == len(once)
        assert sum(counts) == 1


# --- fit


@fitted
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_fit(name, dtype):
    """Changes references, reproducibly, from the rows that are present and from no others; in any precision."""
    sets = batch((9, 0, 12, 8))
    X, mask, _ = sets.dense()
    pool = small(name, dtype=dtype)
    start = state(pool)
    torch.manual_seed(5)
    assert pool.fit(sets.x.to(dtype), sets.index) is pool
    fit = state(pool)
    assert not any(torch.equal(fit[n], start[n]) for n in start)
    assert {t.dtype for t in fit.values()} == {dtype}
    for rows, layout in ((sets.x, {"ptr": sets.ptr}), (X, {"mask": mask})):
        twin = small(name, dtype=dtype)
        torch.manual_seed(5)
        twin.fit(rows.to(dtype), **layout)
        assert equal(state(twin), fit)
    assert all(p.requires_grad and p.grad is None for p in pool.parameters())
    gradients_finite(pool, sets.x.to(dtype), **sets.ragged)


@fitted
def test_fit_needs_enough_samples_and_else_changes_nothing(name):
    pool = zoo.build(name, D, **{"clusters" if name == "netvlad" else "references": 8})
    before = state(pool)
    for X in (torch.randn(6, D), torch.randn(2, 3, D + 1)):
        with pytest.raises(ValueError, match=r"^X: "):
            pool.fit(X)
    with pytest.raises(ValueError, match=r"^X: "):
        pool.fit(torch.randn(2, 5, D), mask=torch.tensor([[1, 0, 0, 0, 0], [0, 0, 0, 0, 0]]))
    assert equal(state(pool), before)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in FITTED])
def test_fit_does_nothing_for_the_others(name):
    pool = small(name)
    before, seed = state(pool), torch.get_rng_state()
    assert pool.fit(torch.randn(2, 3, D, generator=torch.Generator())) is pool
    assert equal(state(pool), before)
    assert torch.equal(torch.get_rng_state(), seed)
