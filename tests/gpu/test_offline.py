"""What stands in for a GPU records every launch, runs nothing, and counts instructions right."""

from __future__ import annotations

import os

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from triton import knobs
from triton.runtime.driver import driver as active

from bench.offline import code, driver, ttgir
from tests.gpu import small

if reason := driver.unusable():
    pytest.skip(reason, allow_module_level=True)

each_target = pytest.mark.parametrize("target", driver.DEVICES)


FEW_REGISTERS = {"sm_80": {"maxnreg": 32}, "sm_90": {"maxnreg": 32}, "gfx942": {"waves_per_eu": 8}}


def launch(kernel, target, R=8, D=128, **options):
    """Launch one of the small kernels twice, with other numbers of rows."""
    X, Y = torch.ones(64, D), torch.zeros(64, D)
    with driver.dry(target) as launches:
        for M in (64, 32):
            kernel[(3, 2)](X, Y, M, R=R, D=D, **options)
    assert (Y == 0).all()
    return launches


@each_target
def test_a_dry_launch_is_recorded_and_writes_nothing(target):
    before, cache = active._active, knobs.cache.dir
    first, second = launch(small.exponentials, target)
    assert first.name == "exponentials"
    assert first.grid == (3, 2, 1)
    assert [one.arguments["M"] for one in (first, second)] == [64, 32]
    assert first.arguments["X"].shape == (64, 128)
    assert first.arguments["D"] == 128
    assert first.kernel is second.kernel  # both are multiples of 16: one specialisation
    assert first.threads == 4 * driver.DEVICES[target].lanes
    assert active._active is before
    assert knobs.cache.dir == cache
    assert not any(os.path.exists(path) for path in first.kernel.metadata_group.values())


@each_target
def test_instructions_of_a_loop(target):
    one = launch(small.exponentials, target, R=8, D=128)[0]
    found, loops = code.read(one.kernel), ttgir.read(one.kernel.asm["ttgir"])
    assert loops == (8 * 128, 0)
    (loop,) = found.loops
    assert loop.special == 8 * 128 / one.threads
    assert loop.special < loop.instructions < found.instructions
    assert found.spills == 0
    assert 8 <= found.registers <= 128


@each_target
def test_a_change_of_layout_in_a_loop_is_seen(target):
    one = launch(small.transposes, target, R=32, D=128)[0]
    assert ttgir.read(one.kernel.asm["ttgir"]).conversions >= 1


@each_target
def test_spills_are_seen(target):
    R = 8 * driver.DEVICES[target].lanes // 32  # 64 entries for each thread
    found, limited = (
        code.read(launch(small.too_wide, target, R, 1024, **options)[0].kernel)
        for options in ({}, FEW_REGISTERS[target])
    )
    assert found.spills == 0
    assert limited.spills > 30
    assert limited.registers < found.registers


def test_another_triton_is_refused(monkeypatch):
    monkeypatch.setattr(driver.triton, "__version__", "3.8.0")
    with (
        pytest.raises(RuntimeError, match=r"undocumented interface of triton 3\.7\.1, here is 3\.8\.0"),
        driver.dry("sm_80"),
    ):
        pass
