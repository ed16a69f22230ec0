"""Leaves out of pages, style sheets and scripts what no reader of the site can see or use.

The theme and what it builds on bring 600 KB of rules, nearly all of them for things that these
pages do not have. A rule stays if every class and id that its selector names is a word of any page,
or of a script that one loads: scripts set classes by these same words.

The sheets are taken anew from their packages whenever Sphinx writes pages, so a page that needs a
rule which was left out before finds it again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import tinycss2
from docutils import nodes
from sphinx.application import Sphinx
from tinycss2 import ast

_WORD = re.compile(r"[\w-]+")
_SCRIPT = re.compile(r'<script[^>]* src="([^"?]+)')
_NESTING = ("media", "supports")
_PLAIN_CODE = re.compile(r'<span class="(?:n|p|w)">([^<]*)</span>')
"""Names, punctuation and spaces in code, which have the color of all text there."""
_NEEDED_BY = {"_static/design-tabs.js": "sd-tab-set", "_static/sg-tags.js": "sphx-glr-tag"}


def setup(app: Sphinx) -> None:
    """Register with Sphinx."""
    app.connect("html-page-context", leave_out_scripts)
    app.connect("html-page-context", leave_out_marks)
    app.connect("build-finished", make_lean)


def leave_out_scripts(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Have a page load no script of a library for something that is not on it."""
    body = context.get("body", "")
    unused = {script for script, needed in _NEEDED_BY.items() if needed not in body}
    context["script_files"] = [
        script for script in context["script_files"] if script.filename not in unused
    ]


def leave_out_marks(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Mark no piece of code up that looks as without: a long script has a thousand of them."""
    if "body" in context:
        context["body"] = _PLAIN_CODE.sub(r"\1", context["body"])


def make_lean(app: Sphinx, exception: Exception | None) -> None:
    """Reduce every style sheet that is not one of the project's own."""
    if exception or app.builder.format != "html":
        return
    built = Path(app.outdir)
    own = {
        Path(app.confdir, folder)
        for folder in app.config.html_static_path
        if not Path(folder).is_absolute()
    }
    words = used_words(page for page in built.rglob("*.html") if "_static" not in page.parts)
    for sheet in (built / "_static").rglob("*.css"):
        name = sheet.relative_to(built / "_static")
        if not any((folder / name).exists() for folder in own):
            text = sheet.read_text(encoding="utf-8")
            sheet.write_text(lean(text, words), encoding="utf-8")


def used_words(pages: Iterable[Path]) -> set[str]:
    """Every word of these pages and of the scripts that they load: classes, ids and all others."""
    files: set[Path] = set()
    for page in pages:
        scripts = _SCRIPT.findall(page.read_text(encoding="utf-8"))
        files |= {page, *((page.parent / script).resolve() for script in scripts)}
    return {word for file in files for word in _WORD.findall(file.read_text(encoding="utf-8"))}


def lean(sheet: str, words: set[str]) -> str:
    """A style sheet without the rules that name an unknown class or id.

    Args:
        sheet: CSS. words: the classes and ids that there may be.
    """
    rules = tinycss2.parse_stylesheet(sheet, skip_comments=True, skip_whitespace=True)
    return "\n".join(filter(None, (_lean_rule(rule, words) for rule in rules))) + "\n"


def _lean_rule(rule: ast.Node, words: set[str]) -> str:
    if rule.type == "at-rule" and rule.lower_at_keyword in _NESTING and rule.content:
        inside = lean(tinycss2.serialize(rule.content), words).strip()
        head = f"@{rule.at_keyword}{tinycss2.serialize(rule.prelude)}"
        return f"{head}{{{inside}}}" if inside else ""
    if rule.type != "qualified-rule":
        return str(rule.serialize())
    kept = [
        tinycss2.serialize(selector).strip()
        for selector in _selectors(rule.prelude)
        if _names(selector) <= words
    ]
    return f"{','.join(kept)}{{{tinycss2.serialize(rule.content).strip()}}}" if kept else ""


def _selectors(prelude: list[ast.Node]) -> list[list[ast.Node]]:
    """The selectors of a list, which commas part."""
    selectors: list[list[ast.Node]] = [[]]
    for token in prelude:
        if token.type == "literal" and token.value == ",":
            selectors.append([])
        elif token.type != "comment":
            selectors[-1].append(token)
    return selectors


def _names(selector: list[ast.Node]) -> set[str]:
    """The classes and ids that it requires; those in ``:not(...)`` or ``:is(...)`` it may not."""
    names = {token.value for token in selector if token.type == "hash"}
    for before, token in pairwise(selector):
        if before.type == "literal" and before.value == "." and token.type == "ident":
            names.add(token.value)
    return names
