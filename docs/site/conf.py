"""Configuration of the documentation site, which `make docs` builds with Sphinx into out/site.

The source folder is the root of the repository, so that links between files, as a git host follows
them, are links between pages as they stand, and Sphinx checks each one. Nothing comes from another
host, neither when the site is built nor when it is read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

from uotpool import __version__

ROOT = Path(__file__).parents[2]
HOME = "docs/index"
# The tables of a folder, below the text of its README.md.
TABLES = """

## All tables

```{toctree}
:glob:
:maxdepth: 1

*
```
"""

project = "uotpool"
author = "The uotpool developers"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]

root_doc = HOME
include_patterns = ["docs/**", "results/**", "CONTRIBUTING.md", "CHANGELOG.md"]
# Sphinx looks for pages in every folder that is not named here.
exclude_patterns = [".*", "bench", "build", "csrc", "dist", "docs/site", "examples", "experiments", "out"]
exclude_patterns += ["src", "tests", "tools"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 4  # links such as settings.md#what-our-runs-say
highlight_language = "none"  # of a block that names no language
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True

autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False  # what a class takes over from torch.nn.Module needs no words here
autodoc_mock_imports = ["timm"]  # it is not installed beside Sphinx: tests/beside_cpu.py says why
autodoc_typehints = "none"  # the docstrings say what is accepted, shapes too
default_role = "py:obj"  # `name` is code, and a link where it is the name of something documented
add_module_names = False
toc_object_entries_show_parents = "hide"
python_maximum_signature_line_length = 80  # of a longer one every argument has its own line
napoleon_use_param = False  # several arguments may share a line: "p0, q0: as in `uot_plan`"
napoleon_use_rtype = False
napoleon_custom_sections = ["Shape", ("Attributes", "params_style")]

html_theme = "furo"
html_title = f"uotpool {release}"  # on every page, above the navigation
_COLOURS = {
    "color-api-name": "var(--color-foreground-primary)",
    "color-api-pre-name": "var(--color-foreground-muted)",
}
html_theme_options = {"light_css_variables": _COLOURS, "dark_css_variables": _COLOURS}
html_favicon = "favicon.svg"
html_static_path = ["site.css", "versions.js", "switcher.js"]
html_js_files = ["versions.js", ("switcher.js", {"defer": "defer"})]
templates_path = ["templates"]
# Those of furo, with the choice of a version below the name.
_PARTS = ("search", "scroll-start", "navigation", "scroll-end")
html_sidebars = {"**": ["sidebar/brand.html", "versions.html", *(f"sidebar/{part}.html" for part in _PARTS)]}
html_css_files = ["site.css"]
html_extra_path = ["index.html"]  # leads from the address of the site to its first page
html_copy_source = False
html_domain_indices = False  # the index of names has all
html_show_copyright = False
html_show_sphinx = False
html_math_renderer = "mathml"


def setup(app: Sphinx) -> None:
    app.connect("source-read", _complete)
    app.add_html_math_renderer("mathml", (_draw_formula, None), (_draw_formula, None))


def _complete(app: Sphinx, name: str, source: list[str]) -> None:
    """Add to a page what a git host does not need: the navigation, headings of tables and lists of tables."""
    page = ROOT / f"{name}.md"
    readme = page.with_name("README.md")
    if name == HOME:
        navigation = Path(__file__).with_name("navigation.md")
        app.env.note_dependency(str(navigation))
        source[0] += navigation.read_text(encoding="utf-8")
    elif not name.startswith("results/"):
        return
    elif page == readme:
        if len(list(page.parent.glob("*.md"))) > 1:
            source[0] += TABLES
    elif not readme.exists():
        source[0] = f"# {page.stem.capitalize()}\n\n{source[0]}"
    else:
        subject = readme.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        title = f"{subject}: {page.stem.replace('_', ' ')}"
        source[0] = f"# {title}\n\nOf [{subject.lower()}](README.md).\n\n{source[0]}"


def _draw_formula(translator: Any, node: nodes.math | nodes.math_block) -> None:
    """Write a formula as MathML, which browsers draw by themselves."""
    block = isinstance(node, nodes.math_block)
    try:
        formula = tex2mathml(node.astext(), as_block=block)
    except MathError as error:
        message = f"formula: expected commands that docutils knows, got {node.astext()}: {error}"
        raise ExtensionError(message) from error
    tag = "div" if block else "span"
    translator.body.append(f'<{tag} class="formula">{formula}</{tag}>')
    raise nodes.SkipNode
