"""The example for PyTorch Geometric: our aggregation in a stock GIN learns."""

from __future__ import annotations

import pytest
import torch
from uotpool_experiments.datasets import status

from examples.graph_readout import WIDTH, GraphClassifier, accuracy, as_pyg, main, train
from experiments.tests.tasks.test_graph_task import rings_and_stars
from uotpool.integrations.pyg import UOTAggregation


@pytest.mark.parametrize("solver", ["sinkhorn", "badmm-e"])
def test_a_stock_gin_with_our_readout_learns(solver):
    data = as_pyg(rings_and_stars())
    torch.manual_seed(0)
    model = GraphClassifier(2, 2, UOTAggregation(WIDTH, solver=solver))
    before = {name: value.clone() for name, value in model.readout.named_parameters()}
    train(model, data[:30], epochs=40, seed=0)
    assert accuracy(model, data[30:]) == 1.0
    assert any(not torch.equal(value, before[name]) for name, value in model.readout.named_parameters())


def test_the_example_runs_on_mutag(capsys):
    if not status("MUTAG").present:
        pytest.skip(f"MUTAG is not at hand: {status('MUTAG').where}")
    result = main(["--epochs", "30"])
    assert result > 0.7  # two thirds are of one class
    assert "MUTAG, readout uot" in capsys.readouterr().out
    assert main(["--epochs", "5"]) == main(["--epochs", "5"])
