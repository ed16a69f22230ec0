"""Faults put into healthy jobs. Each changes the program of the ranks at fault only."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from tests.made_jobs.operations import (
    Batch,
    Collective,
    Compute,
    Operation,
    Program,
    Sleep,
    StickDevice,
    Synchronize,
    Transfer,
    exchange,
)
from tests.made_jobs.programs import Layout
from tests.made_jobs.simulate import Job


def place(program: Program, group: str, nth: int = 0, kind: type = Collective) -> int:
    """Where a program has its n-th operation of a kind in groups of a description.

    ``nth`` may be negative, to count from the end.
    """
    found = [
        at
        for at, step in enumerate(program)
        if isinstance(step, kind)
        and isinstance(step, Collective | Transfer | Batch)
        and step.group.description == group
    ]
    return found[nth]


def _insert(job: Job, ranks: Iterable[int], at: Callable[[Program], int], step: Operation) -> Job:
    for rank in ranks:
        program = list(job.programs[rank])
        program.insert(at(program), step)
        job.programs[rank] = program
    return job


def _change(
    job: Job,
    ranks: Iterable[int],
    at: Callable[[Program], int],
    change: Callable[[Collective], Operation | None],
) -> Job:
    for rank in ranks:
        program = list(job.programs[rank])
        where = at(program)
        step = program[where]
        assert isinstance(step, Collective)
        changed = change(step)
        program[where : where + 1] = [] if changed is None else [changed]
        job.programs[rank] = program
    return job


def asleep(
    job: Job, ranks: Iterable[int], group: str, nth: int = 0, kind: type = Collective
) -> Job:
    """The hosts never come to an operation; what they issued before goes on."""
    return _insert(job, ranks, lambda program: place(program, group, nth, kind), Sleep())


def dead(job: Job, ranks: Iterable[int], group: str, nth: int = 0, kind: type = Collective) -> Job:
    """The processes die before an operation: no dump, and their devices stop."""
    ranks = tuple(ranks)
    job.dead = job.dead | set(ranks)
    return asleep(job, ranks, group, nth, kind)


def other_operation(job: Job, ranks: Iterable[int], group: str, nth: int = 0) -> Job:
    """The ranks call another operation than their peers."""

    def change(step: Collective) -> Operation:
        other = "all_reduce" if step.operation != "all_reduce" else "_all_gather_base"
        return replace(step, operation=other)

    return _change(job, ranks, lambda program: place(program, group, nth), change)


def other_size(job: Job, ranks: Iterable[int], group: str, nth: int = 0) -> Job:
    """The ranks pass one row less."""

    def change(step: Collective) -> Operation:
        ((first, *rest),) = step.inputs
        less = ((first // 2 or 7, *rest),)
        return replace(step, inputs=less, outputs=less)

    return _change(job, ranks, lambda program: place(program, group, nth), change)


def other_dtype(job: Job, ranks: Iterable[int], group: str, nth: int = 0) -> Job:
    """The ranks pass another dtype."""
    return _change(
        job,
        ranks,
        lambda program: place(program, group, nth),
        lambda step: replace(step, dtype="Half"),
    )


def extra(job: Job, ranks: Iterable[int], group: str, nth: int = 0) -> Job:
    """The ranks call one collective more than their peers."""
    for rank in ranks:
        program = list(job.programs[rank])
        where = place(program, group, nth)
        program.insert(where, program[where])
        job.programs[rank] = program
    return job


def skipped(job: Job, ranks: Iterable[int], group: str, nth: int = 0) -> Job:
    """The ranks leave one collective out."""
    return _change(job, ranks, lambda program: place(program, group, nth), lambda step: None)


def device_stuck(job: Job, ranks: Iterable[int], group: str, nth: int = 0) -> Job:
    """A kernel before the operation never ends; the host goes on."""
    return _insert(job, ranks, lambda program: place(program, group, nth), StickDevice())


def slowed(job: Job, rank: int, delay_ns: int, every: int = 1) -> Job:
    """A rank whose work before its steps takes longer, each time or every few times."""
    program: Program = []
    count = 0
    for step in job.programs[rank]:
        if isinstance(step, Compute):
            count += 1
            if count % every == 0:
                step = Compute(step.duration_ns + delay_ns)
        program.append(step)
    job.programs[rank] = program
    return job


def swapped(job: Job, ranks: Iterable[int], first: str, second: str, nth: int = 0) -> Job:
    """The ranks enter two groups in the opposite order."""
    for rank in ranks:
        program = list(job.programs[rank])
        a, b = place(program, first, nth), place(program, second, nth)
        program[a], program[b] = program[b], program[a]
        job.programs[rank] = program
    return job


def all_to_all(layout: Layout, job: Job, group: str, *, uneven: bool = True) -> Job:
    """Give every rank an all-to-all in a kind of group, before its first synchronization."""
    for rank, program in job.programs.items():
        mine = next(g for g in job.groups if g.description == group and rank in g.members)
        program = list(program)
        where = next(at for at, step in enumerate(program) if isinstance(step, Synchronize))
        program.insert(where, exchange(mine, rank, uneven))
        job.programs[rank] = program
    return job


def other_splits(job: Job, ranks: Iterable[int], group: str) -> Job:
    """The ranks send a row more to their first peers than those expect."""

    def at(program: Program) -> int:
        return next(
            where
            for where, step in enumerate(program)
            if isinstance(step, Collective)
            and step.operation == "all_to_all"
            and step.group.description == group
        )

    def change(step: Collective) -> Operation:
        assert step.input_splits is not None
        sent = tuple(rows + 1 for rows in step.input_splits)
        return replace(step, inputs=((sum(sent), 16),), input_splits=sent)

    return _change(job, ranks, at, change)
