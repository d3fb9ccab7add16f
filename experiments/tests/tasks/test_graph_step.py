"""One step of AD-GCL with merged nodes and sparse products, against one row per node, gather and scatter."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor
from uotpool_experiments.datasets.graphs import Graphs
from uotpool_experiments.tasks.graph.batches import LAYERS, Batch, Batches
from uotpool_experiments.tasks.graph.contrast import Contrasted, Trainer, ViewLearner
from uotpool_experiments.tasks.graph.encoder import GIN, WIDTH, GraphEncoder

from experiments.tests.tasks.plain_adgcl import PlainTrainer, in_dtype
from tests import tolerances as tol
from uotpool.zoo import ENTRIES, build


def trees_with_leaves(count: int = 12) -> Graphs:
    """Random trees whose nodes have bunches of leaves, some edges more, a node without edges in every third.

    Like those of REDDIT-BINARY they have many nodes that a GIN cannot tell apart.
    """
    draw = np.random.default_rng(0)
    index, ptr, edge_ptr = [], [0], [0]
    for g in range(count):
        inner = int(draw.integers(2, 7))
        pairs = {(i, int(draw.integers(0, i))) for i in range(1, inner)} | {(0, inner - 1)}
        size = inner
        for hub in range(inner):
            leaves = int(draw.integers(0, 5))
            pairs |= {(size + leaf, hub) for leaf in range(leaves)}
            size += leaves
        both = sorted(pairs | {(j, i) for i, j in pairs})
        index += [(ptr[-1] + i, ptr[-1] + j) for i, j in both]
        ptr.append(ptr[-1] + size + (g % 3 == 0))
        edge_ptr.append(len(index))
    labels = torch.from_numpy(draw.integers(0, 3, ptr[-1]))
    edges = torch.tensor(index).T.contiguous()
    return Graphs(
        "trees", labels, edges, torch.tensor(ptr), torch.tensor(edge_ptr), torch.arange(count) % 2, 3, 2
    )


def players(pooling: str, in_dim: int) -> tuple[Contrasted, ViewLearner]:
    torch.manual_seed(0)
    pool = build(pooling, WIDTH, WIDTH)
    if pool.needs_fit:
        pool.fit(torch.randn(64, WIDTH))
    model, view = Contrasted(GraphEncoder(GIN(in_dim), pool)), ViewLearner(GIN(in_dim))
    return model, view


def one_step(
    trainer: type[Trainer], model: Contrasted, view: ViewLearner, batch: Batch
) -> tuple[list[float], list[Tensor]]:
    """Both losses, and the gradients and the running statistics of both players."""
    own_model, own_view = copy.deepcopy(model), copy.deepcopy(view)
    made = trainer(own_model, own_view)
    torch.manual_seed(1)
    dropped = made._step_of_view(batch)
    found = [p.grad.clone() for p in own_view.parameters() if p.grad is not None]
    own_view.load_state_dict(view.state_dict())  # Adam makes a step of a gradient that is rounding alone
    contrast = made._step_of_model(batch)
    found += [p.grad for p in own_model.parameters() if p.grad is not None]
    return [dropped, contrast], found + [b.double() for part in (own_model, own_view) for b in part.buffers()]


def far_apart(found: list[Tensor], expected: list[Tensor]) -> float:
    """Return the relative norm of the difference."""
    difference = sum(((a.double() - b.double()) ** 2).sum() for a, b in zip(found, expected, strict=True))
    return float((difference / sum((b.double() ** 2).sum() for b in expected)) ** 0.5)


# SAGP and ASAP choose among nodes with equal scores, which rounding tells apart.
POOLINGS = sorted(name for name in ENTRIES if name not in ("sagp", "asap"))


@pytest.mark.parametrize("kind", ["constant", "labels"])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_step_is_that_of_gather_and_scatter(pooling, kind):
    graphs = trees_with_leaves()
    batch = in_dtype(Batch.of(graphs, kind), torch.float64)
    assert len(batch.merged.counts[0]) < len(batch.X)
    model, view = (part.double() for part in players(pooling, batch.X.shape[1]))
    losses, gradients = one_step(Trainer, model, view, batch)
    expected_losses, expected = one_step(PlainTrainer, model, view, batch)
    assert losses == pytest.approx(expected_losses, rel=tol.STEP_F64)
    assert far_apart(gradients, expected) < tol.STEP_F64


@pytest.mark.parametrize("pooling", ["mean", "max", "uotp-sinkhorn", "uotp-badmm-q"])
def test_a_step_in_float32_is_no_worse_than_that_of_gather_and_scatter(pooling):
    """Batch norm after batch norm magnifies rounding, so both are judged by the same step in float64."""
    batch = Batch.of(trees_with_leaves(), "labels")
    model, view = players(pooling, 3)
    exact = copy.deepcopy(model).double(), copy.deepcopy(view).double()

    def errors(trainer: type[Trainer]) -> float:
        # The noise of the gates has to be the same in both precisions.
        with pytest.MonkeyPatch.context() as patch:
            noise = torch.Generator().manual_seed(1)
            patch.setattr(torch, "rand_like", lambda x: torch.rand(x.shape, generator=noise).to(x.dtype))
            _, found = one_step(trainer, model, view, batch)
            noise.manual_seed(1)
            _, expected = one_step(PlainTrainer, exact[0], exact[1], in_dtype(batch, torch.float64))
        return far_apart(found, expected)

    assert errors(Trainer) < max(tol.STEP_F32, 2 * errors(PlainTrainer))


# ---------------------------------------------------------------------------------------------------------
# colours


def test_nodes_of_one_colour_have_one_embedding():
    graphs = trees_with_leaves()
    batch = in_dtype(Batch.of(graphs, "labels"), torch.float64)
    gin = GIN(3).double().eval()
    ones = torch.ones(batch.edges.index.shape[1], dtype=torch.float64)
    torch.testing.assert_close(gin(batch), gin(batch, ones), rtol=0, atol=tol.STEP_F64)
    sizes = [len(counts) for counts in batch.merged.counts]
    assert sizes == sorted(sizes)  # colours are only ever split
    assert sizes[-1] < len(batch.X)
    assert all(int(counts.sum()) == len(batch.X) for counts in batch.merged.counts)


def test_colours_are_those_of_weisfeiler_and_leman():
    """The colours are compared with names made of sorted tuples."""
    graphs = trees_with_leaves()
    batches = Batches(graphs, "labels")
    assert graphs.x is not None
    names: list[object] = graphs.x.tolist()
    i, j = graphs.edge_index.tolist()
    for level in range(1, LAYERS + 1):
        around: list[list[object]] = [[] for _ in names]
        for a, b in zip(i, j, strict=True):
            around[a].append(names[b])
        exact = [(name, tuple(sorted(near))) for name, near in zip(names, around, strict=True)]
        numbers = {name: n for n, name in enumerate(dict.fromkeys(exact))}
        names = [numbers[name] for name in exact]
        found = batches.colours.of_node[level].tolist()
        assert len(set(zip(names, found, strict=True))) == len(set(names)) == len(set(found))


def test_an_embedding_does_not_depend_on_the_other_graphs_of_the_batch():
    batches = Batches(trees_with_leaves(), "constant")
    torch.manual_seed(0)
    gin = GIN(1).double().eval()
    whole = in_dtype(batches.batch(torch.arange(12)), torch.float64)
    for g in (0, 5, 11):
        alone = in_dtype(batches.batch(torch.tensor([g])), torch.float64)
        found = gin(whole)[whole.ptr[g] : whole.ptr[g + 1]]
        torch.testing.assert_close(found, gin(alone), rtol=tol.STEP_F64, atol=tol.STEP_F64)


def test_edges_that_were_forgotten_are_made_again():
    batch = Batch.of(trees_with_leaves(), "constant")
    index, ends = batch.edges.index, batch.pairs.ends.matrix.values()
    batch.forget_edges()
    assert torch.equal(batch.edges.index, index)
    assert torch.equal(batch.pairs.ends.matrix.values(), ends)


def test_dropout_refuses_merged_nodes():
    graphs = trees_with_leaves()
    gin = GIN(1, dropout=0.5)
    with pytest.raises(ValueError, match=r"batch: expected one of Batches\(merge=False\)"):
        gin(Batch.of(graphs, "constant"))
    own = next(Batches(graphs, "constant", merge=False).in_order(12))
    assert len(gin.merged(own)) == len(own.X)
    gin.eval()
    torch.testing.assert_close(gin(own), gin(Batch.of(graphs, "constant")), rtol=1e-4, atol=1e-5)
