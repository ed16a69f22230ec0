"""Clocks: known shifts come back, and lateness is not taken for a shift."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.made_jobs.dumps import Dumps, Recorder, gloo, nccl, torchcomms, trace_of
from tests.made_jobs.operations import Collective, Compute, Group
from tests.made_jobs.programs import Layout, data_parallel, train
from tests.made_jobs.simulate import Job

from fr_analysis.match import match
from fr_analysis.match.clocks import Clocks, estimate_clocks

MS = 1_000_000
SECOND = 1_000 * MS


def clocks_of(dumps: Dumps) -> Clocks:
    return estimate_clocks(match(trace_of(dumps)))


def jitter_ends(dumps: Dumps, most_ns: int) -> Dumps:
    """The watchdog looks now and then only, on each rank at other moments."""
    chance = random.Random(5)
    for content in dumps.values():
        for entry in content["entries"]:
            if entry["time_discovered_completed_ns"] is not None:
                entry["time_discovered_completed_ns"] += chance.randrange(most_ns)
    return dumps


def with_barriers(world: int = 4, **late_ns: int) -> Job:
    group = Group("0", "default_pg", tuple(range(world)))
    programs: dict[int, Any] = {}
    for rank in range(world):
        work = Compute(MS + late_ns.get(f"rank{rank}", 0))
        step = [work, Collective(group, "all_reduce"), Compute(MS), Collective(group, "barrier")]
        programs[rank] = step * 6
    return Job([group], programs)


SHIFTS = {1: 3 * SECOND, 2: -2 * SECOND, 3: 7 * MS, 5: -13 * MS}


@pytest.mark.parametrize("timing", [False, True])
def test_shifts_of_seconds_and_milliseconds_come_back(timing: bool) -> None:
    job = data_parallel(6, steps=20)
    clocks = clocks_of(nccl(job, Recorder(skew_ns=SHIFTS, timing=timing)))
    assert clocks.reference == 0
    assert clocks.without == ()
    for rank in range(6):
        estimate = clocks.estimates[rank]
        assert abs(estimate.offset_ns - SHIFTS.get(rank, 0)) < MS / 10
        assert estimate.significant is (rank in SHIFTS)
        assert clocks.correction_ns(rank) == (estimate.offset_ns if rank in SHIFTS else 0)


def test_ends_that_are_seen_late_make_the_estimate_uncertain() -> None:
    dumps = nccl(data_parallel(6, steps=50), Recorder(skew_ns=SHIFTS))
    clocks = clocks_of(jitter_ends(dumps, 100 * MS))
    for rank, estimate in clocks.estimates.items():
        assert abs(estimate.offset_ns - SHIFTS.get(rank, 0)) <= estimate.uncertainty_ns
        assert rank == 0 or 20 * MS < estimate.uncertainty_ns < 120 * MS
        assert estimate.significant is (rank in (1, 2)), rank


def test_the_shift_of_the_reference_rank_itself() -> None:
    clocks = clocks_of(nccl(data_parallel(4), Recorder(skew_ns={0: 5 * SECOND})))
    assert [round(e.offset_ns / SECOND) for e in clocks.estimates.values()] == [0, -5, -5, -5]


def test_ranks_that_share_no_group_are_compared_through_others() -> None:
    layout = Layout(2, 2, 2)
    shifts = {rank: rank * SECOND for rank in range(layout.world)}
    job = train(layout, steps=8)
    # What all ranks share is left out, so that only chains of pairs are left.
    for rank, program in job.programs.items():
        job.programs[rank] = [
            step
            for step in program
            if not (isinstance(step, Collective) and step.group.description == "default_pg")
        ]
    clocks = clocks_of(nccl(job, Recorder(skew_ns=shifts)))
    assert clocks.without == ()
    for rank, estimate in clocks.estimates.items():
        assert abs(estimate.offset_ns - shifts[rank]) < MS
        assert estimate.uncertainty_ns < MS


def test_few_ends_give_bounds() -> None:
    job = data_parallel(4, steps=1)
    clocks = clocks_of(nccl(job, Recorder(skew_ns={1: 3 * SECOND, 2: MS})))
    for rank, shift in ((1, 3 * SECOND), (2, MS), (3, 0)):
        estimate = clocks.estimates[rank]
        assert abs(estimate.offset_ns - shift) <= estimate.uncertainty_ns
    assert [clocks.estimates[rank].significant for rank in (1, 2, 3)] == [True, False, False]


def test_a_broadcast_does_not_tell_clocks() -> None:
    group = Group("0", "default_pg", (0, 1, 2))
    job = Job([group], dict.fromkeys(range(3), [Collective(group, "broadcast"), Compute()] * 6))
    clocks = clocks_of(nccl(job, Recorder(skew_ns={1: SECOND})))
    assert clocks == Clocks(without=(0, 1, 2))


@pytest.mark.parametrize("style", [gloo, torchcomms])
def test_without_ends_barriers_bound_the_shift(style: Any) -> None:
    clocks = clocks_of(style(with_barriers(), Recorder(skew_ns={1: 3 * SECOND, 2: -SECOND})))
    for rank, shift in ((1, 3 * SECOND), (2, -SECOND), (3, 0)):
        estimate = clocks.estimates[rank]
        assert abs(estimate.offset_ns - shift) <= estimate.uncertainty_ns < 20 * MS
        assert estimate.significant is (shift != 0)


@pytest.mark.parametrize("style", [gloo, torchcomms])
def test_a_rank_that_is_late_is_not_taken_for_a_clock_that_is_ahead(style: Any) -> None:
    clocks = clocks_of(style(with_barriers(rank2=400 * MS)))
    assert clocks.estimates
    assert [clocks.correction_ns(rank) for rank in range(4)] == [0, 0, 0, 0]


def test_without_ends_and_barriers_there_is_no_estimate() -> None:
    clocks = clocks_of(gloo(data_parallel(4), Recorder(skew_ns={1: 3 * SECOND})))
    assert clocks == Clocks(without=(0, 1, 2, 3))


def test_a_rank_that_shares_nothing_keeps_its_clock() -> None:
    dumps = nccl(data_parallel(4), Recorder(skew_ns={2: SECOND}))
    dumps[3]["entries"] = []
    clocks = clocks_of(dumps)
    assert clocks.without == (3,)
    assert clocks.correction_ns(3) == 0
    assert clocks.correction_ns(2) == pytest.approx(SECOND, abs=MS)


def test_no_dumps_and_absurd_times() -> None:
    assert clocks_of({}) == Clocks()
    dumps = nccl(data_parallel(3))
    for entry in dumps[1]["entries"]:
        entry["time_discovered_completed_ns"] = (1 << 62) - 1
    for entry in dumps[2]["entries"]:
        entry["time_created_ns"] = entry["time_discovered_completed_ns"] = 1 << 63
    clocks = clocks_of(dumps)
    assert abs(clocks.correction_ns(1)) < 1 << 62
    assert clocks.correction_ns(2) == 0
