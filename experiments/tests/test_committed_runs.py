"""The committed runs are of the layers that their names stand for today."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from uotpool_experiments.runs.reading import read_rows

from uotpool.zoo import build

RESULTS = Path(__file__).parents[2] / "results"
STORES = [path for path in sorted(RESULTS.rglob("runs.csv")) if "details.weights" in path.read_text()]


@pytest.mark.parametrize("store", STORES, ids=lambda path: str(path.parent.relative_to(RESULTS)))
def test_a_run_has_the_modules_of_its_layer(store):
    """Runs of the default before today's, which has one module, once stood as those of the default."""
    found = {
        (row.spec.pooling, row.spec.settings, len(row.details["weights"]["alpha0"]))
        for row in read_rows(store)
        if "weights" in row.details
    }
    assert found
    for pooling, settings, modules in found:
        layer = build(pooling, dim=4, **json.loads(settings).get("pool", {}))
        assert modules == layer.solver.K, (pooling, settings)
