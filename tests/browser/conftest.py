"""A real browser for pages: Chromium from the system, driven by Playwright.

Where there is no browser the tests are skipped, and say so; `make test-browser` installs Debian's where it can.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
VARIABLE = "UOTPOOL_CHROMIUM"  # environment variable: the browser to take
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def _found() -> str | None:
    return os.environ.get(VARIABLE) or next(filter(None, map(shutil.which, NAMES)), None)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """The browser, once for all tests of a process."""
    api = pytest.importorskip("playwright.sync_api", reason="NOT RUN: needs playwright")
    program = _found()
    if program is None:
        pytest.skip(f"NOT RUN: no browser, none of {', '.join(NAMES)} is installed")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        browser.close()


class Watched:
    """A page, with what went wrong on it and what it asked for."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.errors: list[str] = []
        self.requests: list[str] = []
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))

    def _said(self, message: Any) -> None:
        if message.type == "error":
            self.errors.append(message.text)


@pytest.fixture(params=[(1200, 900), (390, 844)], ids=["desktop", "phone"])
def watched(request: Any, chromium: Any) -> Iterator[Watched]:
    """A page as wide as a desktop's, then as a phone's."""
    width, height = request.param
    context = chromium.new_context(viewport={"width": width, "height": height})
    yield Watched(context.new_page())
    context.close()
