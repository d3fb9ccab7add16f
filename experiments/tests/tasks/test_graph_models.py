"""The encoder of graphs and its contrastive training, against slow and obvious computations and PyG."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import GINConv, GraphConv
from uotpool_experiments.datasets.graphs import Graphs
from uotpool_experiments.tasks.graph.batches import Batch, Batches, Edges
from uotpool_experiments.tasks.graph.contrast import (
    DROP_PENALTY,
    Contrasted,
    Trainer,
    ViewLearner,
    dropped_share,
    gates,
    info_nce,
)
from uotpool_experiments.tasks.graph.encoder import GIN, WIDTH, GraphEncoder

from experiments.tests.tasks.plain_adgcl import in_dtype
from uotpool.zoo import ENTRIES, build

EDGES_OF = [[(0, 1), (1, 2), (2, 0)], [], [(0, 1), (1, 1)], [(0, 3), (3, 1)]]
SIZES = [3, 2, 3, 4]  # the second graph has no edge, the third and the fourth have nodes without one


def some_graphs() -> Graphs:
    ptr = [0]
    for size in SIZES:
        ptr.append(ptr[-1] + size)
    found, edge_ptr = [], [0]
    for start, edges in zip(ptr, EDGES_OF, strict=False):
        both = {(i, j) for i, j in edges} | {(j, i) for i, j in edges}
        found += [(start + i, start + j) for i, j in sorted(both)]
        edge_ptr.append(len(found))
    labels = torch.arange(ptr[-1]) % 3
    index = torch.tensor(found).T.contiguous()
    y = torch.tensor([0, 1, 0, 1])
    return Graphs("some", labels, index, torch.tensor(ptr), torch.tensor(edge_ptr), y, 3, 2)


@pytest.fixture
def graphs() -> Graphs:
    return some_graphs()


@pytest.fixture
def batch(graphs) -> Batch:
    return Batch.of(graphs, "labels")


def dense(batch: Batch, weight: Tensor) -> Tensor:
    n = len(batch.X)
    return torch.zeros(n, n, dtype=weight.dtype).index_put((batch.edges.index[0], batch.edges.index[1]), weight)


# ---------------------------------------------------------------------------------------------------------
# batches


def test_sum_over_neighbours_is_the_dense_product(batch):
    weight = torch.rand(batch.edges.index.shape[1], dtype=torch.float64, requires_grad=True)
    X = torch.randn(len(batch.X), 5, dtype=torch.float64, requires_grad=True)
    found = batch.edges.weighted(weight).add_neighbours(X)
    torch.testing.assert_close(found, X + dense(batch, weight) @ X)
    assert torch.autograd.gradcheck(lambda X, w: batch.edges.weighted(w).add_neighbours(X), (X, weight))


def test_weights_of_the_two_directions_may_differ(batch):
    """Then the matrix is not symmetric, and the gradient needs its transpose."""
    weight = torch.arange(1.0, batch.edges.index.shape[1] + 1, dtype=torch.float64)
    X = torch.randn(len(batch.X), 2, dtype=torch.float64, requires_grad=True)
    dY = torch.randn(len(batch.X), 2, dtype=torch.float64)
    (dX,) = torch.autograd.grad(batch.edges.weighted(weight).add_neighbours(X), X, dY)
    torch.testing.assert_close(dX, dY + dense(batch, weight).T @ dY)


def test_a_graph_without_edges():
    edges = Edges.of(torch.zeros(2, 0, dtype=torch.long), 3)
    assert edges.weighted(torch.zeros(0)).add_neighbours(torch.ones(3, 2)).tolist() == [[1.0, 1.0]] * 3


def test_batches_have_every_graph_once(graphs):
    torch.manual_seed(0)
    batches = Batches(graphs, "constant")
    found = list(batches.shuffled(2, torch.Generator().manual_seed(0)))
    assert sum(len(b.X) for b in found) == sum(SIZES)
    assert [len(b) for b in batches.in_order(3)] == [3, 1]
    assert found[0].X.shape[1] == 1
    # three and one: the last has no other graph to be told from
    assert [len(b) for b in batches.shuffled(3, torch.Generator().manual_seed(0))] == [3]


def test_a_batch_of_chosen_graphs(graphs):
    batch = Batch.of(graphs, "labels", torch.tensor([3, 0]))
    assert batch.ptr.tolist() == [0, 4, 7]
    assert batch.graph_of_edge.tolist() == [0] * 4 + [1] * 6
    assert batch.y.tolist() == [1, 0]


# ---------------------------------------------------------------------------------------------------------
# the encoder


def test_gin_is_that_of_pyg(batch):
    torch.manual_seed(0)
    ours = GIN(3).double()
    for norm in ours.norms:  # as after some training
        norm.running_mean.normal_()
        norm.weight.data.uniform_(0.5, 2.0)
    for mode in (True, False):
        ours.train(mode)
        state = copy.deepcopy(ours.state_dict())
        found = ours(in_dtype(batch, torch.float64))
        ours.load_state_dict(state)
        H = batch.X.double()
        for i, (mlp, norm) in enumerate(zip(ours.mlps, ours.norms, strict=True)):
            layer = GINConv(copy.deepcopy(mlp), eps=0.0, train_eps=False)
            layer.nn.load_state_dict(mlp.state_dict())  # it drew its own
            H = norm(layer(H, batch.edges.index.flip(0)))
            H = H.relu() if i < len(ours.mlps) - 1 else H
        torch.testing.assert_close(found, H)
        ours.load_state_dict(state)


def test_edges_of_weight_zero_are_no_edges(graphs):
    torch.manual_seed(0)
    gin = GIN(3).eval()
    batch = Batch.of(graphs, "labels")
    none = dataclasses.replace(graphs, edge_index=graphs.edge_index[:, :0], edge_ptr=0 * graphs.edge_ptr)
    weight = torch.zeros(batch.edges.index.shape[1])
    torch.testing.assert_close(gin(batch, weight), gin(Batch.of(none, "labels")))


@pytest.mark.parametrize("pooling", sorted(ENTRIES))
def test_every_pooling_encodes(pooling, graphs):
    torch.manual_seed(0)
    batch = Batch.of(graphs, "labels")
    pool = build(pooling, WIDTH, WIDTH)
    encoder = GraphEncoder(GIN(3), pool)
    if pool.needs_fit:
        pool.fit(torch.randn(64, WIDTH))
    model, view = Contrasted(encoder), ViewLearner(GIN(3))
    trainer = Trainer(model, view)
    before = copy.deepcopy(model.state_dict())
    for _ in range(3):
        losses = trainer.step(batch)
    assert torch.isfinite(torch.tensor([losses.contrast, losses.dropped])).all()
    after = model.state_dict()
    for name, value in before.items():
        assert torch.isfinite(after[name]).all()
        if name.startswith("encoder.gin.mlps") and value.dtype.is_floating_point:
            assert not torch.equal(after[name], value), f"{name} did not learn"
    model.eval()
    out = model.encoder(batch)
    assert out.shape == (len(SIZES), pool.out_dim)
    alone = model.encoder(Batch.of(graphs, "labels", torch.tensor([2])))
    torch.testing.assert_close(out[2:3], alone, rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------------------------------------------------
# the contrast


def test_info_nce_by_loops():
    torch.manual_seed(0)
    Z, V = torch.randn(6, 4, dtype=torch.float64), torch.randn(6, 4, dtype=torch.float64)
    cosine = nn.functional.cosine_similarity(Z[:, None], V[None], dim=-1)
    total = 0.0
    for i in range(6):
        own = (cosine[i, i] / 0.2).exp()
        rows = sum((cosine[i, j] / 0.2).exp() for j in range(6) if j != i)
        columns = sum((cosine[j, i] / 0.2).exp() for j in range(6) if j != i)
        total += -(own / rows).log() / 2 - (own / columns).log() / 2
    torch.testing.assert_close(info_nce(Z, V), total / 6)


def test_info_nce_of_zeros_is_finite():
    Z = torch.zeros(3, 4, requires_grad=True)
    loss = info_nce(Z, Z)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(Z.grad).all()


def test_view_learner_reads_both_ends(batch):
    torch.manual_seed(0)
    view = ViewLearner(GIN(3)).eval()
    H = view.gin(batch)
    i, j = batch.edges.index
    plain = view.out(view.ends(torch.cat([H[i], H[j]], dim=1)).relu()).squeeze(-1)
    torch.testing.assert_close(view(batch), plain)


def test_gates_are_open_as_often_as_the_logits_say():
    torch.manual_seed(0)
    logits = torch.tensor([-3.0, -0.5, 0.0, 1.0, 4.0])
    drawn = gates(logits.expand(20000, -1))
    assert ((drawn > 0) & (drawn < 1)).all()
    torch.testing.assert_close((drawn > 0.5).float().mean(0), logits.sigmoid(), rtol=0.0, atol=0.02)


def test_dropped_share_is_of_graphs_with_edges(batch):
    weight = torch.rand(batch.edges.index.shape[1])
    shares = [1 - weight[batch.graph_of_edge == g].mean() for g in (0, 2, 3)]
    torch.testing.assert_close(dropped_share(batch, weight), torch.stack(shares).mean())
    none = Batch.of(some_graphs(), "labels", torch.tensor([1]))
    assert float(dropped_share(none, torch.zeros(0))) == 0.0


def test_each_player_moves_alone(graphs):
    torch.manual_seed(0)
    batch = Batch.of(graphs, "labels")
    model = Contrasted(GraphEncoder(GIN(3), build("mean", WIDTH)))
    view = ViewLearner(GIN(3))
    trainer = Trainer(model, view)
    model_before, view_before = copy.deepcopy(model.state_dict()), copy.deepcopy(view.state_dict())
    trainer._step_of_view(batch)
    assert all(torch.equal(value, model_before[name]) for name, value in model.state_dict().items())
    assert not torch.equal(view.ends.weight, view_before["ends.weight"])
    assert all(p.requires_grad for p in model.parameters())
    view_before = copy.deepcopy(view.state_dict())
    trainer._step_of_model(batch)
    assert all(torch.equal(value, view_before[name]) for name, value in view.state_dict().items())
    assert not torch.equal(model.head[0].weight, model_before["head.0.weight"])


def test_the_view_learner_lowers_agreement_and_pays_for_dropping(graphs):
    """Its loss is what the step descends: the penalty on dropped edges less the contrast."""
    torch.manual_seed(0)
    batch = Batch.of(graphs, "labels")
    model = Contrasted(GraphEncoder(GIN(3), build("mean", WIDTH))).eval()
    view = ViewLearner(GIN(3))
    trainer = Trainer(model, view, lr=1e-2)

    def loss() -> float:
        view.train()
        with torch.no_grad():
            torch.manual_seed(1)
            total = 0.0
            for _ in range(20):
                weight = view.sample(batch)
                total += float(
                    DROP_PENALTY * dropped_share(batch, weight) - info_nce(model(batch), model(batch, weight))
                )
        return total / 20

    before = loss()
    for _ in range(20):
        trainer._step_of_view(batch)
    model.eval()
    assert loss() < before - 0.1


def test_a_view_learner_has_nothing_that_it_does_not_use(batch):
    """No pooling whose output is thrown away: every parameter has a gradient."""
    view = ViewLearner(GIN(3))
    view.sample(batch).sum().backward()
    assert all(p.grad is not None for p in view.parameters())


def test_linear_layers_start_as_those_of_adgcl():
    torch.manual_seed(0)
    model, view = Contrasted(GraphEncoder(GIN(3), build("mean", WIDTH))), ViewLearner(GIN(3))
    layers = [m for part in (model, view) for m in part.modules() if isinstance(m, nn.Linear)]
    for layer in layers:
        bound = (6 / (layer.in_features + layer.out_features)) ** 0.5
        assert layer.bias.abs().max() == 0
        assert 0.5 * bound < layer.weight.abs().max() <= bound
    assert len(layers) == 10 + 2 + 10 + 2


def test_gin_and_pooling_see_the_same_direction_of_an_edge():
    """Weight 1 on the edge (0, 1), none on (1, 0): node 0 hears node 1, in the GIN and in a PyG layer."""
    index = torch.tensor([[0, 1], [1, 0]])
    edges, weight, X = Edges.of(index, 2), torch.tensor([1.0, 0.0]), torch.tensor([[1.0], [10.0]])
    ours = edges.weighted(weight).add_neighbours(X) - X
    theirs = GraphConv(1, 1, bias=False)
    nn.init.ones_(theirs.lin_rel.weight)
    nn.init.zeros_(theirs.lin_root.weight)
    torch.testing.assert_close(ours, theirs(X, index.flip(0), weight))
    assert ours.tolist() == [[10.0], [0.0]]


def test_contrast_of_huge_embeddings_still_has_a_gradient():
    torch.manual_seed(0)
    Z, V = torch.randn(5, 4), torch.randn(5, 4)
    torch.testing.assert_close(info_nce(1e25 * Z, 1e25 * V), info_nce(Z, V))
