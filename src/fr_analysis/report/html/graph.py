"""The wait-for graph as a picture: who waits, in what, for whom.

Ranks that wait alike share a box, so that the picture of a large job is as small as its story.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from html import escape

from fr_analysis.attribute.evidence import named_ranks
from fr_analysis.diagnosis import Diagnosis

_BOX_WIDTH, _BOX_HEIGHT, _GAP_X, _GAP_Y, _EDGE = 230, 52, 90, 22, 12
_MOST_BOXES = 60
_LONGEST = 30


@dataclass(frozen=True, slots=True)
class _Box:
    """Ranks that wait alike: in one group for the same ranks."""

    ranks: tuple[int, ...]
    group: str
    awaited: frozenset[int]


def _boxes(diagnosis: Diagnosis) -> list[_Box]:
    awaited_by: dict[int, set[int]] = defaultdict(set)
    group_of: dict[int, str] = {}
    for edge in diagnosis.waits:
        awaited_by[edge.waiter].add(edge.awaited)
        group_of[edge.waiter] = edge.group
    ends = {rank for awaited in awaited_by.values() for rank in awaited} - awaited_by.keys()
    suspects = set(diagnosis.suspects)
    alike: dict[tuple[str, frozenset[int], bool], list[int]] = defaultdict(list)
    for rank in sorted(awaited_by.keys() | ends):
        awaited = frozenset(awaited_by.get(rank, ()))
        # Nobody waits for itself: of a circle of one group each waits for the others.
        alike[group_of.get(rank, ""), awaited, rank in suspects].append(rank)
    return [_Box(tuple(ranks), group, awaited) for (group, awaited, _), ranks in alike.items()]


def _levels(boxes: list[_Box]) -> list[int]:
    """How far a box is from an end of the graph, along the shortest way; circles come last."""
    home = {rank: at for at, box in enumerate(boxes) for rank in box.ranks}
    targets = [{home[rank] for rank in box.awaited if rank in home} for box in boxes]
    levels = [0 if not found else -1 for found in targets]
    level = 0
    while True:
        next_up = [
            at
            for at, found in enumerate(targets)
            if levels[at] < 0 and any(levels[target] == level for target in found)
        ]
        if not next_up:
            return [found if found >= 0 else level + 1 for found in levels]
        level += 1
        for at in next_up:
            levels[at] = level


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "\N{HORIZONTAL ELLIPSIS}"


def draw_graph(diagnosis: Diagnosis) -> str:
    """Draw who waits for whom.

    Args:
        diagnosis: the answer.

    Returns:
        An ``svg`` element that takes its colours from the page; empty where nobody waits or the
        picture would have more boxes than help.
    """
    boxes = _boxes(diagnosis)
    if not boxes or len(boxes) > _MOST_BOXES:
        return ""
    levels = _levels(boxes)
    deepest = max(levels)
    taken: dict[int, int] = defaultdict(int)
    places: list[tuple[int, int]] = []
    for level in levels:
        # Causes stand at the right; arrows lead there.
        x = _EDGE + (deepest - level) * (_BOX_WIDTH + _GAP_X)
        places.append((x, _EDGE + taken[level] * (_BOX_HEIGHT + _GAP_Y)))
        taken[level] += 1
    home = {rank: at for at, box in enumerate(boxes) for rank in box.ranks}
    parts = []
    for at, box in enumerate(boxes):
        targets = sorted({home[rank] for rank in box.awaited if rank in home} - {at})
        parts += [_arrow(places[at], places[to], levels[at] == levels[to]) for to in targets]
    for box, (x, y) in zip(boxes, places, strict=True):
        kind = "suspect" if set(box.ranks) & set(diagnosis.suspects) else "waits"
        name = escape(_shortened(named_ranks(box.ranks)))
        what = escape(_shortened(f"in group {box.group}" if box.group else _at_end(diagnosis, box)))
        parts.append(
            f'<g class="box {kind}"><rect x="{x}" y="{y}" width="{_BOX_WIDTH}" '
            f'height="{_BOX_HEIGHT}" rx="8"/>'
            f'<text class="who" x="{x + 14}" y="{y + 22}">{name}</text>'
            f'<text x="{x + 14}" y="{y + 41}">{what}</text></g>'
        )
    width = 2 * _EDGE + (deepest + 1) * _BOX_WIDTH + deepest * _GAP_X
    # An arrow within a level bends out to the right of its boxes.
    width += _GAP_X // 2
    height = 2 * _EDGE + max(taken.values()) * (_BOX_HEIGHT + _GAP_Y) - _GAP_Y
    described = "; ".join(
        f"{named_ranks(box.ranks)} wait{'s' if len(box.ranks) == 1 else ''} for "
        f"{named_ranks(sorted(box.awaited))}"
        for box in boxes
        if box.awaited
    )
    return (
        f'<svg class="graph" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="Who waits for whom: {escape(described)}">'
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" '
        'markerHeight="8" orient="auto-start-reverse"><path d="M0 0L10 5L0 10z"/></marker></defs>'
        + "".join(parts)
        + "</svg>"
    )


def _at_end(diagnosis: Diagnosis, box: _Box) -> str:
    return "in new_group" if box.awaited else "suspect" if diagnosis.suspects else "is awaited"


def _arrow(start: tuple[int, int], end: tuple[int, int], same_level: bool) -> str:
    y1, y2 = start[1] + _BOX_HEIGHT // 2, end[1] + _BOX_HEIGHT // 2
    if same_level:
        x = start[0] + _BOX_WIDTH
        path = f"M{x} {y1 + 6}C{x + 44} {y1 + 6} {x + 44} {y2 - 6} {x} {y2 - 6}"
    elif end[0] < start[0]:
        path = f"M{start[0]} {y1}L{end[0] + _BOX_WIDTH} {y2}"
    else:
        path = f"M{start[0] + _BOX_WIDTH} {y1}L{end[0]} {y2}"
    return f'<path class="arrow" marker-end="url(#tip)" d="{path}"/>'
