"""A reader is told which kind of page each one is."""

import re

from support import ROOT

TEXT = (ROOT / "distributed.rst").read_text(encoding="utf-8")
KINDS = re.findall(r"^\*\*([a-z-]+)\*\*$", TEXT, flags=re.MULTILINE)
CARDS = re.findall(r":header: (.*)\n(?:.*\n)*?\s+:tags: (.*)\n", TEXT)


def test_every_card_has_one_of_the_kinds_that_are_explained() -> None:
    assert len(CARDS) == TEXT.count("customcarditem::")
    kinds = {header: set(tags.split(", ")) & set(KINDS) for header, tags in CARDS}
    assert {header: kind for header, kind in kinds.items() if len(kind) != 1} == {}


def test_how_tos_come_first() -> None:
    how_to = ["how-to" in tags for _, tags in CARDS]
    assert how_to == sorted(how_to, reverse=True)
    assert how_to[0]
