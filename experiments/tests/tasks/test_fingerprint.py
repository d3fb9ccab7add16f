"""Of the code that decides a run's numbers, and of nothing else."""

from __future__ import annotations

import ast
import re
import shutil

import pytest
from uotpool_experiments.tasks import fingerprint as module
from uotpool_experiments.tasks.base import DESCRIPTIVE
from uotpool_experiments.tasks.fingerprint import closure, fingerprint
from uotpool_experiments.tasks.mil.task import MultiInstance

import uotpool

REAL = dict(module.PACKAGES)


class Sources:
    """A copy of both packages' sources that a test may change; a module is named `uotpool/layout`."""

    def __init__(self, root):
        self.root, self.csrc = root / "src", root / "csrc"
        for name, package in REAL.items():
            ignored = shutil.ignore_patterns("__pycache__", "*.so")
            shutil.copytree(package, self.root / name, ignore=ignored)
        csrc = REAL["uotpool"].parent.parent / "csrc"
        if csrc.exists():
            shutil.copytree(csrc, self.csrc)
        else:
            self.csrc.mkdir()
            (self.csrc / "kernels.cpp").write_text("")

    def edit(self, name, change):
        path = self.root / f"{name}.py"
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
    for name in REAL:
        monkeypatch.setitem(module.PACKAGES, name, copied.root / name)
    yield copied
    forget()


def with_code(text):
    return text + "\nEXTRA = 1\n"


def names(package, *modules):
    return [f"{package}/{name}" for name in " ".join(modules).split()]


USED = [
    *names("uotpool", "layout inputs segments dispatch functional nn/pooling kernels/ops solvers/sinkhorn"),
    *names("uotpool", "zoo/base zoo/uot"),
    *names("uotpool_experiments", "tasks/mil/task tasks/mil/settings tasks/mil/training tasks/mil/metrics"),
    *names("uotpool_experiments", "tasks/mil/dropout tasks/seeding tasks/protocols"),
    *names("uotpool_experiments", "datasets/mil datasets/bags datasets/digits"),
]
UNUSED = [
    *names("uotpool", "zoo/simple zoo/attention zoo/networks zoo/pyg_sets zoo/transport zoo/covariance"),
    *names("uotpool", "zoo/graphs zoo/registry pyg cli checks"),
    *names("uotpool_experiments", "tables/kinds runs/store runs/executors/local runs/sweep runs/plan"),
    *names("uotpool_experiments", "runs/scheduler runs/progress runs/worker cli/commands"),
    *names("uotpool_experiments", "analysis/statistics analysis/published_results"),
    *names("uotpool_experiments", "datasets/fetch datasets/catalog datasets/sources"),
    *names("uotpool_experiments", "tasks/base tasks/spec tasks/fingerprint tasks/poolings tasks/graph/task"),
]


def dotted(paths):
    return {path.replace("/", ".") for path in paths}


def test_is_that_of_the_real_sources(sources, monkeypatch):
    """The place of the sources does not count."""
    copied = sources.fingerprint()
    for name, package in REAL.items():
        monkeypatch.setitem(module.PACKAGES, name, package)
    assert sources.fingerprint() == copied


def test_every_used_module_counts(sources):
    seen = {sources.fingerprint()}
    assert not dotted(USED) & module.NOT_HASHED
    for name in USED:
        sources.edit(name, with_code)
        found = sources.fingerprint()
        assert found not in seen, name
        seen.add(found)


def test_no_other_module_counts(sources):
    before = sources.fingerprint()
    for name in UNUSED:
        sources.edit(name, with_code)
    assert sources.fingerprint() == before


def test_a_family_counts_for_its_own_poolings_only(sources):
    before = {name: sources.fingerprint(name) for name in ("mean", "max", "attention", "uotp-sinkhorn")}
    assert len(set(before.values())) == 4  # the entry of the registry counts
    sources.edit("uotpool/zoo/attention", with_code)
    changed = {name for name, code in before.items() if sources.fingerprint(name) != code}
    assert changed == {"attention"}


def test_the_kernels_do_not_count_for_mean_pooling(sources):
    before = {name: sources.fingerprint(name) for name in ("mean", "uotp-sinkhorn")}
    sources.edit("uotpool/kernels/ops", with_code)
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
@pytest.mark.parametrize(
    "name", ["uotpool/layout", "uotpool_experiments/tasks/mil/training", "uotpool/zoo/uot"]
)
def test_what_is_said_of_the_code_does_not_count(sources, change, name):
    before = sources.fingerprint()
    sources.edit(name, change)
    assert sources.fingerprint() == before


def moved(sources, old, new):
    """The module under another name, with every import of it changed: what a pure move does."""
    source, target = (sources.root.joinpath(*name.split(".")).with_suffix(".py") for name in (old, new))
    target.parent.mkdir(parents=True, exist_ok=True)
    (target.parent / "__init__.py").touch()
    source.rename(target)
    (package, _, name), (new_package, _, new_name) = old.rpartition("."), new.rpartition(".")
    before = rf"from {re.escape(package)} import {name}\b"
    after = f"from {new_package} import {new_name} as {name}"
    for path in sources.root.rglob("*.py"):
        text = re.sub(before, after, path.read_text())
        path.write_text(re.sub(rf"\b{re.escape(old)}\b", new, text))


def test_a_pure_move_keeps_it(sources):
    cases = [
        (task, name) for task in ("mil", "graph", "image") for name in ("uotp-sinkhorn", "attention", "gmt")
    ]
    before = {(task, name): sources.fingerprint(name, task) for task, name in cases}
    moved(sources, "uotpool.layout", "uotpool.sets.views")
    moved(sources, "uotpool_experiments.tasks.seeding", "uotpool_experiments.runs.seeds")
    moved(sources, "uotpool_experiments.tasks.protocols", "uotpool_experiments.runs.protocols")
    forget()
    assert "uotpool.sets.views" in closure(("uotpool.zoo.uot",))
    for task in ("mil", "graph", "image"):
        assert "uotpool_experiments.runs.seeds" in closure((module.task_module(task),))
    assert {(task, name): sources.fingerprint(name, task) for task, name in cases} == before


def test_a_function_that_moves_to_a_neighbour_keeps_it(sources):
    before = sources.fingerprint()
    (sources.root / "uotpool" / "tail.py").write_text("import math\n\n\ndef tail():\n    return math.pi\n")
    sources.edit("uotpool/layout", lambda text: text + "\nfrom uotpool.tail import tail\n")
    together = sources.fingerprint()
    assert together != before
    (sources.root / "uotpool" / "tail.py").unlink()
    sources.edit(
        "uotpool/layout",
        lambda text: text.replace(
            "from uotpool.tail import tail", "import math\n\n\ndef tail():\n    return math.pi"
        ),
    )
    assert sources.fingerprint() == together


def test_a_rename_counts(sources):
    before = sources.fingerprint()
    for path in sources.root.rglob("*.py"):
        path.write_text(re.sub(r"\bSets\b", "Views", path.read_text()))
    assert sources.fingerprint() != before


def test_what_a_task_says_of_itself_does_not_count(sources):
    before, task = sources.fingerprint(), "uotpool_experiments/tasks/mil/task"
    text = (sources.root / f"{task}.py").read_text()
    for name in DESCRIPTIVE & set(vars(MultiInstance)):
        sources.edit(
            task, lambda _, name=name: re.sub(rf"^    {name} = .*$", f"    {name} = 0", text, flags=re.M)
        )
        assert sources.fingerprint() == before, name
    sources.edit(task, lambda _: text.replace("settings = Settings", "settings = 0"))
    assert sources.fingerprint() != before  # it decides the numbers
    sources.edit(task, lambda _: text.replace("(Task)", "(Other)"))
    assert sources.fingerprint() != before


def test_a_number_counts(sources):
    before = sources.fingerprint()
    sources.edit("uotpool_experiments/tasks/mil/settings", lambda text: text.replace("5e-4", "6e-4", 1))
    assert sources.fingerprint() != before


def test_does_not_depend_on_what_was_asked_before(sources):
    """A string below a docstring is no docstring."""
    sources.edit(
        "uotpool/layout", lambda text: text + '\n\ndef extra():\n    """Doc."""\n    "a note"\n    "another"\n'
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


ABOVE = ("runs", "analysis", "tables", "figures", "report", "explorer", "cli")

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
    assert not [
        name for name in found if name.startswith("uotpool_experiments.") and name.split(".")[1] in ABOVE
    ]
    assert not dotted(names("uotpool", "zoo/attention zoo/graphs pyg cli")) & found


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
