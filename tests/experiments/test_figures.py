"""Figures are drawn, and what they measure is right."""

from __future__ import annotations

import pytest
import torch

from uotpool.experiments import figures
from uotpool.experiments.data import status
from uotpool.experiments.figures.dynamics import share_that_holds


def needs(*datasets: str) -> None:
    for name in datasets:
        if not status(name).present:
            pytest.skip(f"{name} is not at hand: {status(name).where}")


@pytest.mark.parametrize(
    ("name", "datasets"),
    [("dynamics", ["MUTAG"]), ("rationality", ["MUTAG", "IMDB-BINARY"]), ("image-plans", [])],
)
def test_a_figure_is_drawn_and_drawn_again_the_same(name, datasets, tmp_path, monkeypatch):
    needs(*datasets)
    monkeypatch.setenv("UOTPOOL_CHECKPOINTS", str(tmp_path))
    words = figures.draw(name, tmp_path / "a", quick=True)
    assert figures.draw(name, tmp_path / "b", quick=True)[:-2] == words[:-2]
    for form in ("png", "svg"):
        first = (tmp_path / "a" / f"{name}.{form}").read_bytes()
        assert first == (tmp_path / "b" / f"{name}.{form}").read_bytes()
        assert len(first) > 10_000
    assert words[-2:] == [str(tmp_path / "a" / f"{name}.{form}") for form in ("png", "svg")]


def test_unknown_figure(tmp_path):
    with pytest.raises(ValueError, match=r"name: expected one of .*dynamics.*, got 'nine'"):
        figures.draw("nine", tmp_path)


def test_share_of_entries():
    uniform = torch.full((4, 5), 1 / 20)
    assert share_that_holds(uniform, 0.9) == pytest.approx(0.9, abs=0.051)
    single = torch.zeros(4, 5)
    single[1, 2] = 1.0
    assert share_that_holds(single, 0.9) == 1 / 20
