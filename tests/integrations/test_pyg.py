"""UOT pooling as an aggregation of PyTorch Geometric: readout and message passing."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests import tolerances as tol
from tests.cases import SOLVERS

pytest.importorskip("torch_geometric")
from torch_geometric.nn import GATConv, MessagePassing, SAGEConv, aggr

from uotpool import Learned, Sinkhorn, UOTPooling, published
from uotpool.integrations.pyg import UOTAggregation

D = 4
# Node 3 gets no message, and node 4 neither sends nor gets one.
EDGES = torch.tensor([[0, 1, 2, 3, 0, 2, 3], [1, 0, 0, 0, 2, 1, 2]])
NODES = 5


def close(a, b):
    torch.testing.assert_close(a, b, rtol=tol.F64, atol=tol.F64)


def pair(**kwargs):
    """An aggregation and a layer with the same parameters, in float64."""
    aggregation, layer = UOTAggregation(D, **kwargs).double(), UOTPooling(D, **kwargs).double()
    aggregation.pool.load_state_dict(layer.state_dict())
    return aggregation, layer


def randn(*size, seed=0):
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("solver", [*SOLVERS, published.Sinkhorn()], ids=str)
def test_readout_equals_the_layer(solver):
    """By index in any order, by ptr, by both, with trailing empty graphs, and for one graph."""
    aggregation, layer = pair(solver=solver, p0="learned", q0="learned")
    x, index, ptr = randn(9, D), torch.tensor([0, 0, 0, 2, 2, 3, 3, 3, 3]), torch.tensor([0, 3, 3, 5, 9])
    y = layer(x, ptr=ptr)
    assert (y[1] == 0).all()
    assert torch.equal(aggregation(x, index), y)
    assert torch.equal(aggregation(x, ptr=ptr), y)
    assert torch.equal(aggregation(x, index, ptr=ptr), y)
    assert torch.equal(aggregation(x, index, ptr=ptr, dim_size=4), y)
    assert torch.equal(aggregation(x, index, dim=0), y)
    longer = aggregation(x, index, dim_size=6)
    assert torch.equal(longer[:4], y)
    assert (longer[4:] == 0).all()
    order = torch.tensor([8, 3, 0, 5, 7, 1, 4, 2, 6])
    close(aggregation(x[order], index[order], dim_size=4), y)
    close(aggregation(x), layer(x[None]))


class Mean(MessagePassing):
    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)


@pytest.mark.parametrize("solver", SOLVERS)
def test_message_passing(solver):
    """A node gets the pooling of its neighbours; without messages it gets zeros."""
    aggregation, layer = pair(solver=solver)
    x = randn(NODES, D).requires_grad_()
    y = Mean(aggr=aggregation)(x, EDGES)
    for node in range(3):
        neighbours = EDGES[0, EDGES[1] == node]
        close(y[node], layer(x[neighbours][None])[0])
    assert (y[3:] == 0).all()
    (dx,) = torch.autograd.grad(y.square().sum(), x)
    assert (dx[:4] != 0).all()
    assert (dx[4] == 0).all()


def test_as_the_mean_aggregation_of_a_stock_convolution():
    """With the weights of mean pooling, `SAGEConv` gives what its own mean aggregation gives."""
    mean = {"solver": Sinkhorn(1), "scale": 1.0, "alpha0": 1e12, "alpha1": 1e12, "alpha2": 1e12}
    ours, stock = SAGEConv(D, 6, aggr=UOTAggregation(D, **mean)).double(), SAGEConv(D, 6, aggr="mean").double()
    ours.load_state_dict(stock.state_dict(), strict=False)
    x = randn(NODES, D)
    torch.testing.assert_close(ours(x, EDGES), stock(x, EDGES), rtol=tol.LIMIT_F64, atol=tol.LIMIT_F64)


def test_more_dimensions_are_pooled_as_stock_aggregations_pool_them():
    """Along any dimension but the last; each head by itself, as a call of its own would."""
    aggregation = UOTAggregation(D).double()
    index, ptr = torch.tensor([0, 0, 2, 2, 2]), torch.tensor([0, 2, 2, 5])
    stock = aggr.SoftmaxAggregation(t=1.0)
    for shape, dim in (((5, 3, D), 0), ((3, 5, D), -2), ((2, 5, 3, D), 1), ((2, 3, 5, D), 2)):
        x = randn(*shape).requires_grad_()
        y = aggregation(x, index, dim_size=4, dim=dim)
        assert y.shape == stock(x, index, dim_size=4, dim=dim).shape
        heads = x.movedim(dim, -2).reshape(-1, 5, D)
        alone = torch.stack([aggregation(head, index, dim_size=4) for head in heads])
        close(y.movedim(dim, -2).reshape(-1, 4, D), alone)
        ours = torch.autograd.grad(y.square().sum(), x, retain_graph=True)
        close(ours, torch.autograd.grad(alone.square().sum(), x))
        close(aggregation(x, ptr=ptr, dim=dim), aggregation(x, index, dim_size=3, dim=dim))
        assert torch.equal(aggregation(x, index, ptr=ptr, dim=dim), aggregation(x, ptr=ptr, dim=dim))
    close(
        aggregation.forward(randn(5, 3, D), dim=0), aggregation(randn(5, 3, D), torch.zeros_like(index), dim=0)
    )


def test_a_convolution_with_several_heads():
    """GATConv aggregates messages (edges, heads, features)."""
    torch.manual_seed(0)
    conv = GATConv(D, 6, heads=3, aggr=UOTAggregation(6)).double()
    y = conv(randn(NODES, D), EDGES)
    assert y.shape == (NODES, 18)
    y.square().sum().backward()
    assert conv.aggr_module.pool.raw_scale.grad.abs().sum() > 0
    mean = GATConv(D, 6, heads=3, aggr="mean").double()
    start = GATConv(D, 6, heads=3, aggr=UOTAggregation(6, scale=Learned(0.0))).double()
    start.load_state_dict(mean.state_dict(), strict=False)
    close(start(randn(NODES, D), EDGES), mean(randn(NODES, D), EDGES))


def test_by_name_after_one_line(monkeypatch):
    """PyG resolves names among the classes of its module; nothing else is needed there."""
    # The page for graphs shows this line too, and its test may have run it in this process before.
    monkeypatch.delattr(aggr, "UOTAggregation", raising=False)
    with pytest.raises(ValueError, match="Could not resolve 'uot'"):
        SAGEConv(D, D, aggr="uot", aggr_kwargs={"dim": D})
    monkeypatch.setattr(aggr, "UOTAggregation", UOTAggregation, raising=False)
    conv = SAGEConv(D, D, aggr="uot", aggr_kwargs={"dim": D, "scale": Learned(0.0)}).double()
    assert isinstance(conv.aggr_module, UOTAggregation)
    mean = SAGEConv(D, D, aggr="mean").double()
    mean.load_state_dict(conv.state_dict(), strict=False)
    close(conv(randn(NODES, D), EDGES), mean(randn(NODES, D), EDGES))
    both = aggr.MultiAggregation(["mean", "uot"], aggrs_kwargs=[{}, {"dim": D}]).double()
    assert both(randn(NODES, D), torch.zeros(NODES, dtype=torch.long)).shape == (1, 2 * D)


def test_a_compiled_stock_model():
    """One graph without breaks: convolutions with UOT messages, several aggregations, a UOT readout."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = SAGEConv(D, D, aggr=UOTAggregation(D))
            self.gat = GATConv(D, D, heads=2, concat=False, add_self_loops=False, aggr=UOTAggregation(D))
            self.readout = aggr.MultiAggregation([UOTAggregation(D), "max"])

        def forward(self, x, edge_index, index, count: int):
            return self.readout(self.gat(self.conv(x, edge_index), edge_index), index, dim_size=count)

    torch.manual_seed(0)
    model = Model().double()
    given = randn(NODES, D), EDGES, torch.tensor([0, 0, 0, 1, 1]), 2
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    close(compiled(*given), model(*given))
    compiled(*given).sum().backward()
    assert all(p.grad is not None for p in model.readout.parameters())
