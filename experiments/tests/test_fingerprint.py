"""Of the code that decides a run's numbers, and of nothing else."""

from __future__ import annotations

import ast
import re
import shutil

import pytest
from uotpool_experiments.runs import fingerprint as module
from uotpool_experiments.runs.fingerprint import closure, fingerprint

import uotpool

REAL = module.PACKAGES["uotpool"]


class Sources:
    """A copy of the package's sources that a test may change."""

    def __init__(self, root):
        self.package, self.csrc = root / "src" / "uotpool", root / "csrc"
        shutil.copytree(REAL, self.package, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        if (REAL.parent.parent / "csrc").exists():
            shutil.copytree(REAL.parent.parent / "csrc", self.csrc)
        else:
            self.csrc.mkdir()
            (self.csrc / "kernels.cpp").write_text("")

    def edit(self, name, change):
        path = self.package / name
        before = path.read_text()
        after = change(before)
        assert after != before
        path.write_text(after)

    def fingerprint(self, pooling="uotp-sinkhorn", task="mil"):
        forget()
        return fingerprint(task, pooling)


def forget():
    module._fingerprint.cache_clear()
    module._tree.cache_clear()
    module._statements.cache_clear()


@pytest.fixture
def sources(tmp_path, monkeypatch):
    copied = Sources(tmp_path)
    monkeypatch.setitem(module.PACKAGES, "uotpool", copied.package)
    yield copied
    forget()


def with_code(text):
    return text + "\nEXTRA = 1\n"


USED = [
    *(
        "layout",
        "inputs",
        "segments",
        "dispatch",
        "functional",
        "nn/pooling",
        "kernels/ops",
        "solvers/sinkhorn",
    ),
    *(
        "zoo/base",
        "zoo/uot",
        "experiments/mil",
        "experiments/training",
        "experiments/protocols",
        "experiments/metrics",
    ),
    *("experiments/dropout", "experiments/data/mil", "experiments/data/bags", "experiments/data/digits"),
]
UNUSED = [
    *(
        "zoo/simple",
        "zoo/attention",
        "zoo/networks",
        "zoo/pyg_sets",
        "zoo/transport",
        "zoo/covariance",
        "zoo/graphs",
        "pyg",
    ),
    *("cli", "checks", "experiments/tables", "experiments/store", "experiments/executors", "experiments/sweep"),
    *("experiments/commands", "experiments/progress", "experiments/statistics", "experiments/paper"),
    *("experiments/data/fetch", "experiments/data/catalog", "experiments/data/sources", "zoo/registry"),
    *("experiments/fingerprint", "experiments/spec", "experiments/work"),
]


def dotted(names):
    return {f"uotpool.{name.replace('/', '.')}" for name in names}


def test_is_that_of_the_real_sources(sources, monkeypatch):
    """The place of the sources does not count."""
    copied = sources.fingerprint()
    monkeypatch.setitem(module.PACKAGES, "uotpool", REAL)
    assert sources.fingerprint() == copied


def test_every_used_module_counts(sources):
    seen = {sources.fingerprint()}
    assert not dotted(USED) & module.NOT_HASHED
    for name in USED:
        sources.edit(f"{name}.py", with_code)
        found = sources.fingerprint()
        assert found not in seen, name
        seen.add(found)


def test_no_other_module_counts(sources):
    before = sources.fingerprint()
    for name in UNUSED:
        sources.edit(f"{name}.py", with_code)
    assert sources.fingerprint() == before


def test_a_family_counts_for_its_own_poolings_only(sources):
    before = {name: sources.fingerprint(name) for name in ("mean", "max", "attention", "uotp-sinkhorn")}
    assert len(set(before.values())) == 4  # the entry of the registry counts
    sources.edit("zoo/attention.py", with_code)
    changed = {name for name, code in before.items() if sources.fingerprint(name) != code}
    assert changed == {"attention"}


def test_the_kernels_do_not_count_for_mean_pooling(sources):
    before = {name: sources.fingerprint(name) for name in ("mean", "uotp-sinkhorn")}
    sources.edit("kernels/ops.py", with_code)
    assert {name for name, code in before.items() if sources.fingerprint(name) != code} == {"uotp-sinkhorn"}


def test_the_options_of_the_registry_count(monkeypatch):
    names = ["uotp-sinkhorn", "uotp-badmm-e", "uotp-badmm-q", "uotp-sinkhorn-paper"]
    assert len({fingerprint("mil", name) for name in names}) == 4


def comment(text):
    return "# a comment\n" + text.replace("\ndef ", "\n# another\ndef ", 1) + "\n# and one more\n"


def reformat(text):
    return ast.unparse(ast.parse(text)) + "\n\n\n"


def docstrings(text):
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            new = ast.Expr(ast.Constant("Said in another way."))
            if ast.get_docstring(node) is None:
                node.body.insert(0, new)
            else:
                node.body[0] = new
    future = next(n for n in tree.body if isinstance(n, ast.ImportFrom) and n.module == "__future__")
    assert tree.body.index(future) <= 1
    return ast.unparse(ast.fix_missing_locations(tree))


@pytest.mark.parametrize("change", [comment, reformat, docstrings])
@pytest.mark.parametrize("name", ["layout", "experiments/mil", "zoo/uot"])
def test_what_is_said_of_the_code_does_not_count(sources, change, name):
    before = sources.fingerprint()
    sources.edit(f"{name}.py", change)
    assert sources.fingerprint() == before


def moved(sources, old, new):
    """The module under another name, with every import of it changed: what a pure move does."""
    source, target = (sources.package.joinpath(*name.split(".")).with_suffix(".py") for name in (old, new))
    target.parent.mkdir(parents=True, exist_ok=True)
    (target.parent / "__init__.py").touch()
    source.rename(target)
    package, _, name = old.rpartition(".")
    before = rf"from uotpool\.{package} import {name}\b" if package else rf"from uotpool import {name}\b"
    after = f"from uotpool.{new.rpartition('.')[0]} import {new.rpartition('.')[2]} as {name}"
    for path in sources.package.rglob("*.py"):
        text = re.sub(before, after, path.read_text())
        path.write_text(re.sub(rf"\buotpool\.{re.escape(old)}\b", f"uotpool.{new}", text))


@pytest.mark.parametrize("task", ["mil", "graph", "image"])
def test_a_pure_move_keeps_it(sources, monkeypatch, task):
    names = ("uotp-sinkhorn", "uotp-badmm-q-paper", "attention", "gmt")
    before = {name: sources.fingerprint(name, task) for name in names}
    moved(sources, "layout", "sets.views")
    moved(sources, "experiments.training", "experiments.runs.seeding")
    moved(sources, "experiments.protocols", "experiments.runs.protocols")
    forget()
    assert "uotpool.sets.views" in closure(("uotpool.zoo.uot",))
    assert "uotpool_experiments.runs.seeding" in closure((module.TASKS[task],))
    assert {name: sources.fingerprint(name, task) for name in names} == before


def test_a_function_that_moves_to_a_neighbour_keeps_it(sources):
    before = sources.fingerprint()
    (sources.package / "tail.py").write_text("import math\n\n\ndef tail():\n    return math.pi\n")
    sources.edit("layout.py", lambda text: text + "\nfrom uotpool.tail import tail\n")
    together = sources.fingerprint()
    assert together != before
    (sources.package / "tail.py").unlink()
    sources.edit(
        "layout.py",
        lambda text: text.replace(
            "from uotpool.tail import tail", "import math\n\n\ndef tail():\n    return math.pi"
        ),
    )
    assert sources.fingerprint() == together


def test_a_rename_counts(sources):
    before = sources.fingerprint()
    for path in sources.package.rglob("*.py"):
        path.write_text(re.sub(r"\bSets\b", "Views", path.read_text()))
    assert sources.fingerprint() != before


def test_a_number_counts(sources):
    before = sources.fingerprint()
    sources.edit("experiments/mil.py", lambda text: text.replace("5e-4", "6e-4", 1))
    assert sources.fingerprint() != before


def test_does_not_depend_on_what_was_asked_before(sources):
    """A string below a docstring is no docstring."""
    sources.edit(
        "layout.py", lambda text: text + '\n\ndef extra():\n    """Doc."""\n    "a note"\n    "another"\n'
    )
    alone = sources.fingerprint("max")
    forget()
    fingerprint("mil", "uotp-sinkhorn")
    fingerprint("mil", "add")
    assert fingerprint("mil", "max") == alone


def test_sources_of_the_kernels_count_where_they_run(sources, monkeypatch):
    monkeypatch.setattr(module.library, "missing", lambda: "")
    before = sources.fingerprint()
    header = sources.csrc / "kernels.cpp"
    header.write_text(header.read_text() + "\nint extra;\n")
    assert sources.fingerprint() != before
    monkeypatch.setattr(module.library, "missing", lambda: "no compiler")
    plain = sources.fingerprint()
    assert plain != before
    header.write_text("")
    assert sources.fingerprint() == plain


CPP = """#include <cmath>
#include "simd.h"
// Says why.
template <class T> T twice(T x) {
    return x + x;   /* and how */
}
const char *where = "http://x"; // not a comment before this
"""
ALIKE = [
    CPP.replace("    ", "\t").replace("\n\n", "\n"),
    CPP.replace("// Says why.\n", "").replace("/* and how */", ""),
    CPP.replace('#include "simd.h"', '#include "lanes.h"\n\n#pragma once'),
    CPP.replace("x + x", "x+x").replace("{\n", "\n{\n"),
]
OTHER = [
    CPP.replace("x + x", "x * x"),
    CPP.replace("<cmath>", "<math.h>"),
    CPP.replace("http://x", "http://y"),
    CPP.replace("T x)", "Tx)"),
]


def test_words_about_the_kernels_do_not_count():
    assert {module._cpp_code(text) for text in ALIKE} == {module._cpp_code(CPP)}
    assert all(module._cpp_code(text) != module._cpp_code(CPP) for text in OTHER)
    assert "http://x" in module._cpp_code(CPP)


def test_where_a_header_lies_does_not_count(sources, monkeypatch):
    monkeypatch.setattr(module.library, "missing", lambda: "")
    before = sources.fingerprint()
    (sources.csrc / "kernels.cpp").rename(sources.csrc / "all_kernels.cpp")
    assert sources.fingerprint() == before


def test_closure():
    found = closure(("uotpool_experiments.tasks.mil.task", "uotpool.zoo.uot"))
    assert dotted(USED) <= found
    left_out = {"tables", "store", "executors", "sweep", "commands", "progress", "statistics", "paper", "work"}
    assert not {f"uotpool_experiments.{name}" for name in left_out} & found
    assert not dotted(["zoo/attention", "zoo/graphs", "pyg", "cli"]) & found


@pytest.mark.parametrize(
    "roots",
    [
        ("uotpool_experiments.tasks.mil.task", "uotpool.zoo.uot"),
        ("uotpool_experiments.tasks.graph.task", "uotpool.zoo.uot"),
        ("uotpool_experiments.tasks.image.task", "uotpool.zoo.simple"),
    ],
)
def test_what_comes_from_the_package_itself_is_in_the_closure(roots):
    """`from uotpool import plan_stats` names no module; its code must count all the same."""
    found = closure(roots)
    for name in found:
        for node in ast.walk(module._tree(name)):
            if isinstance(node, ast.ImportFrom) and node.module == "uotpool":
                for alias in node.names:
                    value = getattr(uotpool, alias.name)
                    where = getattr(value, "__module__", None) or value.__name__
                    assert where in found, alias.name


def test_unknown_names():
    with pytest.raises(ValueError, match="expected a pooling"):
        fingerprint("mil", "meen")
