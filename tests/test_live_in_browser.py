"""A job of four ranks that really hangs, looked at in a real browser: live, then its report."""

import queue
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fr_analysis.cli import main
from rank_lab import RunRecord, run_ranks
from support import ROOT, Watched

DEMO = ROOT / "intermediate_source" / "verify_flight_recorder.py"
HANGING_RANK = 2


@dataclass
class Job:
    """The demo while it hangs, and what is left of it when it has ended."""

    url: str
    thread: threading.Thread
    record: RunRecord | None = None


def fetch(url: str) -> str:
    """A page; empty while the server is not there yet."""
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            content: bytes = answer.read()
    except OSError:
        return ""
    return content.decode()


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """Start the demo; the ranks hang when this returns, and for a while after."""
    ports: queue.Queue[int] = queue.Queue()
    env = {"FR_COMMUNICATOR": "torch", "COMM_TIMEOUT": "30", "HANGING_RANK": str(HANGING_RANK)}

    def run() -> None:
        job.record = run_ranks(
            DEMO,
            nproc=4,
            run_dir=tmp_path_factory.mktemp("live") / "run",
            deadline_s=200,
            env=env,
            meanwhile=lambda port, _: ports.put(port),
        )

    job = Job("", threading.Thread(target=run))
    job.thread.start()
    job.url = f"http://localhost:{ports.get()}/fr_analysis"
    give_up_at = time.monotonic() + 120
    while "FAULT" not in fetch(job.url) and time.monotonic() < give_up_at:
        time.sleep(0.2)
    yield job
    job.thread.join()


def test_the_live_page_names_the_rank(job: Job, watched: Watched) -> None:
    page = watched.page
    page.goto(job.url)
    assert page.inner_text("h1") == f"FAULT: suspect rank {HANGING_RANK}; ranks 0, 1, 3 wait."
    assert "in stuck_in_data_loader" in page.inner_text("main")
    assert page.locator("svg").count() == 1
    assert watched.serious_faults() == []
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert watched.complaints == []
    host = job.url.split("/")[2]
    assert [url for url in watched.requests if url.split("/")[2] != host] == []


def test_click_through_the_report(job: Job, watched: Watched, tmp_path: Path) -> None:
    job.thread.join()
    assert job.record is not None
    assert job.record.exit_status == 0, job.record.text
    report = tmp_path / "report.html"
    assert main([str(job.record.dump_dir), "--format", "html", "-o", str(report)]) == 1
    page = watched.page
    page.goto(report.as_uri())
    page.wait_for_selector("body[data-ready]")
    assert page.inner_text("h1") == f"FAULT: suspect rank {HANGING_RANK}; ranks 0, 1, 3 wait."
    for link in page.locator("nav a").all():
        link.click()
        target = link.get_attribute("href")
        assert target
        assert page.locator(target).count() == 1
    for button in page.locator("#filters button").all():
        button.click()
    for summary in page.locator("summary").all():
        summary.click()
    assert "wait_for_stuck_rank" in page.inner_text("#stacks")
    assert "in stuck_in_data_loader" in page.inner_text("#suspects")
    page.fill("#ranks", str(HANGING_RANK))
    page.focus("#plot")
    for _ in range(6):
        page.keyboard.press("ArrowRight")
    assert page.inner_text("#cell").startswith(f"Rank {HANGING_RANK}, #5: never joined")
    assert watched.serious_faults() == []
    assert watched.complaints == []
    assert watched.requests == [report.as_uri()]
