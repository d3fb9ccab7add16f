"""The report in a browser: it opens from a file, tables sort, nothing is loaded, nothing goes wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from uotpool_experiments.report import collect, pictures_in, write

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def page_file(tmp_path_factory) -> Path:
    pictures = pictures_in(ROOT / "docs" / "figures")
    return write(collect([ROOT / "results"], pictures), tmp_path_factory.mktemp("report") / "report.html")


def column(page, table: int, place: int) -> list[str]:
    cells = page.locator("table").nth(table).locator(f"tbody tr > :nth-child({place})")
    return [text.strip() for text in cells.all_inner_texts()]


def test_report_opens_and_sorts(page_file, watched, tmp_path):
    page = watched.page
    page.goto(page_file.as_uri())
    assert page.title() == "uotpool: results"
    assert page.evaluate(
        "document.documentElement.scrollWidth <= innerWidth"
    )  # tables scroll, the page does not

    ranks = [float(text) for text in column(page, 0, 2)]
    assert ranks == sorted(ranks)
    head = page.locator("table").nth(0).locator("thead button")
    head.nth(3).click()  # the upper end of the interval: numbers, the largest first
    highs = [float(text) for text in column(page, 0, 4)]
    assert highs == sorted(highs, reverse=True)
    head.nth(1).click()  # ranks: the best first
    assert [float(text) for text in column(page, 0, 2)] == ranks
    head.nth(1).press("Enter")  # by keyboard, the other way round
    assert [float(text) for text in column(page, 0, 2)] == sorted(ranks, reverse=True)
    assert page.locator("table").nth(0).locator("th[aria-sort=descending]").count() == 1
    head.nth(0).click()
    names = column(page, 0, 1)
    assert names == sorted(names)

    loaded = page.evaluate("Array.from(document.images, i => i.complete && i.naturalWidth > 0)")
    assert len(loaded) > 5
    assert all(loaded)
    picture = tmp_path / "report.png"
    page.screenshot(path=picture)
    assert picture.stat().st_size > 20_000
    assert watched.errors == []
    assert all(url.startswith(("file:", "data:")) for url in watched.requests)
