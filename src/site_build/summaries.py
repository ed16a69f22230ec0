"""What each page is about, in one line and one picture, for all that show it outside the site.

Where a card leads to a page, its description and picture are the page's. Other pages have their
first sentence, and no picture. A description that a page gives of itself goes before either::

    .. meta::
       :description: What the page is about.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import docname_join

_KEY = "site_build.summaries"


@dataclass(frozen=True, slots=True)
class Summary:
    """A page as its card shows it.

    Attributes:
        text: what it is about, on one line. image: a file's path from the sources; empty for none.
        alt: the image in words.
    """

    text: str
    image: str = ""
    alt: str = ""


def setup(app: Sphinx) -> None:
    """Register the steps."""
    app.connect("doctree-read", note_page)
    app.connect("env-updated", update_summaries)


def summaries(env: BuildEnvironment) -> dict[str, Summary]:
    """The summary of each page, by its name, once all pages are read."""
    found: dict[str, Summary] = getattr(env, "page_summaries", {})
    return found


def note_page(app: Sphinx, doctree: nodes.document) -> None:
    """Keep what a page says of itself, and the cards on it."""
    # Sphinx forgets what is in `metadata` with the page, and joins it after reading in parallel.
    app.env.metadata[app.env.docname][_KEY] = (
        description(doctree),
        first_sentence(doctree),
        dict(_cards(doctree, app.env.docname)),
    )


def update_summaries(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """Make the summaries anew; names the pages to write again, as theirs has changed."""
    before = summaries(env)
    noted = {docname: env.metadata[docname][_KEY] for docname in sorted(env.found_docs)}
    cards = {page: card for *_, shown in noted.values() for page, card in shown.items()}
    now: dict[str, Summary] = {}
    for docname, (described, sentence, _) in noted.items():
        card = cards.get(docname, Summary(sentence))
        now[docname] = replace(card, text=described or card.text)
    env.page_summaries = now  # type: ignore[attr-defined]
    return [docname for docname, summary in now.items() if before.get(docname) != summary]


def description(doctree: nodes.document) -> str:
    """What a page's ``meta`` directive says of it; empty where there is none."""
    given = (
        meta["content"] for meta in doctree.findall(nodes.meta) if meta.get("name") == "description"
    )
    return next(given, "")


def first_sentence(doctree: nodes.document) -> str:
    """The first sentence of the page's first paragraph, on one line; empty where there is none."""
    section = next(iter(doctree.findall(nodes.section)), doctree)
    paragraphs = (node.astext() for node in section if isinstance(node, nodes.paragraph))
    text = " ".join(next(paragraphs, "").split())
    return re.split(r"(?<=[.!?:]) (?=[A-Z])", text, maxsplit=1)[0].rstrip(":")


def _cards(doctree: nodes.document, docname: str) -> Iterator[tuple[str, Summary]]:
    for card in doctree.findall(nodes.list_item):
        if "fr-card" not in card["classes"]:
            continue
        title, *rest = (node for node in card if isinstance(node, nodes.Element))
        summary = Summary("")
        for node in rest:
            if isinstance(node, nodes.image):
                summary = replace(summary, image=node["uri"].lstrip("/"), alt=node["alt"])
            elif "fr-card-text" in node["classes"]:
                summary = replace(summary, text=" ".join(node.astext().split()))
        # A card that leads to another site has a plain reference.
        for link in title.findall(pending_xref):
            yield docname_join(docname, link["reftarget"]), summary
