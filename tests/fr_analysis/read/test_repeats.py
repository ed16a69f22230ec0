"""A dump read without the entries that repeat others says the same as one read whole."""

from __future__ import annotations

import io
import pickle
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmarks import torch_pickler
from benchmarks.inputs import LargeJob, dump_of
from tests.hostile.both_ways import RANK, assert_same, compare, read_whole

from fr_analysis.read.dump import build_dump
from fr_analysis.read.repeats import shortened
from fr_analysis.trace import RankDump

JOB = LargeJob(ranks=32, entries=400)

RECORDS = """
import os, sys
import torch, torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace
os.environ.update(MASTER_ADDR="localhost", RANK="0", WORLD_SIZE="1", TORCH_FR_BUFFER_SIZE="700")
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
def step(number):
    data = torch.ones(2 + number % 3, 300)
    dist.all_reduce(data)
    if number % 2:
        dist.broadcast(data.to(torch.int32), 0)
for number in range(600):
    step(number)
open(sys.argv[1], "wb").write(_dump_fr_trace(True, True, False))
"""


@pytest.fixture(scope="module")
def by_torch(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A dump as torch's own pickler writes it: 700 entries of a ring that has wrapped."""
    target = tmp_path_factory.mktemp("torch") / "trace_0"
    subprocess.run([sys.executable, "-c", RECORDS, target], check=True, timeout=120)
    return target.read_bytes()


def pickled(content: object, protocol: int = 2) -> bytes:
    return pickle.dumps(content, protocol=protocol)


def with_transfers(content: dict[str, Any]) -> dict[str, Any]:
    """Every fifth entry is a send."""
    for at, entry in enumerate(content["entries"]):
        if at % 5 == 0:
            entry |= {"is_p2p": True, "profiling_name": f"nccl:send 3->{at % 4}"}
            entry |= {"collective_seq_id": 7, "p2p_seq_id": at // 5}
    return content


def as_before_2_2(content: dict[str, Any]) -> dict[str, Any]:
    """Numbers are in ``seq_id`` and ``id``, and nothing tells transfers."""
    for entry in content["entries"]:
        entry["seq_id"] = entry.pop("collective_seq_id")
        entry["id"] = entry.pop("record_id")
        del entry["is_p2p"], entry["p2p_seq_id"]
    return content


def with_odd_numbers(content: dict[str, Any]) -> dict[str, Any]:
    """Numbers of every size, negative ones, floats and texts among them."""
    odd = [0, -1, 255, 256, 65_536, -(1 << 31), 1 << 31, (1 << 63) - 1, 1 << 70, 2.5, "12", None]
    for at, entry in enumerate(content["entries"]):
        entry["time_created_ns"] = odd[at // 20 % len(odd)]
        entry["collective_seq_id"] = odd[at // 7 % len(odd)]
    return content


def as_it_is(content: dict[str, Any]) -> dict[str, Any]:
    return content


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("change", [as_it_is, with_transfers, as_before_2_2, with_odd_numbers])
def test_the_same_as_read_whole(
    protocol: int, change: Callable[[dict[str, Any]], dict[str, Any]], tmp_path: Path
) -> None:
    content = change(dump_of(JOB, RANK))
    assert compare(pickled(content, protocol), tmp_path)


def test_the_same_as_read_whole_from_torch(by_torch: bytes, tmp_path: Path) -> None:
    assert compare(by_torch, tmp_path)
    (short,) = shortened([by_torch])
    assert short is not None
    assert len(short.repeats.entry) == 700
    assert short.kept < 50
    assert len(short.content) < len(by_torch) / 10


def test_dumps_made_for_measuring_are_as_torch_writes_them(by_torch: bytes) -> None:
    content = pickle.loads(by_torch)  # noqa: S301 (made here)
    frames = [frame for entry in content["entries"] for frame in entry["frames"]]
    assert torch_pickler.dumps(content, [*frames, content]) == by_torch


def test_most_is_left_out() -> None:
    (short,) = shortened([pickled(dump_of(JOB, RANK))])
    assert short is not None
    assert (len(short.repeats.entry), short.kept < 60) == (401, True)


def test_an_entry_that_differs_in_anything_else_is_kept() -> None:
    content = dump_of(JOB, RANK)
    for at, (name, value) in enumerate(
        {
            "profiling_name": "nccl:all_to_all",
            "process_group": ("1", "other"),
            "pg_id": 2,
            "input_sizes": [[4096, 1025]],
            "output_sizes": [],
            "input_dtypes": ["Float"],
            "state": "scheduled",
            "retired": False,
            "is_p2p": True,
            "timeout_ms": 5,
            "frames": [],
            "something": "else",
        }.items()
    ):
        content["entries"][200 + at][name] = value
    (short,) = shortened([pickled(content)])
    assert short is not None
    kept = pickle.loads(short.content)["entries"]  # noqa: S301 (made here)
    wanted = content["entries"][200:212]
    assert [kept[short.repeats.entry[200 + at]] for at in range(12)] == wanted


def _shared(content: dict[str, Any]) -> bytes:
    """Objects of one entry are used by later ones, also by those after entries left out."""
    sizes: list[list[int]] = []
    for at, entry in enumerate(content["entries"]):
        if at % 50 == 0:
            sizes = [[at, 2]]
        entry["input_sizes"] = sizes
    return pickled(content)


def _text_like_entries(content: dict[str, Any]) -> bytes:
    """A text holds the bytes of entries."""
    plain = pickled(content)
    start = plain.index(b"retired")
    text = plain[start : start + 20_000].decode("latin-1")
    content["comm_lib_version"] = "".join(c for c in text if c.isascii())
    return pickled(content)


def _two_lists(content: dict[str, Any]) -> bytes:
    """Another list holds entries too."""
    more = dump_of(JOB, RANK + 1)["entries"]
    return pickled({"older": more[:200], **content, "newer": more[200:]})


def _no_dicts(content: dict[str, Any]) -> bytes:
    content["entries"][100:200:3] = [None, 5, "x", []] * 8 + [[]] * 2
    return pickled(content)


def _twice(content: dict[str, Any]) -> bytes:
    """The key ``entries`` is there twice: the last one counts."""
    one = pickled({"entries": content["entries"][:150]})
    other = pickled(content)
    return other[:-2] + b"X\x07\x00\x00\x00entries" + _inner(one) + b"u."


def _inner(one: bytes) -> bytes:
    """The list in a pickle of a dictionary of one key, without numbers given and referred to."""
    out = io.BytesIO()
    pickler = pickle.Pickler(out, 2)
    pickler.fast = True
    pickler.dump(pickle.loads(one)["entries"])  # noqa: S301 (made here)
    return out.getvalue()[2:-1]


@pytest.mark.parametrize(
    "make", [_shared, _text_like_entries, _two_lists, _no_dicts, _twice], ids=lambda f: f.__name__
)
def test_what_is_not_regular_is_read_right_all_the_same(
    make: Callable[[dict[str, Any]], bytes], tmp_path: Path
) -> None:
    compare(make(dump_of(JOB, RANK)), tmp_path)


def test_several_at_once_as_one_after_the_other(by_torch: bytes) -> None:
    """Of two jobs, one of them cut short in the middle, one of them too small."""
    ours = [pickled(dump_of(JOB, rank)) for rank in range(3)]
    contents = [ours[0], by_torch, ours[1][:-5000], ours[1], b"\x80\x02N.", by_torch, ours[2]]
    found = shortened(contents)
    assert [short is None for short in found] == [False, False, True, False, True, False, False]
    for content, short in zip(contents, found, strict=True):
        if short is not None:
            plain = pickle.loads(short.content)  # noqa: S301 (made here)
            assert short.holds(plain)
            assert_same(
                build_dump(plain, RANK, Path("here"), repeats=short.repeats),
                build_dump(pickle.loads(content), RANK, Path("here")),  # noqa: S301 (made here)
            )


def test_a_number_given_twice_is_not_taken_for_the_first(tmp_path: Path) -> None:
    """What all entries refer to is given its number again, by an entry that looks like others."""
    plain = pickled(dump_of(JOB, RANK))
    middle = plain.index(b"}r", len(plain) // 2)
    assert plain[middle + 6 : middle + 8] == b"(h"
    frame = re.search(rb"]r....\(h(.)", plain[middle:], re.DOTALL)
    assert frame is not None
    again = plain[: middle + 2] + frame[1] + bytes(3) + plain[middle + 6 :]
    assert compare(plain, tmp_path)
    assert not compare(again, tmp_path)
    changed = read_whole(tmp_path / f"rank_{RANK}")
    assert isinstance(changed, RankDump)
    assert "?" in {frame.name for stack in changed.stacks for frame in stack}


@pytest.mark.parametrize("protocol", [4, 5])
def test_values_that_are_numbered_by_counting_are_read_whole(protocol: int, tmp_path: Path) -> None:
    assert not compare(pickled(dump_of(JOB, RANK), protocol), tmp_path)


@pytest.mark.parametrize("seed", range(8))
def test_damaged_dumps_read_the_same(seed: int, by_torch: bytes, tmp_path: Path) -> None:
    """Bytes changed, cut out or doubled at random: whatever becomes of it, both ways agree."""
    random_ = random.Random(seed)
    whole = by_torch if seed % 2 else pickled(dump_of(JOB, RANK), 2 + seed % 4 // 2)
    left_out = 0
    for _ in range(60):
        content = bytearray(whole)
        for _ in range(random_.randint(1, 3)):
            at = random_.randrange(len(content))
            match random_.randrange(4):
                case 0:
                    content[at] ^= 1 << random_.randrange(8)
                case 1:
                    content[at] = random_.choice(b"}](u\x86eahqKMJN.\x94\x95")
                case 2:
                    del content[at : at + random_.randint(1, 300)]
                case 3:
                    content[at:at] = content[at : at + random_.randint(1, 300)]
        left_out += compare(bytes(content), tmp_path)
    assert left_out  # so that both ways were taken
