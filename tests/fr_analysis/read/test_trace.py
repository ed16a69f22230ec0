"""Several files to one trace: doubles, stale files, names against content, torchft."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from fr_analysis import FrAnalysisError, Verdict, analyze
from fr_analysis.read import read_trace
from plain_dumps import NANOSECONDS, Dump, dump, entry, write, write_job


def later(content: Dump, by_ns: int) -> Dump:
    """The same dump, recorded later."""
    entries = [{**e, "time_created_ns": e["time_created_ns"] + by_ns} for e in content["entries"]]
    return {**content, "entries": entries}


def test_of_two_dumps_of_a_rank_the_later_is_used_and_the_other_reported(tmp_path: Path) -> None:
    write_job(tmp_path)
    write(tmp_path / "host_rank_1", later(dump(2, entries=5), 10**9))
    trace = read_trace(tmp_path)
    assert [len(found.operations) for found in trace.dumps.values()] == [3, 5]
    (unread,) = trace.unread
    assert (unread.path.name, unread.rank) == ("rank_1", 1)
    assert "second dump of rank 1" in unread.reason
    assert analyze(tmp_path).verdict is Verdict.HEALTHY


def write_jobs_of_one_time(parent: Path, *folders: str, **of_last: object) -> None:
    """Jobs that take turns in recording; the last one's dumps hold something else, too."""
    for offset, folder in enumerate(folders):
        entries = [
            entry(number, time_created_ns=NANOSECONDS + 10 * number + offset)
            for number in range(1, 4)
        ]
        for rank in range(2):
            content = dump(2) | {"entries": entries} | (of_last if folder == folders[-1] else {})
            write(parent / folder / f"rank_{rank}", content)


def test_two_jobs_of_one_time_are_not_mixed(tmp_path: Path) -> None:
    write_jobs_of_one_time(tmp_path, "a/dumps", "b/dumps")
    with pytest.raises(FrAnalysisError, match=r"/a and \S+/b hold dumps of the same ranks, of two"):
        analyze(tmp_path)


def test_of_many_jobs_all_are_counted(tmp_path: Path) -> None:
    write_jobs_of_one_time(tmp_path, *"abcde")
    with pytest.raises(FrAnalysisError, match=r"/a, 3 more and \S+/e hold .*, of 5 jobs: name one"):
        analyze(tmp_path)


def test_a_dump_that_was_written_while_a_later_job_ran_is_of_a_job_that_still_ran(
    tmp_path: Path,
) -> None:
    """It hung, and recorded nothing any more."""
    write_job(tmp_path / "a")
    for rank in range(2):
        write(tmp_path / "b" / f"rank_{rank}", later(dump(2), 10**9))
    for seconds, is_mixed in (0, False), (2, True):
        for file in (tmp_path / "a").iterdir():
            os.utime(file, ns=(0, NANOSECONDS + seconds * 10**9))
        if is_mixed:
            with pytest.raises(FrAnalysisError, match="of two jobs"):
                read_trace(tmp_path)
        else:
            assert len(read_trace(tmp_path).unread) == 2


def test_two_recorders_of_one_rank_are_one_job(tmp_path: Path) -> None:
    write_jobs_of_one_time(tmp_path, "torch", "torchcomms", pg_status={})
    assert len(read_trace(tmp_path).unread) == 2


def test_of_snapshots_in_folders_of_their_own_the_later_is_used(tmp_path: Path) -> None:
    write_job(tmp_path / "1")
    write_job(tmp_path / "2")
    write(tmp_path / "2" / "rank_1", later(dump(2, entries=5), 1))
    assert len(read_trace(tmp_path).unread) == 2


def test_leaves_out_files_of_an_earlier_job_of_another_size(tmp_path: Path) -> None:
    write_job(tmp_path, world=4)
    for rank in range(2):
        write(tmp_path / f"rank_{rank}", later(dump(2), 10**9))
    trace = read_trace(tmp_path)
    assert list(trace.dumps) == [0, 1]
    assert [unread.path.name for unread in trace.unread] == ["rank_2", "rank_3"]
    assert all("earlier job of 4 ranks" in unread.reason for unread in trace.unread)
    assert analyze(tmp_path).verdict is Verdict.HEALTHY


def test_reports_a_name_that_the_content_contradicts(tmp_path: Path) -> None:
    write_job(tmp_path, world=4)
    config = {**dump(4)["pg_config"], "7": {"name": "7", "desc": "tp", "ranks": "[2, 3]"}}
    entries = [*dump(4)["entries"], entry(1, group=("7", "tp"))]
    write(tmp_path / "rank_1", {**dump(4), "pg_config": config, "entries": entries})
    write(tmp_path / "rank_2", {**dump(4), "rank": 3})
    trace = read_trace(tmp_path)
    assert list(trace.dumps) == [0, 3]
    reasons = {unread.rank: unread.reason for unread in trace.unread}
    assert "its name says rank 1, but it recorded operations of group 7 (tp)" in reasons[1]
    assert "its name says rank 2, but its content rank 3" in reasons[2]
    assert analyze(tmp_path).verdict is Verdict.UNDETERMINED


def test_a_group_that_a_rank_only_declares_is_no_contradiction(tmp_path: Path) -> None:
    config = {**dump(2)["pg_config"], "7": {"name": "7", "desc": "tp", "ranks": "[1]"}}
    write(tmp_path / "rank_0", {**dump(2), "pg_config": config, "rank": 0})
    assert read_trace(tmp_path).unread == ()


def test_damaged_files_are_reported_and_the_rest_is_analyzed(tmp_path: Path) -> None:
    write_job(tmp_path, world=8)
    whole = pickle.dumps(dump(8), 2)
    (tmp_path / "rank_1").write_bytes(b"")
    (tmp_path / "rank_2").write_bytes(whole[:87])
    (tmp_path / "rank_3").write_bytes(b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R.")
    write(tmp_path / "rank_4", [1, 2])
    (tmp_path / "rank_5").write_bytes(b"\xff\xfe")
    (tmp_path / "rank_6").write_bytes(b'{"version": "2.10", "entr')
    trace = read_trace(tmp_path)
    assert list(trace.dumps) == [0, 7]
    assert [unread.rank for unread in trace.unread] == [1, 2, 3, 4, 5, 6]
    assert all("\n" not in unread.reason for unread in trace.unread)
    diagnosis = analyze(tmp_path)
    assert diagnosis.verdict is Verdict.UNDETERMINED
    assert diagnosis.unread == trace.unread


@pytest.mark.parametrize("cut", [0, 87], ids=["empty", "cut short"])
def test_who_of_several_could_not_write_its_dump_may_wait_like_the_others(
    tmp_path: Path, cut: int
) -> None:
    # The disk was full: ranks 1 and 2 began to write, and only one of them is stuck.
    waits = entry(4, state="scheduled", retired=False)
    for rank in (0, 3):
        write(tmp_path / f"rank_{rank}", dump(4) | {"entries": [*dump(4)["entries"], waits]})
    for rank in (1, 2):
        (tmp_path / f"rank_{rank}").write_bytes(pickle.dumps(dump(4), 2)[:cut])
    diagnosis = analyze(tmp_path)
    assert diagnosis.verdict is Verdict.UNDETERMINED
    assert diagnosis.suspects == ()
    (fault,) = diagnosis.faults
    assert "whether ranks 1, 2 joined is not known" in fault.evidence[1]
    write(tmp_path / "rank_1", dump(4) | {"entries": [*dump(4)["entries"], waits]})
    assert analyze(tmp_path).suspects == (2,)


def test_one_line_where_nothing_could_be_read(tmp_path: Path) -> None:
    for rank in range(3):
        (tmp_path / f"rank_{rank}").write_bytes(b"")
    with pytest.raises(FrAnalysisError, match=r"rank_0: is empty.*\(and 2 more files\)"):
        read_trace(tmp_path)


# -- torchft ---------------------------------------------------------------------------


def write_torchft(folder: Path, replicas: int, size: int) -> None:
    """Replica groups whose ranks all count from 0; file names have the job's ranks."""
    for rank in range(replicas * size):
        content = dump(size)
        content["pg_config"]["1"] = {"name": "1", "desc": "tp", "ranks": "[0, 1]"}
        write(folder / f"rank_{rank}", content)


def test_turns_the_ranks_of_replica_groups_into_the_job_s(tmp_path: Path) -> None:
    write_torchft(tmp_path, replicas=3, size=2)
    trace = read_trace(tmp_path, transform_ft=True, group_world_size=2)
    assert trace.unread == ()
    for rank, found in trace.dumps.items():
        first = rank - rank % 2
        members = dict(zip(found.groups, found.declared_members, strict=True))
        by_name = {group.name: ranks for group, ranks in members.items()}
        assert by_name == {"0": (first, first + 1), "1": (0, 1)}


def test_does_the_same_to_torchft_as_torchfrtrace(tmp_path: Path) -> None:
    builder = pytest.importorskip("torch.distributed.flight_recorder.components.builder")
    write_torchft(tmp_path, replicas=2, size=3)
    details = {str(rank): {"rank": rank, "pg_config": dump(3)["pg_config"]} for rank in range(6)}
    expected = builder.transform_ft(details, 3)
    trace = read_trace(tmp_path, transform_ft=True, group_world_size=3)
    for rank, found in trace.dumps.items():
        members = found.declared_members[0]
        assert members is not None
        assert str(list(members)) == expected[str(rank)]["pg_config"]["0"]["ranks"]


def test_without_the_transformation_says_what_may_be_missing(tmp_path: Path) -> None:
    write_torchft(tmp_path, replicas=2, size=2)
    assert all("--transform-ft" in found.reason for found in read_trace(tmp_path).unread)


@pytest.mark.parametrize("size", [None, 0, -1])
def test_the_transformation_needs_the_size(tmp_path: Path, size: int | None) -> None:
    write_torchft(tmp_path, replicas=2, size=2)
    with pytest.raises(FrAnalysisError, match="--group-world-size"):
        read_trace(tmp_path, transform_ft=True, group_world_size=size)


# -- nothing else than our error -------------------------------------------------------


def test_a_folder_of_everything_is_read(tmp_path: Path) -> None:
    write_job(tmp_path, world=3)
    write(tmp_path / "rank_\udcff_2", later(dump(3), 10**9))
    os.mkfifo(tmp_path / "rank_3")
    (tmp_path / "rank_4").mkdir()
    (tmp_path / "rank_5").symlink_to("rank_5")
    (tmp_path / "rank_6").write_bytes(b"\x80\x02})" + b"\x85" * 300_000 + b"K\x01s.")
    (tmp_path / "rank_7").write_bytes(b"\x80\x02]r\xff\xff\xff\xff.")
    (tmp_path / "rank_8").write_text("[" * 100_000)
    write(tmp_path / f"rank_{10**12}", dump())
    (tmp_path / "stacks_1.txt").write_bytes(b"\xff" * 100)
    os.mkfifo(tmp_path / "stacks_2.txt")
    trace = read_trace(tmp_path)
    assert list(trace.dumps) == [0, 1, 2]
    assert trace.dumps[2].source.name == "rank_\udcff_2"
    unread = sorted(-1 if found.rank is None else found.rank for found in trace.unread)
    assert unread == [-1, -1, 2, 3, 4, 5, 6, 7, 8]
