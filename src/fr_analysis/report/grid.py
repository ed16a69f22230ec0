"""A picture of a hang, drawn from its dumps: ranks by sequence number, as SVG.

Cells are told apart by shape, not only by colour: full (joined and done), striped (joined
and waiting), empty with a cross (never joined), full with a dot (joined, but differs from
its peers), a question mark (no dump tells). The picture brings its own ground, so it reads
the same in light and dark mode.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

import numpy as np

from fr_analysis.attribute.evidence import ranks_text
from fr_analysis.diagnosis import Diagnosis
from fr_analysis.match import ProcessGroup, Progress
from fr_analysis.match.semantics import operation_name
from fr_analysis.trace import Completion

CELL = 34
GAP = 6
LEFT = 92
TOP = 46
COLUMNS = 12
"""Show at most so many collectives of a group: the newest."""

_STYLE = """
  <style>
    .ground { fill: #17263b } .done { fill: #8fd3d1 } .wait { fill: url(#stripes); stroke: #f2b85c; stroke-width: 2 }
    .absent { fill: none; stroke: #ffffff; stroke-width: 2; stroke-dasharray: 4 4 }
    .cross { stroke: #ffffff; stroke-width: 3.5; stroke-linecap: round }
    .unknown { fill: none; stroke: #7f93ab; stroke-width: 1.5 } .mark { font-weight: 700; font-size: 18px }
    .odd { fill: #f2b85c } .dot { fill: #17263b }
    text { font: 13px system-ui, sans-serif; fill: #e6edf6 } .middle { text-anchor: middle } .end { text-anchor: end }
    .head { font-weight: 600; font-size: 14px } .suspect { fill: #f2b85c; font-weight: 700 }
  </style>
  <defs><pattern id="stripes" width="8" height="8" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
    <rect width="8" height="8" fill="#17263b"/><rect width="4" height="8" fill="#f2b85c"/></pattern></defs>
"""  # noqa: E501


@dataclass(frozen=True, slots=True)
class _Band:
    """One process group's part of the picture."""

    svg: str
    width: int
    height: int


def _cell(kind: str, x: int, y: int, title: str) -> str:
    shape = f'<rect class="{kind}" x="{x}" y="{y}" width="{CELL}" height="{CELL}" rx="5"/>'
    if kind == "absent":
        a, b = x + 10, x + CELL - 10
        c, d = y + 10, y + CELL - 10
        shape += f'<path class="cross" d="M{a} {c}L{b} {d}M{b} {c}L{a} {d}"/>'
    if kind == "unknown":
        shape += f'<text class="middle mark" x="{x + CELL // 2}" y="{y + CELL // 2 + 6}">?</text>'
    if kind == "odd":
        shape += f'<circle class="dot" cx="{x + CELL // 2}" cy="{y + CELL // 2}" r="6"/>'
    return f"<g><title>{escape(title)}</title>{shape}</g>"


def _odd_cells(diagnosis: Diagnosis, group: ProcessGroup) -> set[tuple[int | None, int]]:
    """Recorded number and rank of calls that stand against a majority."""
    return {
        (fault.collective_seq_id, rank)
        for fault in diagnosis.faults
        if fault.group == group.name.name and len(fault.calls) > 1
        for rank in fault.suspects
    }


def _band(progress: Progress, diagnosis: Diagnosis, group: ProcessGroup, top: int) -> _Band | None:
    mine = progress.group == group.index
    numbers = np.unique(progress.number[mine])[-COLUMNS:]
    if not len(numbers):
        return None
    odd = _odd_cells(diagnosis, group)
    absent = {
        rank: progress.never_joined(group.index, rank, numbers).tolist() for rank in group.members
    }
    parts = [f'<text class="head" x="16" y="{top + 22}">group {escape(str(group.name))}</text>']
    for column, number in enumerate(numbers.tolist()):
        x = LEFT + column * (CELL + GAP)
        joins = {join.rank: join for join in progress.joins(group.index, number)}
        recorded = {join.recorded_number for join in joins.values()}
        label = recorded.pop() if len(recorded) == 1 else number
        parts.append(f'<text class="middle" x="{x + CELL // 2}" y="{top + TOP - 6}">{label}</text>')
        for line, rank in enumerate(group.members):
            y = top + TOP + line * (CELL + GAP)
            join = joins.get(rank)
            if join is None:
                kind = "absent" if absent[rank][column] else "unknown"
                what = "never joined" if absent[rank][column] else "no record"
            else:
                what = operation_name(join.signature.operation)
                pending = join.completion is Completion.PENDING
                kind = "wait" if pending else "done"
                if (join.recorded_number, rank) in odd:
                    kind = "odd"
                what += ", waiting" if pending else ""
            parts.append(_cell(kind, x, y, f"rank {rank}, #{label}: {what}"))
    for line, rank in enumerate(group.members):
        y = top + TOP + line * (CELL + GAP) + CELL // 2 + 5
        style = "end suspect" if rank in diagnosis.suspects else "end"
        parts.append(f'<text class="{style}" x="{LEFT - 12}" y="{y}">rank {rank}</text>')
    width = LEFT + len(numbers) * (CELL + GAP) + 10
    height = TOP + len(group.members) * (CELL + GAP) + 8
    return _Band("".join(parts), width, height)


def describe_grid(diagnosis: Diagnosis) -> str:
    """The picture in words, for those who do not see it."""
    if not diagnosis.faults:
        return "Ranks by sequence number: every rank has joined every collective."
    text = "Ranks by sequence number."
    if diagnosis.suspects:
        text += f" Suspect: rank {ranks_text(diagnosis.suspects)}."
    if diagnosis.victims:
        text += f" Waiting: rank {ranks_text(diagnosis.victims)}."
    return text


def draw_grid(progress: Progress, diagnosis: Diagnosis) -> str:
    """Draw every process group's collectives.

    Args:
        progress: the matched dumps.
        diagnosis: the answer, for suspects and odd calls.

    Returns:
        An SVG document.
    """
    bands: list[_Band] = []
    top = 0
    for group in progress.groups.groups:
        band = _band(progress, diagnosis, group, top)
        if band is not None:
            bands.append(band)
            top += band.height
    shown = [("done", "done"), ("wait", "waiting"), ("absent", "absent"), ("odd", "differs")]
    if any('class="unknown"' in band.svg for band in bands):
        shown.append(("unknown", "no record"))
    width = max(22 + 92 * len(shown), *(band.width for band in bands))
    height = max(top + 34, 120)
    legend_y = top + 8
    legend = "".join(
        _legend(kind, 16 + at * 92, legend_y, text) for at, (kind, text) in enumerate(shown)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img">'
        f"<title>{escape(describe_grid(diagnosis))}</title>{_STYLE}"
        f'<rect class="ground" width="{width}" height="{height}" rx="12"/>'
        + "".join(band.svg for band in bands)
        + legend
        + "</svg>\n"
    )


def _legend(kind: str, x: int, y: int, text: str) -> str:
    shape = _cell(kind, 0, 0, text)
    return (
        f'<g transform="translate({x} {y}) scale(0.5)">{shape}</g>'
        f'<text x="{x + 24}" y="{y + 14}">{text}</text>'
    )
