"""A real job of four Gloo ranks and torch's own debug server, asked while it runs.

One job goes through everything, since it takes seconds to start: it is slow, one of its ranks is
stopped and goes on, it hangs and goes on, a rank is killed, it ends. Each fixture is one part.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import jsonschema
import pytest

from fr_analysis import schema
from fr_analysis.cli import ExitStatus
from fr_analysis.live.collect import page_answers
from rank_lab import WarmLauncher, run_ranks

SCRIPT = Path(__file__).with_name("live_job.py")
LATE_S = 1.0
"""How late the slow rank is in each step, see the script."""
ENOUGH_LINES = 8
"""Of a watch, to tell a slow job from a hung one."""
MOVING = "moving: ranks 0-3 recorded 1 more operation"


@dataclass(frozen=True)
class Said:
    """What the command said."""

    status: int
    out: str
    err: str
    took_s: float


class Job:
    """The running job, and how to ask it and tell it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"http://localhost:{folder.joinpath('port').read_text()}"

    def tell(self, name: str) -> None:
        """Make the file that tells the job what to do."""
        (self.folder / name).touch()

    def signal(self, rank: int, number: signal.Signals) -> None:
        """Send a rank a signal."""
        os.kill(int((self.folder / f"pid_{rank}").read_text()), number)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start the command."""
        return subprocess.Popen(
            [sys.executable, "-m", "fr_analysis", "--url", self.url, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ask(self, *arguments: str) -> Said:
        """Run the command to its end."""
        began = time.monotonic()
        process = self.start(*arguments)
        out, err = process.communicate(timeout=60)
        return Said(process.returncode, out, err, time.monotonic() - began)

    def get(self, path: str) -> tuple[int, str]:
        """Load a page."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


def wait_for(what: Callable[[], object], deadline_s: float = 60) -> None:
    """Wait until something is so."""
    give_up_at = time.monotonic() + deadline_s
    while not what():
        assert time.monotonic() < give_up_at
        time.sleep(0.05)


def hear(process: subprocess.Popen[str], enough: Callable[[list[str]], object]) -> str:
    """Read what the command says on standard error until that is enough, or its end."""
    assert process.stderr
    lines: list[str] = []
    for line in process.stderr:
        lines.append(line)
        if enough(lines):
            break
    return "".join(lines)


def await_end(process: subprocess.Popen[str], heard: str) -> Said:
    """Read the rest, after what was heard already, and wait for the command's end."""
    assert process.stdout
    assert process.stderr
    err = heard + process.stderr.read()
    out = process.stdout.read()
    return Said(process.wait(20), out, err, 0)


def recorded(job: Job) -> list[list[int]]:
    """The numbers of the operations that each rank's ring buffer holds, of ranks that answer."""
    answers = page_answers(job.get("/fr_trace_json")[1]).values()
    dumps = [json.loads(answer.body) for answer in answers if answer.body]
    return [[entry["record_id"] for entry in dump["entries"]] for dump in dumps]


def flush(job: Job) -> None:
    """Let the ring buffers forget how long the job paused before: a pause of old is no hang."""
    newest = max(map(max, recorded(job)))
    wait_for(lambda: len(held := recorded(job)) == 4 and min(map(min, held)) > newest)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """Start the job, and wait until it moves and its server answers."""
    run_dir = tmp_path_factory.mktemp("live") / "run"
    folder = run_dir / "dumps"

    def run() -> None:
        with WarmLauncher() as launcher:
            run_ranks(SCRIPT, nproc=4, run_dir=run_dir, deadline_s=140, launcher=launcher)

    runner = threading.Thread(target=run)
    runner.start()
    try:
        wait_for(lambda: (folder / "ready").exists() or not runner.is_alive())
        running = Job(folder)
        wait_for(lambda: running.ask("--timeout", "2").status != ExitStatus.BAD_INPUT)
        yield running
    finally:
        if folder.exists():
            (folder / "end").touch()
        runner.join()


@pytest.fixture(scope="module")
def slow(job: Job) -> dict[str, Said]:
    """While it is slow: every step waits for rank 2."""
    watching = job.start("--watch", "0.5", "--stuck-after", "3")
    once = job.ask()
    heard = hear(watching, lambda lines: len(lines) >= ENOUGH_LINES and MOVING in "".join(lines))
    watching.send_signal(signal.SIGINT)
    return {"once": once, "watch": await_end(watching, heard)}


@pytest.fixture(scope="module")
def stopped(job: Job, slow: object) -> dict[str, Said]:
    """Rank 1 is stopped until the others wait for it, and then goes on."""
    job.signal(1, signal.SIGSTOP)
    time.sleep(3.5)  # longer than any step
    try:
        once = job.ask("--timeout", "1.5")
        page = job.get("/fr_analysis")[1]
    finally:
        job.signal(1, signal.SIGCONT)
    return {"once": once, "page": Said(0, page, "", 0)}


@pytest.fixture(scope="module")
def hung(job: Job, stopped: object) -> dict[str, Said]:
    """Rank 2 stays in host code until the others have waited longer than ever before."""
    flush(job)
    job.tell("hang")
    watch = job.ask("--watch", "1", "--stuck-after", "4", "--format", "json")
    return {"watch": watch, "once": job.ask("-v")}


@pytest.fixture(scope="module")
def pages(job: Job, hung: object) -> dict[str, tuple[int, str]]:
    """What the server's pages show of the hang."""
    paths = ["/fr_analysis", "/fr_analysis?refresh=10", "/fr_analysis?refresh=<b>", "/fr_trace"]
    shown = {
        path: job.get(path)
        for path in [*paths, "/fr_analysis.json", "/stacks", "/fr_trace_json", "/"]
    }
    seen = len(list(job.folder.glob("fr_analysis_*.txt")))
    wait_for(lambda: len(list(job.folder.glob("fr_analysis_*.txt"))) > seen + 1, 20)
    return shown


@pytest.fixture(scope="module")
def killed(job: Job, pages: object, hung: object) -> dict[str, Said]:
    """Rank 3 is killed; Gloo fails the others' collective, and they stay alive."""
    (job.folder / "hang").unlink()
    flush(job)
    job.signal(3, signal.SIGKILL)
    time.sleep(3)
    once = job.ask("--timeout", "2")

    return {"once": once}


@pytest.fixture(scope="module")
def over(job: Job, killed: object) -> dict[str, Said]:
    """The job ends under a watch."""
    watching = job.start("--watch", "0.5", "--stuck-after", "50", "--timeout", "2")
    # One look cannot tell who waits for good.
    heard = hear(watching, lambda lines: len(lines) > 2)
    job.tell("end")
    return {"watch": await_end(watching, heard), "late": job.ask()}


def test_a_slow_job_is_not_called_hung(slow: dict[str, Said]) -> None:
    once, watch = slow["once"], slow["watch"]
    assert once.status in (ExitStatus.HEALTHY, ExitStatus.UNDETERMINED), once.out
    assert "FAULT" not in once.out
    assert watch.status == 130
    assert "FAULT" not in watch.out
    lines = watch.err.splitlines()
    assert len(lines) >= ENOUGH_LINES
    assert [line for line in lines if MOVING in line]
    assert not [line for line in lines if "stuck" in line]


def test_a_stopped_rank_is_named_in_bounded_time(stopped: dict[str, Said]) -> None:
    once = stopped["once"]
    assert once.status == ExitStatus.FAULT, once.out
    assert once.out.startswith("FAULT: suspect rank 1; ")
    assert re.search(r"rank 1 at \S+ did not answer \(no \w+ within 1.5 s\)", once.out)
    assert once.took_s < 8
    assert "FAULT: suspect rank 1; " in stopped["page"].out


def test_a_hang_ends_the_watch_with_the_verdict(hung: dict[str, Said]) -> None:
    watch = hung["watch"]
    assert watch.status == ExitStatus.FAULT, watch.err
    answer = json.loads(watch.out)
    jsonschema.Draft202012Validator(schema()).validate(answer)
    assert answer["suspects"] == [2]
    assert answer["victims"] == [0, 1, 3]
    assert re.search(r"stuck for [4-9] s: suspect rank 2; ranks 0, 1, 3 wait", watch.err)


def test_one_answer_names_the_rank_its_line_and_since_when(hung: dict[str, Said]) -> None:
    once = hung["once"]
    assert once.status == ExitStatus.FAULT, once.out
    assert once.out.startswith("FAULT: suspect rank 2; ranks 0, 1, 3 wait.\n")
    assert re.search(r"live_job\.py:\d+ in stuck_in_data_loader", once.out)
    assert re.search(r"ranks 0, 1, 3 wait in .*, called at \S+live_job\.py:\d+ in train", once.out)
    assert re.search(r"has waited since [\d:]+ UTC, for \d+ s, and no rank in it moved", once.out)
    assert once.took_s < 8


def test_the_page_and_its_json_where_the_stock_page_fails(
    pages: dict[str, tuple[int, str]],
) -> None:
    assert pages["/fr_trace"][0] == 500
    status, page = pages["/fr_analysis"]
    assert status == 200
    assert '<h1 class="fault">FAULT: suspect rank 2; ranks 0, 1, 3 wait.</h1>' in page
    assert "in stuck_in_data_loader</code>" in page
    assert re.search(r"ranks 0, 1, 3 wait in all_reduce of group 0, for \d+ s so far", page)
    assert "<title>rank 2, #" in page  # a cell of the grid
    assert "<script>" not in page
    status, text = pages["/fr_analysis.json"]
    answer = json.loads(text)
    jsonschema.Draft202012Validator(schema()).validate(answer)
    assert (status, answer["suspects"]) == (200, [2])
    assert "<" not in text
    assert "live_job.py" in text


def test_refresh_only_on_request(pages: dict[str, tuple[int, str]]) -> None:
    assert "location.reload(), 10000" in pages["/fr_analysis?refresh=10"][1]
    assert "location.reload" not in pages["/fr_analysis?refresh=<b>"][1]


def test_the_server_s_other_pages_link_to_it(pages: dict[str, tuple[int, str]]) -> None:
    assert '<a href="/fr_analysis">Analysis</a>' in pages["/"][1]


def test_the_server_s_own_pages_can_be_read_where_no_rank_is_in_reach(
    pages: dict[str, tuple[int, str]],
) -> None:
    stacks = page_answers(pages["/stacks"][1])
    assert [b"in stuck_in_data_loader" in stacks[rank].body for rank in range(4)] == [
        False,
        False,
        True,
        False,
    ]
    assert b"in <module>" in stacks[0].body
    dumps = page_answers(pages["/fr_trace_json"][1])
    assert [len(json.loads(dumps[rank].body)["entries"]) for rank in range(4)] == [4] * 4


def test_periodic_files(job: Job, pages: object) -> None:
    newest = max(job.folder.glob("fr_analysis_*.txt"))
    assert newest.read_text().startswith("FAULT: suspect rank 2; ranks 0, 1, 3 wait.\n")
    assert not list(job.folder.glob("fr_trace_*.txt"))


def test_a_killed_rank_is_named(killed: dict[str, Said]) -> None:
    once = killed["once"]
    assert once.status == ExitStatus.FAULT, once.out
    assert once.out.startswith("FAULT: suspect rank 3; ranks 0-2 wait.\n"), once.out
    assert "(connection refused): the process has ended" in once.out


def test_the_end_of_the_job_ends_the_watch(over: dict[str, Said]) -> None:
    watch = over["watch"]
    assert "the debug server has gone, so the job has ended" in watch.err, watch.err
    # The killed rank was missed to the end.
    assert watch.status == ExitStatus.FAULT
    assert over["late"].status == ExitStatus.BAD_INPUT
    assert "no debug server answers there (connection refused)" in over["late"].err
