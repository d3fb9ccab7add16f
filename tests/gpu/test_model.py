"""What is counted for the model of the time is counted right; the model itself is only arithmetic."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from bench import gpu_model
from bench.gpu_model import GPUS, K, Work
from bench.offline import driver, inductor
from bench.offline.counting import Counter, moved
from bench.timing import BOTH, FORWARD

if reason := driver.unusable():
    pytest.skip(reason, allow_module_level=True)

SIZE = (10, 100, 20)
X = 4 * 10 * 100 * 20


def test_operations_of_torch_are_counted_with_their_memory():
    x, w = torch.ones(8, 4), torch.ones(4)
    with Counter() as counter:
        y = x.t().t() + w.expand(8, 4)
        torch.empty(3)
    assert counter.operations == 1
    assert counter.bytes == 2 * y.numel() * 4 + 4 * 4
    assert moved(torch.ones(1, 5).expand(7, 5)) == 20
    assert moved(torch.ones(0, 5)) == 0


def test_the_reference_is_counted():
    forward, both = (gpu_model.reference(SIZE, mode) for mode in (FORWARD, BOTH))
    assert 40 * K < forward.launches < both.launches
    assert 20 * K < forward.bytes / X < both.bytes / X


def test_what_inductor_makes_is_counted():
    fused = inductor.count(lambda x, w: (x + w).exp() * 2, (64, 32), (32,))
    assert fused == (1, 4 * (2 * 64 * 32 + 32))
    two = inductor.count(lambda x, w: (x + w).exp().sum() - x.sort(0).values, (64, 32), (32,))
    assert two.launches > 1


def test_the_time_is_that_of_the_slowest_part():
    gpu = GPUS["A100"]
    nothing = Work(1, 0)
    launch = gpu_model._time(nothing, gpu, SIZE)
    assert launch == gpu_model.QUEUED
    second = int(gpu.memory * 1e12 * gpu_model.MEMORY)  # bytes
    assert gpu_model._time(Work(1, second), gpu, SIZE) == pytest.approx(1e6 + launch)
    rate = gpu.processors * gpu.clock * 1e9 * gpu_model.PER_CLOCK * gpu_model.ISSUE  # instructions in a second
    assert gpu_model._time(Work(1, 0, rate), gpu, SIZE) == pytest.approx(1e6 + launch)
    idle = 2 * gpu.processors / SIZE[0]  # of 216 programs at a time only 10 are there
    assert gpu_model._time(Work(1, 0, rate, 0.0, True), gpu, SIZE) == pytest.approx(idle * 1e6 + launch)
    work = Work(9, second, instructions=1.0, special=1.0)
    assert gpu_model._time(work, gpu, SIZE) == pytest.approx(1e6 + 9 * launch)
