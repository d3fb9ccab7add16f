"""What describes the project agrees with itself: versions, workflows, citation, templates."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import uotpool

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parent.parent
LIBRARY, STUDY = (
    tomllib.loads((ROOT / path).read_text()) for path in ("pyproject.toml", "experiments/pyproject.toml")
)
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
MAY_WRITE = {
    ("release.yml", "publish"): {"id-token": "write"},
    ("release.yml", "site"): {"contents": "write"},
}


def load(path):
    return yaml.safe_load((ROOT / path).read_text())


def jobs(path):
    return load(path)["jobs"].items()


def test_every_place_has_the_same_version():
    study = (ROOT / "experiments/src/uotpool_experiments/__init__.py").read_text()
    assert f'__version__ = "{uotpool.__version__}"' in study
    assert f"uotpool[zoo]=={uotpool.__version__}" in STUDY["project"]["dependencies"]
    assert load("CITATION.cff")["version"] == uotpool.__version__
    released = re.findall(r"^## (\d\S*)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert released[0] == uotpool.__version__


def test_links_of_the_description_work_on_a_package_index():
    """There, README stands alone: relative links would be dead. What they become is in the repository."""
    text = (ROOT / "README.md").read_text()
    for rule in LIBRARY["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(rule["pattern"], rule["replacement"], text)
    links = re.findall(r"\[[^\]]*\]\(([^)]*)\)", text.replace("$HFPR_VERSION", uotpool.__version__))
    assert len(links) > 5
    assert "](" not in (ROOT / "experiments/README.md").read_text()
    repository = LIBRARY["project"]["urls"]["Repository"].removeprefix("https://github.com/")
    for link in links:
        assert link.startswith("https://"), link
        if repository in link:
            hosts = f"(?:github.com/{repository}/blob|raw.githubusercontent.com/{repository})"
            found = re.fullmatch(rf"https://{hosts}/v([\d.]+)/(.*)", link)
            assert found is not None, link
            assert found[1] == uotpool.__version__, link
            assert (ROOT / found[2]).exists(), link


def test_the_oldest_torch_is_the_one_that_is_tested():
    (requirement,) = LIBRARY["project"]["dependencies"]
    oldest = requirement.removeprefix("torch>=") + ".0"
    assert f"\nOLDEST_TORCH := {oldest}\n" in (ROOT / "Makefile").read_text()
    matrix = load(".github/workflows/test.yml")["jobs"]["library"]["strategy"]["matrix"]
    assert {(entry["torch"], entry["target"]) for entry in matrix["include"]} == {
        (f"torch=={oldest}", "test-oldest")
    }


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_pin_what_they_use_and_ask_for_little(path):
    text = path.read_text()
    for action, comment in re.findall(r"uses: (\S+)(.*)", text):
        local = action == "./.github/workflows/wheels.yml"
        assert local or re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action), action
        assert local or re.fullmatch(r" # v\d+\.\d+\.\d+", comment), action
    assert load(path)["permissions"] == {}
    for name, job in jobs(path):
        assert set(job["permissions"].values()) <= {"read"} or (path.name, name) in MAY_WRITE
        assert "uses" in job or job["timeout-minutes"] <= 60
        for step in job.get("steps", []):
            assert "checkout" not in step.get("uses", "") or step["with"]["persist-credentials"] is False
            assert "${{" not in step.get("run", ""), "an expression in a script can be an injection"


def test_what_make_is_asked_for_exists():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for path in WORKFLOWS:
        asked = re.findall(r"run: make ([\w-]+)|target: \[?([\w-]+)", path.read_text())
        assert {word for pair in asked for word in pair if word} <= targets
