"""The machine code of the kernels stays within limits. `python -m bench gpu-static` checks all sizes."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from bench.gpu_static import subjects
from bench.offline import driver, figures, limits
from bench.offline.figures import Figure, Subject, Window

if reason := driver.unusable():
    pytest.skip(reason, allow_module_level=True)

BF16 = torch.bfloat16
# Some of all, as each takes ten seconds: what has come near a limit, and every target and dtype.
SOME = (
    Subject("sm_80", 100),
    Subject("sm_80", 512, scale=True),
    Subject("sm_90", 1024, BF16),
    Subject("gfx942", 256),
)
# One of the quadratic solver, and windows of as many channels as fit, side by side and overlapping.
MORE = {
    Subject("sm_80", 512, BF16, scale=True, solver="badmm-q"): {"forward_set", "backward_set"},
    Subject("sm_80", 1024, BF16, scale=True, window=Window(2, 2, True)): {
        "forward_windows",
        "backward_windows",
    },
    Subject("sm_90", 256, scale=True, window=Window(2, 2, False)): {"forward_windows", "backward_windows"},
    Subject("gfx942", 64, scale=True, window=Window(3, 1, False)): {
        *("forward_windows", "backward_windows", "fold_windows"),
    },
}
KERNELS = {
    *("forward_pass, first", "forward_pass", "forward_pass, last"),
    *("forward_merge, first", "forward_merge", "forward_merge, last"),
    *("backward_pass, of the output", "backward_pass", "backward_merge", "backward_finish"),
    *("forward_set", "backward_set"),
}


@pytest.mark.parametrize("subject", SOME, ids=lambda s: f"{s.target}-{s.D}")
def test_limits_of_machine_code(subject, tmp_path):
    assert subject in subjects()
    found = figures.measure(subject, str(tmp_path))
    assert {figure.kernel for figure in found} == KERNELS
    assert [sentence for figure in found for sentence in limits.broken(figure)] == []
    for figure in found:
        assert figure.registers > 0
        assert ("merge" in figure.kernel) == (figure.instructions == 0)


@pytest.mark.parametrize("subject", MORE, ids=lambda s: f"{s.solver}-{s.target}-{s.D}")
def test_limits_of_other_solvers_and_windows(subject, tmp_path):
    assert subject in subjects()
    found = figures.measure(subject, str(tmp_path))
    assert {figure.kernel for figure in found} == MORE[subject]
    assert [sentence for figure in found for sentence in limits.broken(figure)] == []
    for figure in found:
        assert ("fold" in figure.kernel) == (figure.instructions == 0)


def test_every_limit_can_be_broken():
    good = Figure(Subject("sm_80", 256), "forward_pass", 255, 8, 0, 0, 20.0, 2.6)
    assert limits.broken(good) == []
    for changed, word in (
        ({"spills": 9}, "spills 9, at most 8"),
        ({"conversions": 1}, "conversions 1, at most 0"),
        ({"instructions": 20.1}, "instructions 20.1, at most 20"),
        ({"special": 2.7}, "special 2.7, at most 2.6"),
    ):
        (sentence,) = limits.broken(good._replace(**changed))
        assert word in sentence
    narrow = good._replace(subject=Subject("sm_80", 100), instructions=24.0)
    assert limits.broken(narrow) == []
    assert len(limits.broken(narrow._replace(instructions=24.1))) == 1
    scaled = good._replace(subject=Subject("sm_80", 256, scale=True), instructions=22.0)
    assert limits.broken(scaled) == []
