"""Lays a site that was built beside those of other versions: `python tools/publish_site.py out/site PUBLISHED`.

PUBLISHED has one folder per version, and leads to the newest one. Every version learns which others
there are, so that its sidebar offers them: an old one too, without being built again.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = Path("_static") / "versions.js"


def version_of_source() -> str:
    """The version of the library in this checkout, which is that of a site built from it."""
    found = re.search(r'^__version__ = "(.+)"$', (ROOT / "src/uotpool/__init__.py").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def order(version: str) -> tuple[int, ...]:
    """What sorts versions: 0.10.0 is newer than 0.9.1."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise SystemExit(f"expected versions X.Y.Z, got {version}: others are not published")
    return tuple(int(part) for part in version.split("."))


def publish(site: Path, published: Path, version: str) -> list[str]:
    """Replace the version in the folder of published ones, and return all of them, newest first."""
    if not (site / LIST).exists():
        raise SystemExit(f"{site} has no {LIST}: expected a site built by `make docs`")
    order(version)
    shutil.rmtree(published / version, ignore_errors=True)
    shutil.copytree(site, published / version)
    names = (path.parent.parent.name for path in published.glob(f"*/{LIST}"))
    versions = sorted(names, key=order, reverse=True)
    for name in versions:
        path = published / name / LIST
        line = f"const VERSIONS = {json.dumps(versions)};"
        path.write_text(re.sub("^const VERSIONS = .*$", line, path.read_text(), flags=re.MULTILINE))
    # The front page of a site, with its targets in the folder of the newest version.
    front = re.sub('(url=|href=")', rf"\g<1>{versions[0]}/", (site / "index.html").read_text())
    (published / "index.html").write_text(front)
    (published / ".nojekyll").touch()  # without this, GitHub leaves out folders such as _static
    return versions


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("site", type=Path, help="what `make docs` built, out/site")
    parser.add_argument("published", type=Path, help="the folder of all versions, made if there is none")
    arguments = parser.parse_args()
    print(*publish(arguments.site, arguments.published, version_of_source()))
