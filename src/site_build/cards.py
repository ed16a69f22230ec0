"""Cards that lead to pages, and the buttons that filter them by tag.

::

    .. customcards::

       .. customcarditem::
          :header: Which rank never came
          :card_description: One rank sleeps, the others wait.
          :image: /_static/thumbnails/absent_rank.svg
          :alt: One empty cell in a grid of ranks
          :link: intermediate/absent_rank
          :tags: Gloo, stuck in host code

The option names are those of the cards in the PyTorch tutorials, so a card can move between the
two sites. Those become raw HTML; these become ordinary nodes, so Sphinx itself warns of a link to
a page that does not exist and of a missing picture.
"""

import re
from dataclasses import dataclass
from html import escape
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import OptionSpec


def setup(app: Sphinx) -> None:
    """Register the directives."""
    # The theme has a `customcarditem` too: ours replaces it, whichever is registered first.
    app.add_directive("customcarditem", CardItem, override=True)
    app.add_directive("customcards", Cards)


@dataclass(frozen=True)
class TagCount:
    """A tag, and how many cards carry it."""

    tag: str
    cards: int


def split_tags(text: str) -> list[str]:
    """Split at commas; a tag may hold spaces. Repeated tags count once."""
    tags = (" ".join(tag.split()) for tag in text.split(","))
    return list(dict.fromkeys(tag for tag in tags if tag))


class CardItem(SphinxDirective):
    """One card. Its whole surface is the link."""

    option_spec: ClassVar[OptionSpec] = {
        "header": directives.unchanged_required,
        "card_description": directives.unchanged,
        "image": directives.uri,
        "alt": directives.unchanged,
        "link": directives.uri,
        "tags": split_tags,
    }

    def run(self) -> list[nodes.Node]:
        """Build the card; a card without a header or a link is an error."""
        # Lists of RST are never parsed into directly, so this one is that of `Cards`.
        if not isinstance(self.state.parent, nodes.bullet_list):
            raise self.error("A customcarditem stands inside a customcards directive.")
        for option in ("header", "link"):
            if not self.options.get(option):
                raise self.error(f"A customcarditem needs the option :{option}:.")

        card = nodes.list_item(classes=["fr-card"])
        title = nodes.paragraph(classes=["fr-card-title"])
        title += self._link()
        card += title
        if description := self.options.get("card_description"):
            card += self._inline(description, nodes.paragraph(classes=["fr-card-text"]))
        if tags := self.options.get("tags"):
            line = nodes.paragraph(classes=["fr-card-tags"])
            for tag in tags:
                # The script compares these with the buttons: no quote may become a curly one.
                inline = nodes.inline("", tag, classes=["fr-card-tag"], support_smartquotes=False)
                line += [inline, nodes.Text(" ")]
            card += line
        if image := self.options.get("image"):
            # An empty alternative says "decoration": the header beside it names the page already.
            # `dark-light` keeps the theme from putting a white box behind the picture at night.
            picture = nodes.image(
                self.block_text,  # without it, Sphinx's message about the picture has no line
                uri=image,
                alt=self.options.get("alt", ""),
                classes=["fr-card-image", "dark-light"],
            )
            picture.source, picture.line = self.get_source_info()
            card += picture
        return [card]

    def _link(self) -> nodes.Element:
        header, target = self.options["header"], self.options["link"]
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            return nodes.reference("", header, refuri=target)
        # The tutorials' cards name the built file; Sphinx knows pages without the suffix.
        reference = pending_xref(
            "",
            nodes.inline("", header),
            refdomain="std",
            reftype="doc",
            reftarget=target.removesuffix(".html"),
            refdoc=self.env.docname,
            refexplicit=True,
            refwarn=True,
        )
        self.set_source_info(reference)
        return reference

    def _inline(self, text: str, paragraph: nodes.paragraph) -> nodes.paragraph:
        children, messages = self.state.inline_text(text, self.lineno)
        paragraph += children
        paragraph += messages
        return paragraph


class Cards(SphinxDirective):
    """A list of cards under one button for each tag that they carry."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Build the list, and the filter if there is a tag to filter by."""
        self.assert_has_content()
        cards = nodes.bullet_list(classes=["fr-cards"])
        self.set_source_info(cards)
        self.state.nested_parse(self.content, self.content_offset, cards)
        if any(not isinstance(card, nodes.list_item | nodes.system_message) for card in cards):
            raise self.error("Only customcarditem directives stand inside customcards.")
        counts = count_tags(cards)
        if not counts:
            return [cards]
        # Raw HTML, as other formats have no buttons. Hidden until the script that drives it runs,
        # so that a reader without JavaScript sees all cards and no dead button.
        return [nodes.raw("", filter_html(counts, len(cards)), format="html"), cards]


def count_tags(cards: nodes.bullet_list) -> list[TagCount]:
    """Count the cards per tag, in alphabetical order of the tags."""
    counts: dict[str, int] = {}
    for tag in cards.findall(nodes.inline):
        if "fr-card-tag" in tag["classes"]:
            counts[tag.astext()] = counts.get(tag.astext(), 0) + 1
    return [TagCount(tag, counts[tag]) for tag in sorted(counts, key=str.casefold)]


def filter_html(counts: list[TagCount], total: int) -> str:
    """Render the buttons; `_static/js/card-filter.js` shows and drives them."""
    buttons = "".join(
        f'<button type="button" aria-pressed="false" data-tag="{escape(count.tag)}">'
        f"{escape(count.tag)} <small>{count.cards}</small></button>"
        for count in counts
    )
    return (
        '<div class="fr-filter" role="group" aria-label="Filter by tag" hidden>'
        f'<button type="button" aria-pressed="true">All <small>{total}</small></button>'
        f'{buttons}<p role="status"></p></div>'
    )
