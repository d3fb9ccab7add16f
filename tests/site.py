"""The documentation site, built as `make docs` does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def build(folder: Path) -> Path:
    """Build it into the folder; a warning, such as a link that leads nowhere, is an error."""
    site, kept = folder / "site", folder / "doctrees"
    options = ["--fail-on-warning", "--quiet", "-c", "docs/site", "-d", str(kept)]
    command = [sys.executable, "-m", "sphinx", *options, ".", str(site)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return site
