"""Hang or slow: what two looks at a job, and many, make of what the ranks recorded."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fr_analysis import Diagnosis, Verdict
from fr_analysis.live.collect import NoServerError, Snapshot
from fr_analysis.live.fetch import Answer
from fr_analysis.live.judge import examine, moved, read, settle
from fr_analysis.live.watch import End, Watched, watch
from fr_analysis.read.dump import build_dump
from fr_analysis.trace import Silence, Trace
from plain_dumps import Dump, dump, entry


def rank(numbers: range, pending: int | None = None, age_s: float = 0, pause_s: float = 0) -> Dump:
    """A ring buffer of operations ``pause_s`` apart, and one that waits since ``age_s``."""
    now_ns = time.time_ns()
    content = dump(2, 0, pg_status={})
    for at, number in enumerate(reversed(numbers), 1):
        created = now_ns - int((age_s + at * pause_s) * 1e9)
        content["entries"].insert(0, entry(number, time_created_ns=created))
    if pending is not None:
        waits: dict[str, Any] = {"state": "scheduled", "retired": False}
        waits["time_created_ns"] = now_ns - int(age_s * 1e9)
        content["entries"].append(entry(pending, **waits))
    return content


def snapshot(*ranks: Dump | None) -> Snapshot:
    """What was asked at this moment; None for a rank that does not answer."""
    dumps = {
        at: build_dump(content, at, Path(f"host:{at}"))
        for at, content in enumerate(ranks)
        if content is not None
    }
    silent = {at: Answer(1) for at, content in enumerate(ranks) if content is None}  # type: ignore[arg-type]
    return Snapshot(Trace(dumps, expected_world_size=len(ranks)), time.time_ns(), (), silent)


def taking(*snapshots: Snapshot | Exception) -> Callable[[Mapping[int, Answer]], Snapshot]:
    """Take these one after the other, the last again and again."""
    left = list(snapshots)

    def take(silent: Mapping[int, Answer]) -> Snapshot:
        found = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(found, Exception):
            raise found
        return found

    return take


def answer(*snapshots: Snapshot) -> Diagnosis:
    """The answer of one call."""
    return examine(taking(*snapshots), 0.01)[1]


def stuck(age_s: float = 100, pause_s: float = 0.5, step: int = 4) -> Snapshot:
    """Rank 0 waits for rank 1."""
    before = range(step - 3, step)
    return snapshot(rank(before, step, age_s, pause_s), rank(before, None, age_s, pause_s))


def test_progress_is_seen_however_short_the_ring_buffer() -> None:
    """Both hold as many entries of the same kind: only their numbers differ."""
    first, second = (read(snapshot(rank(range(newest - 2, newest + 1)))) for newest in (10, 22))
    assert len(first.snapshot.trace.dumps[0].operations) == 3
    assert moved(first, first) == {}
    assert moved(first, second) == {0: 12}


@pytest.mark.parametrize(
    ("age_s", "pause_s", "verdict"),
    [
        (1, 0.01, Verdict.UNDETERMINED),  # too short for anything
        (4, 0.01, Verdict.FAULT),
        (4, 5, Verdict.UNDETERMINED),  # the job takes as long for every step
        (8, 5, Verdict.FAULT),
        (61, 80, Verdict.FAULT),  # a minute is enough, whatever it did before
        (-3600, 5, Verdict.FAULT),  # the rank's clock is ahead: nothing moved, that is all
    ],
)
def test_a_wait_is_a_hang_when_it_is_longer_than_the_job_paused_before(
    age_s: float, pause_s: float, verdict: Verdict
) -> None:
    found = answer(stuck(age_s, pause_s))
    assert found.verdict is verdict
    assert found.suspects == ((1,) if verdict is Verdict.FAULT else ())
    if verdict is Verdict.UNDETERMINED:
        assert "so it may only be slow; --watch tells" in found.notes[0]
        assert found.wavefront[0].missing == (1,)


def test_a_job_that_moves_is_no_fault() -> None:
    found = answer(stuck(), stuck(step=5))
    assert (found.verdict, found.faults, found.details) == (Verdict.UNDETERMINED, (), ())
    assert found.notes[0].startswith("the job moves: ranks 0, 1 recorded 1 more operation within")


def test_what_the_record_proves_stays_a_fault_while_the_job_moves() -> None:
    def odd(numbers: range) -> Snapshot:
        contents = [rank(numbers, None, 1, 0.1) for _ in range(3)]
        for content in contents:
            for held in content["entries"]:
                held |= {"profiling_name": "gloo:all_reduce", "state": "scheduled"}
        contents[2]["entries"][1]["input_dtypes"] = ["Int"]
        return snapshot(*contents)

    first, second = read(odd(range(1, 5))), read(odd(range(1, 6)))
    assert moved(first, second)
    assert settle(first, second).suspects == (2,)


def test_a_fault_that_is_left_out_takes_its_verdict_along() -> None:
    """What is left blames nobody: rank 2 cannot be reached. Rank 3 was late, and has come."""

    def two_pairs(newest: int) -> Snapshot:
        contents = [
            rank(range(1, 4), 4, 100, 0.5),
            rank(range(1, newest), newest, 100, 0.5),
            rank(range(1, newest), None, 100, 0.5),
        ]
        for content, name, members in zip(contents, "abb", ([0, 2], [1, 3], [1, 3]), strict=True):
            content["pg_config"] = {name: {"name": name, "desc": "dp", "ranks": str(members)}}
            for held in content["entries"]:
                held["process_group"] = (name, "dp")
        taken = snapshot(contents[0], contents[1], None, contents[2])
        lost = {2: Silence("no route to host", is_reached=False)}
        return replace(taken, trace=replace(taken.trace, silences=lost))

    assert read(two_pairs(4)).diagnosis.suspects == (3,)
    found = answer(two_pairs(4), two_pairs(5))
    assert [fault.suspects for fault in found.faults] == [()]
    assert (found.verdict, found.suspects, found.victims) == (Verdict.UNDETERMINED, (), (0,))


GONE = NoServerError("http://x: connection refused", is_gone=True)


def look(*snapshots: Snapshot | Exception, stuck_after_s: float = 0.15) -> tuple[Watched, str]:
    """Watch, many times a second."""
    lines: list[str] = []
    return watch(taking(*snapshots), 0.03, stuck_after_s, lines.append), "\n".join(lines)


def test_a_watch_ends_when_the_same_front_has_lasted() -> None:
    began = time.monotonic()
    watched, said = look(stuck(step=4), stuck(step=5), stuck(step=6))
    assert (watched.end, watched.stands) == (End.STUCK, True)
    assert watched.diagnosis is not None
    assert watched.diagnosis.suspects == (1,)
    assert time.monotonic() - began >= 0.15
    first, *moving = said.splitlines()[:3]
    assert first == "waiting: rank 0 waits for rank 1 in all_reduce #4 of group 0"
    assert moving == ["moving: ranks 0, 1 recorded 1 more operation"] * 2
    assert "stuck for 0 s: suspect rank 1; rank 0 waits for rank 1 in all_reduce #6" in said


def test_a_hang_of_some_ranks_is_seen_while_others_move() -> None:
    """Ranks 2 and 3 go on in a group of their own."""

    def beside(newest: int) -> Snapshot:
        hanging = [rank(range(1, 4), 4, 100, 0.5), rank(range(1, 4), None, 100, 0.5)]
        others = [dump(2, newest), dump(2, newest)]
        for content, members in zip(
            [*hanging, *others], ["[0, 1]"] * 2 + ["[2, 3]"] * 2, strict=True
        ):
            name = members[1]
            content["pg_config"] = {name: {"name": name, "desc": "dp", "ranks": members}}
            content["pg_status"] = {}
            for held in content["entries"]:
                held["process_group"] = (name, "dp")
        return snapshot(*hanging, *others)

    watched, _ = look(*(beside(newest) for newest in range(3, 60)))
    assert watched.end is End.STUCK
    assert watched.diagnosis is not None
    assert watched.diagnosis.suspects == (1,)


def test_a_missing_rank_that_works_elsewhere_is_slow_not_stuck() -> None:
    """Rank 0 waits in the same place all the time, and rank 1 goes on in a group of its own."""

    def busy(steps: int) -> Snapshot:
        waits, late = rank(range(1, 4), 4, 100, 0.5), rank(range(1, 4), None, 100, 0.5)
        for content, last in ((waits, 4), (late, 3)):
            content["pg_status"] = {"0": {"last_enqueued_collective": last}}
        late["entries"] += [
            entry(number, group=("7", "own"), pg_id=1, record_id=2 + number)
            for number in range(1, steps)
        ]
        return snapshot(waits, late)

    lasting = [busy(steps) for steps in range(2, 12)]
    watched, said = look(*lasting, GONE)
    assert watched.end is End.GONE
    assert "stuck" not in said, said
    assert "moving: rank 1 recorded 1 more operation" in said


def test_nobody_answers_for_long() -> None:
    watched, said = look(stuck(), snapshot(None, None))
    assert watched.end is End.STUCK
    assert "waiting for 0 s: nobody answers; no answer of ranks 0, 1" in said


@pytest.mark.parametrize(
    ("seen", "stands"),
    [
        ([stuck(), stuck(step=5)], False),
        ([snapshot(rank(range(1, 4)), rank(range(1, 4)))] * 2, False),
        # Ranks end one by one: what only the last look shows is no verdict.
        ([snapshot(rank(range(1, 4)), rank(range(1, 4))), stuck()], False),
        ([stuck(), stuck()], True),
    ],
    ids=["moving", "quiet", "ending", "hung"],
)
def test_the_end_of_the_job(
    seen: list[Snapshot], stands: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fr_analysis.live.watch.RETRY_S", 0.01)
    watched, said = look(*seen, GONE, stuck_after_s=30)
    assert (watched.end, watched.stands) == (End.GONE, stands)
    assert "the debug server has gone, so the job has ended" in said


def test_a_rank_that_was_missed_to_the_end_is_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last look shows the others move, in that what waited for the dead rank fails."""
    monkeypatch.setattr("fr_analysis.live.watch.RETRY_S", 0.01)
    waits, failed = rank(range(1, 4), 4, 100, 0.5), rank(range(1, 5), None, 100, 0.5)
    missed = [snapshot(waits, None)] * 2
    watched, _ = look(*missed, snapshot(failed, None), GONE, stuck_after_s=30)
    assert watched.diagnosis is not None
    assert (watched.stands, watched.diagnosis.suspects) == (True, (1,))
    back = snapshot(failed, rank(range(1, 5), None, 100, 0.5))
    watched, _ = look(*missed, back, GONE, stuck_after_s=30)
    assert not watched.stands


@pytest.mark.parametrize(
    ("seen", "stands"), [([stuck(), stuck(step=5)], False), ([stuck(), stuck()], True)]
)
def test_no_answer_is_not_the_end_of_the_job(
    seen: list[Snapshot], stands: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fr_analysis.live.watch.RETRY_S", 0.01)
    watched, said = look(*seen, NoServerError("http://x: no answer within 1 s"))
    assert (watched.end, watched.stands) == (End.UNREACHED, stands)
    assert said.endswith("is not known: http://x: no answer within 1 s")
    assert "has ended:" not in said


def test_a_server_that_fails_once_has_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fr_analysis.live.watch.RETRY_S", 0.01)
    late = NoServerError("http://x: no answer within 1 s")
    watched, said = look(stuck(), GONE, late, late, stuck(), stuck())
    assert watched.end is End.STUCK
    assert said.count("http://x: no answer within 1 s") == 2


def test_no_server_at_the_first_look() -> None:
    with pytest.raises(NoServerError):
        look(GONE)
