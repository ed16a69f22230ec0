"""The right answer on made jobs: every fault, in every kind of group, at many ranks."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.made_jobs import faults
from tests.made_jobs.dumps import Dumps, Recorder, gloo, nccl, torchcomms, trace_of, write
from tests.made_jobs.operations import (
    Batch,
    Collective,
    Compute,
    Group,
    Program,
    Synchronize,
    Transfer,
)
from tests.made_jobs.programs import (
    Layout,
    data_parallel,
    one_forward_one_backward,
    train,
)
from tests.made_jobs.simulate import Job, simulate

from fr_analysis import Diagnosis, FaultKind, Verdict, analyze
from fr_analysis.attribute import attribute
from fr_analysis.match import match

LARGE = Layout(4, 4, 4)
MEDIUM = Layout(2, 2, 4)
SMALL = Layout(2, 2, 2)
FLAT = Layout(2, 4, 1)
"""Without a pipeline: torch's Gloo records no send or recv."""

Fault = Callable[..., Job]
Style = Callable[[Job], Dumps]

MISMATCH = {FaultKind.OPERATION_MISMATCH, FaultKind.SIZE_MISMATCH}
LEFT_THE_PATH = {
    *MISMATCH,
    FaultKind.RANK_MISSING,
    FaultKind.ORDER_DEADLOCK,
    FaultKind.P2P_UNMATCHED,
}
"""What one collective too many or too few comes to, by what the rank calls next."""


def diagnose(dumps: Dumps, expected_world_size: int | None = None) -> Diagnosis:
    """The analyzer's answer, without the way through files."""
    return attribute(match(trace_of(dumps, expected_world_size)))


def told(diagnosis: Diagnosis) -> str:
    """The answer in one line, for a failing test."""
    faults_ = [(fault.kind.value, fault.group, fault.suspects) for fault in diagnosis.faults]
    return f"{diagnosis.verdict.value}, suspects {diagnosis.suspects}, faults {faults_}"


def assert_blames(
    diagnosis: Diagnosis, ranks: Iterable[int], kinds: set[FaultKind], where: object
) -> None:
    """The answer is a fault of a kind that names exactly these ranks, and no victim."""
    found = told(diagnosis)
    assert diagnosis.verdict is Verdict.FAULT, f"{where}: {found}"
    assert set(diagnosis.suspects) == set(ranks), f"{where}: blamed not {set(ranks)}: {found}"
    assert not set(diagnosis.suspects) & set(diagnosis.victims), f"{where}: {found}"
    assert diagnosis.faults[0].kind in kinds, f"{where}: {found}"


def assert_blames_nobody(diagnosis: Diagnosis, kinds: set[FaultKind], where: object) -> None:
    """A fault is shown and no rank blamed."""
    assert diagnosis.suspects == (), f"{where}: {told(diagnosis)}"
    assert diagnosis.verdict is not Verdict.HEALTHY, f"{where}: {told(diagnosis)}"
    assert {fault.kind for fault in diagnosis.faults} <= kinds, f"{where}: {told(diagnosis)}"


def recorded(**options: Any) -> Style:
    """NCCL dumps with a recorder of these options."""
    return lambda job: nccl(job, Recorder(**options))


def waiting_hosts(job: Job) -> Dumps:
    """NCCL whose hosts wait for every operation, as with TORCH_NCCL_BLOCKING_WAIT."""
    job.host_waits = True
    return nccl(job)


STYLES: dict[str, Style] = {
    "nccl": nccl,
    "nccl-timing": recorded(timing=True),
    "nccl-waiting-hosts": waiting_hosts,
    "nccl-wrapped": recorded(ring=15),
    "nccl-active-only": recorded(only_active=True),
}
CPU_STYLES: dict[str, Style] = {"gloo": gloo, "torchcomms": torchcomms}

FAULTS: dict[str, tuple[Fault, set[FaultKind]]] = {
    "asleep": (faults.asleep, {FaultKind.RANK_MISSING}),
    "dead": (faults.dead, {FaultKind.RANK_MISSING}),
    "operation": (faults.other_operation, {FaultKind.OPERATION_MISMATCH}),
    "size": (faults.other_size, {FaultKind.SIZE_MISMATCH}),
    "dtype": (faults.other_dtype, {FaultKind.DTYPE_MISMATCH}),
    "extra": (faults.extra, LEFT_THE_PATH),
    "skipped": (faults.skipped, LEFT_THE_PATH),
}
PLACES = (("default_pg", 0), ("default_pg", -2), ("tp", 0), ("tp", 5), ("dp", 2), ("pp", 1))
FLAT_PLACES = (("default_pg", 0), ("tp", 0), ("tp", 3), ("dp", 1), ("dp", 2))


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("style", STYLES)
def test_small_3d_jobs(style: str, fault: str) -> None:
    inject, kinds = FAULTS[fault]
    for layout in (SMALL, MEDIUM):
        for group, nth in PLACES:
            for rank in (0, 6) if layout is SMALL else (5,):
                job = inject(train(layout, microbatches=1), [rank], group, nth)
                where = f"{fault} on rank {rank} of {layout.world} in {group}, no. {nth}, {style}"
                diagnosis = diagnose(STYLES[style](job))
                pair = sum(layout.coordinate(rank)) >= 0 and group != "default_pg"
                if style == "nccl-active-only" and pair and not diagnosis.suspects:
                    # In a group of two the two differ, and complete operations, by which
                    # other groups could settle it, are left out of these dumps.
                    assert_blames_nobody(diagnosis, kinds | MISMATCH, where)
                    continue
                assert_blames(diagnosis, [rank], kinds, where)


@pytest.mark.parametrize("fault", FAULTS)
def test_64_ranks_each_group_each_stage(fault: str) -> None:
    inject, kinds = FAULTS[fault]
    styles = list(STYLES)
    for at, (group, nth) in enumerate(PLACES):
        for rank in (0, 42, 63)[at % 2 :: 2] or (21,):
            style = styles[(at + rank) % len(styles)]
            job = inject(train(LARGE, microbatches=1), [rank], group, nth)
            where = f"{fault} on rank {rank} of 64 in {group}, no. {nth}, {style}"
            assert_blames(diagnose(STYLES[style](job)), [rank], kinds, where)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("style", CPU_STYLES)
def test_cpu_recorders(style: str, fault: str) -> None:
    inject, kinds = FAULTS[fault]
    for group, nth in FLAT_PLACES:
        for rank in (0, 1, 4, 7):
            job = inject(train(FLAT, microbatches=2), [rank], group, nth)
            where = f"{fault} on rank {rank} of 8 in {group}, no. {nth}, {style}"
            diagnosis = diagnose(CPU_STYLES[style](job), FLAT.world)
            if fault in ("extra", "skipped") and style == "gloo" and not diagnosis.suspects:
                # Members are not declared, so what recorded nothing is no evidence.
                assert_blames_nobody(diagnosis, kinds, where)
                continue
            assert_blames(diagnosis, [rank], kinds, where)


def test_gloo_after_the_timeout() -> None:
    """Completion marks say nothing then."""
    for fault, (inject, kinds) in FAULTS.items():
        for group, nth in (("default_pg", 0), ("tp", 3), ("dp", 1)):
            for rank in (0, 3, 7):
                if fault in ("extra", "skipped"):
                    continue
                job = inject(train(FLAT, microbatches=2), [rank], group, nth)
                diagnosis = diagnose(gloo(job, Recorder(aborted=True)), FLAT.world)
                where = f"{fault} on rank {rank} of 8 in {group}, no. {nth}"
                assert_blames(diagnosis, [rank], kinds, where)


def test_nccl_abort_marked_what_hung_as_completed() -> None:
    for fault in ("asleep", "dead", "operation", "size"):
        inject, kinds = FAULTS[fault]
        for group, nth in PLACES:
            for rank in (0, 5, 10, 15):
                job = inject(train(MEDIUM, microbatches=1), [rank], group, nth)
                where = f"{fault} on rank {rank} of 16 in {group}, no. {nth}"
                diagnosis = diagnose(nccl(job, Recorder(aborted=True)))
                assert_blames(diagnosis, [rank], kinds, where)


def test_two_ranks_missing_at_once() -> None:
    for inject in (faults.asleep, faults.dead):
        for pair in ((0, 63), (21, 22)):
            for group in ("tp", "dp"):
                job = inject(train(LARGE, steps=1, microbatches=1), pair, group)
                where = f"{inject.__name__} {pair} in {group}"
                assert_blames(diagnose(nccl(job)), pair, {FaultKind.RANK_MISSING}, where)


def test_two_independent_faults_are_both_reported_the_earliest_first() -> None:
    # Replicas that share no group but the default one, which neither reaches.
    for first, second in ((0, 63), (21, 42), (63, 0)):
        job = train(LARGE, microbatches=1)
        job = faults.other_size(job, [first], "tp", 0)
        job.programs[second].insert(
            faults.place(job.programs[second], "dp", 0), Compute(90_000_000)
        )
        job = faults.other_dtype(job, [second], "tp", 1)
        diagnosis = diagnose(nccl(job))
        assert set(diagnosis.suspects) == {first, second}, told(diagnosis)
        seen = [fault.first_seen_ns or 0 for fault in diagnosis.faults]
        assert seen == sorted(seen), told(diagnosis)


@pytest.mark.parametrize("group", ["default_pg", "tp", "dp"])
def test_all_to_all_splits(group: str) -> None:
    for layout in (LARGE, Layout(4, 4, 1)):
        for rank in (0, layout.world // 2 + 1, layout.world - 1):
            job = faults.all_to_all(layout, train(layout, steps=1, microbatches=1), group)
            job = faults.other_splits(job, [rank], group)
            where = f"splits of rank {rank} of {layout.world} in {group}"
            diagnosis = diagnose(nccl(job))
            assert_blames(diagnosis, [rank], {FaultKind.SPLIT_MISMATCH}, where)


def test_uneven_all_to_all_is_legal() -> None:
    for group in ("default_pg", "tp", "dp"):
        job = faults.all_to_all(SMALL, train(SMALL), group)
        assert diagnose(nccl(job)).verdict is Verdict.HEALTHY
        job = faults.asleep(faults.all_to_all(SMALL, train(SMALL), group), [5], group, -1)
        assert_blames(diagnose(nccl(job)), [5], {FaultKind.RANK_MISSING}, group)


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize(
    "style", [nccl, recorded(timing=True), recorded(ring=9), recorded(only_active=True)]
)
def test_healthy_jobs(style: Style, batched: bool) -> None:
    jobs = [
        data_parallel(8),
        train(SMALL, batched=batched),
        train(MEDIUM, batched=batched, overlapped=True),
        train(LARGE, steps=1, batched=batched),
        *(one_forward_one_backward(stages) for stages in (2, 3, 4, 8)),
    ]
    for at, job in enumerate(jobs):
        diagnosis = diagnose(style(job))
        assert diagnosis.verdict is Verdict.HEALTHY, f"job {at}: {told(diagnosis)}"


def test_healthy_on_cpu() -> None:
    for dumps in (gloo(train(FLAT)), torchcomms(train(FLAT)), gloo(data_parallel(4))):
        diagnosis = diagnose(dumps)
        assert diagnosis.verdict is Verdict.HEALTHY, told(diagnosis)


def test_list_form_all_gather_is_legal() -> None:
    group = Group("0", "default_pg", (0, 1, 2, 3))
    call = Collective(group, "all_gather", ((8, 2),), ((8, 2),) * 4)
    job = Job([group], {rank: [call, call] for rank in group.members})
    assert diagnose(torchcomms(job)).verdict is Verdict.HEALTHY
    assert diagnose(nccl(job)).verdict is Verdict.HEALTHY


def test_order_deadlock_one_against_many() -> None:
    """Two groups of all ranks, entered in the opposite order by one of them."""
    for world in (4, 8, 16):
        members = tuple(range(world))
        first, second = Group("0", "default_pg", members), Group("1", "metrics", members)
        path: Program = [Collective(first, "all_reduce"), Collective(second, "all_gather")]
        for odd in (0, world // 2, world - 1):
            for host_waits in (False, True):
                programs = {rank: [*path, Synchronize()] for rank in members}
                programs[odd] = [*path[::-1], Synchronize()]
                job = Job([first, second], programs, host_waits=host_waits)
                where = f"rank {odd} of {world}, host waits {host_waits}"
                assert_blames(diagnose(nccl(job)), [odd], {FaultKind.ORDER_DEADLOCK}, where)


def test_order_deadlock_in_a_mesh() -> None:
    """Two ranks of a tensor and data parallel mesh enter their groups the other way round."""
    layout = Layout(4, 4, 1)
    for pair in ((0, 5), (0, 15), (6, 9)):
        job = train(layout, steps=1, microbatches=2)
        for rank in pair:
            program = job.programs[rank]
            a, b = faults.place(program, "tp", -1), faults.place(program, "dp", 0)
            program[a], program[b] = program[b], program[a]
        assert_blames(diagnose(nccl(job)), pair, {FaultKind.ORDER_DEADLOCK}, pair)


def test_order_deadlock_two_against_two_blames_nobody() -> None:
    members = (0, 1, 2, 3)
    first, second = Group("0", "default_pg", members), Group("1", "metrics", members)
    path: Program = [Collective(first, "all_reduce"), Collective(second, "all_reduce")]
    job = Job([first, second], {rank: path[:: 1 if rank % 2 else -1] for rank in members})
    diagnosis = diagnose(nccl(job))
    assert_blames_nobody(diagnosis, {FaultKind.ORDER_DEADLOCK}, "even against odd")
    assert {stuck.group for stuck in diagnosis.wavefront} == {"0", "1"}


def test_two_against_two_blames_nobody_and_shows_both() -> None:
    for inject, kind in (
        (faults.other_size, FaultKind.SIZE_MISMATCH),
        (faults.other_operation, FaultKind.OPERATION_MISMATCH),
        (faults.other_dtype, FaultKind.DTYPE_MISMATCH),
    ):
        for pair in ((0, 1), (1, 3)):
            job = inject(data_parallel(4), pair, "default_pg", 4)
            diagnosis = diagnose(nccl(job))
            assert_blames_nobody(diagnosis, {kind}, pair)
            sides = sorted(call.ranks for call in diagnosis.faults[0].calls)
            assert sides == sorted([pair, tuple(sorted({0, 1, 2, 3} - set(pair)))])


def test_a_rank_that_ran_ahead() -> None:
    for world in (3, 4, 8):
        for rank in range(world):
            job = data_parallel(world)
            job.programs[rank] = [*job.programs[rank], job.programs[rank][1], Synchronize()]
            where = f"rank {rank} of {world}"
            assert_blames(diagnose(nccl(job)), [rank], {FaultKind.RANK_MISSING}, where)


def test_a_few_ranks_that_ran_ahead_together() -> None:
    """Three idle peers and more stand against each of them; fewer may be stuck as well."""
    for world, ranks, are_few in ((8, [2, 5], True), (7, [0, 1], False), (12, [1, 2, 3], True)):
        job = data_parallel(world)
        for rank in ranks:
            job.programs[rank] = [*job.programs[rank], job.programs[rank][1], Synchronize()]
        diagnosis = diagnose(nccl(job))
        if are_few:
            assert_blames(diagnosis, ranks, {FaultKind.RANK_MISSING}, f"{ranks} of {world}")
        else:
            assert diagnosis.verdict is Verdict.UNDETERMINED, told(diagnosis)


def test_rank_zero_is_the_odd_one() -> None:
    for inject, kinds in FAULTS.values():
        job = inject(data_parallel(4), [0], "default_pg", 5)
        assert_blames(diagnose(nccl(job)), [0], kinds, inject.__name__)


def pipeline_job(stages: int) -> Job:
    """Two replicas of a pipeline with lone transfers, and a data parallel group per stage."""
    return train(Layout(1, 2, stages), microbatches=2, steps=2)


def test_p2p_unmatched() -> None:
    """A stage leaves a recv out: its peer's send has no counterpart."""
    named = tried = 0
    for stages in (2, 4):
        for rank in range(2, 2 * stages):
            for nth in (2, 4):
                job = pipeline_job(stages)
                program = job.programs[rank]
                del program[faults.place(program, "pp", nth, Transfer)]
                diagnosis = diagnose(nccl(job))
                assert set(diagnosis.suspects) <= {rank}, f"{rank}, {nth}: {told(diagnosis)}"
                assert diagnosis.verdict is not Verdict.HEALTHY
                tried += 1
                named += bool(diagnosis.suspects)
    # Two replicas: where both ends of a transfer depart, one sibling each may not decide.
    assert named >= 0.8 * tried, f"{named} of {tried}"


def test_p2p_to_a_rank_that_is_done() -> None:
    group = Group("0", "default_pg", (0, 1, 2, 3))
    warm: Program = [Collective(group, "all_reduce"), Synchronize()]
    job = Job([group], {rank: list(warm) for rank in group.members})
    job.programs[2] = [*warm, Transfer(group, True, 3), Synchronize()]
    diagnosis = diagnose(nccl(job))
    assert diagnosis.faults[0].kind is FaultKind.P2P_UNMATCHED, told(diagnosis)
    assert set(diagnosis.suspects) <= {2, 3}


def test_p2p_cycle_both_send_first() -> None:
    group = Group("0", "default_pg", (0, 1, 2, 3))
    for size in (2, 3, 4):
        ring = tuple(range(size))
        job = Job([group], {rank: [Collective(group, "all_reduce")] for rank in group.members})
        for rank in ring:
            after, before = ring[(rank + 1) % size], ring[(rank - 1) % size]
            job.programs[rank] += [
                Transfer(group, True, after),
                Transfer(group, False, before),
                Synchronize(),
            ]
        assert_blames(diagnose(nccl(job)), ring, {FaultKind.P2P_CYCLE}, f"ring of {size}")


def test_a_rank_asleep_in_a_pipeline() -> None:
    for batched in (False, True):
        kind: type = Batch if batched else Transfer
        for rank in (0, 3, 8, 15):
            for nth in (0, 1, -1):
                job = train(MEDIUM, batched=batched)
                job = faults.asleep(job, [rank], "pp", nth, kind)
                where = f"rank {rank}, transfer {nth}, batched {batched}"
                kinds = {FaultKind.RANK_MISSING, FaultKind.P2P_UNMATCHED}
                assert_blames(diagnose(nccl(job)), [rank], kinds, where)


def test_a_stage_asleep_in_one_forward_one_backward() -> None:
    kinds = {FaultKind.RANK_MISSING, FaultKind.P2P_UNMATCHED}
    for stages in (2, 4, 8):
        for rank in (0, stages // 2, stages - 1):
            for recorder in (Recorder(), Recorder(ring=12), Recorder(only_active=True)):
                for nth in (0, 2, -1):
                    job = one_forward_one_backward(stages)
                    job = faults.asleep(job, [rank], "default_pg", nth, Batch)
                    where = f"stage {rank} of {stages}, batch {nth}, {recorder}"
                    assert_blames(diagnose(nccl(job, recorder)), [rank], kinds, where)
                job = faults.asleep(one_forward_one_backward(stages), [rank], "default_pg")
                where = f"stage {rank} of {stages}, at the end, {recorder}"
                assert_blames(
                    diagnose(nccl(job, recorder)), [rank], {FaultKind.RANK_MISSING}, where
                )


def test_everyone_in_and_nothing_moves() -> None:
    for layout, ranks in ((LARGE, (21,)), (SMALL, (0, 3, 5, 7))):
        for rank in ranks:
            for group, nth in PLACES:
                job = faults.device_stuck(train(layout, microbatches=1), [rank], group, nth)
                where = f"device of rank {rank} of {layout.world} before {group}, no. {nth}"
                diagnosis = diagnose(nccl(copy.deepcopy(job)))
                assert_blames_nobody(diagnosis, {FaultKind.NO_PROGRESS}, where)
                name = next(
                    g.name for g in job.groups if g.description == group and rank in g.members
                )
                assert diagnosis.faults[0].group == name, f"{where}: {told(diagnosis)}"
                diagnosis = diagnose(nccl(job, Recorder(timing=True)))
                assert_blames(diagnosis, [rank], {FaultKind.NO_PROGRESS}, where)


def test_clock_skew_changes_nothing() -> None:
    for fault, (inject, kinds) in FAULTS.items():
        for group, nth in PLACES:
            skew = {rank: random.Random(rank).randrange(-(10**10), 10**10) for rank in range(8)}
            job = inject(train(SMALL, microbatches=1), [3], group, nth)
            diagnosis = diagnose(nccl(job, Recorder(skew_ns=skew)))
            assert_blames(diagnosis, [3], kinds, f"{fault} in {group}, no. {nth}")


def test_wrapped_rings_with_uneven_record_ids() -> None:
    for rank in (0, 3, 7):
        for group, nth in PLACES:
            job = faults.asleep(train(SMALL, microbatches=1), [rank], group, nth)
            dumps = nccl(job)
            for other, dump in dumps.items():
                dump["entries"] = dump["entries"][-(8 + other) :]
                for entry in dump["entries"]:
                    entry["record_id"] += 1000 * other
            where = f"rank {rank} in {group}, no. {nth}"
            assert_blames(diagnose(dumps), [rank], {FaultKind.RANK_MISSING}, where)


def test_torchcomms_counter_shifted_and_other_interleavings() -> None:
    for rank in range(4):
        layout = Layout(2, 2, 1)
        job = train(layout, steps=3, microbatches=1)
        # A legal difference: ranks of the second replica gather in the default group first.
        for other in (2, 3):
            job.programs[other].insert(0, Compute(5))
        job = faults.asleep(job, [rank], "dp", 3)
        for shift in (0, 7):
            dumps = torchcomms(job)
            for entry in dumps[(rank + 1) % 4]["entries"]:
                entry["collective_seq_id"] += shift
                entry["record_id"] += shift
            where = f"rank {rank}, counter shifted by {shift}"
            assert_blames(diagnose(dumps), [rank], {FaultKind.RANK_MISSING}, where)


def skews(world: int) -> dict[int, int]:
    """A constant clock error per host of two ranks, up to ten seconds."""
    return {rank: random.Random(rank // 2).randrange(-(10**10), 10**10) for rank in range(world)}


def test_straggler_where_durations_are_recorded() -> None:
    for layout in (FLAT, SMALL, MEDIUM):
        for rank in (0, 3, layout.world - 1):
            for skew in ({}, skews(layout.world)):
                job = faults.slowed(train(layout, steps=3), rank, 60_000_000)
                diagnosis = diagnose(nccl(job, Recorder(timing=True, skew_ns=skew)))
                where = f"rank {rank} of {layout.world}, skew {bool(skew)}"
                assert_blames(diagnosis, [rank], {FaultKind.STRAGGLER}, where)
    assert " ms in the median" in diagnosis.faults[0].evidence[0]


def test_straggler_whose_host_is_late() -> None:
    for style in (gloo, torchcomms, nccl):
        for rank in (0, 2, 3):
            for skew in ({}, skews(4)):
                job = faults.slowed(data_parallel(4, steps=12), rank, 80_000_000, every=3)
                job.host_waits = True
                diagnosis = diagnose(style(job, Recorder(skew_ns=skew)))
                where = f"rank {rank} of 4, {style.__name__}, skew {bool(skew)}"
                assert_blames(diagnosis, [rank], {FaultKind.STRAGGLER}, where)


def test_clock_skew_alone_is_no_straggler() -> None:
    for style in (gloo, torchcomms, nccl):
        for world in (2, 4, 8):
            job = data_parallel(world, steps=12)
            diagnosis = diagnose(style(job, Recorder(skew_ns=skews(world), timing=True)))
            assert diagnosis.verdict is Verdict.HEALTHY, told(diagnosis)


def test_a_constant_delay_cannot_be_told_from_clock_skew_where_no_ends_are_recorded() -> None:
    job = faults.slowed(data_parallel(4, steps=12), 2, 80_000_000)
    diagnosis = diagnose(torchcomms(job))
    assert set(diagnosis.suspects) <= {2}, told(diagnosis)


# -- what dumps lack or garble ------------------------------------------------------------


def garbled(change: Callable[[dict[str, Any]], None]) -> Callable[[Dumps, int], None]:
    """Apply a change to one rank's dump."""

    def apply(dumps: Dumps, rank: int) -> None:
        change(dumps[rank])

    return apply


def _without(key: str) -> Callable[[Dumps, int], None]:
    return garbled(lambda dump: dump.pop(key))


def _ranks_as_list(dumps: Dumps, rank: int) -> None:
    for config in dumps[rank]["pg_config"].values():
        config["ranks"] = [int(text) for text in config["ranks"][1:-1].split(",")]


def _ranks_as_span(dumps: Dumps, rank: int) -> None:
    dumps[rank]["pg_config"]["0"]["ranks"] = "0-7"


def _no_sizes(dumps: Dumps, rank: int) -> None:
    del dumps[rank]["entries"][-1]["input_sizes"]


def _state_none(dumps: Dumps, rank: int) -> None:
    dumps[rank]["entries"][0]["state"] = None


def _unknown_operation(dumps: Dumps, rank: int) -> None:
    for dump in dumps.values():
        for entry in dump["entries"]:
            if entry["profiling_name"] == "nccl:broadcast":
                entry["profiling_name"] = "nccl:all_the_things"


def _hashed_names(dumps: Dumps, rank: int) -> None:
    """Every group's name is a hash that all members share."""
    for dump in dumps.values():
        dump["pg_config"] = {
            f"hash{config['name']}{config['ranks']}": {**config, "name": "hash"}
            for config in dump["pg_config"].values()
        }
        names = {name[4 : name.index("[")]: name for name in dump["pg_config"]}
        for entry in dump["entries"]:
            name, description = entry["process_group"]
            entry["process_group"] = (names[name], description)


def _colliding_names(dumps: Dumps, rank: int) -> None:
    """Groups of one kind have one name: every rank counts its own groups."""
    for dump in dumps.values():
        dump["pg_config"] = {
            config["desc"]: {**config, "name": config["desc"]}
            for config in dump["pg_config"].values()
        }
        for entry in dump["entries"]:
            entry["process_group"] = (entry["process_group"][1],) * 2


def _without_description(dumps: Dumps, rank: int) -> None:
    for dump in dumps.values():
        for config in dump["pg_config"].values():
            config["desc"] = "undefined"
        for entry in dump["entries"]:
            entry["process_group"] = (entry["process_group"][0], "undefined")


GARBLED: dict[str, Callable[[Dumps, int], None]] = {
    "ranks as list": _ranks_as_list,
    "ranks as span": _ranks_as_span,
    "no pg_config": _without("pg_config"),
    "empty pg_config": garbled(lambda dump: dump.update(pg_config={})),
    "no pg_status": _without("pg_status"),
    "empty pg_status": garbled(lambda dump: dump.update(pg_status={})),
    "no input_sizes": _no_sizes,
    "state None": _state_none,
    "unknown operation": _unknown_operation,
    "hashed names": _hashed_names,
    "colliding names": _colliding_names,
    "no description": _without_description,
}


@pytest.mark.parametrize("garble", GARBLED)
def test_garbled_dumps(garble: str) -> None:
    for fault in ("asleep", "dead", "operation", "size"):
        inject, kinds = FAULTS[fault]
        for group, nth in PLACES:
            for rank in (0, 5):
                dumps = nccl(inject(train(SMALL, microbatches=1), [rank], group, nth))
                victim = 3 if rank != 3 else 4
                GARBLED[garble](dumps, victim)
                where = f"{fault} on rank {rank} in {group}, no. {nth}; {garble}"
                if garble == "no description" and fault in ("operation", "size"):
                    # Which groups are of a kind is not known then, so that in a group of
                    # two nothing may tell which of them is odd.
                    diagnosis = diagnose(dumps)
                    assert set(diagnosis.suspects) <= {rank}, f"{where}: {told(diagnosis)}"
                    continue
                assert_blames(diagnose(dumps), [rank], kinds, where)


def test_culprit_without_entries() -> None:
    for group in ("default_pg", "tp", "dp"):
        dumps = nccl(faults.asleep(train(SMALL, microbatches=1), [5], group))
        for lack in (lambda dump: dump.pop("entries"), lambda dump: dump.update(entries=[])):
            changed = copy.deepcopy(dumps)
            lack(changed[5])
            del changed[5]["pg_status"]
            assert_blames(diagnose(changed), [5], {FaultKind.RANK_MISSING}, group)


def test_bystanders_dump_missing() -> None:
    """A victim that left no dump is not blamed while another rank explains everything."""
    for fault in ("asleep", "operation", "size"):
        inject, kinds = FAULTS[fault]
        for group, nth in PLACES:
            for rank in (0, 15):
                for bystander in (1, 6, 14):
                    job = inject(
                        train(MEDIUM, steps=1, microbatches=1),
                        [rank],
                        group,
                        max(nth, -1) if nth < 1 else 0,
                    )
                    dumps = nccl(job, Recorder(missing=frozenset({bystander})))
                    where = f"{fault} on {rank} in {group}, {nth}; no dump of {bystander}"
                    assert_blames(diagnose(dumps), [rank], kinds, where)


def test_culprits_dump_missing() -> None:
    for inject in (faults.asleep, faults.extra, faults.skipped):
        for group, nth in PLACES:
            for rank in (0, 5, 7):
                job = inject(train(SMALL, microbatches=1), [rank], group, nth)
                diagnosis = diagnose(nccl(job, Recorder(missing=frozenset({rank}))))
                where = f"{inject.__name__} on {rank} in {group}, {nth}: {told(diagnosis)}"
                assert set(diagnosis.suspects) == {rank}, where


def test_membership_mismatch() -> None:
    """A rank that never created a group that others count it in."""
    for group in ("tp", "dp"):
        for rank in (0, 5, 10, 15):
            job = train(MEDIUM, microbatches=1)
            name = next(g.name for g in job.groups if g.description == group and rank in g.members)
            job.programs[rank] = [
                step
                for step in job.programs[rank]
                if not isinstance(step, Collective) or step.group.name != name
            ]
            dumps = nccl(job)
            del dumps[rank]["pg_config"][name]
            diagnosis = diagnose(dumps)
            where = f"rank {rank} without its {group}"
            assert_blames(diagnosis, [rank], {FaultKind.MEMBERSHIP_MISMATCH}, where)


def test_members_disagree_on_the_group() -> None:
    for rank in range(8):
        job = faults.asleep(data_parallel(8), range(8), "default_pg", 4)
        other = Group("1", "eval", tuple(range(8)))
        job.groups.append(other)
        for program in job.programs.values():
            program.insert(0, Collective(other, "all_reduce"))
        wrong = Group("1", "eval", tuple(r for r in range(8) if r != (rank + 1) % 8))
        job.programs[rank][0] = replace(job.programs[rank][0], group=wrong)
        dumps = nccl(job)
        dumps[rank]["pg_config"]["1"]["ranks"] = str(list(wrong.members))
        diagnosis = diagnose(dumps)
        assert_blames(diagnosis, [rank], {FaultKind.MEMBERSHIP_MISMATCH}, f"rank {rank}")


# -- through files ------------------------------------------------------------------------


def test_the_answer_is_the_same_through_files_whatever_their_order(tmp_path: Path) -> None:
    job = faults.other_size(train(LARGE, steps=1, microbatches=1), [42], "tp", 1)
    dumps = nccl(job)
    folder = write(dumps, tmp_path / "plain")
    assert_blames(analyze(folder), [42], {FaultKind.SIZE_MISMATCH}, "64 files")
    shuffled = list(dumps)
    random.Random(4).shuffle(shuffled)
    folder = write({rank: dumps[rank] for rank in shuffled}, tmp_path / "shuffled")
    assert analyze(folder).suspects == (42,)


def test_jobs_are_reproducible() -> None:
    assert nccl(train(SMALL)) == nccl(train(SMALL))


def test_a_victim_really_waits() -> None:
    """The simulation itself: who shares no group with a sleeper goes on as far as it can."""
    job = faults.asleep(train(Layout(2, 2, 1), steps=1, microbatches=1), [0], "tp")
    ran = simulate(job)
    assert ran[0] == []
    assert [task.done_ns is not None for task in ran[2]][:5] == [True] * 4 + [False]


# -- found by random jobs -----------------------------------------------------------------


def test_two_culprits_in_groups_of_two_are_settled_by_most_others() -> None:
    """The other culprit's group disagrees too, and does not hide what the rest agree on."""
    for fault in ("operation", "size", "dtype"):
        inject, kinds = FAULTS[fault]
        job = inject(train(Layout(2, 4, 1), microbatches=1), [1, 6], "tp", 2)
        assert_blames(diagnose(nccl(job)), [1, 6], kinds, fault)


def test_a_rank_of_two_that_ran_ahead_where_most_have_ended() -> None:
    """Its peer has come as far as every rank of the job that waits for nobody."""
    for rank in (0, 3, 7):
        job = train(Layout(2, 4, 1), steps=1, microbatches=1)
        last = job.programs[rank][faults.place(job.programs[rank], "tp", -1)]
        job.programs[rank] = [*job.programs[rank], last, Synchronize()]
        assert_blames(diagnose(nccl(job)), [rank], {FaultKind.RANK_MISSING}, rank)


def test_a_device_that_has_not_begun_is_named_although_a_dump_is_lost() -> None:
    for lost in (2, 5):
        job = faults.device_stuck(data_parallel(8), [6], "default_pg", 5)
        recorder = Recorder(timing=True, missing=frozenset({lost}))
        assert_blames(diagnose(nccl(job, recorder)), [6], {FaultKind.NO_PROGRESS}, lost)


def test_a_member_of_an_undeclared_group_that_was_never_called_is_no_outsider() -> None:
    """torch's Gloo lists no groups, so that a rank lists none says nothing."""
    layout = Layout(2, 4, 1)
    world, mine = layout.groups()[0], layout.groups()
    job = Job(mine, {rank: [Collective(world, "all_reduce")] for rank in range(layout.world)})
    for rank, program in job.programs.items():
        (pair,) = (g for g in mine if g.description == "tp" and rank in g.members)
        program += [Collective(pair, "all_reduce"), Collective(world, "all_reduce", dtype="Float")]
    del job.programs[0][1]
    diagnosis = diagnose(gloo(job), layout.world)
    kinds = [fault.kind for fault in diagnosis.faults]
    assert FaultKind.MEMBERSHIP_MISMATCH not in kinds, told(diagnosis)
    assert set(diagnosis.suspects) <= {0}, told(diagnosis)


def test_gloo_ranks_that_went_on_do_not_wait_in_what_is_marked_complete() -> None:
    """A timeout ends a rank's last operation, not one before it."""
    layout = Layout(2, 4, 1)
    job = faults.other_size(train(layout, microbatches=1), [1], "default_pg", 0)
    for lost in range(2, 8):
        recorder = Recorder(aborted=True, missing=frozenset({lost}))
        assert_blames(
            diagnose(gloo(copy.deepcopy(job), recorder), layout.world),
            [1],
            {FaultKind.SIZE_MISMATCH},
            lost,
        )


def test_straggler_is_not_told_from_two_clocks_alone() -> None:
    """Without recorded ends, one of two that is late at some calls is as early at the rest."""
    for style in (gloo, torchcomms):
        for rank in range(4):
            job = faults.slowed(train(Layout(2, 2, 1), steps=4), rank, 60_000_000)
            diagnosis = diagnose(style(job))
            assert set(diagnosis.suspects) <= {rank}, f"{style.__name__}: {told(diagnosis)}"


def test_rings_that_lost_what_their_rank_waits_in_show_no_cycle_of_transfers() -> None:
    for stages in (4, 8):
        for ring in (9, 12, 16):
            job = faults.dead(one_forward_one_backward(stages, 8), [1], "default_pg")
            diagnosis = diagnose(nccl(job, Recorder(ring=ring)))
            assert set(diagnosis.suspects) <= {1}, f"{stages}, {ring}: {told(diagnosis)}"


def test_after_an_abort_a_lost_dump_does_not_hide_a_disagreement() -> None:
    """Hosts ran ahead, and the abort marked all that they had issued as complete."""
    for fault in ("operation", "size"):
        for rank, lost in ((0, 7), (0, 1), (3, 1), (5, 0)):
            job = FAULTS[fault][0](train(SMALL, steps=1, microbatches=1), [rank], "tp", 0)
            diagnosis = diagnose(nccl(job, Recorder(aborted=True, missing=frozenset({lost}))))
            assert_blames(diagnosis, [rank], FAULTS[fault][1], f"{fault}, {rank}, {lost}")


def test_devices_that_an_abort_ended_do_not_pass_for_healthy() -> None:
    job = faults.device_stuck(data_parallel(4), [2], "default_pg", 2)
    diagnosis = diagnose(nccl(job, Recorder(aborted=True)))
    assert diagnosis.verdict is Verdict.UNDETERMINED, told(diagnosis)
    (note,) = diagnosis.notes
    assert note.startswith("ranks 0-3 called nothing after operations that were marked as complete")
    assert "after 600 s: an abort after a timeout" in note
