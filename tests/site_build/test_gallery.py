"""The hang gallery: each script runs alone and ends as its page says; a wrong page is caught."""

from __future__ import annotations

import pickle
import re
import shutil
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from fr_analysis import Diagnosis
from fr_analysis.attribute import attribute
from fr_analysis.match import Progress, match
from fr_analysis.read import read_trace
from fr_analysis.read.decode import decode
from fr_analysis.report.grid import draw_grid
from fr_analysis.trace import Completion
from rank_lab.claims import Claims, differences
from site_build.captures import CaptureError
from site_build.gallery import Scenario, kept_dumps, load_scenario
from site_build.recorded_job import scripts, split
from support import ROOT, sphinx_build

FOLDER = ROOT / "intermediate_source" / "hang_gallery"
SCRIPTS = sorted(FOLDER.glob("*.py"))
HANG = ROOT / "tests" / "data" / "gloo_hang_3ranks"


@pytest.fixture(scope="module")
def ran(site: Path) -> Any:
    """The run that the build made of a script, copied alone into an empty folder.

    The build has checked it against the page; here the dumps are looked at again.
    """

    def run(source: Path) -> tuple[Scenario, Progress, Diagnosis]:
        scenario = load_scenario(source)
        progress = match(read_trace(kept_dumps(scenario, ROOT / "_build" / "captures")))
        return scenario, progress, attribute(progress)

    return run


def test_the_section_that_records_the_job_is_the_same_everywhere() -> None:
    sections = {split(script.read_text(encoding="utf-8"))[1] for script in scripts()}
    assert len(sections) == 1
    assert "def run_recorded" in sections.pop()


@pytest.mark.parametrize("source", SCRIPTS, ids=lambda source: source.stem)
def test_ends_as_its_page_says(ran: Any, source: Path) -> None:
    scenario, progress, diagnosis = ran(source)
    assert differences(scenario.claims, diagnosis) == ()
    waiting = set(diagnosis.victims if scenario.claims.kind != "straggler" else ())
    # A rank that makes a group waits as well, but no recorder notes that.
    calls = [call for fault in diagnosis.faults for call in fault.calls]
    waiting -= {rank for call in calls if call.operation == "new_group" for rank in call.ranks}
    for rank in waiting:
        # Dumped while it waited: after the timeout Gloo marks the operation as done.
        assert Completion.PENDING in progress.trace.dumps[rank].operations.completion


@pytest.mark.parametrize("source", SCRIPTS, ids=lambda source: source.stem)
def test_a_page_that_claims_something_else_is_caught(ran: Any, source: Path) -> None:
    scenario, _, diagnosis = ran(source)
    claims = scenario.claims
    wrong: dict[str, Any] = {"suspects": (7,), "victims": (7,)}
    claimed = [f.name for f in fields(Claims) if getattr(claims, f.name) is not None]
    assert {"verdict", "suspects", "victims"} <= set(claimed)
    for name in claimed:
        changed = replace(claims, **{name: wrong.get(name, "other")})
        (difference,) = differences(changed, diagnosis)
        assert difference.startswith(f"{name} is ")


def test_a_page_ends_with_its_download_alone(site: Path) -> None:
    page = (site / "intermediate/hang_gallery/stuck_in_host_code.html").read_text()
    assert "With the fix" in page
    assert page.count("sphx-glr-download ") == 1
    assert "sphx-glr-script-out" not in page
    assert ".zip" not in page


def test_a_script_without_fields_is_named_in_one_line(tmp_path: Path) -> None:
    script = tmp_path / "lonely.py"
    script.write_text('"""\nA title\n=======\n"""\n')
    with pytest.raises(CaptureError) as caught:
        load_scenario(script)
    assert re.fullmatch(r".*/lonely\.py: 'Verdict' \(fields of the docstring\)", str(caught.value))


def test_a_verdict_that_is_not_understood_is_named(tmp_path: Path) -> None:
    script = tmp_path / "odd.py"
    script.write_text('"""\nA title\n=======\n\n:Verdict: it hangs\n"""\n')
    with pytest.raises(CaptureError, match=r"odd\.py: Verdict 'it hangs': expected a kind"):
        load_scenario(script)


def cells(svg: str) -> dict[tuple[int, int], tuple[str, str]]:
    """Rank and number to class and words of a picture's cells."""
    pattern = r'<title>rank (\d+), #(\d+): ([^<]*)</title><rect class="(\w+)"'
    return {
        (int(rank), int(number)): (kind, words)
        for rank, number, words, kind in re.findall(pattern, svg)
    }


def test_the_picture_of_a_hang() -> None:
    progress = match(read_trace(HANG))
    svg = draw_grid(progress, attribute(progress))
    found = cells(svg)
    for rank in 0, 1:
        assert found[rank, 1] == found[rank, 2] == ("done", "all_reduce")
        assert found[rank, 3] == ("wait", "all_reduce, waiting")
    # Rank 2 left no dump: that it was there for the first two must not be denied.
    assert {found[2, number] for number in (1, 2, 3)} == {("unknown", "no record")}
    assert len(found) == 9
    assert ">no record</text>" in svg


def test_the_picture_of_an_idle_rank_shows_it_absent(tmp_path: Path) -> None:
    """As if rank 2 were alive: its dump is another's, up to where it stopped."""
    for rank in 0, 1:
        shutil.copy(HANG / f"trace_{rank}", tmp_path)
    dump: Any = decode(HANG / "trace_0")
    dump["entries"].pop()
    dump["pg_status"]["0"]["last_enqueued_collective"] = 2
    (tmp_path / "trace_2").write_bytes(pickle.dumps(dump))
    progress = match(read_trace(tmp_path))
    found = cells(draw_grid(progress, attribute(progress)))
    assert found[2, 2] == ("done", "all_reduce")
    assert found[2, 3] == ("absent", "never joined")


@pytest.fixture
def gallery_project(tmp_path: Path) -> Path:
    """A site with a gallery of one page, its script and its place in the order."""
    folder = tmp_path / "site"
    scripts = folder / "intermediate_source" / "hang_gallery"
    scripts.mkdir(parents=True)
    shutil.copy(FOLDER / "stuck_in_host_code.py", scripts)
    (scripts / "order.txt").write_text("stuck_in_host_code\n")
    (folder / "conf.py").write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT / 'src')!r})\n"
        "extensions = ['site_build.cards', 'site_build.gallery_index']\n"
    )
    (folder / "index.rst").write_text("Site\n====\n\n.. hang-gallery::\n")
    return folder


@pytest.mark.parametrize(
    ("order", "differing"),
    [("", "stuck_in_host_code"), ("stuck_in_host_code\nnot_there\n", "not_there")],
)
def test_an_order_that_differs_from_the_scripts_breaks_the_build(
    gallery_project: Path, order: str, differing: str
) -> None:
    (gallery_project / "intermediate_source/hang_gallery/order.txt").write_text(order)
    built = sphinx_build(gallery_project, gallery_project / "html")
    assert built.returncode != 0
    assert f"order.txt and the scripts differ: {differing}" in built.stderr
