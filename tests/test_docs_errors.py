"""Every message of docs/errors.md is one that the library really has: the code beside it raises it.

A `py` block raises, a `sh` block is a command that ends with an error; the `text` block after it is the
message, in which "..." stands for what depends on the machine or is too long to show.
"""

from __future__ import annotations

import importlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import pytest

import uotpool
from uotpool.backends.cpu import library
from uotpool.cli import main

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "errors.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SECTIONS = {part.partition("\n")[0]: part for part in re.split(r"^### ", PAGE, flags=re.MULTILINE)[1:]}
AT_IMPORT = ("UOTPOOL_ISA",)  # variables that are read once


def without_kernels(patch):
    patch.setattr(library, "_library", None)
    with tempfile.TemporaryDirectory() as folder:
        error = Path(folder) / "build_error.txt"
        error.write_text("error: no working C++ compiler was found (GCC or Clang, on Linux or macOS)\n")
        patch.setattr(library, "_BUILD_ERROR", error)
        patch.setattr(library, "_reason", library._not_built())
    uotpool.UOTPooling(4, impl="cpu")


def without_pyg(patch):
    patch.setitem(sys.modules, "torch_geometric.nn.aggr", None)
    patch.delitem(sys.modules, "uotpool.integrations.pyg", raising=False)
    importlib.import_module("uotpool.integrations.pyg")


def without_sentence_transformers(patch):
    patch.setitem(sys.modules, "sentence_transformers.sentence_transformer.modules", None)
    patch.delitem(sys.modules, "uotpool.integrations.sentence_transformers", raising=False)
    importlib.import_module("uotpool.integrations.sentence_transformers")


NO_CODE = {
    "The kernels are not there": without_kernels,
    "PyTorch Geometric is not installed": without_pyg,
    "sentence-transformers is not installed": without_sentence_transformers,
}


def said(function, *args):
    """Return what the call raises, in the form of the last line of a traceback."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", uotpool.ConvergenceWarning)
        try:
            function(*args)
        except (Exception, Warning) as error:
            return f"{type(error).__name__}: {error}"
    return "nothing"


def output(command, monkeypatch, capsys):
    words = shlex.split(command)
    while "=" in words[0]:
        monkeypatch.setenv(*words.pop(0).split("=", 1))
    assert words.pop(0) == "uotpool"
    if any(name in os.environ for name in AT_IMPORT):
        argv = [sys.executable, "-m", "uotpool", *words]
        env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        run = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
        assert run.returncode != 0
        return run.stderr
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code != 0
    return capsys.readouterr().err


def same(shown, found):
    parts = (re.escape(" ".join(part.split())) for part in shown.split("..."))
    return re.search(r"\s?.*?\s?".join(parts) + "$", " ".join(found.split()))


@pytest.mark.parametrize("title", [title for title in SECTIONS if title != "Runs failed"])
def test_the_message_is_real(title, monkeypatch, capsys, tmp_path):
    pytest.importorskip("rich")
    if "sagp" in SECTIONS[title]:
        pytest.importorskip("torch_geometric")
    if "sentence_transformers" in SECTIONS[title]:
        pytest.importorskip("sentence_transformers")
    if "--ray" in SECTIONS[title]:
        pytest.importorskip("ray")
    if "from transformers" in SECTIONS[title]:
        pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").symlink_to(ROOT / "results")
    namespace: dict[str, object] = {}
    exec(BLOCK.search(PAGE)[2], namespace)  # the imports
    kinds = [kind for kind, _ in BLOCK.findall(SECTIONS[title])]
    blocks = dict(BLOCK.findall(SECTIONS[title]))
    if title in NO_CODE:
        assert kinds == ["text"]
        found = said(NO_CODE[title], monkeypatch)
    else:
        assert kinds in (["py", "text"], ["sh", "text"])
        with uotpool.check(False):
            if "py" in blocks:
                found = said(exec, compile(blocks["py"], title, "exec"), namespace)
            else:
                found = output(blocks["sh"], monkeypatch, capsys)
    assert same(blocks["text"], found), found


def test_what_is_said_of_failed_runs():
    source = "".join(
        (ROOT / "experiments/src/uotpool_experiments" / name).read_text()
        for name in ("runs/executors/local.py", "cli/execute.py")
    )
    for message in (
        "runs failed; the same command tries them again",
        "the worker process died with exit code",
        "no result after",
    ):
        assert message in source
        assert message in " ".join(SECTIONS["Runs failed"].split())
