"""From plain data to columns: versions, missing fields, odd values, and hostile sizes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fr_analysis.errors import UnreadableDump
from fr_analysis.read.dump import MAX_FRAMES, MAX_OPERATIONS, build_dump, parse_ranks
from fr_analysis.trace import UNKNOWN, Completion, Frame, GroupName, RankDump
from plain_dumps import NANOSECONDS, Dump, dump, entry

SOURCE = Path("rank_0")

# Which field came with which version of the dump format.
CAME_WITH: dict[str, tuple[str, ...]] = {
    "2.2": (
        "collective_seq_id",
        "p2p_seq_id",
        "is_p2p",
        "input_dtypes",
        "output_dtypes",
        "timeout_ms",
    ),
    "2.3": ("pg_status",),
    "2.9": ("thread_id", "thread_name"),
}
VERSIONS = ("2.0", "2.1", "2.2", "2.3", "2.4", "2.5", "2.6", "2.7", "2.8", "2.9", "2.10")


def build(content: object, rank: int = 0) -> RankDump:
    """Build rank 0's dump."""
    return build_dump(content, rank, SOURCE)


def of_version(version: str, content: Dump) -> Dump:
    """Take out what a version did not have yet."""
    age = VERSIONS.index(version)
    gone = {
        field
        for came, fields in CAME_WITH.items()
        if age < VERSIONS.index(came)
        for field in fields
    }
    entries = [
        {key: value for key, value in made.items() if key not in gone}
        | ({"seq_id": made["collective_seq_id"]} if "collective_seq_id" in gone else {})
        for made in content["entries"]
    ]
    kept = {key: value for key, value in content.items() if key not in gone}
    return {**kept, "entries": entries, "version": version}


@pytest.mark.parametrize("version", VERSIONS)
def test_reads_every_version(version: str) -> None:
    read = build(of_version(version, dump()))
    assert read.version == version
    assert read.operations.number.tolist() == [1, 2, 3]
    assert read.operations.completion.tolist() == [Completion.COMPLETED] * 3
    assert read.groups == (GroupName("0", "default_pg"),)
    assert read.signatures[0].input_sizes == ((4, 8),)
    assert read.signatures[0].input_dtypes == (
        ("Float",) if VERSIONS.index(version) >= VERSIONS.index("2.2") else None
    )
    assert read.stacks[0][1] == Frame("/job/train.py", 42, "step")
    assert read.world == (0, 1)


@pytest.mark.parametrize(
    ("name", "is_p2p"),
    [("nccl:send 0->1", True), ("nccl:recv 1<-0", True), ("nccl:all_reduce", False)],
)
def test_knows_transfers_of_very_old_entries_by_their_name(name: str, is_p2p: bool) -> None:
    old = {"profiling_name": name, "seq_id": 7, "state": "scheduled"}
    read = build({"version": "2.0", "entries": [old]})
    assert read.operations.is_p2p.tolist() == [is_p2p]
    assert read.operations.number.tolist() == [7]
    assert read.operations.completion.tolist() == [Completion.PENDING]


@pytest.mark.parametrize("field", entry(1))
def test_any_field_of_an_entry_may_be_missing(field: str) -> None:
    made = entry(1)
    del made[field]
    assert len(build({**dump(), "entries": [made, entry(2)]}).operations) == 2


@pytest.mark.parametrize("field", ["version", "pg_config", "pg_status", "entries"])
def test_any_part_of_a_dump_may_be_missing(field: str) -> None:
    content = dump()
    del content[field]
    assert len(build(content).operations) == (0 if field == "entries" else 3)


ODD_VALUES: list[Any] = [
    None,
    True,
    -1,
    1 << 63,
    10**400,
    1.5,
    float("nan"),
    "",
    "x" * 10_000,
    "\ud800\x1b[31m",
    "²",
    "--5",
    "9" * 19,
    "9" * 5000,
    b"bytes",
    [],
    [[]],
    [None],
    ["x", 1],
    [[1, "x"]],
    (1, 2, 3),
    {},
    {"x": {"y": 1}},
    {1},
    bytearray(3),
]


@pytest.mark.parametrize("value", ODD_VALUES, ids=[str(at) for at in range(len(ODD_VALUES))])
def test_an_odd_value_anywhere_is_unknown_but_no_error(value: object) -> None:
    for field in entry(1):
        read = build({**dump(), "entries": [entry(1, **{field: value}), entry(2)]})
        assert read.operations.number[-1] == 2
    status = {"last_enqueued_collective": value, "last_completed_collective": value}
    for part in (
        {"pg_status": {"0": value}},
        {"pg_status": {"0": status}},
        {"pg_status": value},
        {"pg_config": {"0": value}},
        {"pg_config": {"0": {"desc": value, "ranks": value}}},
        {"pg_config": value},
        {"health_check_results": {"gpu": value}},
        {"health_check_results": value},
        {"entries": [value]},
    ):
        build({**dump(), **part})
    if isinstance(value, str | int | float) or value is None:
        build({**dump(), "pg_status": {value: status}, "pg_config": {value: {"ranks": "[0]"}}})


def test_texts_can_be_printed() -> None:
    names = ("t\x1b[31m\ud800é", "d\n")
    read = build({**dump(), "entries": [entry(1, group=names)], "pg_config": {}})
    assert read.groups == (GroupName("t?[31m?é", "d?"),)


@pytest.mark.parametrize(
    ("value", "ranks"),
    [
        ([0, 1], (0, 1)),
        ((1, 0), (0, 1)),
        ("[0, 1]", (0, 1)),
        ("[0,1]", (0, 1)),
        (" ( 3 , 1,) ", (1, 3)),
        ("0-3", (0, 1, 2, 3)),
        ("5", (5,)),
        ("[]", None),
        ("", None),
        ([], None),
        ("3-0", None),
        ("[0, 1000000]", None),
        ([0, -1], None),
        ([True], None),
        ("[0, [1]]", None),
        ("[0 1]", None),
        ("__import__('os').system('true')", None),
        ("[0 for _ in iter(int, 1)]", None),
        ("(" * 100_000, None),
        ("9" * 100_000, None),
        ("[" + "1," * 20_000_000, None),
        ({"0": 1}, None),
    ],
)
def test_reads_ranks_however_they_are_written_and_evaluates_none(
    value: object, ranks: tuple[int, ...] | None
) -> None:
    assert parse_ranks(value) == ranks


def test_a_null_time_of_a_json_dump_is_no_time() -> None:
    times = dict.fromkeys(("time_discovered_started_ns", "time_discovered_completed_ns"), 0)
    made = entry(1, state="scheduled", retired=False, **times)
    operations = build({**dump(), "entries": [made], "pg_status": {}}).operations
    assert operations.started_ns.tolist() == operations.completed_ns.tolist() == [UNKNOWN]
    assert operations.created_ns.tolist() == [NANOSECONDS + 1]
    assert operations.completion.tolist() == [Completion.PENDING]
    assert not operations.started[0]


def test_times_that_no_clock_shows_are_no_times() -> None:
    for absurd in (-1, 1 << 62, (1 << 63) - 1, 1 << 80, 1e18, float("nan")):
        made = entry(1, time_created_ns=absurd)
        assert build({**dump(), "entries": [made]}).operations.created_ns.tolist() == [UNKNOWN]


# -- hostile sizes: kilobytes that name one part a million times -----------------------


def timed(content: Dump) -> RankDump | str:
    """Build a dump, in bounded time."""
    start = time.monotonic()
    try:
        return build(content)
    except UnreadableDump as reason:
        return str(reason)
    finally:
        assert time.monotonic() - start < 20


def test_bounds_the_number_of_entries() -> None:
    result = timed({**dump(), "entries": [entry(1)] * (MAX_OPERATIONS + 1)})
    assert "more than any ring buffer holds" in str(result)


def test_parses_a_part_once_however_often_it_is_named() -> None:
    frames = [{"filename": "a", "line": 1, "name": "f"}] * 100_000
    sizes = [[1, 2, 3]] * 100_000
    one = entry(1, frames=frames, input_sizes=sizes, input_dtypes=["Float"] * 100_000)
    result = timed({**dump(), "entries": [one] * 100_000})
    assert isinstance(result, RankDump)
    assert len(result.operations) == 100_000
    assert len(result.signatures) == len(result.stacks) == 1
    assert len(result.stacks[0]) == MAX_FRAMES


def test_bounds_dimensions_groups_and_members() -> None:
    shapes = [[7] * 1_000_000] * 1000
    result = timed({**dump(), "entries": [entry(1, input_sizes=shapes)]})
    assert isinstance(result, RankDump)
    assert result.signatures[0].input_sizes is None
    everybody = {"desc": "", "ranks": "0-999999"}
    config = {str(name): everybody for name in range(1000)}
    assert "ranks together" in str(timed({**dump(), "pg_config": config}))
    config = {str(name): {} for name in range(100_001)}
    assert "process groups" in str(timed({**dump(), "pg_config": config}))


def test_a_structure_that_holds_itself_is_read() -> None:
    knot: list[Any] = []
    knot.append(knot)
    loop: Dump = dump(entries=1)
    loop["pg_status"] = loop
    loop["entries"] += [knot, entry(2, input_sizes=knot, frames=knot)]
    assert np.array_equal(build(loop).operations.number, [1, 2])
