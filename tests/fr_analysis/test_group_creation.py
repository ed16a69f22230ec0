"""Ranks in ``new_group`` leave no entry: stacks tell them from ranks that do nothing."""

import pickle
from pathlib import Path
from typing import Literal

import pytest

from fr_analysis import Diagnosis, FaultKind, Verdict, analyze
from support import ROOT

HANG = ROOT / "tests" / "data" / "gloo_hang_3ranks"
Place = Literal["new_group", "all_reduce", "loader"]

STACK = """=== Rank {rank}: http://host ===
Thread 0x00007f4250219b80 (most recent call first):
{frames}  File "/home/you/train.py", line {line} in train
  File "/home/you/train.py", line 90 in <module>
"""
TORCH = "/v/site-packages/torch/distributed/distributed_c10d.py"
FRAMES = {
    "new_group": f'  File "{TORCH}", line 5 in new_group',
    "all_reduce": f'  File "{TORCH}", line 6 in all_reduce',
    "loader": '  File "/v/lib/python3.11/queue.py", line 171 in get',
}
LINE = {"new_group": 51, "all_reduce": 52, "loader": 7}


def diagnose(folder: Path, places: list[Place]) -> Diagnosis:
    """A job whose ranks are at these places, with dumps and a stacks snapshot."""
    stacks = ""
    for rank, place in enumerate(places):
        dump = pickle.loads((HANG / "trace_0").read_bytes())  # noqa: S301 (our own file)
        everyone = str(list(range(len(places))))
        dump["pg_config"] = {"0": {"name": "0", "desc": "default_pg", "ranks": everyone}}
        dump["pg_status"] = {}
        if place == "all_reduce":
            dump["entries"][-1] |= {"state": "scheduled", "retired": False}
        else:
            dump["entries"].pop()
        (folder / f"trace_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
        stacks += STACK.format(rank=rank, frames=FRAMES[place] + "\n", line=LINE[place])
    (folder / "stacks_20261130_120000.txt").write_text(stacks)
    return analyze(folder)


@pytest.mark.parametrize(
    ("places", "suspects", "victims"),
    [
        (["new_group", "new_group", "new_group", "all_reduce"], (3,), (0, 1, 2)),
        (["all_reduce", "new_group", "all_reduce", "all_reduce"], (1,), (0, 2, 3)),
        (["new_group", "new_group", "all_reduce", "all_reduce"], (), ()),
    ],
)
def test_some_make_a_group_and_the_others_go_on(
    tmp_path: Path, places: list[Place], suspects: tuple[int, ...], victims: tuple[int, ...]
) -> None:
    diagnosis = diagnose(tmp_path, places)
    (fault,) = diagnosis.faults
    assert diagnosis.verdict is Verdict.FAULT
    assert fault.kind is FaultKind.OPERATION_MISMATCH
    assert fault.suspects == diagnosis.suspects == suspects
    assert diagnosis.victims == victims
    assert {call.operation for call in fault.calls} == {"new_group", "all_reduce"}
    assert "in new_group, called at /home/you/train.py:51 in train" in fault.evidence[0]


def test_one_rank_is_stuck_before_it_makes_the_group(tmp_path: Path) -> None:
    diagnosis = diagnose(tmp_path, ["new_group", "loader", "new_group"])
    (fault,) = diagnosis.faults
    assert (fault.kind, fault.collective) == (FaultKind.RANK_MISSING, "new_group")
    assert (diagnosis.suspects, diagnosis.victims) == ((1,), (0, 2))
    assert str(diagnosis.details[0].location) == "/home/you/train.py:7 in train"


def test_idle_ranks_in_plenty_may_be_no_members(tmp_path: Path) -> None:
    diagnosis = diagnose(tmp_path, ["new_group", "loader", "loader", "loader"])
    assert diagnosis.verdict is Verdict.UNDETERMINED
    assert diagnosis.suspects == ()


def test_an_idle_rank_comes_before_those_that_make_a_group(tmp_path: Path) -> None:
    diagnosis = diagnose(tmp_path, ["new_group", "loader", "all_reduce", "all_reduce"])
    assert (diagnosis.suspects, diagnosis.victims) == ((1,), (0, 2, 3))
    assert diagnosis.faults[0].kind is FaultKind.RANK_MISSING


def test_everyone_makes_the_group(tmp_path: Path) -> None:
    assert diagnose(tmp_path, ["new_group"] * 3).verdict is Verdict.HEALTHY
