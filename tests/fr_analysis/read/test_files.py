"""Which files are dumps, and of which rank."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fr_analysis import FrAnalysisError, Verdict, analyze
from fr_analysis.read import read_trace
from fr_analysis.read.files import rank_of_name
from plain_dumps import dump, write, write_job


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("_dump_0", 0),
        ("nccl_trace_rank_17", 17),
        ("comm_lib_trace_rank_3", 3),
        ("rank_3", 3),
        ("rank3", 3),
        ("3", 3),
        ("nccl_trace_rank_node02_5", 5),
        ("host-7.example.org_nccl_trace_rank_5", 5),
        ("rank_3.json", 3),
        ("rank_3.json.gz", 3),
        ("_dump_3.pkl.zst", 3),
        ("rank_00003", 3),
        ("rank_1000000000000", 10**12),
        ("stacks_20261130_093942.txt", None),
        ("rank_3.xz", 3),
        ("rank_3.tar", None),
        ("rank_3.log", None),
        ("rank_x", None),
        ("README.md", None),
    ],
)
def test_the_rank_is_the_last_number_of_the_name(name: str, rank: int | None) -> None:
    assert rank_of_name(name) == rank


@pytest.mark.parametrize(
    "name",
    [
        "_dump_{}",
        "nccl_trace_rank_{}",
        "comm_lib_trace_rank_{}",
        "rank_{}",
        "nccl_trace_rank_node0{}_{}",
        "rank_{}.json",
        "node{0}/rank_{0}",
        "a/b/c/rank_{0}",
    ],
)
def test_finds_the_ranks_of_a_directory(tmp_path: Path, name: str) -> None:
    for rank in range(3):
        write(tmp_path / name.format(rank, rank), dump(3))
    trace = read_trace(tmp_path)
    assert list(trace.dumps) == [0, 1, 2]
    assert trace.unread == ()


def test_takes_a_file_a_glob_a_prefix_and_a_pattern(tmp_path: Path) -> None:
    write_job(tmp_path, name="rank_{}")
    write_job(tmp_path, name="other_{}", world=1)
    assert list(read_trace(tmp_path / "rank_1").dumps) == [1]
    for path in ("rank_*", "rank_[01]", "rank_", "ran"):
        found = read_trace(tmp_path / path).dumps
        assert [dump.source.name for dump in found.values()] == ["rank_0", "rank_1"]
    assert read_trace(tmp_path, pattern="other*").dumps[0].source.name == "other_0"
    assert list(read_trace(write(tmp_path / "trace.pkl", dump(1))).dumps) == [0]
    assert list(read_trace(write(tmp_path / "other.pkl", dump(9, rank=7))).dumps) == [7]


@pytest.mark.parametrize(
    ("path", "pattern", "expected"),
    [
        ("nothing", None, "no such file or directory"),
        ("empty", None, "expected one file per rank"),
        ("", "x*", "no dump matching 'x\\*'"),
        ("\0", None, "cannot be looked at|no such file"),
        ("x" * 5000, None, "cannot be looked at|no such file"),
    ],
)
def test_says_what_is_expected_where_there_is_nothing(
    tmp_path: Path, path: str, pattern: str | None, expected: str
) -> None:
    write_job(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FrAnalysisError, match=expected) as caught:
        read_trace(f"{tmp_path}/{path}", pattern=pattern)
    assert "\n" not in str(caught.value)


def test_leaves_out_stray_files_but_not_damaged_dumps(tmp_path: Path) -> None:
    write_job(tmp_path)
    (tmp_path / "train.log").write_text("step 1")
    (tmp_path / "train.log.1").write_text("step 1")
    (tmp_path / "core.12345").write_bytes(b"\x7fELF")
    (tmp_path / "config_7").write_text('{"layers": 2}')
    (tmp_path / ".rank_5").write_text("not yet whole")
    assert read_trace(tmp_path).unread == ()
    assert analyze(tmp_path).verdict is Verdict.HEALTHY
    (tmp_path / "rank_2").write_text("not a dump")
    (unread,) = read_trace(tmp_path).unread
    assert (unread.path.name, unread.rank) == ("rank_2", 2)
    assert "neither a pickle nor JSON" in unread.reason


def test_takes_the_json_copy_of_a_dump_only_where_the_dump_is_damaged(tmp_path: Path) -> None:
    write_job(tmp_path)
    write(tmp_path / "rank_0.json", dump(2, entries=9))
    for path in tmp_path, tmp_path / "rank_":
        assert len(read_trace(path).dumps[0].operations) == 3
        assert read_trace(path).unread == ()
    (tmp_path / "rank_0").write_bytes(b"\x80\x02}")
    trace = read_trace(tmp_path)
    assert len(trace.dumps[0].operations) == 9
    assert [unread.path.name for unread in trace.unread] == ["rank_0"]
    assert analyze(tmp_path).verdict is Verdict.HEALTHY


def test_reports_names_that_tell_no_possible_rank(tmp_path: Path) -> None:
    write_job(tmp_path)
    write(tmp_path / f"rank_{10**12}", dump())
    write(tmp_path / f"rank_{10**30}", dump())
    trace = read_trace(tmp_path)
    assert list(trace.dumps) == [0, 1]
    assert {unread.reason for unread in trace.unread} == {"its name tells no rank from 0 to 999999"}
    assert len(trace.unread) == 2


def test_reports_what_is_no_file(tmp_path: Path) -> None:
    write_job(tmp_path, world=1)
    (tmp_path / "rank_1").mkdir()
    (tmp_path / "rank_2").symlink_to("nowhere")
    (tmp_path / "rank_3").symlink_to("rank_3")
    os.mkfifo(tmp_path / "rank_4")
    (tmp_path / "logs").mkdir()
    trace = read_trace(tmp_path)
    assert list(trace.dumps) == [0]
    reasons = {unread.rank: unread.reason for unread in trace.unread}
    assert "is a directory" in reasons[1]
    assert "No such file" in reasons[2]
    assert "symbolic links" in reasons[3]
    assert "not a regular file" in reasons[4]
    assert len(reasons) == 4


@pytest.mark.parametrize("name", ["rank_2", "rank_3", "rank_4"])
def test_says_so_where_the_only_file_is_none(tmp_path: Path, name: str) -> None:
    (tmp_path / "rank_2").symlink_to("nowhere")
    (tmp_path / "rank_3").symlink_to("rank_3")
    os.mkfifo(tmp_path / "rank_4")
    with pytest.raises(FrAnalysisError, match="no dump could be read"):
        read_trace(tmp_path / name)


def test_a_folder_that_cannot_be_listed_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_job(tmp_path / "node0")
    (tmp_path / "node1").mkdir()
    scan = os.scandir

    def refuse(path: Path) -> object:
        if path.name == "node1":
            raise PermissionError(13, "Permission denied")
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    trace = read_trace(tmp_path)
    assert list(trace.dumps) == [0, 1]
    assert [unread.reason for unread in trace.unread] == ["cannot be listed (Permission denied)"]


def test_names_that_are_not_text_reach_neither_a_traceback_nor_the_terminal(
    tmp_path: Path,
) -> None:
    folder = os.fsencode(tmp_path) + b"/host\xff\x1b[31m"
    os.mkdir(folder)
    with open(folder + b"/rank_\xfe\x1b_0", "wb") as file:
        file.write(b"\x80\x02}")
    with pytest.raises(FrAnalysisError, match=r"cut short|none of the keys") as caught:
        read_trace(os.fsdecode(folder))
    assert str(caught.value).isprintable()
    write(Path(os.fsdecode(folder), "rank_\udcfe_1"), dump(2))
    done = subprocess.run(
        [sys.executable, "-m", "fr_analysis", folder], capture_output=True, check=False
    )
    assert b"Traceback" not in done.stderr
    assert done.returncode == 3


def test_compressed_files_are_found_by_rank(tmp_path: Path) -> None:
    for path in write_job(tmp_path):
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert list(read_trace(tmp_path).dumps) == [0, 1]
