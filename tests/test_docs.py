"""Python blocks of README and docs run, in order, in one namespace per page; links and figures are right."""

from __future__ import annotations

import csv
import os
import re
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.beside_cpu import import_timm

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RESULTS = sorted((ROOT / "results").rglob("*.md"))
FOLDERS = "src|csrc|tests|experiments|examples|docs|tools|bench"
PACKAGES = ("torch_geometric", "sklearn", "matplotlib", "sentence_transformers", "torchmil", "transformers")
ENCODER = "sentence-transformers/all-MiniLM-L6-v2"


def name(page):
    return page.relative_to(ROOT).as_posix()


def words(page):
    return " ".join(page.read_text().split())


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=name)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    code = blocks(page)
    for package in PACKAGES:
        if any(package in block for block in code):
            pytest.importorskip(package)
    if any("import timm" in block for block in code):
        import_timm()
    monkeypatch.chdir(tmp_path)  # some write files
    if any(ENCODER in block for block in code):
        # A folder of that name comes before the model on the Hub: tests/large has the real weights there.
        from examples.sentence_encoder import tiny_encoder

        tiny_encoder(tmp_path / ENCODER, normalize=True)
    namespace: dict[str, object] = {}
    with patch.dict(os.environ), patch.dict(catalogue()):
        for block in code:
            exec(compile(block, str(page), "exec"), namespace)


def catalogue():
    """Return the catalogue of data sets, to which a page adds one."""
    try:
        from uotpool_experiments.datasets import CATALOG
    except ModuleNotFoundError:
        return {}
    return CATALOG


def test_results_have_no_code_to_run():
    assert not [name(page) for page in RESULTS if blocks(page)]


@pytest.mark.parametrize("page", [*PAGES, *RESULTS, ROOT / "CONTRIBUTING.md"], ids=name)
def test_links_and_named_files_exist(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\((?!http)([^)#]+)", text):
        assert (page.parent / target).exists(), target
    for path in re.findall(rf"`((?:{FOLDERS})/[\w./-]+)`", text):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize(("begin", "table"), [("- Bags (", "mil/fair.md"), ("- Graphs (", "graph/paper.md")])
def test_the_ranks_in_the_advice_are_those_of_the_tables(begin, table):
    rows = re.findall(r"^\| ([\w-]+) \|.*\| ([\d.]+) \|$", (ROOT / "results" / table).read_text(), re.MULTILINE)
    items = re.split(r"\n(?=- |\n)", (ROOT / "docs/settings.md").read_text())
    (advice,) = (" ".join(item.split()) for item in items if item.startswith(begin))
    quoted = re.findall(r"([a-z][a-z0-9-]+)(?: and ([a-z]+))? (\d+\.\d)[,.]", advice)
    assert len(quoted) > 7
    for first, second, rank in quoted:
        assert {dict(rows)[name] for name in (first, second) if name} == {rank}


def test_the_ranks_of_the_results_page_are_those_of_the_runs(monkeypatch):
    from uotpool_experiments.runs.sweep import UOTP
    from uotpool_experiments.tables import manifest

    monkeypatch.chdir(ROOT)
    manifests = manifest.committed()
    ranking, left_out = manifest.overall(manifests)
    accuracy = {key: sample for found in manifests for key, sample in found.ranked_samples().items()}
    table = re.search(
        r"^\| pooling \| mean rank.*?\n\n", (ROOT / "docs/results.md").read_text(), re.DOTALL | re.MULTILINE
    )
    head, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table[0].split("\n") if line]
    assert head[1] == f"mean rank of {len(ranking.poolings)} over {len(ranking.datasets)} data sets"
    assert len(rows) >= 8
    assert "gem" in left_out
    for pooling, mean, interval, behind, *cells in rows:
        i = ranking.poolings.index(pooling)
        low, high = ranking.interval()[i]
        points = 100 * ranking.behind[:, i].mean()
        assert [mean, interval, behind] == [
            f"{ranking.mean[i]:.1f}",
            f"{low:.1f} to {high:.1f}",
            f"{points:.1f}",
        ]
        assert cells == [f"{100 * accuracy[pooling, dataset].mean:.1f}" for dataset in head[4:]]
    exact = [i for i, pooling in enumerate(ranking.poolings) if pooling in UOTP]
    words = [f"{ranking.mean[i]:.1f}" for i in exact] + [
        "{:.1f} to {:.1f}".format(*ranking.interval()[i]) for i in exact
    ]
    (claim,) = (
        line for line in (ROOT / "docs/paper.md").read_text().splitlines() if "uotpool figure ranks" in line
    )
    assert re.findall(r"\d+\.\d(?: to \d+\.\d)?", claim) == [*words, f"{ranking.mean[0]:.1f}"]


def test_the_numbers_of_published_cells_are_those_of_the_table():
    text = (ROOT / "results/graph/paper.md").read_text()
    cells = re.findall(r" \| [+-]\d+\.\d\d(?: ([▲▼]))?(?= \|)", text)
    near, above, below = cells.count(""), cells.count("▲"), cells.count("▼")
    claims = words(ROOT / "results/graph/README.md")
    assert f" {near} of {len(cells)} " in claims
    assert re.search(rf"\b{above} are higher\b.*\b{below} lower\b", claims)
    assert f" {near} of {len(cells)} published numbers" in words(ROOT / "docs/results.md")


def test_the_number_of_other_poolings():
    pytest.importorskip("torch_geometric")
    from uotpool.zoo import ENTRIES

    others = sum(not name.startswith("uotp") for name in ENTRIES)
    assert f"{others} other poolings" in words(ROOT / "README.md")
    assert f" {others} other poolings" in words(ROOT / "docs/index.md")


def test_the_readme_is_short():
    """What a reader needs in one minute; code and tables are not counted."""
    text = re.sub(r"^```.*?^```", "", (ROOT / "README.md").read_text(), flags=re.DOTALL | re.MULTILINE)
    prose = [line for line in text.splitlines() if not line.startswith(("|", "    "))]
    assert len(" ".join(prose).split()) <= 600


def test_the_regrets_in_the_readme_are_those_of_the_table():
    with (ROOT / "results/regimes/confirmation.csv").open(newline="") as file:
        _, *lines = csv.reader(file)
    rows = {row[0]: row[1].split()[0] for row in lines}
    text = words(ROOT / "README.md")
    ours, second = rows["uotp"], rows["set2set"]
    assert f"{ours} points behind the best one of each on average; Set2Set is {second} behind" in text
    assert f"gated-mixed {rows['gated-mixed']}, mean {rows['mean']}" in text
    assert list(rows)[:2] == ["uotp", "set2set"]  # they are in the order of their mean regrets


def test_the_two_commands_are_on_the_first_screen_of_the_readme():
    head = "\n".join((ROOT / "README.md").read_text().splitlines()[:25])
    assert "make demo" in head
    assert "make test" in head
