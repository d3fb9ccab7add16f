"""The fingerprint depends on the code that decides a run's numbers, and on nothing else."""

from __future__ import annotations

import ast
import re
import shutil
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import pytest
from uotpool_experiments.tasks import fingerprint as module
from uotpool_experiments.tasks.base import DESCRIPTIVE
from uotpool_experiments.tasks.fingerprint import closure, fingerprint
from uotpool_experiments.tasks.mil.task import MultiInstance

import uotpool

REAL = dict(module.PACKAGES)
CSRC = REAL["uotpool"].parents[1] / "csrc"


class Sources:
    """A copy of the sources of both packages that a test may change."""

    def __init__(self, root):
        self.packages = {name: root / "src" / name for name in REAL}
        for name, path in REAL.items():
            shutil.copytree(path, self.packages[name], ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        self.csrc = root / "csrc"
        if CSRC.exists():
            shutil.copytree(CSRC, self.csrc)
        else:
            self.csrc.mkdir()
            (self.csrc / "kernels.cpp").write_text("")

    def files(self):
        return [path for package in self.packages.values() for path in package.rglob("*.py")]

    def path(self, name):
        package, *below = name.split(".")
        return self.packages[package].joinpath(*below).with_suffix(".py")

    def edit(self, name, change):
        path = self.path(name)
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


def once_for_each_text(function):
    """A function of the name of a module that reads only its text, and so need not read one text twice."""
    known: dict[str, Any] = {}

    def of_text(name):
        text = module._path(name).read_text()
        if text not in known:
            known[text] = function.__wrapped__(name)
        return known[text]

    of_text.cache_clear = lambda: None
    return of_text


PARSED = {
    "_tree": once_for_each_text(module._tree),
    "_statements": once_for_each_text(module._statements),
    "_cpp_code": lru_cache(maxsize=None)(module._cpp_code),
}


@pytest.fixture
def sources(tmp_path, monkeypatch):
    copied = Sources(tmp_path)
    for name, function in PARSED.items():
        monkeypatch.setattr(module, name, function)
    for name, path in copied.packages.items():
        monkeypatch.setitem(module.PACKAGES, name, path)
    yield copied
    forget()


def with_code(text):
    return text + "\nEXTRA = 1\n"


USED = [
    *(f"uotpool.sets.{name}" for name in ("base", "dense", "ragged", "segments")),
    *(f"uotpool.{name}" for name in ("inputs", "problem", "nn.base", "nn.pooling", "solvers.sinkhorn")),
    *(f"uotpool.backends.{name}" for name in ("base", "reference", "call", "cpu.backend", "ops")),
    *(
        f"uotpool_experiments.tasks.{name}"
        for name in ("mil.task", "mil.training", "mil.settings", "mil.metrics", "mil.dropout")
    ),
    *(f"uotpool_experiments.tasks.{name}" for name in ("seeding", "protocols")),
    *(f"uotpool_experiments.datasets.{name}" for name in ("mil", "bags", "digits")),
]
UNUSED = [
    *(f"uotpool.zoo.{name}" for name in ("simple", "attention", "networks", "pyg_sets", "transport")),
    *(f"uotpool.zoo.{name}" for name in ("covariance", "graphs", "registry")),
    *("uotpool.integrations.pyg", "uotpool.cli", "uotpool.checks"),
    *(f"uotpool_experiments.{name}" for name in ("tables.kinds", "analysis.tests", "cli.run")),
    *(
        f"uotpool_experiments.runs.{name}"
        for name in ("store", "sweep", "plan", "scheduler", "progress", "worker")
    ),
    *(f"uotpool_experiments.tasks.{name}" for name in ("base", "fingerprint", "poolings", "graph.task")),
    *(f"uotpool_experiments.datasets.{name}" for name in ("fetch", "catalog", "sources")),
    "uotpool_experiments.tasks.spec",
]


def test_is_that_of_the_real_sources(sources, monkeypatch):
    """The place of the sources does not count."""
    copied = sources.fingerprint()
    for name, path in REAL.items():
        monkeypatch.setitem(module.PACKAGES, name, path)
    assert sources.fingerprint() == copied


def test_every_used_module_counts(sources):
    seen = {sources.fingerprint()}
    assert not set(USED) & module.NOT_HASHED
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
    sources.edit("uotpool.zoo.attention", with_code)
    changed = {name for name, code in before.items() if sources.fingerprint(name) != code}
    assert changed == {"attention"}


def test_the_kernels_do_not_count_for_mean_pooling(sources):
    before = {name: sources.fingerprint(name) for name in ("mean", "uotp-sinkhorn")}
    sources.edit("uotpool.backends.ops", with_code)
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
    "name", ["uotpool.sets.base", "uotpool_experiments.tasks.mil.task", "uotpool.nn.pooling"]
)
def test_what_is_said_of_the_code_does_not_count(sources, change, name):
    before = sources.fingerprint()
    sources.edit(name, change)
    assert sources.fingerprint() == before


def moved(sources, old, new):
    """The module under another name, with every import of it changed: what a pure move does."""
    source, target = sources.path(old), sources.path(new)
    target.parent.mkdir(parents=True, exist_ok=True)
    (target.parent / "__init__.py").touch()
    source.rename(target)
    (package, _, name), (new_package, _, new_name) = old.rpartition("."), new.rpartition(".")
    for path in sources.files():
        text = re.sub(
            rf"from {re.escape(package)} import {name}\b",
            f"from {new_package} import {new_name} as {name}",
            path.read_text(),
        )
        path.write_text(re.sub(rf"\b{re.escape(old)}\b", new, text))


@pytest.mark.parametrize("task", ["mil", "graph", "image"])
def test_a_pure_move_keeps_it(sources, task):
    names = ("uotp-sinkhorn", "uotp-badmm-q-paper", "attention", "gmt")
    before = {name: sources.fingerprint(name, task) for name in names}
    moved(sources, "uotpool.sets.base", "uotpool.views.base")
    moved(sources, "uotpool_experiments.tasks.seeding", "uotpool_experiments.common.seeds")
    moved(sources, "uotpool_experiments.tasks.protocols", "uotpool.zoo.protocols")
    forget()
    assert "uotpool.views.base" in closure(("uotpool.nn.pooling",))
    assert "uotpool_experiments.common.seeds" in closure((module.task_module(task),))
    assert {name: sources.fingerprint(name, task) for name in names} == before


def test_a_function_that_moves_to_a_neighbour_keeps_it(sources):
    before = sources.fingerprint()
    tail = sources.path("uotpool.tail")
    tail.write_text("import math\n\n\ndef tail():\n    return math.pi\n")
    sources.edit("uotpool.problem", lambda text: text + "\nfrom uotpool.tail import tail\n")
    apart = sources.fingerprint()
    assert apart != before
    sources.edit(
        "uotpool.problem", lambda text: text.replace("from uotpool.tail import tail", tail.read_text())
    )
    tail.unlink()
    assert sources.fingerprint() == apart


def test_a_rename_counts(sources):
    before = sources.fingerprint()
    for path in sources.files():
        path.write_text(re.sub(r"\bSets\b", "Views", path.read_text()))
    assert sources.fingerprint() != before


def test_what_a_task_says_of_itself_does_not_count(sources):
    before, task = sources.fingerprint(), "uotpool_experiments.tasks.mil.task"
    text = sources.path(task).read_text()
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
    sources.edit("uotpool_experiments.tasks.mil.settings", lambda text: text.replace("5e-4", "6e-4", 1))
    assert sources.fingerprint() != before


def test_does_not_depend_on_what_was_asked_before(sources):
    """A string below a docstring is no docstring."""
    sources.edit(
        "uotpool.sets.base",
        lambda text: text + '\n\ndef extra():\n    """Doc."""\n    "a note"\n    "another"\n',
    )
    alone = sources.fingerprint("max")
    forget()
    fingerprint("mil", "uotp-sinkhorn")
    fingerprint("mil", "add")
    assert fingerprint("mil", "max") == alone


def test_sources_of_the_kernels_count_where_they_run(sources, monkeypatch):
    monkeypatch.setattr(module.library, "load", lambda: SimpleNamespace(_name=__file__))
    before = sources.fingerprint()
    header = sources.csrc / "kernels.cpp"
    header.write_text(header.read_text() + "\nint extra;\n")
    assert sources.fingerprint() != before
    monkeypatch.setattr(module.library, "load", lambda: None)
    plain = sources.fingerprint()
    assert plain != before
    header.write_text("")
    assert sources.fingerprint() == plain


def test_a_wheel_has_a_library_and_no_sources(sources, monkeypatch, tmp_path):
    shutil.rmtree(sources.csrc)
    found, without_kernels = [], []
    for content in (b"one build", b"another", b"one build"):
        path = tmp_path / "libuotpool_native.so"
        path.write_bytes(content)
        monkeypatch.setattr(module.library, "load", lambda path=path: SimpleNamespace(_name=str(path)))
        found.append(sources.fingerprint())
        without_kernels.append(sources.fingerprint("mean"))
    assert found[0] == found[2] != found[1]
    assert len(set(without_kernels)) == 1


ABOVE = ("runs", "analysis", "tables", "figures", "report", "cli")

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
    CPP.replace("<cmath>", "<math.h>"),
    CPP.replace("x + x", "x+x").replace("{\n", "\n{\n"),
]
OTHER = [
    CPP.replace("x + x", "x * x"),
    CPP.replace("http://x", "http://y"),
    CPP.replace("T x)", "Tx)"),
]


def test_words_about_the_kernels_do_not_count():
    assert {module._cpp_code(text) for text in ALIKE} == {module._cpp_code(CPP)}
    assert all(module._cpp_code(text) != module._cpp_code(CPP) for text in OTHER)
    assert "http://x" in module._cpp_code(CPP)


PIECES = """
#define LANES 8
namespace a {
namespace {
enum Kind { ONE, TWO };
template <class T> struct Pair { T x, y; void swap() { { x = y; } } };
const char *brace = "{ not a brace ;";
#ifdef WIDE
inline int wide() { return 1; }
#else
inline int wide() { return 0; }
#endif
} // namespace
} // namespace a
int run(int n) { for (int i = 0; i < n; ++i) {} return n; }
"""


def test_pieces_of_the_kernels():
    def pieces(text):
        return sorted(module._cpp_pieces(module._cpp_code(text)))

    assert len(pieces(PIECES)) == 6
    first, second = PIECES.split("const char")
    apart = [first + "}}", "namespace a { namespace { const char" + second]
    assert sorted(piece for text in apart for piece in pieces(text)) == pieces(PIECES)
    assert pieces(PIECES.replace("WIDE", "NARROW")) != pieces(PIECES)
    swapped = (
        PIECES.replace("return 1", "return 2").replace("return 0", "return 1").replace("return 2", "return 0")
    )
    assert pieces(swapped) != pieces(PIECES)
    assert pieces(PIECES.replace("LANES 8", "LANES 16")) != pieces(PIECES)


def test_a_release_and_a_new_public_name_keep_it(sources):
    """All tasks import the package itself, so its version would make every stored run another run."""
    assert "uotpool" in closure((module.task_module("mil"),))
    before = sources.fingerprint()
    number = f'__version__ = "{uotpool.__version__}"'
    sources.edit("uotpool.__init__", lambda text: text.replace(number, '__version__ = "99.0"'))
    sources.edit("uotpool.__init__", lambda text: text.replace("__all__ = [", '__all__ = ["new",'))
    assert sources.fingerprint() == before
    sources.edit("uotpool.__init__", with_code)
    assert sources.fingerprint() != before


def test_a_struct_that_moves_to_a_header_of_its_own_keeps_it(sources, monkeypatch):
    monkeypatch.setattr(module.library, "load", lambda: SimpleNamespace(_name=__file__))
    header = sources.csrc / "kernels.cpp"
    text = header.read_text()
    moving = "\nstruct Moving { int a; };\n"
    header.write_text(text + moving)
    before = sources.fingerprint()
    header.write_text(text)
    assert sources.fingerprint() != before
    (sources.csrc / "moving.h").write_text("#pragma once\n#include <stdint.h>\n" + moving)
    assert sources.fingerprint() == before


def test_kernels_of_a_gpu_count_where_there_is_one(sources, monkeypatch):
    gpu = "uotpool.backends.triton.launch"
    for available in (False, True):
        monkeypatch.setattr(module.torch.cuda, "is_available", lambda available=available: available)
        before = sources.fingerprint()
        sources.edit(gpu, with_code)
        assert (sources.fingerprint() != before) is available


def test_where_a_header_lies_does_not_count(sources, monkeypatch):
    monkeypatch.setattr(module.library, "load", lambda: SimpleNamespace(_name=__file__))
    before = sources.fingerprint()
    (sources.csrc / "kernels.cpp").rename(sources.csrc / "all_kernels.cpp")
    assert sources.fingerprint() == before


def test_closure():
    found = closure((module.task_module("mil"), "uotpool.nn.pooling"))
    assert set(USED) <= found
    assert not set(UNUSED) & found - module.NOT_HASHED


@pytest.mark.parametrize(
    "roots",
    [
        ("uotpool_experiments.tasks.mil.task", "uotpool.nn.pooling"),
        ("uotpool_experiments.tasks.graph.task", "uotpool.nn.pooling"),
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
