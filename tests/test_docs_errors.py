"""The code of docs/errors.md raises errors of the kinds that the page shows.

A `py` block raises, a `sh` block is a command that ends with an error; a `text` block has the message.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import uotpool

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "errors.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SECTIONS = {part.partition("\n")[0]: part for part in re.split(r"^### ", PAGE, flags=re.MULTILINE)[1:]}
WITH_CODE = [
    title
    for title, text in SECTIONS.items()
    if re.search(r"^```(py|sh)\n.*^```text\n", text, re.DOTALL | re.MULTILINE)
]


@pytest.mark.parametrize("title", WITH_CODE)
def test_the_error_is_real(title, monkeypatch, tmp_path):
    for package in ("torch_geometric", "sentence_transformers", "transformers", "ray", "rich"):
        if package in SECTIONS[title]:
            pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").symlink_to(ROOT / "results")
    blocks = dict(BLOCK.findall(SECTIONS[title]))
    if "sh" in blocks:
        words = shlex.split(blocks["sh"])
        start = next(i for i, word in enumerate(words) if word == "uotpool")
        env = os.environ | dict(word.split("=", 1) for word in words[:start])
        env |= {"PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-m", "uotpool", *words[start + 1 :]]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.returncode != 0
        assert "Traceback" not in done.stderr
        return
    namespace: dict[str, object] = {}
    exec(BLOCK.search(PAGE)[2], namespace)  # the imports
    with uotpool.check(False), warnings.catch_warnings():
        warnings.simplefilter("error", uotpool.ConvergenceWarning)
        with pytest.raises((Exception, Warning)) as raised:
            exec(compile(blocks["py"], title, "exec"), namespace)
    assert blocks["text"].startswith(f"{type(raised.value).__name__}: ")
