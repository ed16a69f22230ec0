"""The report as a page, in a real browser: what it shows, and that it does nothing else."""

import dataclasses
import pickle
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.made_jobs import dumps as made
from tests.made_jobs import faults
from tests.made_jobs.programs import Layout, data_parallel, train

from fr_analysis import FrAnalysisError
from fr_analysis.attribute import attribute
from fr_analysis.cli import main
from fr_analysis.diagnosis import Edge
from fr_analysis.match import match
from fr_analysis.read import read_trace
from fr_analysis.report import FORMATS
from fr_analysis.report.html.graph import draw_graph
from support import ROOT, Watched

HANG = ROOT / "tests" / "data" / "gloo_hang_3ranks"


def report(dumps: Path, target: Path) -> Path:
    """As a user writes it."""
    assert main([str(dumps), "--format", "html", "-o", str(target)]) in (0, 1)
    return target


def open_report(watched: Watched, file: Path) -> None:
    """Open it from the disk; its script has run then."""
    watched.page.goto(file.as_uri())
    watched.page.wait_for_selector("body[data-ready]", timeout=30_000)


@pytest.fixture(scope="module")
def hang(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a small hang."""
    return report(HANG, tmp_path_factory.mktemp("report") / "hang.html")


def test_shows_the_verdict_and_loads_nothing(hang: Path, watched: Watched) -> None:
    open_report(watched, hang)
    page = watched.page
    assert page.inner_text("h1") == "FAULT: suspect rank 2; ranks 0, 1 wait."
    assert "wait in all_reduce #3" in page.inner_text("header p")
    assert page.inner_text("#suspects h3") == "rank 2: left no dump"
    assert page.locator(".graph .suspect .who").text_content() == "rank 2"
    assert watched.requests == [hang.as_uri()]
    assert watched.complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_no_serious_accessibility_fault(
    hang: Path, watched: Watched, scheme: Any, width: int
) -> None:
    watched.page.emulate_media(color_scheme=scheme)
    watched.page.set_viewport_size({"width": width, "height": 900})
    open_report(watched, hang)
    assert watched.serious_faults() == []
    assert watched.page.evaluate("document.documentElement.scrollWidth") == width


def test_the_keyboard_reaches_every_cell(hang: Path, watched: Watched) -> None:
    open_report(watched, hang)
    page = watched.page
    page.focus("#plot")
    for key in ("ArrowLeft", "ArrowRight", "ArrowUp"):
        page.keyboard.press(key)
    told = page.inner_text("#cell")
    assert told.startswith("Rank 0, #3: waits, all_reduce(")
    assert re.search(r"called at .*\.py:\d+ in ", told)
    for _ in range(5):
        page.keyboard.press("ArrowDown")
    assert page.inner_text("#cell").startswith("Rank 2, #3: no record")


def test_the_mouse_tells_too(hang: Path, watched: Watched) -> None:
    open_report(watched, hang)
    box = watched.page.locator("#plot .nsewdrag").bounding_box()
    assert box
    # The first column of three, the second row of three.
    watched.page.mouse.move(box["x"] + box["width"] / 6, box["y"] + box["height"] / 2)
    watched.page.wait_for_function("document.getElementById('cell').innerText.startsWith('Rank')")
    assert watched.page.inner_text("#cell").startswith("Rank 1, #1: joined, all_reduce(")


def test_filters(tmp_path: Path, watched: Watched) -> None:
    job = faults.asleep(train(Layout(tp=2, dp=4, pp=2)), [5], "tp", 3)
    open_report(watched, report(made.write(made.nccl(job), tmp_path / "d"), tmp_path / "r.html"))
    page = watched.page
    size = page.locator("#size")
    # The group that stands still comes first.
    assert "tp" in page.locator("#group option").first.inner_text()
    page.fill("#ranks", "5")
    assert "shown: 1 rows" in size.inner_text()
    page.fill("#ranks", "5-")
    assert page.get_attribute("#ranks", "aria-invalid") == "true"
    page.fill("#ranks", "1000")
    assert "Nothing is left" in size.inner_text()
    page.fill("#ranks", "")
    before = size.inner_text()
    page.select_option("#operation", "all_reduce")
    page.click("#all")
    page.click("#in")
    assert size.inner_text() != before
    assert watched.complaints == []


def test_a_large_group_shares_rows(tmp_path: Path, watched: Watched) -> None:
    job = faults.asleep(data_parallel(200, steps=4), [77], "default_pg", 2)
    open_report(watched, report(made.write(made.nccl(job), tmp_path / "d"), tmp_path / "r.html"))
    size = watched.page.inner_text("#size")
    rows = re.match(r"200 ranks in (\d+) rows of alike ones", size)
    assert rows
    assert int(rows[1]) <= 4
    watched.page.fill("#ranks", "77")
    assert "shown: 1 rows" in watched.page.inner_text("#size")


EVIL = {
    "elements": "</script><script>window.pwned=1</script><img src=x onerror='window.pwned=2'>"
    "<a href='javascript:window.pwned=3' target=_self>here</a> &lt;img src=x onerror=pwned=4&gt;",
    "attributes": "\" onmouseover=window.pwned=5 autofocus onfocus=window.pwned=5 x=' "
    "onfocus=window.pwned=6 x=`> </style><style>body{display:none}</style>",
    "drawings": "<svg/onload=window.pwned=7><animate onbegin=window.pwned=7 attributeName=x>"
    "]]></text></svg><iframe srcdoc='<script>top.pwned=8</script>'></iframe>",
    "texts": "{{7*7}}{% if 1 %}${window.pwned=9}`+(window.pwned=9)+`\\u0027;window.pwned=10;//\\",
    "pages": "<base href=http://127.0.0.1:9/><meta http-equiv=refresh content='0;url=x'>"
    "<form id=size><!--<script>window.pwned=11",
}
"""Texts that do something in a page that does not escape them."""


def write_evil(evil: str, folder: Path) -> None:
    """A job that hangs, in whose files every text is this one, and some of whose names are."""
    for rank in 0, 1:
        dump = pickle.loads((HANG / f"trace_{rank}").read_bytes())  # noqa: S301 (our own file)
        dump["pg_config"] = {"0": {"name": "0", "desc": evil, "ranks": "[0, 1, 2]"}}
        dump["pg_config"][evil] = {"name": evil, "desc": evil, "ranks": evil}
        dump["health_check_results"] = {evil: {"status": evil, "output": evil}}
        for entry in dump["entries"]:
            entry["process_group"] = ("0", evil)
            entry["profiling_name"] = f"gloo:{evil}"
            entry["input_dtypes"] = entry["output_dtypes"] = [evil]
            entry["thread_name"] = entry["state"] = evil
            entry["frames"] = [{"name": evil, "filename": f"/{evil}.py", "line": 1}]
        (folder / f"trace_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    name = evil.replace("/", "\u2215")
    (folder / f"trace_{name[:80]}_3").write_bytes(b"\x80\x02c" + evil.encode() + b"\nx\n.")
    # What is asked to be imported is told.
    (folder / "trace_4").write_bytes(b"\x80\x02c" + evil.encode() + b"\nx\n.")
    frame = f'  File "{evil}", line 1 in {evil}'
    threads = f"Thread 0x1 (most recent call first):\n{frame}\n"
    stacks = f"=== Rank 1: {evil} ===\n{threads}=== Rank 2: x ===\n{evil}\n"
    (folder / "stacks_20260101_000000.txt").write_text(stacks)


@pytest.mark.parametrize("name", EVIL)
def test_what_a_dump_names_does_nothing(name: str, tmp_path: Path, watched: Watched) -> None:
    evil = EVIL[name]
    (tmp_path / "dumps").mkdir()
    write_evil(evil, tmp_path / "dumps")
    open_report(watched, report(tmp_path / "dumps", tmp_path / "r.html"))
    page = watched.page
    assert evil in page.inner_text("body")
    # Everything that opens is opened, and everything that shows something on the way shows it.
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    page.focus("#plot")
    for key in ("ArrowLeft", "ArrowRight", "ArrowUp"):
        page.keyboard.press(key)
    box = page.locator("#plot .nsewdrag").bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] / 6, box["y"] + box["height"] / 2)
    for target in ("#group", "#operation"):
        page.select_option(target, index=page.locator(f"{target} option").count() - 1)
    page.wait_for_timeout(200)
    assert page.evaluate("window.pwned") is None
    assert page.locator("img, iframe, base, form#size, script[src]").count() == 0
    assert page.locator("a[href^=javascript]").count() == 0
    assert page.locator("[onload], [onerror], [onfocus], [onmouseover], [onbegin]").count() == 0
    assert page.locator("main").is_visible()
    assert len(watched.requests) == 1
    assert watched.complaints == []


def test_a_healthy_job(tmp_path: Path, watched: Watched) -> None:
    dumps = made.write(made.nccl(data_parallel(4)), tmp_path / "d")
    open_report(watched, report(dumps, tmp_path / "r.html"))
    assert watched.page.inner_text("h1").startswith("HEALTHY")
    assert watched.page.locator("#waits, #suspects, #faults").count() == 0
    assert watched.serious_faults() == []


def test_a_library_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    progress = match(read_trace(HANG))
    with pytest.raises(FrAnalysisError, match=r"needs plotly\S*, which .*\[html\]'"):
        FORMATS["html"](attribute(progress), progress)


def test_a_circle_is_drawn_without_end() -> None:
    diagnosis = attribute(match(read_trace(HANG)))
    circle = (Edge(0, 1, "1"), Edge(1, 2, "2"), Edge(2, 0, "3"))
    svg = draw_graph(dataclasses.replace(diagnosis, waits=circle, suspects=()))
    assert svg.count('class="arrow"') == 3
    assert "rank 2 waits for rank 0" in svg


def test_a_graph_of_too_many_boxes_is_left_out() -> None:
    diagnosis = attribute(match(read_trace(HANG)))
    chain = tuple(Edge(rank, rank + 1, "1") for rank in range(100))
    assert draw_graph(dataclasses.replace(diagnosis, waits=chain)) == ""


def test_jobs_without_collectives_have_a_report(tmp_path: Path, watched: Watched) -> None:
    for rank in 0, 1:
        dump = pickle.loads((HANG / f"trace_{rank}").read_bytes())  # noqa: S301 (our own file)
        dump["entries"] = []
        (tmp_path / f"trace_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    target = tmp_path / "r.html"
    main([str(tmp_path), "--format", "html", "-o", str(target)])
    watched.page.goto(target.as_uri())
    watched.page.wait_for_function("document.getElementById('size').innerText.includes('No dump')")
    assert watched.complaints == []


def test_the_grid_comes_back_after_filters_that_left_nothing(hang: Path, watched: Watched) -> None:
    open_report(watched, hang)
    page = watched.page
    page.fill("#ranks", "99")
    page.focus("#plot")
    page.keyboard.press("ArrowDown")
    assert "undefined" not in page.inner_text("#cell")
    page.fill("#ranks", "")
    assert "shown: 3 rows, 3 numbers" in page.inner_text("#size")
    box = page.locator("#plot .nsewdrag").bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] / 6, box["y"] + box["height"] / 2)
    page.wait_for_function("document.getElementById('cell').innerText.startsWith('Rank 1')")
    assert watched.complaints == []
