"""`make docs`: the site is built strictly, has all pages, and takes nothing from another host."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import uotpool
from tests.site import build
from uotpool import zoo

pytest.importorskip("sphinx")
pytest.importorskip("myst_parser")
pytest.importorskip("furo")

ROOT = Path(__file__).parent.parent
LOADED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src", "object": "data"}
# Of these the pages only say what they are like.
IN_WORDS = {"uotpool.published"}  # a module
IN_WORDS |= {f"uotpool.{kind}UOTPool{axes}d" for kind in ("", "Adaptive") for axes in (1, 3)}


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
        assert any(".css" in address for address in loaded) or page == site / "index.html"
        assert not [address for address in loaded if re.match(r"(\w+:)?//", address)], page
        for address in loaded:
            path = re.split(r"[?#]", address)[0]
            assert (page.parent / path).exists(), (page, address)
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import )[\"']?(\w+:)?//", sheet.read_text()), sheet


def test_every_page_of_the_repository_is_there(site):
    folders = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "results").rglob("*.md")]
    for source in [*folders, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]:
        name = source.relative_to(ROOT)
        page = site / name.with_suffix(".html")
        assert page.exists() or name.is_relative_to("docs/site"), name
    assert 'url=docs/index.html"' in (site / "index.html").read_text()


def test_docstrings_are_drawn(site):
    pages = {path.stem: path.read_text() for path in (site / "docs" / "api").glob("*.html")}
    assert set(pages) == {"functions", "images", "integrations", "layers", "zoo"}
    for name, html in pages.items():
        assert "math::" not in html
        assert ":math:" not in html
        assert "<math" in html or name in ("images", "integrations")
        assert "system-message" not in html
        assert "problematic" not in html
    drawn = set(re.findall(r'id="(uotpool\.[\w.]+)"', "".join(pages.values())))
    named = {f"uotpool.{name}" for name in uotpool.__all__} - IN_WORDS
    assert named <= drawn
    built = {f"uotpool.{entry.where.replace(':', '.')}" for entry in zoo.ENTRIES.values()}
    assert built - {"uotpool.nn.pooling.UOTPooling"} <= drawn
    assert {"uotpool.integrations.pyg.UOTAggregation", "uotpool.integrations.torchmil.UOTMIL"} <= drawn
