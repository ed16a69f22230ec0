"""A snapshot taken while an operation ends is no fault."""

import os
import pickle
from pathlib import Path

import pytest

from fr_analysis import FaultKind, Verdict, analyze
from support import ROOT

HANG = ROOT / "tests" / "data" / "gloo_hang_3ranks"


def write(folder: Path, retired: dict[int, bool], backend: str) -> Path:
    """Dumps of two ranks that both joined the newest operation."""
    for rank, is_retired in retired.items():
        dump = pickle.loads((HANG / f"trace_{rank}").read_bytes())  # noqa: S301 (our own file)
        dump["pg_config"][""]["ranks"] = "[0, 1]"
        dump["entries"][-1]["retired"] = is_retired
        for entry in dump["entries"]:
            entry["profiling_name"] = f"{backend}:all_reduce"
        (folder / f"trace_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    return folder


def test_gloo_operation_that_a_peer_has_behind_it(tmp_path: Path) -> None:
    diagnosis = analyze(write(tmp_path, {0: True, 1: False}, "gloo"))
    assert diagnosis.verdict is Verdict.HEALTHY


@pytest.mark.parametrize(
    ("retired", "backend"),
    [({0: False, 1: False}, "gloo"), ({0: False, 1: False}, "nccl")],
)
def test_nobody_has_it_behind(tmp_path: Path, retired: dict[int, bool], backend: str) -> None:
    diagnosis = analyze(write(tmp_path, retired, backend))
    assert [fault.kind for fault in diagnosis.faults] == [FaultKind.NO_PROGRESS]


def write_steps(folder: Path, steps: dict[int, int], state: str, backend: str = "nccl") -> Path:
    """Dumps of a job that moves, each of a rank that has come so far; nothing is pending."""
    for rank, count in steps.items():
        dump = pickle.loads((HANG / "trace_0").read_bytes())  # noqa: S301 (our own file)
        dump["pg_config"] = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
        dump["pg_status"] = {}
        template = dump["entries"][0]
        dump["entries"] = [
            template
            | {
                "record_id": number - 1,
                "collective_seq_id": number,
                "profiling_name": f"{backend}:all_reduce",
                "state": state,
                "retired": True,
                "time_created_ns": template["time_created_ns"] + number * 1_000_000,
            }
            for number in range(1, count + 1)
        ]
        (folder / f"trace_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    return folder


@pytest.mark.parametrize(("state", "backend"), [("completed", "nccl"), ("scheduled", "gloo")])
def test_a_dump_taken_earlier_than_the_others_is_no_missing_rank(
    tmp_path: Path, state: str, backend: str
) -> None:
    diagnosis = analyze(write_steps(tmp_path, {0: 4, 1: 9}, state, backend))
    assert diagnosis.suspects == ()
    assert diagnosis.verdict is not Verdict.FAULT
    assert any("the dump of rank 0 is older than the others" in note for note in diagnosis.notes)


def test_an_operation_entered_just_before_the_dump_may_be_moving(tmp_path: Path) -> None:
    folder = write(tmp_path, {0: False, 1: False}, "nccl")
    for file in folder.iterdir():
        dump = pickle.loads(file.read_bytes())  # noqa: S301 (our own file)
        newest = max(entry["time_created_ns"] for entry in dump["entries"])
        os.utime(file, ns=(newest + 5_000_000, newest + 5_000_000))
    diagnosis = analyze(folder)
    assert diagnosis.verdict is Verdict.UNDETERMINED
    assert any("it may be moving; take dumps again" in note for note in diagnosis.notes)


def test_a_left_over_dump_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, {0: False, 1: False}, "gloo")
    old = pickle.loads((HANG / "trace_0").read_bytes())  # noqa: S301 (our own file)
    for entry in old["entries"]:
        entry["time_created_ns"] -= 24 * 3600 * 10**9
    old["pg_config"][""]["ranks"] = "[0, 1, 2]"
    (tmp_path / "trace_2").write_bytes(pickle.dumps(old, protocol=2))
    diagnosis = analyze(tmp_path)
    (unread,) = diagnosis.unread
    assert unread.rank == 2
    assert "is left over from an earlier job" in unread.reason
    assert 2 not in diagnosis.ranks


def test_what_devices_finished_is_no_disagreement(tmp_path: Path) -> None:
    folder = write_steps(tmp_path, {0: 4, 1: 4}, "completed")
    dump = pickle.loads((folder / "trace_1").read_bytes())  # noqa: S301 (our own file)
    dump["entries"][1]["input_sizes"] = [[9]]
    (folder / "trace_1").write_bytes(pickle.dumps(dump, protocol=2))
    assert analyze(folder).verdict is Verdict.HEALTHY


def test_a_rank_behind_is_to_blame_though_another_left_no_dump(tmp_path: Path) -> None:
    for rank in 0, 2, 3:
        dump = pickle.loads((HANG / "trace_0").read_bytes())  # noqa: S301 (our own file)
        dump["pg_config"] = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}
        dump["pg_status"] = {}
        dump["entries"][-1]["retired"] = False
        if rank == 2:
            dump["entries"].pop()
        (tmp_path / f"trace_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    diagnosis = analyze(tmp_path)
    # Rank 2 is over with its newest operation: its peers have left that one behind.
    assert (diagnosis.suspects, diagnosis.victims) == ((2,), (0, 3))
    assert diagnosis.missing_dumps == (1,)


@pytest.mark.parametrize("last", ["broadcast", "scatter"])
def test_of_two_no_lost_root_is_blamed_for_what_may_be_over(tmp_path: Path, last: str) -> None:
    """Whether the one that is left went on from it into host code, its own dump does not tell."""
    folder = write_steps(tmp_path, {1: 4}, "scheduled", "gloo")
    dump = pickle.loads((folder / "trace_1").read_bytes())  # noqa: S301 (our own file)
    dump["entries"][-1]["profiling_name"] = f"gloo:{last}"
    (folder / "trace_1").write_bytes(pickle.dumps(dump, protocol=2))
    diagnosis = analyze(folder, expected_world_size=2)
    assert (diagnosis.verdict, diagnosis.suspects) == (Verdict.UNDETERMINED, ())


def test_one_group_more_does_not_change_how_a_rank_is_numbered(tmp_path: Path) -> None:
    """Without counters, dumps of one group could be of a recorder that counts over all groups."""
    folder = write_steps(tmp_path, {0: 6, 1: 5}, "completed")
    for rank in (0, 1):
        path = folder / f"trace_{rank}"
        dump = pickle.loads(path.read_bytes())  # noqa: S301 (our own file)
        if rank == 0:
            dump["entries"][-1] |= {"state": "scheduled", "retired": False}
        else:
            dump["pg_config"]["7"] = {"name": "7", "desc": "own", "ranks": "[1]"}
            first = dump["entries"][0] | {"process_group": ("7", "own")}
            for entry in dump["entries"]:
                entry["record_id"] += 1
            dump["entries"].insert(0, first)
        path.write_bytes(pickle.dumps(dump, protocol=2))
    diagnosis = analyze(folder)
    assert (diagnosis.suspects, diagnosis.victims) == ((1,), (0,))
