"""A dump that is like an earlier one of the process is read as if it were the first."""

from __future__ import annotations

import pickle
import pickletools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmarks import torch_pickler
from benchmarks.inputs import LargeJob, dump_of
from tests.hostile.both_ways import assert_same_dump, read_whole

from fr_analysis.errors import UnreadableDump
from fr_analysis.read import alike
from fr_analysis.read.decode import decode_distinct, shorten
from fr_analysis.read.dump import build_dump
from fr_analysis.trace import RankDump

RANKS = range(4, 10)
JOB = LargeJob(ranks=16, entries=300, missing=None, one_group=True)
PARALLEL = LargeJob(ranks=32, entries=300)

Dump = dict[str, Any]
Change = Callable[[Dump, int], Dump]


@pytest.fixture(autouse=True)
def _nothing_known() -> None:
    """No test sees what another has learned."""
    alike.patterns.forget()


def by_torch(content: Dump) -> bytes:
    """The bytes that torch's pickler writes; frames are shared."""
    frames = {id(frame): frame for entry in content["entries"] for frame in entry["frames"]}
    return torch_pickler.dumps(content, list(frames.values()))


def by_python(content: Dump) -> bytes:
    return pickle.dumps(content, protocol=2)


def written(contents: list[bytes], folder: Path) -> list[Path]:
    folder.mkdir(exist_ok=True)
    paths = [folder / f"rank_{rank}" for rank in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    return paths


def rank_of(path: Path) -> int:
    return int(path.name.removeprefix("rank_"))


def read_one(path: Path) -> tuple[RankDump | str, bool]:
    """The dump, or why it is none; and whether its entries were known."""
    (short,) = shorten([path])
    try:
        content, repeats = decode_distinct(path, short)
        dump = build_dump(content, rank_of(path), path, repeats=repeats)
    except UnreadableDump as error:
        return str(error), False
    return dump, short is not None and repeats is not None and short.kept == 0


def assert_same(found: RankDump | str, expected: RankDump | str) -> None:
    if isinstance(expected, str):
        assert found == expected
        return
    assert isinstance(found, RankDump), found
    assert_same_dump(found, expected)


def compare(contents: list[bytes], folder: Path) -> list[bool]:
    """Read dumps both ways; returns of which the entries were known."""
    known = []
    for path in written(contents, folder):
        found, was_known = read_one(path)
        assert_same(found, read_whole(path, rank_of(path)))
        known.append(was_known)
    return known


def as_it_is(content: Dump, rank: int) -> Dump:
    return content


def with_other_times(content: Dump, rank: int) -> Dump:
    """Some without a start or an end; the same ones in all ranks."""
    for at, entry in enumerate(content["entries"]):
        for name in ("time_discovered_started_ns", "time_discovered_completed_ns"):
            entry[name] = None if at % 7 == 3 else (1 << 60) + 1000 * at + rank
    return content


def with_odd_numbers(content: Dump, rank: int) -> Dump:
    """Of every size that a pickler gives a number, and negative."""
    odd = [0, 200 + rank, 60_000 + rank, -1 - rank, (1 << 31) + rank, (1 << 62) + rank]
    for at, entry in enumerate(content["entries"]):
        entry["record_id"] = odd[at // 60]
        entry["time_created_ns"] = -(1 << 40) - rank if at % 5 == 0 else (1 << 61) + rank
    return content


def as_before_2_2(content: Dump, rank: int) -> Dump:
    for entry in content["entries"]:
        entry["seq_id"] = entry.pop("collective_seq_id")
        entry["id"] = entry.pop("record_id")
        entry["process_group"] = entry["process_group"][0]
        del entry["is_p2p"], entry["p2p_seq_id"]
    return content


CHANGES = [as_it_is, with_other_times, with_odd_numbers, as_before_2_2]


@pytest.mark.parametrize("write", [by_torch, by_python])
@pytest.mark.parametrize("change", CHANGES)
def test_ranks_of_one_program(
    change: Change, write: Callable[[Dump], bytes], tmp_path: Path
) -> None:
    contents = [write(change(dump_of(JOB, rank), rank)) for rank in RANKS]
    known = compare(contents, tmp_path)
    assert known == [False, *[True] * 5], known


def test_ranks_of_other_groups_are_told_apart(tmp_path: Path) -> None:
    """What entries refer to by the same number is another text in each dump."""
    contents = [by_torch(dump_of(PARALLEL, rank)) for rank in range(PARALLEL.ranks - 1)]
    compare(contents, tmp_path)


def test_another_name_of_the_group_is_seen(tmp_path: Path) -> None:
    contents = [by_torch(dump_of(JOB, rank)) for rank in RANKS[:3]]
    renamed = contents[1].replace(b"default_pg", b"default_xx")
    assert renamed != contents[1]
    assert compare([contents[0], renamed, contents[2]], tmp_path) == [False, False, True]


def test_what_stands_before_the_entries_is_each_dumps_own(tmp_path: Path) -> None:
    dumps = [dump_of(JOB, rank) for rank in RANKS[:4]]
    dumps[1]["pg_status"]["0"]["last_completed_collective"] = 17
    dumps[2]["version"] = "2.9"
    dumps[3]["pg_config"]["0"]["ranks"] = "[0, 3]"
    assert compare(list(map(by_torch, dumps)), tmp_path) == [False, True, True, True]


@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_dump_is_read_as_without_the_others(seed: int, tmp_path: Path) -> None:
    """Single bytes changed, anywhere, or where the first entries are."""
    chance = random.Random(seed)
    write = (by_torch, by_python)[seed % 2]
    contents = [write(dump_of(JOB, rank)) for rank in RANKS[:2]]
    assert compare(contents, tmp_path) == [False, True]
    good = bytearray(contents[1])
    path = tmp_path / "rank_1"
    for _ in range(60):
        content = good.copy()
        for _ in range(chance.choice([1, 1, 1, 3])):
            at = chance.randrange(len(content) if chance.random() < 0.5 else 6000)
            content[at] = chance.choice([chance.randrange(256), content[at] ^ 1])
        path.write_bytes(content)
        found, _ = read_one(path)
        expected = read_whole(path, rank_of(path))
        if isinstance(expected, str) and (isinstance(found, str) or "memory" in expected):
            continue  # of two reasons either will do; memory depends on what is in use
        assert_same(found, expected)


def test_a_number_given_before_is_not_overlooked(tmp_path: Path) -> None:
    """What stands before the entries takes a number that an entry gives later on."""
    contents = [by_torch(dump_of(JOB, rank)) for rank in RANKS[:2]]
    entries = contents[1].index(b"entries")
    puts = [
        at
        for opcode, _, at in pickletools.genops(contents[1])
        if opcode.name == "BINPUT" and at is not None and at < entries + 10
    ]
    taken = bytearray(contents[1])
    taken[puts[-1] + 1] += 1
    assert compare([contents[0], bytes(taken)], tmp_path) == [False, False]


def test_no_more_is_kept_than_comes_again(tmp_path: Path) -> None:
    for at in range(80):
        job = LargeJob(ranks=4, entries=100 + at, missing=None, one_group=True)
        (path,) = written([by_torch(dump_of(job, 0))], tmp_path)
        read_one(path)
    assert len(alike.patterns._patterns) <= 16
    assert alike.patterns._in_vain == 32
