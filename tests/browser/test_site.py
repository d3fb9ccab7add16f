"""The documentation site in a browser: pages fit, formulas are drawn, search finds, no other host is asked."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import uotpool
from tests.site import build
from tools.publish_site import publish

pytest.importorskip("sphinx")
pytest.importorskip("furo")

DOCS = (
    *("index", "start/sets", "start/graphs", "start/images", "choosing", "errors", "poolings", "experiments"),
    *("published-algorithms", "mathematics", "kernels", "api/functions", "api/layers", "api/zoo"),
    *("results", "install", "api/images", "api/integrations"),
)
PAGES = (*(f"docs/{name}" for name in DOCS), "results/mil/README", "results/graph/paper", "CHANGELOG")


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        """Nothing: the test says what went wrong."""


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    return build(tmp_path_factory.mktemp("site"))


@contextmanager
def served(folder: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def address(site) -> Iterator[str]:
    with served(site) as address:
        yield address


def test_pages_fit_and_load_nothing_from_elsewhere(address, watched):
    page = watched.page
    for name in PAGES:
        page.goto(f"{address}/{name}.html")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name  # wide parts scroll
        assert page.locator("h1").count() == 1, name
    assert watched.errors == []
    assert all(url.startswith((address, "data:")) for url in watched.requests)


def test_formulas_are_drawn(address, watched):
    page = watched.page
    page.goto(f"{address}/docs/api/layers.html")
    formula = page.locator("div.formula math").first
    box = formula.bounding_box()
    assert box["height"] > 20
    assert box["width"] > 50


BLOCKS = ".highlight-text pre, .highlight-none pre"
FORMULAS = ("mathematics", "settings", "notation")


@pytest.mark.parametrize("name", FORMULAS)
def test_a_formula_keeps_its_lines(address, watched, name):
    """It scrolls where the screen is narrow, and needs not on a desktop."""
    page = watched.page
    page.goto(f"{address}/docs/{name}.html")
    blocks = page.locator(BLOCKS).evaluate_all(
        "all => all.map(e => [e.textContent, getComputedStyle(e).whiteSpace, e.scrollWidth - e.clientWidth])"
    )
    assert blocks
    for text, white_space, hidden in blocks:
        assert white_space == "pre", text
        assert hidden <= 0 or page.viewport_size["width"] < 600, text


def test_messages_wrap(address, watched):
    page = watched.page
    page.goto(f"{address}/docs/errors.html")
    found = page.locator(BLOCKS).evaluate_all("all => all.map(e => getComputedStyle(e).whiteSpace)")
    assert set(found) == {"pre-wrap"}


def test_search_finds_a_message(address, watched):
    page = watched.page
    page.goto(f"{address}/index.html")
    page.wait_for_url(f"{address}/docs/index.html")
    page.goto(f"{address}/search.html?q=duality+gap")
    links = page.locator("#search-results li a")
    links.first.wait_for(timeout=20_000)
    found = links.evaluate_all("links => links.map(a => a.href)")
    assert any("docs/mathematics.html" in link or "docs/api/functions.html" in link for link in found)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert watched.errors == []


def test_colours_follow_the_system_and_the_button(address, chromium):
    def background():
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    context = chromium.new_context(color_scheme="dark", viewport={"width": 1400, "height": 900})
    page = context.new_page()
    page.goto(f"{address}/docs/index.html")
    dark = background()
    page.locator(".theme-toggle:visible").first.click()
    assert background() != dark
    context.close()


def test_code_is_copied_without_prompts(address, chromium):
    context = chromium.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(f"{address}/docs/api/functions.html")
    block = page.locator(".highlight:has(.gp)").first
    block.hover()
    block.locator("button.copybtn").click()
    copied = page.wait_for_function("() => navigator.clipboard.readText()").json_value()
    assert copied.startswith("X = torch.tensor(")
    assert ">>>" not in copied
    context.close()


def test_the_sidebar_offers_other_versions(site, tmp_path, chromium):
    other = "99.0.0"  # has no page of errors
    for version in (uotpool.__version__, other):
        publish(site, tmp_path, version)
    (tmp_path / other / "docs" / "errors.html").unlink()
    page = chromium.new_page(viewport={"width": 1400, "height": 900})
    with served(tmp_path) as address:
        for name, leads_to in (("choosing", "choosing"), ("errors", "index")):
            page.goto(f"{address}/{uotpool.__version__}/docs/{name}.html")
            choice = page.locator(".sidebar-versions select:visible")
            assert choice.locator("option").all_inner_texts() == [other, uotpool.__version__]
            assert choice.input_value() == uotpool.__version__
            choice.select_option(other)
            page.wait_for_url(f"{address}/{other}/docs/{leads_to}.html")
    page.close()


def test_a_site_alone_offers_no_versions(address, watched):
    watched.page.goto(f"{address}/docs/index.html")
    assert watched.page.locator(".sidebar-versions select:visible").count() == 0
    assert watched.errors == []
