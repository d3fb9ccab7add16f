"""Of the code that decides a run's numbers, and of nothing else."""

from __future__ import annotations

import ast
import shutil

import pytest

import uotpool
from uotpool.experiments import fingerprint as module
from uotpool.experiments.fingerprint import closure, fingerprint

REAL = module.PACKAGE


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

    def fingerprint(self, pooling="uotp-sinkhorn"):
        forget()
        return fingerprint("mil", pooling)


def forget():
    module._fingerprint.cache_clear()
    module._tree.cache_clear()


@pytest.fixture
def sources(tmp_path, monkeypatch):
    copied = Sources(tmp_path)
    monkeypatch.setattr(module, "PACKAGE", copied.package)
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


def test_is_that_of_the_real_sources(sources, monkeypatch):
    """The place of the sources does not count."""
    copied = sources.fingerprint()
    monkeypatch.setattr(module, "PACKAGE", REAL)
    assert sources.fingerprint() == copied


def test_every_used_module_counts(sources):
    seen = {sources.fingerprint()}
    assert not {name.replace("/", ".") for name in USED} & module.BYSTANDERS
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


def test_closure():
    found = closure(("experiments.mil", "zoo.uot"))
    assert {name.replace("/", ".") for name in USED} <= found
    left_out = {"tables", "store", "executors", "sweep", "commands", "progress", "statistics", "paper", "work"}
    assert not {f"experiments.{name}" for name in left_out} & found
    assert not {"zoo.attention", "zoo.graphs", "pyg", "cli"} & found
    assert not {"layout", "zoo.base", "experiments.mil", "experiments.protocols"} & module.BYSTANDERS


@pytest.mark.parametrize(
    "roots",
    [
        ("experiments.mil", "zoo.uot"),
        ("experiments.graph.task", "zoo.uot"),
        ("experiments.image.task", "zoo.simple"),
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
                    assert where.removeprefix("uotpool.") in found, alias.name


def test_unknown_names():
    with pytest.raises(ValueError, match="expected a pooling"):
        fingerprint("mil", "meen")
