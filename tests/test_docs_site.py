"""`make docs`: the site is built strictly, has all pages, and takes nothing from another host."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.site import build

pytest.importorskip("mkdocs")
pytest.importorskip("mkdocstrings")
pytest.importorskip("latex2mathml")

ROOT = Path(__file__).parent.parent
LOADED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src", "object": "data"}
ELSEWHERE = re.compile(r"(\w+:)?//")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return build(tmp_path_factory.mktemp("site"))


class Resources(HTMLParser):
    """What a browser loads by itself, and the words that are read."""

    def __init__(self):
        super().__init__()
        self.found, self.text = [], []

    def handle_starttag(self, tag, attrs):
        address = dict(attrs).get(LOADED.get(tag, ""))
        if address:
            self.found.append(address)

    def handle_data(self, data):
        self.text.append(data)


def read(path):
    resources = Resources()
    resources.feed(path.read_text())
    return resources


def test_no_page_loads_anything_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 60
    for page in pages:
        loaded = read(page).found
        assert any(address.endswith(".css") for address in loaded)
        assert not [address for address in loaded if ELSEWHERE.match(address)], page
        for address in loaded:
            path = address.partition("?")[0]
            assert page.name == "404.html" or (page.parent / path).exists(), (page, address)
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import )[\"']?(\w+:)?//", sheet.read_text()), sheet


def test_every_page_of_the_repository_is_there(site):
    for source in [*(ROOT / "docs").rglob("*.md"), *(ROOT / "results").rglob("*.md"), ROOT / "CHANGELOG.md"]:
        name = source.relative_to(ROOT).as_posix().removeprefix("docs/")
        page = site / re.sub(r"\.md$", ".html", re.sub(r"(^|/)README\.md$", r"\1index.md", name))
        assert page.exists(), name
    assert (site / "search" / "search_index.json").stat().st_size > 100_000


def test_docstrings_are_drawn(site):
    pages = {path.stem: path.read_text() for path in (site / "api").glob("*.html")}
    assert set(pages) == {"functions", "images", "integrations", "layers", "zoo"}
    for name, html in pages.items():
        assert "math::" not in html
        assert ":math:" not in html
        assert "<math" in html or name in ("images", "integrations")
    for public in ("uot_pool", "duality_gap", "suggest_rho"):
        assert f'id="uotpool.{public}"' in pages["functions"]
    for kind in ("GNP", "OTK", "SAGPool", "Covariance"):
        assert f'.{kind}"' in pages["zoo"]
