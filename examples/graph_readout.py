"""A stock GIN of PyTorch Geometric with UOT pooling as its readout, on MUTAG (or another TU data set).

The only line that is not plain PyG is the one that makes `readout`. Run it with

    python -m examples.graph_readout --readout uot
    python -m examples.graph_readout --readout add
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import MLP, SumAggregation
from torch_geometric.nn.models import GIN
from uotpool_experiments.datasets import graphs

from uotpool import param_groups
from uotpool.integrations.pyg import UOTAggregation

WIDTH = 32


class GraphClassifier(nn.Module):
    def __init__(self, in_dim: int, classes: int, readout: nn.Module) -> None:
        super().__init__()
        self.gin = GIN(in_dim, WIDTH, num_layers=5, norm="batch_norm")
        self.readout = readout
        self.head = MLP([WIDTH, WIDTH, classes], norm=None, dropout=0.5)

    def forward(self, data: Data) -> Tensor:
        x = self.gin(data.x, data.edge_index)
        return self.head(self.readout(x, data.batch, dim_size=data.num_graphs))


def as_pyg(found: graphs.Graphs) -> list[Data]:
    """One `Data` for each graph, its node labels one-hot."""
    result = []
    for g in range(len(found)):
        one = found.subset([g])
        kind = "constant" if one.x is None else "labels"
        result.append(Data(x=one.features(kind), edge_index=one.edge_index, y=one.y))
    return result


def train(model: GraphClassifier, train_set: Sequence[Data], epochs: int, seed: int) -> None:
    # No weight decay on the weights of the transport problem: it would pull them to one value.
    optimizer = torch.optim.Adam(param_groups(model, weight_decay=1e-4), lr=5e-3)
    loader = DataLoader(list(train_set), 32, shuffle=True, generator=torch.Generator().manual_seed(seed))
    model.train()
    for _ in range(epochs):
        for batch in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch), batch.y).backward()
            optimizer.step()


@torch.no_grad()
def accuracy(model: GraphClassifier, test_set: Sequence[Data]) -> float:
    model.eval()
    right = [model(batch).argmax(1) == batch.y for batch in DataLoader(list(test_set), 128)]
    return float(torch.cat(right).float().mean())


def main(argv: Sequence[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="MUTAG")
    parser.add_argument("--readout", choices=("uot", "add"), default="uot")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)

    data = as_pyg(found := graphs.load(args.dataset))
    torch.manual_seed(args.seed)
    order = torch.randperm(len(data)).tolist()
    test, rest = order[: len(data) // 5], order[len(data) // 5 :]
    readout = UOTAggregation(WIDTH) if args.readout == "uot" else SumAggregation()
    model = GraphClassifier(data[0].num_features, found.num_classes, readout)
    train(model, [data[i] for i in rest], args.epochs, args.seed)
    result = accuracy(model, [data[i] for i in test])
    print(f"{args.dataset}, readout {args.readout}: {100 * result:.1f} % of {len(test)} test graphs")
    return result


if __name__ == "__main__":
    main()
