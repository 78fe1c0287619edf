"""Configuration of the documentation site: `make docs` builds it into build/docs."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml

import bcrf

ROOT = Path(__file__).resolve().parents[1]

project = "bcrf"
author = "the bcrf contributors"
project_copyright = "the bcrf contributors"
version = release = bcrf.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
html_theme = "furo"
html_title = f"bcrf {release}"
html_math_renderer = "mathml"
html_copy_source = False

# Markdown. Headings get anchors, so that links to `page.md#heading` are checked.
myst_enable_extensions = ["dollarmath", "deflist"]
myst_fence_as_directive = ["math"]
myst_heading_anchors = 3

# Docstrings. `name` in a docstring is code.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_mock_imports = ["ray", "spacy", "srsly"]  # `make docs` has an environment without them
napoleon_numpy_docstring = False
napoleon_use_rtype = False

# References that cannot be resolved without a network, or that are not documented on this site:
# types of torch and of the standard library, and internal type names in signatures.
nitpick_ignore_regex = [
    ("py:.*", r"(torch|transformers|typing|collections|os|pathlib|nn|abc|spacy|ray)(\..*)?"),
    ("py:.*", r"(Tensor|Path|Any|Self|SupportsIndex|Literal|Sequence|Iterable|Iterator|Mapping)"),
    ("py:.*", r"bcrf\.(?!tagger$).*\..*"),
    ("py:.*", r"_?[A-Z]\w*"),
    ("py:.*", r"optional"),
]

# Pages at the root of the repository have a page here that includes them.
ROOT_PAGES = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
LINK = re.compile(r"\[(?P<text>[^\]]+)\]\((?P<target>[^)\s]+)\)")


def link_within_site(text: str, folder: Path) -> str:
    """Rewrite the links of a Markdown page that lead out of docs/.

    Links to CONTRIBUTING.md, CHANGELOG.md and SECURITY.md lead to their pages on the site. Links
    to other files of the repository, which are not on the site, become plain text.

    Args:
        text: the Markdown source.
        folder: the folder of the source file; links are relative to it.
    """

    def rewrite(match: re.Match[str]) -> str:
        target, _, anchor = match["target"].partition("#")
        if not target or ":" in target:
            return match[0]
        path = (folder / target).resolve()
        if not path.exists():
            return match[0]  # Sphinx reports it
        docs = ROOT / "docs"
        if path.parent == ROOT and path.name in ROOT_PAGES:
            path = docs / ROOT_PAGES[path.name]
        elif docs not in path.parents:
            return match["text"]
        page = "/" + path.relative_to(docs).as_posix()
        return f"[{match['text']}]({page}{'#' + anchor if anchor else ''})"

    return LINK.sub(rewrite, text)


def read_source(app: Any, docname: str, source: list[str]) -> None:
    source[0] = link_within_site(source[0], Path(app.srcdir, docname).parent)


def read_included(app: Any, path: Any, parent: str, source: list[str]) -> None:
    source[0] = link_within_site(source[0], Path(app.srcdir, path).resolve().parent)


# Formulas become MathML when the site is built: pages need neither JavaScript nor a network.


# Commands that docutils does not know, in others that it does.
SYNONYMS = {
    r"\dots": r"\ldots",
    r"\gets": r"\leftarrow",
    r"\tfrac": r"\frac",
    r"\big": "",
    r"\Big": "",
}


def mathml(tex: str, block: bool) -> str:
    for command, synonym in SYNONYMS.items():
        tex = re.sub(re.escape(command) + r"(?![a-zA-Z])", lambda _, s=synonym: s, tex)
    return str(tex2mathml(tex, as_block=block))


def visit_inline_math(translator: Any, node: nodes.math) -> None:
    translator.body.append(mathml(node.astext(), False))
    raise nodes.SkipNode


def visit_display_math(translator: Any, node: nodes.math_block) -> None:
    tex = node.astext()
    number = re.search(r"\\tag\{([^}]*)\}", tex)
    tex = re.sub(r"\s*\\tag\{[^}]*\}", "", tex)
    shown = f'<span class="eqno">({html.escape(number[1])})</span>' if number else ""
    translator.body.append(f'<div class="math">{shown}{mathml(tex, True)}</div>')
    raise nodes.SkipNode


def plain_docstring(
    app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Let docstrings be written without a thought of reStructuredText.

    `|x|` is an absolute value, not a substitution; "[B]: the lengths" in the docstring of a
    property is not "type: text".
    """
    for number, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            parts = line.split("`")
            parts[::2] = [part.replace("|", "\\|") for part in parts[::2]]
            lines[number] = "`".join(parts)
    if what in ("property", "attribute"):
        lines[:0] = ["..", ""]  # an empty comment, so that the first line has no colon


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", plain_docstring, priority=400)
    app.connect("source-read", read_source)
    app.connect("include-read", read_included)
    app.add_html_math_renderer("mathml", (visit_inline_math, None), (visit_display_math, None))
