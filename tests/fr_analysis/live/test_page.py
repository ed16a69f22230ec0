"""The page ``/fr_analysis``: usable for everybody, and nothing of it leaves for elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.made_jobs.dumps import nccl, trace_of
from tests.made_jobs.programs import data_parallel

from fr_analysis.live.collect import Snapshot
from fr_analysis.live.judge import Reading, read
from fr_analysis.live.page import MOST_MEMBERS, narrow, render_page
from fr_analysis.read import read_trace
from support import ROOT, Watched

HANG = ROOT / "tests" / "data" / "gloo_hang_3ranks"
TAKEN_NS = 1_900_000_000_000_000_000


@pytest.fixture(scope="module")
def reading() -> Reading:
    """A hang."""
    return read(Snapshot(read_trace(HANG), TAKEN_NS))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_small_screen_in_light_and_dark(
    watched: Watched, reading: Reading, tmp_path: Path, scheme: str
) -> None:
    file = tmp_path / "page.html"
    file.write_text(render_page(reading, reading.diagnosis))
    page = watched.page
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto(file.as_uri())
    assert watched.requests == [file.as_uri()] or watched.requests == [file.as_uri(), "data:,"]
    assert watched.complaints == []
    assert watched.serious_faults() == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator("h1").inner_text() == "FAULT: suspect rank 2; ranks 0, 1 wait."
    assert page.locator("html").get_attribute("lang") == "en"
    assert page.locator("svg").count() == 1


def test_what_ranks_say_is_escaped(tmp_path: Path) -> None:
    for path in HANG.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes().replace(b"hang2.py", b"<b>aa.py"))
    note = "</pre><script>alert(1)</script>"
    snapshot = Snapshot(read_trace(tmp_path), TAKEN_NS, (note,))
    found = read(snapshot)
    page = render_page(found, found.diagnosis)
    assert "<script" not in page
    assert "&lt;b&gt;aa.py" in page


def test_the_picture_of_a_large_job_stays_small() -> None:
    found = read(Snapshot(trace_of(nccl(data_parallel(100))), TAKEN_NS))
    shown = narrow(found.progress, found.diagnosis)
    assert max(len(group.members) for group in shown.groups.groups) == MOST_MEMBERS
    assert "at most 32 ranks of each" in render_page(found, found.diagnosis)
