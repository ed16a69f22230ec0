"""Injects faults into real ranks, and looks at what the analyzer and the demo make of them.

``python -m benchmarks.reliability.injected_faults`` injects every fault ``RUNS`` times and keeps
the table. An answer of the analyzer, by dumps or live, is

- right: it names exactly the ranks that the fault is in, or says in one line that there is nothing
  to be asked, where that is so;
- undetermined: it says that it cannot tell, or in one line what is missing;
- wrong: anything else, and also an answer that did not come within ``ANSWER_S``.

The demo is right where it ends as without the fault, and its dumps tell the truth. It is
undetermined where it says in one line what is missing, or torchrun which rank was killed, with an
exit status other than 0. Anything else is wrong, and also an end after ``RUN_S``. What is left
running are processes, see :class:`Ran`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil

from benchmarks.reliability.kept import Table, keep
from rank_lab import RunRecord, WarmLauncher, inject, processes, run_ranks

ROOT = Path(__file__).resolve().parents[2]
JOB = Path(__file__).with_name("injected_job.py")
DEMO = ROOT / "intermediate_source" / "verify_flight_recorder.py"
RUNS = 3
AT_A_TIME = 3
RANKS = 4

RIGHT, UNDETERMINED, WRONG = "right", "undetermined", "wrong"

TITLE = (
    "Faults injected into running ranks; where the demo is asked, undetermined means that it said "
    "in one line what was missing, and failed"
)
HEAD = ("Injected", "Asked", "Runs", "Right", "Undetermined", "Wrong", "Longest, s", "Left running")

ANSWER_S = 30.0
"""Within this the analyzer must answer, however the job is."""
RUN_S = 300.0
"""Within this a run must end by itself."""
_COME_UP_S = 120.0
_HANG_S = 4.0  # longer than any wait that the analyzer takes for a pause

Command = Callable[..., list[str]]
"""Makes a command line one that runs where the job can be reached."""


@dataclass(frozen=True)
class Answer:
    """What was asked, and what came of it: RIGHT, UNDETERMINED or WRONG; ``said`` is all of it."""

    asked: str
    outcome: str
    took_s: float
    said: str


@dataclass(frozen=True)
class Ran:
    """One run with a fault: what was answered, and what was left running.

    Of the demo, what it had not ended itself; of the job, what :func:`rank_lab.run_ranks` had not.
    """

    answers: Sequence[Answer]
    left: Sequence[str]


@dataclass
class Place:
    """Where and how a job runs, and what is done to it when it has come to the fault.

    Attributes:
        env: for the ranks.
        dump_dir: where they write dumps; None for the usual place.
        port: the debug server's, where it is not the one that the run was given.
        command: see ``Command``.
        strike: called with the folder that holds the ranks' process ids.
        undo: ends the fault; before the ranks are ended, which it may keep from ending.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    dump_dir: Path | None = None
    port: int | None = None
    command: Command = lambda *command: list(command)
    strike: Callable[[Path], object] = lambda folder: None
    undo: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)


@dataclass(frozen=True)
class Fault:
    """A fault in a job of four ranks, and the right answers.

    Attributes:
        name: says what is injected.
        does: what the faulty rank does, a key of ``injected_job.FAULTS``.
        live, dumps: the ranks to name when the job is asked, and by its dumps; None where there is
            nobody to ask.
        rank: the faulty one.
        place: makes the place, in an empty folder.
    """

    name: str
    does: str
    live: tuple[int, ...] | None = (2,)
    dumps: tuple[int, ...] = (2,)
    rank: int = 2
    place: Callable[[Path], Place] = lambda folder: Place()


# -- asking -----------------------------------------------------------------------------------


def _judge(done: subprocess.CompletedProcess[str], truth: tuple[int, ...] | None) -> str:
    """Whether what the command said is right."""
    if done.returncode == 2:
        is_one_line = re.fullmatch(r"fr-analysis: [^\n]+\n", done.stderr) and not done.stdout
        if not is_one_line:
            return WRONG
        return RIGHT if truth is None else UNDETERMINED
    if truth is None or done.stderr or done.returncode not in (1, 3):
        return WRONG
    answer = json.loads(done.stdout)
    if (answer["verdict"], done.returncode) == ("undetermined", 3):
        return UNDETERMINED if not answer["suspects"] else WRONG
    is_named = tuple(sorted(answer["suspects"])) == truth
    return RIGHT if is_named and answer["verdict"] == "fault" else WRONG


def ask(asked: str, command: Sequence[str], truth: tuple[int, ...] | None) -> Answer:
    """Run the analyzer, and judge what it says."""
    start = time.monotonic()
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=ANSWER_S, check=False
        )
        outcome, said = _judge(done, truth), done.stdout + done.stderr
    except subprocess.TimeoutExpired:
        outcome, said = WRONG, f"no answer within {ANSWER_S:g} s"
    return Answer(asked, outcome, time.monotonic() - start, said)


def _analyzer(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "fr_analysis", *map(str, arguments), "--format", "json"]


def _wait_for(what: Callable[[], object], seconds: float) -> bool:
    give_up_at = time.monotonic() + seconds
    while not what():
        if time.monotonic() > give_up_at:
            return False
        time.sleep(0.05)
    return True


def inject_into_job(fault: Fault, folder: Path, launcher: WarmLauncher | None = None) -> Ran:
    """Run the job with a fault, and ask about it while it hangs: live, and by its dumps."""
    run_dir, answers = folder / "run", list[Answer]()
    place = fault.place(folder)
    dumps = place.dump_dir or run_dir / "dumps"

    def observe(port: int, over: threading.Event) -> None:
        try:
            up = _wait_for(lambda: over.is_set() or (run_dir / "faulty").exists(), _COME_UP_S)
            if not up or over.is_set():
                return
            place.strike(run_dir)
            time.sleep(_HANG_S)
            url = f"http://{place.env.get('HOST', 'localhost')}:{place.port or port}"
            live = place.command(*_analyzer("--url", url, "--timeout", 2))
            answers.append(ask("``--url``", live, fault.live))
            (run_dir / "dump").touch()
            # Ranks that are stopped, or dead, write none.
            _wait_for(lambda: len(list(run_dir.glob("dumped_*"))) == RANKS, 3)
            by_dumps = _analyzer(dumps, "--expected-world-size", RANKS)
            answers.append(ask("dumps", by_dumps, fault.dumps))
        finally:
            place.undo.close()
            (run_dir / "end").touch()

    with place.undo:
        record = run_ranks(
            JOB,
            nproc=RANKS,
            run_dir=run_dir,
            deadline_s=RUN_S,
            env={"FAULT": fault.does, "FAULTY_RANK": str(fault.rank), **place.env},
            launcher=launcher,
            meanwhile=observe,
            dump_dir=place.dump_dir,
        )
    if not answers:
        said = f"the ranks never came to the fault\n{record.launcher_output}{record.text}"
        answers.append(Answer("``--url``", WRONG, record.duration_s, said))
    if record.timed_out:
        answers.append(Answer("ranks", WRONG, record.duration_s, "they did not end"))
    return Ran(answers, [processes.describe(process) for process in processes.find(record.run_id)])


# -- places -----------------------------------------------------------------------------------


def _on_a_blocked_disk(folder: Path) -> Place:
    place = Place(env={"DISK": str(folder / "disk")})
    place.undo.enter_context(inject.blocked_disk(folder / "disk"))
    return place


def _on_a_full_disk(folder: Path) -> Place:
    place = Place(dump_dir=folder / "disk")
    place.undo.enter_context(inject.full_disk(folder / "disk", 12))
    return place


def _with_a_taken_port(folder: Path) -> Place:
    place = Place()
    place.port = place.undo.enter_context(inject.taken_port())
    place.env = {"DEBUG_PORT": str(place.port)}
    return place


def _with_a_mute_rank(folder: Path) -> Place:
    return Place(env={"MUTE_RANK": "1"})


def _front_of(run_dir: Path) -> psutil.Process:
    """The debug server's own process, a child of rank 0."""
    (front,) = (
        child
        for child in psutil.Process(int((run_dir / "pid_0").read_text())).children()
        if any("spawn_main" in part for part in child.cmdline())
    )
    return front


def _with_a_stopped_front(folder: Path) -> Place:
    return Place(strike=lambda run_dir: _front_of(run_dir).suspend())


def _with_a_killed_front(folder: Path) -> Place:
    return Place(strike=lambda run_dir: _front_of(run_dir).kill())


def _on_two_hosts(folder: Path) -> Place:
    place = Place()
    first, second = place.undo.enter_context(inject.two_hosts())
    hosts = " ".join(f"{host.pid}/{host.address}" for host in (first, second))
    place.env = {"HOSTS": hosts, "HOST": first.address}
    place.command = first.command
    return place


def _cut_in_two(folder: Path) -> Place:
    place = _on_two_hosts(folder)
    pid, address = place.env["HOSTS"].split()[1].split("/")
    place.strike = lambda run_dir: inject.Host(int(pid), address).cut_off()
    return place


FAULTS = (
    Fault("a rank gets SIGSTOP", "stopped"),
    Fault("rank 0, which has the debug server, gets SIGSTOP", "stopped", (0,), (0,), 0),
    Fault("a rank gets SIGKILL", "killed"),
    Fault("a rank in native code holds the interpreter's lock", "holds the interpreter"),
    Fault(
        "a rank writes to a blocked disk (frozen ext4)",
        "saves a checkpoint",
        place=_on_a_blocked_disk,
    ),
    Fault("no space left for the dumps (tmpfs of 12 KiB)", "is stuck", place=_on_a_full_disk),
    Fault("the debug server's port is taken", "is stuck", None, place=_with_a_taken_port),
    Fault("another rank takes connections and never answers", "is stuck", place=_with_a_mute_rank),
    Fault("the debug server's process gets SIGSTOP", "is stuck", None, place=_with_a_stopped_front),
    Fault("the debug server's process gets SIGKILL", "is stuck", None, place=_with_a_killed_front),
    Fault("ranks in two network namespaces, one is stuck", "is stuck", place=_on_two_hosts),
    # Asked from one side, nobody can tell what the ranks on the other do.
    Fault("the link between two network namespaces is cut", "goes on", (), (), 2, _cut_in_two),
)


# -- the demo ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class DemoFault:
    """A fault that the demo meets, in which rank 1 of two is stuck.

    Attributes:
        name: says what is injected.
        place: makes the place, in an empty folder; its ``strike`` is called when snapshots have
            been taken, with the folder of the run.
        at_once: ``strike`` is called with the port of the debug server instead, when the ranks
            are started.
    """

    name: str
    place: Callable[[Path], Place]
    at_once: Callable[[int, threading.Event], object] | None = None


def _processes_of_demo(run_dir: Path) -> dict[str, psutil.Process]:
    """The demo's processes: ``0`` and ``1``, its ranks, and ``front``, the debug server's."""
    found = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.cwd() == str(run_dir) and "RANK" in process.environ():
                is_front = any("spawn_main" in part for part in process.cmdline())
                if is_front or any(DEMO.name in part for part in process.cmdline()):
                    found["front" if is_front else process.environ()["RANK"]] = process
    return found


def _signalled(who: str, number: signal.Signals) -> Callable[[Path], Place]:
    def strike(run_dir: Path) -> None:
        _processes_of_demo(run_dir)[who].send_signal(number)

    return lambda folder: Place(strike=strike)


def _demo_on_a_full_disk(folder: Path) -> Place:
    place = Place(dump_dir=folder / "disk" / "fr_dumps")
    place.undo.enter_context(inject.full_disk(folder / "disk", 4))
    return place


def _with_a_dump_that_blocks(folder: Path) -> Place:
    (folder / "fr_dumps").mkdir()
    os.mkfifo(folder / "fr_dumps" / ".rank_0")
    return Place(dump_dir=folder / "fr_dumps")


def _take_port_when_chosen(port: int, over: threading.Event) -> None:
    """Wait until the demo has put its claim on a port, which is UDP, and listen on it first."""

    def is_claimed() -> bool:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind(("::", port))
            except OSError:
                return True
        return False

    _wait_for(lambda: over.is_set() or is_claimed(), _COME_UP_S)
    with inject.taken_port(port):
        over.wait(RUN_S)


DEMO_FAULTS = (
    DemoFault("demo: the debug server's port is taken", _with_a_taken_port),
    DemoFault(
        "demo: its port is taken after it has chosen it",
        lambda folder: Place(),
        _take_port_when_chosen,
    ),
    DemoFault("demo: no space left for its dumps (tmpfs of 4 KiB)", _demo_on_a_full_disk),
    DemoFault("demo: writing a dump blocks (a pipe nobody reads)", _with_a_dump_that_blocks),
    DemoFault("demo: the stuck rank gets SIGSTOP", _signalled("1", signal.SIGSTOP)),
    DemoFault("demo: the waiting rank gets SIGSTOP", _signalled("0", signal.SIGSTOP)),
    DemoFault("demo: the stuck rank gets SIGKILL", _signalled("1", signal.SIGKILL)),
    DemoFault("demo: the waiting rank gets SIGKILL", _signalled("0", signal.SIGKILL)),
    DemoFault("demo: the debug server gets SIGSTOP", _signalled("front", signal.SIGSTOP)),
    DemoFault("demo: the debug server gets SIGKILL", _signalled("front", signal.SIGKILL)),
)

_DEMO_ENV = {"FR_COMMUNICATOR": "torch", "COMM_TIMEOUT": "8", "FR_DUMP_INTERVAL": "1"}


def _judge_demo(record: RunRecord) -> str:
    """Whether the demo ended well, or said in one line why not."""
    lines = [
        line for line in record.text.splitlines() if line.startswith("verify_flight_recorder: ")
    ]
    # "See the lines above": they are what torch's own server said.
    is_explained = any("see the lines above" in line for line in lines)
    if record.timed_out or ("Traceback" in record.text and not is_explained):
        return WRONG
    if record.exit_status == 0:
        return WRONG if lines else RIGHT
    was_killed = "(SIGKILL)" in record.launcher_output and not lines
    return UNDETERMINED if len(lines) == 1 or was_killed else WRONG


def _demo_answers(record: RunRecord, stuck: int) -> list[Answer]:
    """How the demo ended, and what its dumps tell; it may have left none."""
    said = f"{record.text}{record.launcher_output}"
    return [
        Answer("demo", _judge_demo(record), record.duration_s, said),
        ask("dumps", _analyzer(record.dump_dir), (stuck,)),
    ]


def inject_into_demo(fault: DemoFault, folder: Path) -> Ran:
    """Run the demo with a fault."""
    place, run_dir = fault.place(folder), folder / "run"
    dumps = place.dump_dir or run_dir / "dumps"

    def strike(port: int, over: threading.Event) -> None:
        if fault.at_once:
            fault.at_once(port, over)
            return
        there = _wait_for(lambda: over.is_set() or list(dumps.glob("stacks_*.txt")), RUN_S)
        if there and not over.is_set():
            place.strike(run_dir)

    with place.undo:
        record = run_ranks(
            DEMO,
            nproc=2,
            run_dir=run_dir,
            deadline_s=RUN_S,
            env={**_DEMO_ENV, **place.env},
            meanwhile=strike,
            dump_dir=place.dump_dir,
        )
        return Ran(_demo_answers(record, 1), record.survivors)


def two_demos(folder: Path, *, one_folder: bool) -> Ran:
    """Run two demos at once that want the same port, and perhaps the same folder for dumps.

    Rank 0 is stuck in the one and rank 1 in the other. With one folder, one of them must leave it
    to the other.
    """
    with inject.taken_port() as port:
        pass  # free again, and known

    def run(stuck: int) -> RunRecord:
        return run_ranks(
            DEMO,
            nproc=2,
            run_dir=folder / f"run_{stuck}",
            deadline_s=RUN_S,
            env={**_DEMO_ENV, "DEBUG_PORT": str(port), "HANGING_RANK": str(stuck)},
            dump_dir=folder / ("fr_dumps" if one_folder else f"fr_dumps_{stuck}"),
        )

    with ThreadPoolExecutor(2) as pool:
        records = list(pool.map(run, range(2)))
    answers = [
        answer
        for stuck, record in enumerate(records)
        if not (one_folder and "holds the dumps of another run" in record.text)
        for answer in _demo_answers(record, stuck)
    ]
    if one_folder and len(answers) != 2:
        answers.append(Answer("demo", WRONG, 0, "".join(record.text for record in records)))
    return Ran(answers, [process for record in records for process in record.survivors])


# -- all of it --------------------------------------------------------------------------------


def everything() -> dict[str, Callable[[Path], Ran]]:
    """What is injected, by name."""

    def into_job(fault: Fault, folder: Path) -> Ran:
        with WarmLauncher() as launcher:
            return inject_into_job(fault, folder, launcher)

    return {
        **{fault.name: partial(into_job, fault) for fault in FAULTS},
        **{fault.name: partial(inject_into_demo, fault) for fault in DEMO_FAULTS},
        "two demos at once that want one port": partial(two_demos, one_folder=False),
        "two demos at once that want one folder": partial(two_demos, one_folder=True),
    }


def run_once(name: str) -> Ran | inject.NotPossibleError:
    """Inject something once, in a folder of its own; tell what was not right."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            ran = everything()[name](Path(folder))
        except inject.NotPossibleError as error:
            return error
    for answer in ran.answers:
        print(f"{name}, {answer.asked}: {answer.outcome}, {answer.took_s:.1f} s", flush=True)
        if answer.outcome == WRONG:
            print(answer.said, flush=True)
    return ran


def rows(name: str, runs: Sequence[Ran | inject.NotPossibleError]) -> list[list[str]]:
    """The table's rows about one injection."""
    done = [ran for ran in runs if isinstance(ran, Ran)]
    if not done:
        return [[name, "", f"not possible here: {runs[0]}", *[""] * 5]]
    left = sum(len(ran.left) for ran in done)
    asked: dict[str, list[Answer]] = defaultdict(list)
    for ran in done:
        for answer in ran.answers:
            asked[answer.asked].append(answer)
    table = []
    for what, answers in asked.items():
        counts = Counter(answer.outcome for answer in answers)
        outcomes = [str(counts[outcome]) for outcome in (RIGHT, UNDETERMINED, WRONG)]
        longest = f"{max(answer.took_s for answer in answers):.1f}"
        table.append([name, what, str(len(answers)), *outcomes, longest, str(left)])
    return table


def main() -> None:
    """Inject everything again and again, and keep the table after each time."""
    names = list(everything())
    ran: dict[str, list[Ran | inject.NotPossibleError]] = defaultdict(list)
    for _ in range(RUNS):
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            for name, outcome in zip(names, pool.map(run_once, names), strict=True):
                ran[name].append(outcome)
        table = Table(
            TITLE,
            HEAD,
            [row for name in names for row in rows(name, ran[name])],
        )
        command = "python -m benchmarks.reliability.injected_faults"
        keep("injected_faults", command, [table], ["torch", "fr-analysis"])


if __name__ == "__main__":
    main()
