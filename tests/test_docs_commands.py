"""Every command line that README and docs show can be given: subcommands, options, names and files exist."""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from bench import measurements
from uotpool.cli import make_parser

pytest.importorskip("rich")
from uotpool_experiments.cli import run, table
from uotpool_experiments.runs import sweep
from uotpool_experiments.tasks import load

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "results").rglob("README.md")),
]
REGISTRIES = {"bench": measurements.NAMES}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PROGRAMS = re.compile(r"(uotpool|make|torchrun|python3? -m \S+)( |$)")


def lines_of(text):
    """The lines of shell blocks and indented blocks, and what stands in inline code."""
    for language, block in FENCE.findall(text):
        if language in ("sh", "console"):
            yield from block.splitlines()
    rest = FENCE.sub("", text)
    yield from re.findall(r"^    (\S.*)$", rest, re.MULTILINE)
    yield from re.findall(r"`([^`\n]+)`", rest)


def commands_of(page):
    """The words of each command line, without variables before and redirections behind it."""
    found = []
    for line in lines_of(page.read_text()):
        bare = re.sub(r"^(\w+=\S+ )+", "", line.strip())
        if PROGRAMS.match(bare):
            words = shlex.split(bare, comments=True)
            found.append(tuple(words[: words.index(">")] if ">" in words else words))
    return list(dict.fromkeys(found))


COMMANDS = list(dict.fromkeys((words, page) for page in PAGES for words in commands_of(page)))


def check_uotpool(words, page):
    parser = make_parser()
    if len(words) == 1:  # only named: `uotpool figure`, `uotpool --version`
        (choices,) = (action.choices for action in parser._actions if action.dest == "command")
        assert words[0] in {*choices, *parser._option_string_actions}, words
        return
    try:
        args = parser.parse_args(list(words))
    except SystemExit:
        pytest.fail(f"{page.relative_to(ROOT)}: uotpool {shlex.join(words)}")
    if page.name == "errors.md" or any("NAME" in word for word in words):  # what is refused; a placeholder
        return
    if args.command == "sweep":
        assert sweep.read(ROOT / args.file)
    elif args.command == "run":
        module, given, chosen = load(args.task), run.settings_of(args), run.choices_of(args)
        for pooling in sweep.pooling_names(args.task, chosen["pooling"]):
            module.clean_settings(pooling, given)
        for dataset in args.dataset or ():
            module.check_dataset(dataset)
    elif args.command == "table":
        assert table.spec_of(args).pooling_names() is not None


def check_module(words, page):
    module, *rest = words
    if module == "uotpool":
        check_uotpool(tuple(rest), page)
        return
    spec = importlib.util.find_spec(module)
    assert spec is not None, words
    if module in REGISTRIES:
        names = [word for word in rest if not word.startswith("-") and not word.isdigit()]
        assert set(names) <= {*REGISTRIES[module], "NAME"}, words
    if spec.submodule_search_locations:
        spec = importlib.util.find_spec(f"{module}.__main__")
        assert spec is not None, words
    source = Path(spec.origin).read_text()
    if module.partition(".")[0] in ("bench", "tests", "examples"):
        assert 'if __name__ == "__main__":' in source, f"{module} does nothing as a command"
    for option in (word for word in rest if word.startswith("-")):
        assert f'"{option}"' in source, words


@pytest.mark.parametrize(("words", "page"), COMMANDS, ids=[shlex.join(words) for words, _ in COMMANDS])
def test_a_command_can_be_given(words, page):
    program, *rest = words
    if program == "uotpool" and rest:
        check_uotpool(tuple(rest), page)
    elif program.startswith("python"):
        check_module(rest[1:], page)
    elif program == "torchrun" and "-m" in rest:
        check_module(rest[rest.index("-m") + 1 :], page)
    elif program == "make":
        assert shutil.which("make"), "make is needed to check what it is asked for"
        dry = subprocess.run(["make", "-n", *rest], cwd=ROOT, capture_output=True, text=True, check=False)
        assert dry.returncode == 0, dry.stderr
