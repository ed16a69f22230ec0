"""The picture and the page's grid say the same of ranks that are not in a collective."""

import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from tests.plain_dumps import dump, entry

from fr_analysis.attribute import attribute
from fr_analysis.match import Progress, match
from fr_analysis.read import read_trace
from fr_analysis.report.grid import draw_grid
from fr_analysis.report.html.cells import ABSENT_CELL, UNKNOWN_CELL, Cells

STUCK = dump(entries=2)
STUCK["entries"].append(entry(3, state="started", retired=False))

OTHERS: dict[str, tuple[dict[str, Any] | None, list[str]]] = {
    "behind": (dump(entries=2), ["done", "done", "absent"]),
    "behind, and holds no entry": (
        dump(entries=2) | {"entries": []},
        ["unknown", "unknown", "absent"],
    ),
    "has joined nothing": (dump(entries=0), ["absent"] * 3),
    "no entries and no counters": (dump(entries=0, pg_status={}), ["unknown"] * 3),
    "no dump": (None, ["unknown"] * 3),
}


def in_picture(progress: Progress) -> list[str]:
    """What the picture shows of rank 1."""
    pattern = r'<title>rank 1, #\d: [^<]*</title><rect class="(\w+)"'
    return re.findall(pattern, draw_grid(progress, attribute(progress)))


def in_page(progress: Progress) -> list[str]:
    """What the page shows of rank 1."""
    words = {UNKNOWN_CELL: "unknown", ABSENT_CELL: "absent"}
    _, _, matrix = Cells(progress, attribute(progress)).matrix(progress.groups.groups[0])
    return [words.get(cell, "done") for cell in matrix[1].tolist()]


@pytest.mark.parametrize("other", OTHERS)
def test_both_grids_tell_never_joined_from_no_record(tmp_path: Path, other: str) -> None:
    second, shown = OTHERS[other]
    for rank, content in enumerate((STUCK, second)):
        if content is not None:
            (tmp_path / f"trace_{rank}").write_bytes(pickle.dumps(content))
    progress = match(read_trace(tmp_path))
    assert in_picture(progress) == shown
    assert in_page(progress) == shown
