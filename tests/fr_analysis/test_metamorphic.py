"""What a change of the dumps must not change in the answer, on random jobs."""

from __future__ import annotations

import copy
import random
import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.made_jobs import faults, score
from tests.made_jobs.dumps import Dumps, nccl, trace_of, write
from tests.made_jobs.operations import Collective, Group
from tests.made_jobs.programs import Layout, train
from tests.made_jobs.random_jobs import Made, draw, record
from tests.made_jobs.simulate import Job

from fr_analysis import Diagnosis, Verdict, analyze
from fr_analysis.attribute import attribute
from fr_analysis.match import match

bounded = settings(max_examples=15, derandomize=True, deadline=None, database=None)
SEEDS = st.integers(0, 1 << 30)


def whole(seed: int) -> Made:
    """A drawn job of which no dump was lost, apart from those of dead ranks."""
    made = score.made(seed)
    return replace(made, recorder=replace(made.recorder, missing=frozenset()))


def diagnose(dumps: Dumps, world: int) -> Diagnosis:
    """The analyzer's answer, without the way through files."""
    return attribute(match(trace_of(dumps, world)))


def kinds(diagnosis: Diagnosis) -> list[str]:
    """The kinds of the faults, in a fixed order."""
    return sorted(fault.kind for fault in diagnosis.faults)


def renumbered(dumps: Dumps, to: list[int]) -> Dumps:
    """The dumps of the same job, had its ranks had other numbers.

    Positions in a group follow the numbers of its members, and splits their positions.
    """
    result = {}
    for rank, dump in dumps.items():
        members = {
            config["name"]: [int(text) for text in config["ranks"][1:-1].split(",")]
            for config in dump["pg_config"].values()
        }
        order = {name: sorted(old, key=to.__getitem__) for name, old in members.items()}
        entries = []
        for entry in dump["entries"]:
            old = members.get(entry["process_group"][0], [])
            new = order.get(entry["process_group"][0], [])
            entry = dict(entry)
            head, _, ends = entry["profiling_name"].partition(" ")
            if ends:
                sign = "->" if "->" in ends else "<-"
                me, peer = (new.index(old[int(end)]) for end in ends.split(sign))
                entry["profiling_name"] = f"{head} {me}{sign}{peer}"
            for key in ("input_split_sizes", "output_split_sizes"):
                if key in entry:
                    entry[key] = [entry[key][old.index(member)] for member in new]
            entries.append(entry)
        config = {
            name: {**config, "ranks": str(sorted(to[member] for member in members[config["name"]]))}
            for name, config in dump["pg_config"].items()
        }
        result[to[rank]] = {**dump, "pg_config": config, "entries": entries}
    return result


@bounded
@given(SEEDS)
def test_renumbering_ranks_renumbers_the_answer(seed: int) -> None:
    made = whole(seed)
    to = list(range(made.world))
    random.Random(seed).shuffle(to)
    dumps = made.record()
    before = diagnose(dumps, made.world)
    after = diagnose(renumbered(dumps, to), made.world)
    assert after.verdict is before.verdict, made.told
    assert set(after.suspects) == {to[rank] for rank in before.suspects}, made.told
    assert kinds(after) == kinds(before), made.told


@bounded
@given(SEEDS)
def test_names_and_order_of_files_change_nothing(seed: int) -> None:
    made = score.made(seed)
    dumps = made.record()
    order = sorted(dumps)
    random.Random(seed).shuffle(order)
    with tempfile.TemporaryDirectory() as folder:
        plain = write(dumps, Path(folder) / "plain")
        for at, rank in enumerate(order):
            write({rank: dumps[rank]}, Path(folder) / "other", f"host{at}_rank_")
        before = analyze(plain, expected_world_size=made.world)
        after = analyze(Path(folder) / "other", expected_world_size=made.world)
    assert (after.verdict, after.suspects, after.victims) == (
        before.verdict,
        before.suspects,
        before.victims,
    ), made.told


def with_healthy_group(made: Made, more_ranks: int) -> Job:
    """The job with a group that works: of all its ranks, or of ranks of its own."""
    job = copy.copy(made.job)
    members = range(made.world, made.world + more_ranks) if more_ranks else range(made.world)
    group = Group(str(len(job.groups)), "healthy", tuple(members))
    call = Collective(group, "all_reduce", ((7, 3),), ((7, 3),))
    job.groups = [*job.groups, group]
    job.programs = {
        **job.programs,
        **{rank: [call, call, *job.programs.get(rank, [])] for rank in members},
    }
    return job


@bounded
@given(SEEDS, st.sampled_from((0, 0, 2, 5)))
def test_healthy_groups_and_ranks_change_no_suspect(seed: int, more_ranks: int) -> None:
    made = whole(seed)
    if made.style == "gloo":
        more_ranks = 0  # its default group is all ranks
    recorder = replace(made.recorder, ring=2000)
    before = diagnose(record(made.job, made.style, recorder), made.world)
    larger = record(with_healthy_group(made, more_ranks), made.style, recorder)
    after = attribute(match(trace_of(larger)))
    if made.style == "gloo":
        after = diagnose(larger, made.world)
    assert set(after.suspects) == set(before.suspects), made.told


@bounded
@given(SEEDS, st.integers(1, 40))
def test_a_cut_ring_never_moves_the_blame(seed: int, ring: int) -> None:
    made = whole(seed)
    full = diagnose(made.record(replace(made.recorder, ring=2000)), made.world)
    cut = diagnose(made.record(replace(made.recorder, ring=ring)), made.world)
    assert set(cut.suspects) <= {*full.suspects, *made.culprits}, made.told


WITH_A_DUMP = ("asleep", "operation", "size", "dtype")
"""Their culprit leaves a dump. Where it leaves none, whoever else leaves none looks alike."""


@bounded
@given(SEEDS, st.integers(0, 63))
def test_dropping_a_victims_dump_keeps_the_suspects(seed: int, which: int) -> None:
    rng = random.Random(seed)
    made = draw(rng, WITH_A_DUMP)
    while made.style == "gloo":  # without the rank's dump nothing tells which groups it is in
        made = draw(rng, WITH_A_DUMP)
    dumps = made.record(replace(made.recorder, missing=frozenset()))
    before = diagnose(dumps, made.world)
    dropped = list(before.victims or (None,))[which % max(len(before.victims), 1)]
    after = diagnose({r: dump for r, dump in dumps.items() if r != dropped}, made.world)
    others_wait = {edge.awaited for edge in before.waits if edge.waiter != dropped}
    if not set(before.suspects) <= others_wait:
        return  # nobody else shows them
    assert set(after.suspects) <= set(before.suspects), made.told
    # In a disagreement, the victim may have been the vote that decided.
    if made.fault == "asleep":
        assert set(after.suspects) == set(before.suspects), made.told


LAYOUTS = st.builds(
    Layout, st.sampled_from((1, 2, 4)), st.sampled_from((2, 3)), st.sampled_from((1, 2))
)
INJECTED = st.sampled_from(
    (
        faults.asleep,
        faults.dead,
        faults.other_operation,
        faults.other_size,
        faults.other_dtype,
        faults.skipped,
    )
)


@bounded
@given(LAYOUTS, INJECTED, st.sampled_from(("default_pg", "dp")), st.integers(0, 1 << 20))
def test_a_job_of_more_replicas_gets_the_same_verdict(
    layout: Layout, inject: object, kind: str, at: int
) -> None:
    assert callable(inject)
    rank = at % layout.world
    larger = replace(layout, dp=2 * layout.dp)
    there = larger.rank(*layout.coordinate(rank))
    small = diagnose(nccl(inject(train(layout), [rank], kind, 1)), layout.world)
    large = diagnose(nccl(inject(train(larger), [there], kind, 1)), larger.world)
    assert large.verdict is small.verdict is Verdict.FAULT
    # In a group of two without another of its kind nobody is named.
    assert large.suspects == (there,)
    assert small.suspects in ((rank,), ())
