"""The documentation site in a browser: pages fit, formulas are drawn, search finds, no other host is asked."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.site import build

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
