"""`uotpool explore` as a person uses it: the real command, a real browser."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from uotpool_experiments.explorer import inputs

from tests.browser.conftest import Watched

pytest.importorskip("dash", reason="NOT RUN: needs dash")

DATA = "name => document.querySelector(`#${name}-chart .js-plotly-plot`)?.data"
# plotly.js may keep numbers in typed arrays.
VALUES = """
([name, trace, key]) => {
    const found = document.querySelector(`#${name}-chart .js-plotly-plot`).data[trace][key];
    return Array.from(found, row => typeof row === "object" && row !== null ? Array.from(row) : row);
}
"""


# Calls of the page to its server, and when the last one began or ended.
COUNT = """
window.calls = { open: 0, last: performance.now() };
const ask = window.fetch;
window.fetch = (...given) => {
    const note = (change) => { calls.open += change; calls.last = performance.now(); };
    note(1);
    return ask(...given).finally(() => note(-1));
};
"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    command = [sys.executable, "-m", "uotpool", "explore", "--no-browser", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("uotpool explore: http://127.0.0.1:"), line + process.communicate(timeout=20)[1]
    yield line.split()[2]
    process.terminate()
    _, errors = process.communicate(timeout=20)
    assert errors == ""  # no traceback, no warning


@pytest.fixture
def opened(watched: Watched, address: str) -> Iterator[Watched]:
    """The page when it is drawn. In the end: no error, and nothing was asked of another host."""
    watched.page.add_init_script(COUNT)
    watched.page.goto(address)
    watched.page.wait_for_function(f"({DATA})('plan') && ({DATA})('p')")
    watched.page.wait_for_function("document.querySelector('#number-gap').textContent !== '...'")
    yield watched
    assert watched.errors == []
    assert len(watched.requests) > 10
    elsewhere = [url for url in watched.requests if not url.startswith((address, "data:", "blob:"))]
    assert elsewhere == []


def values(page, chart, trace=0, key="y"):
    """Numbers that the page draws."""
    return np.array(page.evaluate(VALUES, [chart, trace, key]), dtype=float)


def number(page, name):
    return page.text_content(f"#number-{name}")


def change(page, what, name="plan", key="z"):
    """Do something, and wait until another picture is there; return the values before and after."""
    before = values(page, name, 0, key)
    text = page.evaluate(f"JSON.stringify(({VALUES})(['{name}', 0, '{key}']))")
    what()
    page.wait_for_function(f"was => JSON.stringify(({VALUES})(['{name}', 0, '{key}'])) !== was", arg=text)
    settle(page)
    return before, values(page, name, 0, key)


def settle(page):
    """Wait until no callback has been on its way for a while, since one may start the next."""
    page.evaluate("calls.last = performance.now()")
    page.wait_for_function("calls.open === 0 && performance.now() - calls.last > 500")


def choose(page, group, label):
    page.locator(f"#{group}").get_by_text(label, exact=True).click()


def preset(page, name):
    """Press the button; the page needs no new picture if it shows that already."""
    page.click(f"#preset-{name}")
    settle(page)


def npy(array, **options):
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def upload(page, name, data):
    said = page.text_content("#upload-message")
    file = {"name": name, "mimeType": "application/octet-stream", "buffer": data}
    page.locator("#upload input[type=file]").set_input_files(file)
    page.wait_for_function("was => document.querySelector('#upload-message').textContent !== was", arg=said)
    settle(page)
    return page.text_content("#upload-message")


def test_the_keyboard_moves_a_slider_and_the_picture_with_it(opened):
    page = opened.page
    thumb = page.locator("#alpha0 [role=slider]")
    objective, picture = number(page, "objective"), page.locator("#plan-chart").screenshot()
    thumb.focus()
    before, after = change(page, lambda: page.keyboard.press("ArrowRight"))
    assert page.text_content("#alpha0-shown") == "0.1259"
    assert before.shape == after.shape == (10, 6)
    assert np.abs(before - after).max() > 1e-4
    assert after.sum() == pytest.approx(1)
    assert number(page, "objective") != objective
    assert page.locator("#plan-chart").screenshot() != picture


def test_a_slider_is_dragged_and_the_plan_goes_along_with_it(opened):
    page = opened.page
    thumb = page.locator("#alpha0 [role=slider]").bounding_box()
    track = page.locator("#alpha0").bounding_box()
    y = thumb["y"] + thumb["height"] / 2
    page.mouse.move(thumb["x"] + thumb["width"] / 2, y)
    page.mouse.down()
    seen = [float(number(page, "divergence"))]
    # The button stays down: the picture must not wait for its release.
    for share in (0.6, 0.9):
        change(page, lambda share=share: page.mouse.move(track["x"] + share * track["width"], y, steps=4))
        seen.append(float(number(page, "divergence")))
    page.mouse.up()
    assert seen[0] > 0.5
    assert seen[0] > seen[1] > seen[2]
    assert seen[2] < 1e-3
    settle(page)
    mean = values(page, "input", 0, "z").mean(0)
    np.testing.assert_allclose(values(page, "pooled"), mean, atol=1e-2)


@pytest.mark.parametrize("kind", ["random", "one digit", "digit images"])
def test_the_buttons_go_from_mean_to_max_to_attention(opened, kind):
    page = opened.page
    if kind != "random":
        change(page, lambda: choose(page, "kind", kind), "input")
    X = values(page, "input", 0, "z")
    assert X.shape == {"random": (10, 6), "one digit": (8, 8), "digit images": (12, 64)}[kind]
    preset(page, "mean")
    np.testing.assert_allclose(values(page, "pooled"), X.mean(0), atol=1e-3)
    assert float(number(page, "mean")) < 1e-3
    preset(page, "max")
    np.testing.assert_allclose(values(page, "pooled"), X.max(0), atol=1e-3)
    assert float(number(page, "max")) < 1e-3
    assert page.text_content("#alpha2-shown") == "0"
    preset(page, "attention")
    attention = values(page, "q", 1)
    assert attention.max() > 2 / len(X)
    np.testing.assert_allclose(values(page, "q"), attention, atol=1e-3)
    np.testing.assert_allclose(values(page, "pooled"), attention @ X, atol=2e-3)
    assert page.locator("#pictures-chart").is_visible() == (kind == "digit images")
    if kind == "digit images":
        np.testing.assert_allclose(values(page, "pictures", 0, "z").ravel(), values(page, "pooled"))


def test_every_solver_and_both_formulations(opened):
    page = opened.page
    assert not page.locator("#rho-row").is_visible()
    for solver in ("BADMM-E", "BADMM-Q", "Sinkhorn"):
        choose(page, "solver", solver)
        settle(page)
        assert float(number(page, "gap")) < 1e-6
    choose(page, "formulation", "as published")
    page.wait_for_selector("#notes .note.warning")
    assert "published Sinkhorn gave a plan of mass" in page.text_content("#notes")
    change(page, lambda: choose(page, "solver", "BADMM-E"))
    assert page.locator("#rho-row").is_visible()
    assert "α₁ and α₂ have no effect" in page.text_content("#notes")
    page.get_by_text("the suggested one").click()
    settle(page)
    page.locator("#rho [role=slider]").focus()
    change(page, lambda: page.keyboard.press("Home"))
    assert page.text_content("#rho-shown") == "1e-5"


def test_a_published_algorithm_without_a_plan_gives_a_message(opened):
    page = opened.page
    for name in ("alpha0", "alpha1"):
        page.locator(f"#{name} [role=slider]").focus()
        page.keyboard.press("Home")
        settle(page)
    choose(page, "formulation", "as published")
    settle(page)  # only then K can be moved
    page.locator("#K [role=slider]").focus()
    page.keyboard.press("End")
    page.wait_for_function("document.querySelector('#notes').textContent.includes('NaN or infinity')")
    settle(page)
    assert number(page, "gap") == "none"
    assert "no plan" in page.text_content("#plan-chart")
    change(page, lambda: choose(page, "formulation", "exact"))
    assert float(number(page, "gap")) < 1e-6


def test_the_weights_of_the_samples_are_another_view(opened):
    page = opened.page
    _, shares = change(page, lambda: choose(page, "view", "weights p(n|d)"))
    np.testing.assert_allclose(shares.sum(0), 1)


def test_an_empty_field_gives_a_message_and_the_picture_stays(opened):
    page = opened.page
    before = values(page, "plan", 0, "z")
    page.fill("#samples", "")
    page.wait_for_selector("#notes .note.error")
    assert "samples N: expected a whole number from 1 to 64" in page.text_content("#notes")
    assert np.array_equal(values(page, "plan", 0, "z"), before)
    _, after = change(page, lambda: page.fill("#samples", "7"))
    assert after.shape == (7, 6)
    assert page.locator("#notes .note").count() == 0


BAD = {
    "pickled.npy": (npy(np.array([[1, {}]], dtype=object), allow_pickle=True), "pickled Python objects"),
    "cut.npy": (npy(np.zeros((4, 4)))[:-8], "the file is cut off"),
    "vector.npy": (npy(np.zeros(4)), "shape (4,)"),
    "complex.npy": (npy(np.zeros((2, 2), dtype=complex)), "complex128"),
    "nan.npy": (npy(np.full((2, 2), np.nan)), "4 entries that are NaN or infinite"),
    "large.npy": (npy(np.zeros((2000, 600))), "got 9.6 MB"),
    "<img src=x onerror=alert(1)>.npy": (b"<b>not npy</b>", "not .npy"),
    "empty.npy": (b"", "empty file"),
}


def test_files_good_and_bad(opened):
    page = opened.page
    change(page, lambda: choose(page, "kind", "one digit"), "input")
    digit = values(page, "input", 0, "z")
    choose(page, "kind", "a .npy file")
    page.wait_for_selector("#notes .note.info")
    assert page.text_content("#notes") == "No file yet: the input stays as it was."
    preset(page, "max")
    assert np.array_equal(values(page, "input", 0, "z"), digit)
    np.testing.assert_allclose(values(page, "pooled"), digit.max(0), atol=1e-3)

    mine = np.random.default_rng(0).normal(size=(7, 4))
    said = upload(page, "mine.npy", npy(mine))
    assert said == "Loaded mine.npy: 7 samples with 4 features."
    np.testing.assert_allclose(values(page, "input", 0, "z"), mine)
    for name, (data, message) in BAD.items():
        said = upload(page, name, data)
        assert said.startswith(f"{name}: expected ")
        assert message in said
        assert said.endswith("The input stays as it was.")
        np.testing.assert_allclose(values(page, "input", 0, "z"), mine)
    assert page.locator("img").count() == 0
    preset(page, "mean")
    np.testing.assert_allclose(values(page, "pooled"), mine.mean(0), atol=1e-3)
    assert inputs.MOST_BYTES < len(BAD["large.npy"][0])


def test_nothing_sticks_out_and_all_is_drawn(opened):
    page = opened.page
    width, available = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert width <= available
    for name in ("input", "plan", "pooled", "q", "p"):
        box = page.locator(f"#{name}-chart").bounding_box()
        assert box["height"] > 150
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= available
