"""Hooks of the site for what mkdocs.yml cannot do: pages from outside of docs/, and formulas in docstrings.

Links in the pages go from file to file of the repository, as a git host needs them. The hooks turn
them into links between pages of the site, so that mkdocs can check each one.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
OUTSIDE = ("CONTRIBUTING.md", "CHANGELOG.md")
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
FENCE = re.compile(r"^( *```.*?^ *```[^\n]*$)", re.DOTALL | re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.markdown_extensions.append(Formulas())  # mkdocs passes an object on as it is
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files of the repository that are pages of the site too, under their own paths."""
    for path in [*(ROOT / name for name in OUTSIDE), *sorted((ROOT / "results").rglob("*.md"))]:
        name = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between files into links between pages, and list the tables of a folder of results."""
    uri = page.file.src_uri
    place = ROOT / (uri if page.file.generated_by else f"docs/{uri}")
    if uri.startswith("results/"):
        readme = place.with_name("README.md")
        markdown = markdown + _tables(readme) if place == readme else _headed(markdown, place, readme)
    parts = FENCE.split(markdown)  # code at odd places
    return "".join(part if i % 2 else LINK.sub(_relink(place, uri), part) for i, part in enumerate(parts))


def _tables(readme: Path) -> str:
    others = sorted(path.name for path in readme.parent.glob("*.md") if path != readme)
    lines = "\n".join(f"- [{name.removesuffix('.md')}]({name})" for name in others)
    return f"\n\n## All tables\n\n{lines}\n"


def _headed(table: str, place: Path, readme: Path) -> str:
    """Put a heading above a table, which has no title of its own."""
    subject = readme.read_text().partition("\n")[0].removeprefix("# ")
    return f"# {subject}: {place.stem.replace('_', ' ')}\n\nOf [{subject.lower()}](README.md).\n\n{table}"


def _relink(place: Path, uri: str) -> Any:
    def link(found: re.Match[str]) -> str:
        target, hash_sign, anchor = found[2].partition("#")
        if not target or "://" in target or target.startswith("mailto:"):
            return found[0]
        there = posixpath.normpath(posixpath.join(place.relative_to(ROOT).parent.as_posix(), target))
        page = there.removeprefix("docs/")
        return (
            f"{found[1]}{posixpath.relpath(page, posixpath.dirname(uri) or '.')}{hash_sign}{anchor}{found[3]}"
        )

    return link


class Formulas(Extension):
    """Turns `.. math::` and :math:`...` of docstrings into MathML, which browsers draw themselves."""

    def extendMarkdown(self, md: Markdown) -> None:
        md.preprocessors.register(_Formulas(md), "formulas", 25)  # after code blocks (26), before HTML (20)


class _Formulas(Preprocessor):
    BLOCK = re.compile(r"^( *)\.\. math::\n((?:\1 +.*\n?)+)", re.MULTILINE)
    INLINE = re.compile(r":math:`([^`]+)`")

    def run(self, lines: list[str]) -> list[str]:
        text = "\n".join(lines)
        if "math:" not in text:
            return lines
        text = self.BLOCK.sub(lambda m: f"{m[1]}{self._drawn(m[2], 'block')}\n", text)
        return self.INLINE.sub(lambda m: self._drawn(m[1], "inline"), text).split("\n")

    def _drawn(self, latex: str, display: str) -> str:
        pieces = re.split(r"\\q?quad", " ".join(latex.split())) if display == "block" else [latex]
        html = "".join(_mathml(piece.strip(), display) for piece in pieces)
        return str(
            self.md.htmlStash.store(f'<div class="formula">{html}</div>' if display == "block" else html)
        )


def _mathml(latex: str, display: str) -> str:
    drawn = convert(latex.replace(r"\arg\min", r"\text{argmin}"), display=display)
    if "\\" in drawn:
        raise PluginError(f"formula: expected commands that latex2mathml knows, got {latex}")
    return drawn
