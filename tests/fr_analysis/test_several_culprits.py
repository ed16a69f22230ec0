"""Several culprits in one job, and culprits that only the order of the whole job tells."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.fr_analysis.test_made_jobs import diagnose, told
from tests.made_jobs import faults
from tests.made_jobs.dumps import Recorder, gloo, nccl, torchcomms, write
from tests.made_jobs.operations import Collective, Group, Program
from tests.made_jobs.programs import Layout, data_parallel, train
from tests.made_jobs.simulate import Job

from fr_analysis import AttributionState, FaultKind, Verdict, analyze


def test_each_of_two_ranks_that_differ_in_other_ways_from_one_collective_is_named() -> None:
    job = faults.other_dtype(data_parallel(8), [3], "default_pg", 1)
    job = faults.other_operation(job, [5], "default_pg", 1)
    diagnosis = diagnose(nccl(job))
    assert diagnosis.suspects == (3, 5), told(diagnosis)
    assert [fault.kind for fault in diagnosis.faults] == [FaultKind.OPERATION_MISMATCH]


def test_a_rank_that_differs_only_later_is_named_too() -> None:
    job = faults.other_dtype(data_parallel(8), [3], "default_pg", 0)
    job = faults.other_size(job, [5], "default_pg", 1)
    diagnosis = diagnose(nccl(job))
    assert set(diagnosis.suspects) == {3, 5}, told(diagnosis)
    kinds = [fault.kind for fault in diagnosis.faults]
    assert kinds == [FaultKind.DTYPE_MISMATCH, FaultKind.SIZE_MISMATCH]


def test_a_rank_asleep_is_named_beside_one_that_differs() -> None:
    job = faults.other_dtype(data_parallel(8), [3], "default_pg", 1)
    job = faults.asleep(job, [6], "default_pg", 1)
    diagnosis = diagnose(nccl(job))
    assert set(diagnosis.suspects) == {3, 6}, told(diagnosis)
    assert {fault.kind for fault in diagnosis.faults} == {
        FaultKind.DTYPE_MISMATCH,
        FaultKind.RANK_MISSING,
    }


def test_a_rank_asleep_is_named_though_those_that_miss_it_wait_elsewhere_first() -> None:
    job = train(Layout(4, 2, 1))
    job = faults.asleep(job, [5], "tp", 0)  # what ranks 4, 6 and 7 wait in first
    job = faults.asleep(job, [2], "dp", 0)
    diagnosis = diagnose(nccl(job))
    assert set(diagnosis.suspects) == {2, 5}, told(diagnosis)


WORLD = Group("0", "default_pg", tuple(range(6)))
HALVES = {
    rank: Group(f"{1 + rank // 3}", "tp", tuple(range(rank // 3 * 3, rank // 3 * 3 + 3)))
    for rank in range(6)
}


def swapped_at_the_start(odd: int) -> Job:
    """Six ranks call a collective in threes, then one together; one rank does it the other way."""
    programs: dict[int, Program] = {}
    for rank, group in HALVES.items():
        first = Collective(group, "all_reduce", ((8,),), ((8,),))
        second = Collective(WORLD, "broadcast", ((4,),), ((4,),))
        programs[rank] = [second, first] if rank == odd else [first, second]
    groups = [WORLD, HALVES[0], HALVES[5]]
    return Job(groups, programs)


@pytest.mark.parametrize("odd", [0, 4])
@pytest.mark.parametrize("style", [gloo, torchcomms, nccl])
def test_who_turns_off_at_the_start_is_told_by_the_order_of_the_others(style, odd: int) -> None:  # type: ignore[no-untyped-def]
    diagnosis = diagnose(style(swapped_at_the_start(odd)))
    assert diagnosis.suspects == (odd,), told(diagnosis)
    assert diagnosis.faults[0].kind is FaultKind.ORDER_DEADLOCK


def test_who_turned_off_is_told_where_a_timeout_hides_that_it_waits() -> None:
    # Gloo marks as over what timed out, and a root may be done before the others join.
    diagnosis = diagnose(gloo(swapped_at_the_start(0), Recorder(aborted=True)))
    assert diagnosis.suspects == (0,), told(diagnosis)
    (fault,) = diagnosis.faults
    assert fault.kind is FaultKind.RANK_MISSING
    said = "rank 0 never joined: the last that it called is not what most ranks of the job called"
    assert any(line.startswith(said) for line in fault.evidence), fault.evidence
    assert diagnosis.attribution_state is AttributionState.STOP


@pytest.mark.parametrize(("dumps", "verdict"), [(4, Verdict.FAULT), (3, Verdict.UNDETERMINED)])
def test_lost_dumps_are_blamed_only_where_most_dumps_are_there(
    dumps: int, verdict: Verdict
) -> None:
    job = faults.dead(data_parallel(8), range(dumps, 8), "default_pg", 1)
    diagnosis = diagnose(nccl(job))
    assert len(diagnosis.ranks) == dumps
    assert diagnosis.verdict is verdict
    assert any("run again with it" in n for n in diagnosis.notes) is (verdict is Verdict.FAULT)


def test_lost_dumps_are_not_blamed_where_only_a_rank_waits_that_turned_off() -> None:
    job = train(Layout(4, 1, 2))
    job = faults.extra(job, [6], "pp", 0)
    dumps = nccl(job, Recorder(missing=frozenset({2, 4})))
    diagnosis = diagnose(dumps, expected_world_size=8)
    assert not {2, 4} & set(diagnosis.suspects), told(diagnosis)


def test_rings_that_lost_every_batch_of_a_group_are_not_compared_by_its_numbers() -> None:
    job = faults.skipped(train(Layout(1, 2, 4), batched=True), [6], "dp", -1)
    for ring in range(4, 9):
        diagnosis = diagnose(nccl(job, Recorder(ring=ring)))
        assert set(diagnosis.suspects) <= {6}, f"ring of {ring}: {told(diagnosis)}"


def test_a_mark_that_is_long_overdue_does_not_follow(tmp_path: Path) -> None:
    """As after a cut link: an operation ended on some members, and never on the others."""
    dumps = gloo(faults.asleep(data_parallel(4), [0, 3], "default_pg", 2))
    for rank in (0, 3):
        dumps[rank]["entries"][-1]["retired"] = False
        for counters in dumps[rank]["pg_status"].values():
            counters["last_completed_collective"] -= 1
    write(dumps, tmp_path)
    went_on_ns = max(entry["time_created_ns"] for entry in dumps[1]["entries"])
    found = {}
    for name, later_ns in (("at once", 10_000_000), ("long after", 4_000_000_000)):
        for file in tmp_path.iterdir():
            os.utime(file, ns=(went_on_ns + later_ns, went_on_ns + later_ns))
        found[name] = analyze(tmp_path)
    assert found["at once"].suspects == (0, 3), told(found["at once"])
    assert found["long after"].suspects == (), told(found["long after"])
    assert [fault.kind for fault in found["long after"].faults] == [FaultKind.NO_PROGRESS]
