"""What a call launches, counted dry, and that the host waits for nothing."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from bench import gpu_launches
from bench.offline import counting, driver
from bench.offline.figures import CHUNK

if reason := driver.unusable():
    pytest.skip(reason, allow_module_level=True)

SINKHORN = {0: lambda K: (1, 1), CHUNK: lambda K: (2 * K + 2, 2 * K + 1)}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A folder for compiled kernels, as the tests share some."""
    return str(tmp_path_factory.mktemp("kernels"))


@pytest.mark.parametrize(("target", "K"), [("sm_80", 1), ("sm_80", 4), ("sm_90", 2), ("gfx942", 2)])
@pytest.mark.parametrize("chunk", SINKHORN)
def test_launches_of_sinkhorn(target, K, chunk, cache):
    forward, backward, counter = gpu_launches.launches(target, "sinkhorn", K, chunk, cache)
    assert (forward, backward) == SINKHORN[chunk](K)
    assert counter.waits == []  # no value is read between the launches
    assert counter.operations <= 3  # the derivatives by the weights are added up


@pytest.mark.parametrize("layout", gpu_launches.LAYOUTS)
def test_the_host_waits_for_nothing(layout, cache):
    found = gpu_launches.waits("sinkhorn", layout, cache)
    assert found == (["inputs.py _index: _local_scalar_dense"] if layout.startswith("index without") else [])


def test_waits_are_seen():
    x = torch.arange(4.0)
    with counting.Counter() as counter:
        float(x.sum())
        x[x > 2]
        x.reshape(2, 2).t()[torch.tensor([0])]
    found = [one.partition(": ")[2] for one in counter.waits]
    assert found == ["_local_scalar_dense", "index"]
    assert counter.operations == 5  # sum, the value, >, two gathers
