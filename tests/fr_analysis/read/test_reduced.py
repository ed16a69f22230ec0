"""Reduced files: the same answer as from the dumps, and nothing but one line from damaged ones."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import pickle
import random
import re
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from benchmarks.inputs import LargeJob, write_dump
from tests.made_jobs import faults
from tests.made_jobs.dumps import Dumps, gloo, nccl, torchcomms
from tests.made_jobs.dumps import write as write_dumps
from tests.made_jobs.programs import Layout, train

from fr_analysis import FrAnalysisError, Verdict, analyze, diagnosis_as_dict
from fr_analysis.attribute import attribute
from fr_analysis.cli import main
from fr_analysis.errors import UnreadableDump
from fr_analysis.match import match
from fr_analysis.read import read_trace
from fr_analysis.read.files import is_reduced
from fr_analysis.read.reduced import read_reduced
from fr_analysis.reduce import reduce
from fr_analysis.trace import RankDump, Trace
from plain_dumps import Dump, dump, entry, write, write_job
from support import ROOT
from support import fr_analysis as run

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

CASES = ROOT.parent / "shared" / "cases"
FOUND = sorted(path.parent for path in CASES.glob("*/expected.json"))
SNAPSHOTS = Path(__file__).with_name("stacks")
HANG = ROOT / "tests" / "data" / "gloo_hang_3ranks"


def report_of(trace: Trace) -> dict[str, Any]:
    """The report, without the folders that the files were in."""
    report = diagnosis_as_dict(attribute(match(trace)))
    for unread in report["unread"]:
        unread["path"] = Path(unread["path"]).name
        unread["reason"] = re.sub(r"/\S+/", "", unread["reason"])
    return report


def plain(found: RankDump) -> dict[str, Any]:
    """All that a dump holds, apart from where it was."""
    held = {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}
    del held["source"]
    held["operations"] = {
        field.name: (column.dtype, column.tolist())
        for field in dataclasses.fields(found.operations)
        for column in [getattr(found.operations, field.name)]
    }
    return held


def assert_same(dumps: Trace, reduced: Trace) -> None:
    """Both say the same, down to every column."""
    assert list(reduced.dumps) == list(dumps.dumps)
    for rank, found in dumps.dumps.items():
        assert plain(reduced.dumps[rank]) == plain(found), rank
    assert {rank: (s.threads, s.error) for rank, s in reduced.stacks.items()} == {
        rank: (s.threads, s.error) for rank, s in dumps.stacks.items()
    }
    assert report_of(reduced) == report_of(dumps)


def assert_reduces(folder: Path, to: Path, **options: Any) -> None:
    """The analysis of a folder's reduced file is that of the folder."""
    ft = {name: options[name] for name in ("transform_ft", "group_world_size") if name in options}
    reduce(folder, to / "all.parquet", **options)
    assert_same(read_trace(folder, **options), read_trace(to / "all.parquet", **ft))


# -- the same answer -------------------------------------------------------------------


@pytest.mark.skipif(not FOUND, reason=f"no cases in {CASES}")
@pytest.mark.parametrize("case", FOUND, ids=lambda case: case.name)
def test_real_dumps_in_one_file_and_by_node(case: Path, tmp_path: Path) -> None:
    expected = json.loads((case / "expected.json").read_text())
    for pattern in filter(None, (expected["pattern"], expected.get("json_pattern"))):
        folder, _, names = pattern.rpartition("/")
        to = tmp_path / (folder or "top")
        to.mkdir()
        whole = read_trace(case / folder, pattern=names)
        reduce(case / folder, to / "all", pattern=names)
        assert_same(whole, read_trace(to / "all"))
        nodes = to / "nodes"
        nodes.mkdir()
        ranks = {found.source: rank for rank, found in whole.dumps.items()}
        by_rank = sorted(ranks, key=lambda source: ranks[source])
        for at, first in enumerate(range(0, len(by_rank), 2)):
            copies = to / f"copies_{at}"
            copies.mkdir()
            for source in by_rank[first : first + 2]:
                shutil.copy2(source, copies)
            reduce(copies, nodes / f"node_{at}.parquet")
        assert {rank: plain(found) for rank, found in read_trace(nodes).dumps.items()} == {
            rank: plain(found) for rank, found in whole.dumps.items()
        }
        assert report_of(read_trace(nodes / "node_*")) == report_of(
            dataclasses.replace(read_trace(case / folder, pattern=names), stacks={})
        )


SMALL = Layout(2, 2, 2)
FLAT = Layout(2, 4, 1)
MADE: dict[str, Callable[[], Dumps]] = {
    "healthy": lambda: nccl(train(SMALL)),
    "batches": lambda: nccl(train(SMALL, batched=True)),
    "asleep": lambda: nccl(faults.asleep(train(SMALL), [5], "dp", -1)),
    "dead": lambda: nccl(faults.dead(train(SMALL), [2], "tp")),
    "size": lambda: nccl(faults.other_size(train(SMALL), [3], "tp")),
    "skipped": lambda: gloo(faults.skipped(train(FLAT), [6], "dp")),
    "operation": lambda: torchcomms(faults.other_operation(train(FLAT), [1], "tp")),
    "splits": lambda: nccl(
        faults.other_splits(faults.all_to_all(SMALL, train(SMALL), "dp"), [4], "dp")
    ),
}


@pytest.mark.parametrize("made", MADE)
def test_made_jobs_of_two_nodes(made: str, tmp_path: Path) -> None:
    dumps = MADE[made]()
    folder = write_dumps(dumps, tmp_path / "dumps", "rank_")
    assert_reduces(folder, tmp_path)
    nodes = tmp_path / "nodes"
    for node in (0, 1):
        (nodes / str(node)).mkdir(parents=True)
        reduce(f"{folder}/rank_[{'0-3' if node == 0 else '4-7'}]", nodes / str(node) / "reduced")
    assert_same(read_trace(folder), read_trace(nodes))
    # One node reduced, the other not; and reduced files reduced to one.
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    shutil.copy(nodes / "0" / "reduced", mixed)
    for rank in dumps.keys() & {4, 5, 6, 7}:
        shutil.copy2(folder / f"rank_{rank}", mixed)
    assert_same(read_trace(folder), read_trace(mixed))
    reduce(nodes, tmp_path / "again.parquet")
    assert_same(read_trace(folder), read_trace(tmp_path / "again.parquet"))


def later(content: Dump, by_ns: int) -> Dump:
    """The same dump, recorded later."""
    entries = [{**e, "time_created_ns": e["time_created_ns"] + by_ns} for e in content["entries"]]
    return {**content, "entries": entries}


def folder_of_everything(folder: Path) -> Path:
    """Doubles, a left-over, damaged and foreign files, a wrong name, snapshots good and bad."""
    write_job(folder, world=6)
    write(folder / "host_rank_1", later(dump(6, entries=5), 10**9))
    write(folder / "rank_2", later(dump(6), -3600 * 10**9))
    (folder / "rank_3").write_bytes(pickle.dumps(dump(6), 2)[:87])
    (folder / "rank_3.json").write_text(json.dumps(dump(6)))
    write(folder / "rank_4", {**dump(6), "rank": 5})
    (folder / "rank_7").write_text("a log")
    (folder / "log_of_4").write_text("a log")
    (folder / "rank_8").mkdir()
    write(folder / f"rank_{10**12}", dump(6))
    shutil.copy(SNAPSHOTS / "stacks_20261130_093942.txt", folder)
    shutil.copy(SNAPSHOTS / "partial.txt", folder / "stacks_partial.txt")
    (folder / "stacks_9.txt").write_text("nothing")
    return folder


def test_a_folder_of_everything(tmp_path: Path) -> None:
    folder = folder_of_everything(tmp_path / "dumps")
    assert_reduces(folder, tmp_path)
    trace = read_trace(tmp_path / "all.parquet")
    assert {unread.path.name for unread in trace.unread} == {
        *("rank_1", "rank_2", "rank_3", "rank_4", "rank_7", "rank_8", f"rank_{10**12}"),
        "stacks_9.txt",
    }
    assert all(unread.path.parent.name == "all.parquet" for unread in trace.unread)
    assert len(trace.stacks) == 3


def test_runs_and_left_over_dumps_are_told_apart_over_all_nodes(tmp_path: Path) -> None:
    write_job(tmp_path / "dumps", world=4)
    for rank in range(2):
        write(tmp_path / "dumps" / f"rank_{rank}", later(dump(2), 10**9))
    nodes = tmp_path / "nodes"
    nodes.mkdir()
    reduce(tmp_path / "dumps" / "rank_[01]", nodes / "a")
    reduce(tmp_path / "dumps" / "rank_[23]", nodes / "b")
    assert_same(read_trace(tmp_path / "dumps"), read_trace(nodes))
    assert len(read_trace(nodes).unread) == 2


def test_files_are_reported_in_the_order_of_ranks_whatever_the_nodes_are_called(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "dumps"
    write_job(folder, world=6)
    for rank in range(2):
        write(folder / f"rank_{rank}", later(dump(2), 10**9))
    for rank in (7, 9):
        (folder / f"rank_{rank}").write_bytes(b"")
    nodes = tmp_path / "nodes"
    nodes.mkdir()
    reduce(folder / "rank_[459]", nodes / "a")
    reduce(folder / "rank_[012367]", nodes / "b")
    assert_same(read_trace(folder), read_trace(nodes))
    assert [unread.path.name for unread in read_trace(nodes).unread] == [
        f"rank_{rank}" for rank in (7, 9, 2, 3, 4, 5)
    ]


def test_a_stray_of_one_node_is_judged_by_the_names_of_all(tmp_path: Path) -> None:
    write_job(tmp_path / "dumps")
    (tmp_path / "dumps" / "rank_2").write_text("a log")
    (tmp_path / "dumps" / "other_3").write_text("a log")
    nodes = tmp_path / "nodes"
    nodes.mkdir()
    reduce(tmp_path / "dumps" / "rank_[01]", nodes / "a")
    assert reduce(tmp_path / "dumps" / "*_[23]", nodes / "b").ranks == 0
    assert_same(read_trace(tmp_path / "dumps"), read_trace(nodes))
    assert [unread.path.name for unread in read_trace(nodes).unread] == ["rank_2"]


def test_torchft(tmp_path: Path) -> None:
    for rank in range(6):
        write(tmp_path / "dumps" / f"rank_{rank}", dump(2))
    assert_reduces(tmp_path / "dumps", tmp_path, transform_ft=True, group_world_size=2)
    with pytest.raises(FrAnalysisError, match=r"was reduced with --transform-ft .*size 2"):
        read_trace(tmp_path / "all.parquet")
    reduce(tmp_path / "dumps", tmp_path / "without.parquet")
    with pytest.raises(FrAnalysisError, match="was reduced without --transform-ft"):
        read_trace(tmp_path / "without.parquet", transform_ft=True, group_world_size=2)


def test_what_an_entry_may_hold(tmp_path: Path) -> None:
    """Values at the edges of what a dump may say."""
    entries = [
        entry(1, input_sizes=[], output_sizes=None, input_dtypes=None, time_created_ns=None),
        entry(2, frames=[], p2p_seq_id=-7, is_p2p=True, record_id=None),
        entry(3, input_sizes=[[], [1, 2**62]], input_split_sizes=[1, 2], group=("", "")),
        entry(2**63 - 1, time_created_ns=(1 << 62) - 1, state="started", retired=False),
        entry(5, profiling_name="nccl:send 0->1", group=("name\x1b[1m", "ü" * 600)),
        entry(6, time_discovered_started_ns=5, time_discovered_completed_ns=7),
    ]
    health = {"health_check_results": {"gpu0": {"status": "bad", "output": "line\nline"}}}
    config = {
        "0": {"name": "0", "desc": "default_pg", "ranks": "0-4095"},
        "9": {"name": "9", "desc": "odd", "ranks": "[7, 0, 3, 4, 5, 999999]"},
        "8": {"name": "8", "desc": "none", "ranks": "[]"},
    }
    write(tmp_path / "d" / "rank_0", {**dump(), "entries": entries, **health, "pg_config": config})
    write(tmp_path / "d" / "rank_1", {**dump(), "entries": [], "pg_config": config})
    assert_reduces(tmp_path / "d", tmp_path)


@pytest.mark.parametrize("seed", range(20))
def test_any_set_of_ranks(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    step = rng.choice([1, 3, 8])
    ranks = {r for r in range(0, 40 * step, step) if rng.random() < rng.choice([0.1, 0.6, 0.95])}
    config = {"0": {"name": "0", "desc": "a", "ranks": str([*ranks, 0])}}
    write(tmp_path / "d" / "rank_0", dump(pg_config=config))
    assert_reduces(tmp_path / "d", tmp_path)


def test_stacks_that_are_named_take_the_place_of_those_carried(tmp_path: Path) -> None:
    write_job(tmp_path / "d", world=3)
    shutil.copy(SNAPSHOTS / "stacks_20261130_093942.txt", tmp_path / "d")
    reduce(tmp_path / "d", tmp_path / "a.parquet", stacks=[SNAPSHOTS / "pyspy_3.txt"])
    assert list(read_trace(tmp_path / "a.parquet").stacks) == [3]
    named = read_trace(tmp_path / "a.parquet", stacks=[SNAPSHOTS / "partial.txt"])
    assert list(named.stacks) == [0, 1]


def test_a_later_snapshot_replaces_an_earlier_one_where_it_has_threads(tmp_path: Path) -> None:
    write_job(tmp_path / "d", world=3)
    nodes = tmp_path / "nodes"
    nodes.mkdir()
    for node, snapshot in enumerate(("stacks_20261130_093942.txt", "partial.txt")):
        file = tmp_path / "d" / f"rank_{node}"
        reduce(file, nodes / f"node{node}", stacks=[SNAPSHOTS / snapshot])
    both = [SNAPSHOTS / "stacks_20261130_093942.txt", SNAPSHOTS / "partial.txt"]
    (tmp_path / "d" / "rank_2").unlink()
    assert_same(read_trace(tmp_path / "d", stacks=both), read_trace(nodes))
    assert [stacks.source.name for stacks in read_trace(nodes).stacks.values()] == [
        "partial.txt",
        "stacks_20261130_093942.txt",
        "stacks_20261130_093942.txt",
    ]


def test_columns_are_as_described(tmp_path: Path) -> None:
    """For those who read them with other tools."""
    write_job(tmp_path / "d")
    reduce(tmp_path / "d", tmp_path / "a.parquet")
    table = parquet.read_table(tmp_path / "a.parquet")
    assert table.column("rank").to_pylist() == [0, 0, 0, 1, 1, 1]
    assert table.column("number").to_pylist() == [1, 2, 3, 1, 2, 3]
    assert table.column("completed_ns").null_count == 6
    assert table.column("created_ns").null_count == 0
    assert table.schema.metadata[b"fr_analysis.format"] == b"1"


def test_a_file_with_dumps_that_another_process_reads(tmp_path: Path) -> None:
    write_job(tmp_path / "d", world=4)
    for node in ("01", "23"):
        reduce(tmp_path / "d" / f"rank_[{node}]", tmp_path / f"node_{node[0]}")
    (tmp_path / "node_x").write_bytes(b"PAR1")
    with ProcessPoolExecutor(2) as executor:
        elsewhere = read_trace(tmp_path / "node_*", executor=executor)
    here = read_trace(tmp_path / "node_*")
    assert_same(here, elsewhere)
    assert elsewhere.unread == here.unread


# -- which files are taken for reduced ones --------------------------------------------


def test_parquet_of_another_kind_is_no_dump(tmp_path: Path) -> None:
    write_job(tmp_path / "host" / "dumps")
    parquet.write_table(arrow.table({"a": [1]}), tmp_path / "data.parquet")
    assert not is_reduced(tmp_path / "data.parquet")
    assert read_trace(tmp_path).unread == ()
    with pytest.raises(FrAnalysisError, match="is neither a pickle nor JSON"):
        read_trace(tmp_path / "data.parquet")


def test_a_file_is_told_by_its_bytes(tmp_path: Path) -> None:
    write_job(tmp_path / "d", world=3)
    (tmp_path / "nodes").mkdir()
    reduce(tmp_path / "d" / "rank_[01]", tmp_path / "nodes" / "rank_7")
    reduce(tmp_path / "d" / "rank_2", tmp_path / "nodes" / "README.md")
    os.mkfifo(tmp_path / "nodes" / "fifo")
    (tmp_path / "nodes" / "loop").symlink_to("loop")
    (tmp_path / "nodes" / "short").write_bytes(b"PAR")
    trace = read_trace(tmp_path / "nodes")
    assert list(trace.dumps) == [0, 1, 2]
    assert trace.unread == ()
    assert [dump.source.name for dump in trace.dumps.values()] == ["rank_0", "rank_1", "rank_2"]


# -- damaged and hostile files ---------------------------------------------------------


def node_beside(tmp_path: Path) -> Path:
    """A reduced file of ranks 0 and 1 of 4, and a folder with one of ranks 2 and 3."""
    write_job(tmp_path / "d", world=4)
    (tmp_path / "nodes").mkdir()
    reduce(tmp_path / "d" / "rank_[23]", tmp_path / "nodes" / "good.parquet")
    reduce(tmp_path / "d" / "rank_[01]", tmp_path / "bad.parquet")
    return tmp_path / "bad.parquet"


def assert_one_line(bad: Path, reason: str) -> None:
    """The file is reported in one line, alone and beside others, which are analyzed."""
    with pytest.raises(FrAnalysisError) as alone:
        read_trace(bad)
    assert re.search(reason, str(alone.value)), alone.value
    beside = bad.parent / "nodes" / "bad.parquet"
    shutil.copy(bad, beside)
    trace = read_trace(beside.parent)
    assert list(trace.dumps) == [2, 3]
    assert [unread.path for unread in trace.unread] == [beside]
    assert trace.unread[0].reason.isprintable()
    assert len(trace.unread[0].reason) < 700
    diagnosis = analyze(beside.parent)
    assert diagnosis.verdict is Verdict.UNDETERMINED
    assert diagnosis.unread == trace.unread


@pytest.mark.parametrize("left", [4, 5, 11, 12, 300, -1])
def test_a_file_cut_short(left: int, tmp_path: Path) -> None:
    bad = node_beside(tmp_path)
    bad.write_bytes(bad.read_bytes()[:left])
    assert_one_line(bad, "cut short or damaged at its end")


def test_a_flipped_bit_is_noticed_or_changes_nothing(tmp_path: Path) -> None:
    bad = node_beside(tmp_path)
    whole = bad.read_bytes()
    good = [plain(found) for found in read_reduced(bad).dumps]
    rng = random.Random(0)
    noticed = 0
    for at in range(rng.randrange(5), len(whole), 5):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << rng.randrange(8)
        bad.write_bytes(flipped)
        assert is_reduced(bad)
        try:
            dumps = read_reduced(bad).dumps
        except UnreadableDump:
            noticed += 1
        else:
            assert [plain(found) for found in dumps] == good, at
    assert noticed > len(whole) // 5 * 0.6


def rewrite(
    path: Path,
    tables: Callable[[dict[str, Any]], object] = lambda tables: None,
    columns: Callable[[dict[str, Any]], object] = lambda columns: None,
    metadata: dict[str, str] | None = None,
) -> None:
    """Make another file of a good one, as somebody could who knows the format."""
    table = parquet.read_table(path)
    told = {key.decode(): value.decode() for key, value in table.schema.metadata.items()}
    content = json.loads(zlib.decompress(base64.b64decode(told["fr_analysis.tables"])))
    tables(content)
    told["fr_analysis.tables"] = packed(json.dumps(content).encode())
    held = {name: table.column(name) for name in table.column_names}
    columns(held)
    known = {field.name: field for field in table.schema}
    schema = arrow.schema(
        known[name] if name in known and known[name].type == values.type else (name, values.type)
        for name, values in held.items()
    )
    with parquet.ParquetWriter(path, schema, store_schema=False) as writer:
        writer.write_table(arrow.table(held, schema=schema))
        writer.add_key_value_metadata(told | (metadata or {}))


def packed(tables: bytes) -> str:
    """Tables as they are written."""
    return base64.b64encode(zlib.compress(tables)).decode()


def put(*keys: Any) -> Callable[[dict[str, Any]], None]:
    """Sets what the keys lead to, the last one being the value."""
    *way, last, value = keys

    def change(tables: Any) -> None:
        for key in way:
            tables = tables[key]
        tables[last] = value

    return change


def column(name: str, value: Any, kind: str | None = None) -> Callable[[dict[str, Any]], None]:
    """Sets a column's last row."""

    def change(columns: dict[str, Any]) -> None:
        values = columns[name].to_pylist() if name in columns else [0] * len(columns["rank"])
        values[-1] = value
        columns[name] = arrow.array(values, type=kind or columns[name].type)

    return change


HOSTILE_TABLES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "group": (put("dumps", 0, "groups", []), "differ in length"),
    "no groups": (
        lambda t: t["dumps"][0].update(groups=[], declared_members=[], statuses=[]),
        "group: not from 0 to -1",
    ),
    "index": (put("dumps", 0, "groups", [1]), "groups: no number from 0 to 0"),
    "negative index": (put("dumps", 0, "groups", [-1]), "groups: no number"),
    "bool as index": (put("dumps", 0, "groups", [False]), "groups: no number"),
    "rows": (put("dumps", 0, "rows", 4), "differ in number"),
    "rows of the other": (
        lambda t: [d.update(rows=r) for d, r in zip(t["dumps"], (4, 2), strict=True)],
        "rows of another rank",
    ),
    "huge rows": (put("dumps", 0, "rows", 10**7), "rows: no number from 0 to 1000000"),
    "rank": (put("dumps", 0, "rank", -1), "rank: no number"),
    "large rank": (put("dumps", 0, "rank", 10**6), "rank: no number"),
    "name": (put("dumps", 0, "name", "../../etc/passwd"), "no path below a folder"),
    "absolute name": (put("dumps", 0, "name", "/etc/passwd"), "no path below a folder"),
    "no name": (put("dumps", 0, "name", ""), "no path below a folder"),
    "long name": (put("dumps", 0, "name", "a" * 5000), "name: no text"),
    "no dumps": (put("dumps", None), "dumps: no list"),
    "dumps": (put("dumps", [1, 2]), "dumps: no object"),
    "frames": (put("frames", 0, [1, 2, 3]), "frames: no text"),
    "frame": (put("frames", 0, ["a"]), "frames: not 3 values"),
    "stack": (put("stacks", 0, [99]), "stacks: no number"),
    "long stack": (put("stacks", 0, [0] * 513), "more than 512 frames"),
    "signature": (put("signatures", 0, 0, 5), "signatures: no text"),
    "sizes": (put("signatures", 0, 1, [[1.5]]), "signatures: no number"),
    "dimensions": (put("signatures", 0, 1, [[1] * 65]), "signatures: no list of at most 64"),
    "members": (put("members", 0, [[0, 3, 0]]), "ascending order"),
    "descending": (put("members", 0, [[2, 3, 1], [0, 1, 1]]), "ascending order"),
    "no members": (put("members", 0, []), "a group of none"),
    "many members": (
        lambda t: t.update(members=[[[0, 999_999, 1]]] * 10**4),
        "members: more than 20000000 together|far more memory",
    ),
    "members again and again": (
        lambda t: (
            t.update(members=[[[0, 999_999, 1]]], groups=[["0", ""]] * 30),
            [
                d.update(groups=[*range(30)], declared_members=[0] * 30, statuses=[None] * 30)
                for d in t["dumps"]
            ],
        ),
        "declared_members: far more",
    ),
    "status": (put("dumps", 0, "statuses", 0, [1, 2, "3"]), "statuses: no number"),
    "number beyond 64 bits": (put("dumps", 0, "written_ns", 2**64), "written_ns: no number"),
    "health": (put("dumps", 0, "health", {"gpu": "bad"}), "health: no list"),
    "version": (put("dumps", 0, "version", None), "version: no text"),
    "flag": (put("dumps", 0, "numbers_per_recorder", 1), "numbers_per_recorder: neither"),
    "unread": (put("unread", [{"name": "a", "reason": 5, "kind": "dump"}]), "reason: no text"),
    "kind": (put("unread", [{"name": "a", "reason": "b", "kind": ["dump"]}]), "of no kind"),
    "snapshot": (
        put("snapshots", [{"rank": 0, "name": "a", "threads": [["t", 99]], "error": None}]),
        "threads: no number",
    ),
    "nothing": (lambda t: t.update(dumps=[]), "differ in number"),
    "world size": (put("group_world_size", "many"), "group_world_size: no number"),
}


@pytest.mark.parametrize("name", HOSTILE_TABLES)
def test_tables_that_do_not_hold_together(name: str, tmp_path: Path) -> None:
    change, reason = HOSTILE_TABLES[name]
    bad = node_beside(tmp_path)
    rewrite(bad, tables=change)
    assert_one_line(bad, reason)


HOSTILE_COLUMNS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "group": (column("group", 1), "group: not from 0 to 0"),
    "negative": (column("group", -1), "group: not from 0"),
    "signature": (column("signature", 2**31 - 1), "signature: not from 0 to 0"),
    "stack": (column("stack", 1), "stack: not from -1 to 0"),
    "below none": (column("stack", -2), "stack: not from -1"),
    "completion": (column("completion", 5), "completion: not from 0 to 4"),
    "time": (column("created_ns", 1 << 62), "created_ns: not from -1"),
    "time 0": (column("created_ns", 0), "created_ns: no time is 0"),
    "negative time": (column("completed_ns", -(2**63)), "completed_ns: not from -1"),
    "number": (column("number", -(2**63)), "number: not from"),
    "rank": (column("rank", 0), "rows of another rank"),
    "another time": (column("created_ns", 5), "not those that were written"),
    "other type": (column("number", 1, "int32"), "other columns"),
    "lacking": (lambda columns: columns.pop("stack"), "other columns"),
    "one more": (column("more", 1, "int64"), "other columns"),
}


@pytest.mark.parametrize("name", HOSTILE_COLUMNS)
def test_columns_that_do_not_fit_the_tables(name: str, tmp_path: Path) -> None:
    change, reason = HOSTILE_COLUMNS[name]
    bad = node_beside(tmp_path)
    rewrite(bad, columns=change)
    assert_one_line(bad, reason)


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"fr_analysis.format": "2"}, "reduced format 2; format 1 is understood"),
        ({"fr_analysis.format": "\x1b[1m\n"}, r"reduced format \?\[1m\?;"),
        ({"fr_analysis.tables": "!"}, "damaged reduced file"),
        ({"fr_analysis.tables": ""}, "damaged reduced file"),
        ({"fr_analysis.tables": packed(b"[]")}, "no object"),
        ({"fr_analysis.tables": packed(b"{}")}, "frames: no list"),
        (
            {"fr_analysis.tables": packed(b"[" * 10**6)},
            "nested too deeply",
        ),
        (
            {"fr_analysis.tables": packed(b" " * (65 << 20))},
            "unpack to far more",
        ),
        (
            {"fr_analysis.tables": packed(b'{"frames": 1' + b"0" * 5000)},
            "damaged reduced file",
        ),
    ],
    ids=lambda value: None if isinstance(value, dict) else value[:20],
)
def test_metadata_that_is_absurd(metadata: dict[str, str], reason: str, tmp_path: Path) -> None:
    bad = node_beside(tmp_path)
    rewrite(bad, metadata=metadata)
    assert_one_line(bad, reason)


def test_more_rows_than_a_file_of_its_size_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few bytes can stand for any number of equal rows: they are counted before they are read."""
    monkeypatch.setattr("fr_analysis.read.reduced._ROWS_FLOOR", 0)
    bad = node_beside(tmp_path)

    def repeat(columns: dict[str, Any]) -> None:
        for name, values in columns.items():
            columns[name] = arrow.repeat(values[0], 200_000)

    rewrite(bad, columns=repeat)
    assert_one_line(bad, "200000 operations are more than a file of its size holds")


def test_controls_do_not_reach_the_terminal(tmp_path: Path) -> None:
    bad = node_beside(tmp_path)

    def change(tables: dict[str, Any]) -> None:
        tables["groups"][0][1] = "default\x1b[1m"
        tables["frames"][0][2] = "\x1b]0;\x07"
        tables["dumps"][0]["name"] = "rank\x1b_0"
        tables["unread"] = [{"name": "\n", "reason": "\x1b", "rank": 9, "kind": "dump"}]

    rewrite(bad, tables=change)
    (dump, _), (unread,) = read_reduced(bad).dumps, read_reduced(bad).unread
    assert dump.groups[0].description == "default?[1m"
    assert any(frame.name == "?]0;?" for stack in dump.stacks for frame in stack)
    assert (dump.source.name, unread.path.name, unread.reason) == ("rank?_0", "?", "?")


def test_no_rank_of_an_unread_node_is_said_to_have_left_no_dump(tmp_path: Path) -> None:
    dumps = nccl(faults.asleep(train(SMALL), [7], "dp", -1))
    folder = write_dumps(dumps, tmp_path / "dumps", "rank_")
    nodes = tmp_path / "nodes"
    nodes.mkdir()
    reduce(f"{folder}/rank_[0-6]", nodes / "a")
    (nodes / "b").write_bytes(b"PAR1")
    diagnosis = analyze(nodes)
    assert diagnosis.suspects == (7,)
    assert {detail.condition.value for detail in diagnosis.details} == {"unreadable"}
    reduce(nodes, tmp_path / "again")
    assert analyze(tmp_path / "again").details == diagnosis.details


def test_no_job_is_healthy_without_an_unread_node(tmp_path: Path) -> None:
    for rank in range(2):  # which do not tell how many ranks there are
        write(tmp_path / "d" / f"rank_{rank}", dump(pg_config={}))
    nodes = tmp_path / "nodes"
    nodes.mkdir()
    reduce(tmp_path / "d", nodes / "a")
    assert analyze(nodes).verdict is Verdict.HEALTHY
    (nodes / "b").write_bytes(b"PAR1")
    assert analyze(nodes).verdict is Verdict.UNDETERMINED


# -- writing ---------------------------------------------------------------------------


def test_size(tmp_path: Path) -> None:
    """At least ten times smaller, also where times are as irregular as in a real job."""
    job = LargeJob(8, 2000, tp=2, pp=2)
    rng = random.Random(0)
    for rank in range(8):
        write_dump(job, tmp_path, rank)
        content = pickle.loads((tmp_path / f"rank_{rank}").read_bytes())  # noqa: S301 (our own)
        for one in content["entries"]:
            for name in ("created", "discovered_started", "discovered_completed"):
                if one[f"time_{name}_ns"] is not None:
                    one[f"time_{name}_ns"] += rng.randrange(1_000_000)
        write(tmp_path / f"noisy_{rank}", content)
    for name in ("rank", "noisy"):
        done = reduce(tmp_path / f"{name}_*", tmp_path / f"{name}.parquet")
        assert (done.ranks, done.operations) == (8, 16_000)
        assert done.bytes_written == (tmp_path / f"{name}.parquet").stat().st_size
        assert done.bytes_written * 10 < done.bytes_read


def test_the_command(tmp_path: Path) -> None:
    done = run("reduce", HANG, "-o", tmp_path / "node.parquet")
    assert (done.returncode, done.stderr) == (0, "")
    read = sum(file.stat().st_size for file in HANG.iterdir())
    written = (tmp_path / "node.parquet").stat().st_size
    assert done.stdout == (
        f"{tmp_path}/node.parquet: 2 ranks, 6 operations; "
        f"read {read} bytes, wrote {written} bytes\n"
    )
    assert os.listdir(tmp_path) == ["node.parquet"]
    for form in ("text", "json"):
        dumps, reduced = run(HANG, "--format", form), run(tmp_path, "--format", form)
        assert dumps.stdout == reduced.stdout
        assert dumps.returncode == reduced.returncode == 1
    assert "not copied, it is in a reduced file" in run(tmp_path, "--debug").stderr
    assert "reduce PATH -o FILE" in run("--help").stdout
    assert "is in it" in run("reduce", "--help").stdout


def test_the_command_says_what_it_could_not_read(tmp_path: Path) -> None:
    write_job(tmp_path / "d", world=3)
    (tmp_path / "d" / "rank_1").write_bytes(b"")
    done = run("reduce", tmp_path / "d", "-p", "rank_*", "-o", tmp_path / "a")
    assert done.returncode == 3
    assert done.stderr.startswith(f"fr-analysis: {tmp_path}/d/rank_1: is empty")
    assert done.stdout.startswith(f"{tmp_path}/a: 2 ranks, 6 operations; read ")
    for file in (tmp_path / "d").iterdir():
        file.write_bytes(b"")
    done = run("reduce", tmp_path / "d", "-o", tmp_path / "b")
    assert (done.returncode, done.stderr.count("is empty")) == (3, 3)
    done = run(tmp_path / "b")
    assert done.returncode == 2
    assert "rank_0: is empty" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "the following arguments are required: PATH, -o"),
        ([HANG], "the following arguments are required: -o"),
        ([HANG, "-o", "."], ".: is a directory; name a file to write"),
        ([HANG, "-o", "/no/such/x"], "/no/such/x: cannot be written (No such file or directory)"),
        (["/no/such", "-o", "x"], "/no/such: no such file or directory"),
        ([HANG, "-o", "x", "--stacks", "/no/such"], "--stacks /no/such: no such file"),
        ([HANG, "-o", "x", "--transform-ft"], "--transform-ft needs --group-world-size"),
    ],
)
def test_wrong_command_lines(arguments: list[object], said: str) -> None:
    done = run("reduce", *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("links", [True, False])
def test_nothing_is_overwritten(
    links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not links:

        def refuse(*_: object) -> None:
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(os, "link", refuse)
    target = tmp_path / "a"
    target.write_text("mine")
    with pytest.raises(FrAnalysisError, match="is there already and is not overwritten"):
        reduce(HANG, target)

    target.unlink()
    with monkeypatch.context() as patch:
        # The last that is done before the file gets its name.
        patch.setattr(os, "fsync", lambda _: target.write_text("theirs"))
        with pytest.raises(FrAnalysisError, match="is there already and is not overwritten"):
            reduce(HANG, target)
    assert target.read_text() == "theirs"
    target.unlink()
    reduce(HANG, target)
    assert list(read_trace(target).dumps) == [0, 1]
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_no_half_file_is_left(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("fr_analysis.reduce.os.fsync", fail)
    # It ignores further interrupts, which our own process must not go on to do.
    monkeypatch.setattr("fr_analysis.cli.signal.signal", lambda *_: None)
    status = main(["reduce", str(HANG), "-o", str(tmp_path / "a")])
    assert status == (2 if isinstance(error, OSError) else 130)
    assert os.listdir(tmp_path) == []


def test_without_pyarrow(tmp_path: Path) -> None:
    write_job(tmp_path / "mixed", world=3)
    (tmp_path / "mixed" / "rank_2").rename(tmp_path / "rank_2")
    reduce(tmp_path / "rank_2", tmp_path / "mixed" / "node.parquet")
    (tmp_path / "none" / "pyarrow").mkdir(parents=True)
    (tmp_path / "none" / "pyarrow" / "__init__.py").write_text("raise ImportError")
    path = os.pathsep.join([str(tmp_path / "none"), os.environ.get("PYTHONPATH", "")])
    done = run("reduce", HANG, "-o", tmp_path / "x", PYTHONPATH=path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "fr-analysis: reduce needs pyarrow: pip install 'fr-analysis[parquet]'\n"
    )
    done = run(tmp_path / "mixed", PYTHONPATH=path)
    assert done.returncode == 3
    assert (
        "node.parquet: is a reduced file: reading it needs pyarrow: "
        "pip install 'fr-analysis[parquet]'\n" in done.stdout
    )


def test_pyarrow_is_loaded_for_reduced_files_only(tmp_path: Path) -> None:
    code = (
        "import sys; from fr_analysis.cli import main; main(sys.argv[1:]); "
        "print('pyarrow' in sys.modules)"
    )
    reduce(HANG, tmp_path / "a")
    for path, loaded in ((HANG, "False"), (tmp_path / "a", "True")):
        done = subprocess.run(
            [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
        )
        assert done.stdout.splitlines()[-1] == loaded
