"""What a call launches, counted dry, and that the host waits for nothing."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from bench import gpu_launches
from bench.offline import counting, driver

if reason := driver.unusable():
    pytest.skip(reason, allow_module_level=True)

SINKHORN = {gpu_launches.BY_SET: lambda K: (1, 1), gpu_launches.BY_CHUNK: lambda K: (2 * K + 2, 2 * K + 1)}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A folder for compiled kernels, as the tests share some."""
    return str(tmp_path_factory.mktemp("kernels"))


@pytest.mark.parametrize(("target", "K"), [("sm_80", 1), ("sm_80", 4), ("sm_90", 2), ("gfx942", 2)])
@pytest.mark.parametrize("how", SINKHORN)
def test_launches_of_sinkhorn(target, K, how, cache):
    forward, backward, counter = gpu_launches.launches(target, "sinkhorn", K, how, cache)
    assert (forward, backward) == SINKHORN[how](K)
    assert counter.waits == []  # no value is read between the launches
    assert counter.operations <= 3  # the derivatives by the weights are added up


def test_launches_of_badmm_q(cache):
    """A set is the work of one program each way, for any number of modules."""
    for K in (1, 4):
        forward, backward, counter = gpu_launches.launches("sm_80", "badmm-q", K, gpu_launches.BY_SET, cache)
        assert (forward, backward) == (1, 1)
        assert counter.waits == []
        assert counter.operations <= 1


@pytest.mark.parametrize("target", ["sm_80", "gfx942"])
@pytest.mark.parametrize(("name", "back"), [("windows side by side", 1), ("windows that overlap", 2)])
def test_launches_of_windows(target, name, back, cache):
    """Windows side by side write dX once. Where they overlap, a second launch adds up what they have."""
    forward, backward, counter = gpu_launches.launches_of_windows(target, gpu_launches.WINDOWS[name], 2, cache)
    assert (forward, backward) == (1, back)
    assert counter.waits == []
    assert counter.operations <= 1


def test_the_host_waits_for_no_window(cache):
    assert gpu_launches.waits_of_windows(cache) == []


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
