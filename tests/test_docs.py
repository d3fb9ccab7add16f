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


@pytest.mark.parametrize("page", [*PAGES, *RESULTS, ROOT / "CONTRIBUTING.md"], ids=name)
def test_links_and_named_files_exist(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\((?!http)([^)#]+)", text):
        assert (page.parent / target).exists(), target
    for path in re.findall(rf"`((?:{FOLDERS})/[\w./-]+)`", text):
        assert (ROOT / path).exists(), path


def test_the_ranks_of_the_results_page_are_those_of_the_runs(monkeypatch):
    from uotpool_experiments.tables import manifest

    monkeypatch.chdir(ROOT)
    manifests = manifest.committed()
    ranking, _ = manifest.overall(manifests)
    accuracy = {key: sample for one in manifests for key, sample in one.ranked_samples().items()}
    text = (ROOT / "docs/results.md").read_text()
    table = re.search(r"^\| pooling \| mean rank.*?\n\n", text, re.DOTALL | re.MULTILINE)
    head, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table[0].split("\n") if line]
    assert len(rows) >= 8
    for pooling, mean, _, behind, *cells in rows:
        i = ranking.poolings.index(pooling)
        points = 100 * ranking.behind[:, i].mean()
        assert [mean, behind] == [f"{ranking.mean[i]:.1f}", f"{points:.1f}"]
        assert cells == [f"{100 * accuracy[pooling, dataset].mean:.1f}" for dataset in head[4:]]


def words(path):
    """Return the text of a page on one line."""
    return " ".join(path.read_text().split())


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
    assert len(" ".join(prose).split()) <= 450


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
