"""Stacks snapshots: real ones, in ``stacks/``, of torch 2.13's debug server and py-spy 0.4."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

import pytest

from fr_analysis.attribute.frames import code_line, main_thread
from fr_analysis.errors import UnreadableDump
from fr_analysis.read import read_trace
from fr_analysis.read.files import rank_of_stacks_name
from fr_analysis.read.stacks import MAX_BYTES, read_stacks
from fr_analysis.trace import Frame, RankStacks
from plain_dumps import write_job

SAMPLES = Path(__file__).with_name("stacks")


def line_of(stacks: RankStacks) -> Frame | None:
    """Where the rank's program is."""
    thread = main_thread(stacks)
    return code_line(thread.frames) if thread else None


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("stacks_20261130_093942.txt", "/job/train.py"),
        ("pyspy_dump_20261130_093940.txt", "train.py"),
    ],
)
def test_reads_a_snapshot_of_all_ranks(name: str, file: str) -> None:
    stacks = read_stacks(SAMPLES / name)
    assert list(stacks) == [0, 1, 2]
    assert [answer.error for answer in stacks.values()] == [None, None, None]
    assert line_of(stacks[0]) == Frame(file, 370, "wait_for_stuck_rank")
    assert line_of(stacks[1]) == Frame(file, 362, "stuck_in_data_loader")


def test_reads_what_a_partial_snapshot_holds_and_why_the_rest_is_missing() -> None:
    stacks = read_stacks(SAMPLES / "partial.txt")
    assert line_of(stacks[0]) == Frame("/job/train.py", 16, "main")
    assert stacks[1].threads == ()
    assert stacks[1].error is not None
    assert "status 503, ClientOSError: [Errno 104] Connection reset by peer" in stacks[1].error


def test_says_what_a_rank_answered_instead_of_stacks(tmp_path: Path) -> None:
    path = tmp_path / "stacks.txt"
    path.write_text("=== Rank 4: http://a/b? ===\nsh: 1: py-spy: not found\n\n=== Rank 5: c ===\n")
    stacks = read_stacks(path)
    assert stacks[4].error == "no stacks: sh: 1: py-spy: not found"
    assert stacks[5].error == "no stacks: nothing"


@pytest.mark.parametrize("name", ["pyspy_3.txt", "stacks_rank3.txt"])
def test_reads_py_spy_of_one_process_with_or_without_native_frames(name: str) -> None:
    stacks = read_stacks(SAMPLES / name)
    assert list(stacks) == [3]
    assert [len(thread.frames) for thread in stacks[3].threads] == [2, 6]
    assert line_of(stacks[3]) == Frame("load.py", 6, "stuck_in_data_loader")
    assert code_line(stacks[3].threads[1].frames) == Frame("load.py", 10, "prefetch")


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("pyspy_3.txt", 3),
        ("py-spy-12.txt", 12),
        ("stacks_rank3.txt", 3),
        ("stacks_rank_0.txt", 0),
        ("stacks_20261130_093942.txt", None),
        ("stacks.txt", None),
    ],
)
def test_the_rank_in_the_name_of_one_process_s_stacks(name: str, rank: int | None) -> None:
    assert rank_of_stacks_name(name) == rank


def test_refuses_what_holds_no_stacks(tmp_path: Path) -> None:
    path = tmp_path / "stacks_1.txt"
    path.write_text("nothing of the kind")
    with pytest.raises(UnreadableDump, match="holds no stacks"):
        read_stacks(path)
    shutil.copy(SAMPLES / "pyspy_3.txt", tmp_path / "stacks.txt")
    with pytest.raises(UnreadableDump, match=r"name it pyspy_<rank>\.txt"):
        read_stacks(tmp_path / "stacks.txt")
    with pytest.raises(UnreadableDump, match="No such file"):
        read_stacks(tmp_path / "absent.txt")
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(UnreadableDump, match="not a regular file"):
        read_stacks(tmp_path / "pipe.txt")


def test_does_not_read_half_of_a_huge_snapshot(tmp_path: Path) -> None:
    path = tmp_path / "stacks_1.txt"
    with path.open("wb") as stream:
        stream.truncate(MAX_BYTES + 1)
    with pytest.raises(UnreadableDump, match="is larger than 64 MiB"):
        read_stacks(path)


def test_finds_the_newest_snapshot_beside_the_dumps_or_above_them(tmp_path: Path) -> None:
    write_job(tmp_path / "per_rank", world=3)
    shutil.copy(SAMPLES / "stacks_20261130_093942.txt", tmp_path)
    (tmp_path / "stacks_20261130_093000.txt").write_text("=== Rank 0: x ===\nError: 503\n")
    (tmp_path / "stacks_20261130_093001.txt").write_text("no stacks, but older")
    for place in tmp_path, tmp_path / "per_rank":
        trace = read_trace(place)
        assert list(trace.stacks) == [0, 1, 2]
        assert all(stacks.threads for stacks in trace.stacks.values())
        assert trace.unread == ()


def test_joins_several_snapshots_by_rank_and_reports_bad_ones(tmp_path: Path) -> None:
    write_job(tmp_path, world=4)
    bad = tmp_path / "bad.txt"
    bad.write_text("nothing")
    trace = read_trace(tmp_path, stacks=[SAMPLES / "partial.txt", SAMPLES / "pyspy_3.txt", bad])
    assert {rank: bool(found.threads) for rank, found in trace.stacks.items()} == {
        0: True,
        1: False,
        3: True,
    }
    assert [unread.path for unread in trace.unread] == [bad]


def test_any_bytes_are_no_stacks_or_some(tmp_path: Path) -> None:
    whole = (SAMPLES / "partial.txt").read_bytes()
    path = tmp_path / "stacks_1.txt"
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length] + b"\xff\x00")
        with contextlib.suppress(UnreadableDump):
            assert set(read_stacks(path)) <= {0, 1}
