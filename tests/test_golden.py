"""The numbers of the library are those of commit 1993806, with all derivatives."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from tests import tolerances
from tests.golden import cases
from uotpool import zoo

VALUES = cases.read()
GIVEN = {name.removeprefix("input/"): value for name, value in VALUES.items() if name.startswith("input/")}
SOLVED = dict(cases.solved())


def stored(case: str) -> dict[str, torch.Tensor]:
    return {n.removeprefix(f"{case}/"): value for n, value in VALUES.items() if n.startswith(f"{case}/")}


def check(result: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], tolerance: float) -> None:
    assert sorted(result) == sorted(expected)
    for name, value in result.items():
        bound = tolerance * (1 + float(expected[name].abs().max()))
        torch.testing.assert_close(
            value.double(), expected[name], atol=bound, rtol=0, msg=partial("{}: {}".format, name)
        )


@pytest.mark.parametrize("case", SOLVED)
def test_solvers(case: str) -> None:
    tolerance = tolerances.GOLDEN["converged" if "converged" in case else SOLVED[case]["dtype"]]
    check(cases.solve(GIVEN, **SOLVED[case]), stored(case), tolerance)


@pytest.mark.parametrize("name", cases.LAYERS)
def test_layers(name: str) -> None:
    expected = stored(f"layer/{name}")
    state = {key.removeprefix("state/"): value for key, value in expected.items() if key.startswith("state/")}
    tolerance = tolerances.GOLDEN["converged" if name == "converged" else "float64"]
    check(cases.layer(GIVEN, name, state), expected, tolerance)


@pytest.mark.parametrize("name", sorted({name.split("/")[1] for name in VALUES if name.startswith("zoo/")}))
def test_poolings(name: str) -> None:
    expected = stored(f"zoo/{name}")
    state = {key.removeprefix("state/"): value for key, value in expected.items() if key.startswith("state/")}
    check(cases.pooling(name, state), expected, tolerances.GOLDEN["float64"])


def test_every_pooling_has_golden_values() -> None:
    assert {name for name in VALUES if name.startswith("zoo/")} >= {f"zoo/{name}/y" for name in zoo.names()}
