"""The search index, the same whichever pages were written.

Where only some pages are written anew, Sphinx takes the others from the index of the build before,
but not their entries: what ``index`` directives name can then no longer be searched for
(https://github.com/sphinx-doc/sphinx/issues/12599). It also keeps words that no page has any more,
and lists the new pages last.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.search import js_index
from sphinx.util.index_entries import split_index_msg

FILE = "searchindex.js"


def setup(app: Sphinx) -> None:
    """Register with Sphinx."""
    app.connect("env-updated", index_all)
    app.connect("build-finished", complete)


def index_all(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """Have all pages written where there is no index, as after a build that was broken off."""
    lacks = app.builder.name == "html" and not Path(app.outdir, FILE).exists()
    return sorted(env.found_docs) if lacks else []


def complete(app: Sphinx, exception: Exception | None) -> None:
    """Make the index what it is after a build from nothing."""
    if exception or app.builder.name != "html":
        return
    file = Path(app.outdir, FILE)
    written = file.read_text(encoding="utf-8")
    index = js_index.loads(written)
    index["indexentries"] = index_entries(app.env, index["docnames"])
    index["alltitles"] = {
        # Sections of a page stay in their order.
        title: sorted(places, key=lambda place: place[0])
        for title, places in sorted(index["alltitles"].items())
    }
    for words in ("terms", "titleterms"):
        index[words] = {word: pages for word, pages in sorted(index[words].items()) if pages != []}
    completed = js_index.dumps(index)
    if completed != written:
        file.write_text(completed, encoding="utf-8")


def index_entries(env: BuildEnvironment, pages: list[str]) -> dict[str, list[tuple[int, str]]]:
    """What can be searched for as an entry, and where it is: numbers of pages, and anchors.

    Args:
        env: it has the entries of all pages, also of those that were not read anew.
        pages: the index's pages, by their numbers.
    """
    of_page: dict[str, list[tuple[Any, ...]]] = env.domains["index"].data["entries"]
    found: dict[str, set[tuple[int, str]]] = {}
    for number, page in enumerate(pages):
        if "nosearch" in env.metadata[page]:
            continue
        for kind, value, anchor, *_ in of_page[page]:
            for entry in split_index_msg(kind, value):
                found.setdefault(entry.lower(), set()).add((number, anchor))
    return {entry: sorted(places) for entry, places in sorted(found.items())}
