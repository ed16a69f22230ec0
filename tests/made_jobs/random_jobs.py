"""Random jobs with a known culprit, and what their dumps show of it.

A job is drawn whole: its layout, its program, the recorder, what is lost, and the fault.
The culprits are the ranks whose program the fault changed, or whose process or device it
stopped. What the dumps show is worked out from the simulated run and from what the
recorders keep of it, never from what the analyzer makes of it; see ``Made``.

Transfers are drawn for NCCL only: the simulated CPU recorders do not record them.
"""

from __future__ import annotations

import copy
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from tests.made_jobs import faults
from tests.made_jobs.dumps import Dumps, Recorder, gloo, nccl, torchcomms
from tests.made_jobs.operations import (
    MILLISECOND,
    Batch,
    Collective,
    Compute,
    Group,
    Program,
    Synchronize,
    Transfer,
    exchange,
)
from tests.made_jobs.programs import (
    Layout,
    data_parallel,
    groups_of,
    one_forward_one_backward,
    train,
)
from tests.made_jobs.simulate import Job, Task, simulate

_DIMENSIONS = (1, 1, 2, 2, 2, 3, 4, 8)
_MOST_RANKS = (8, 8, 8, 16, 16, 32, 64)
_STYLES: dict[str, Callable[[Job, Recorder], Dumps]] = {
    "nccl": nccl,
    "gloo": gloo,
    "torchcomms": torchcomms,
}
_CHANGES: dict[str, Callable[..., Job]] = {
    "operation": faults.other_operation,
    "size": faults.other_size,
    "dtype": faults.other_dtype,
    "extra call": faults.extra,
    "skipped call": faults.skipped,
}
_ABSENCES: dict[str, Callable[..., Job]] = {"asleep": faults.asleep, "dead": faults.dead}
FAULTS = (
    "healthy",
    *_ABSENCES,
    *_CHANGES,
    "splits",
    "swapped order",
    "even sides",
    "stuck device",
    "straggler",
    "two faults",
)
"""All kinds of jobs that are drawn, equally often."""


@dataclass(frozen=True)
class Made:
    """A drawn job, its dumps, and the right answer.

    Attributes:
        fault: one of ``FAULTS``.
        told: the draw in one line.
        job, style, recorder: what was run and how it was recorded; ``record`` does it again.
        culprits: the ranks that may be named.
        shown: those of them that the dumps show, and that an answer should name.
        lost: ranks without a dump that may be named as well: no dump that is left shows a
            culprit, or a culprit left none either, and what was lost looks as if they were dead;
            or each shown culprit waits for nobody but them, like any victim of a dead rank.
        hangs: whether any dump holds an operation that did not complete.
    """

    fault: str
    told: str
    job: Job
    style: str
    recorder: Recorder
    culprits: frozenset[int]
    shown: frozenset[int]
    lost: frozenset[int]
    hangs: bool

    @property
    def world(self) -> int:
        """The number of ranks, as a user would state it."""
        return len(self.job.programs)

    def record(self, recorder: Recorder | None = None) -> Dumps:
        """The job's dumps, also with another recorder than the drawn one."""
        return record(self.job, self.style, recorder or self.recorder)


def record(job: Job, style: str, recorder: Recorder) -> Dumps:
    """The dumps of a job in one of the recorders' styles."""
    return _STYLES[style](copy.copy(job), recorder)


@dataclass
class _Draft:
    """A fault put into a job.

    ``shown`` tells which of the culprits the dumps show; ``named``, where only the dumps that
    are left tell, which of them may be named.
    """

    job: Job
    culprits: frozenset[int]
    told: str
    shown: Callable[[_Shown, Recorder], frozenset[int]]
    named: Callable[[_Shown], frozenset[int]] | None = None


class _Shown:
    """What the dumps of one run show."""

    def __init__(self, draft: _Draft, style: str, recorder: Recorder) -> None:
        job = draft.job
        self.at_fault = draft.culprits
        ran = copy.copy(job)
        ran.host_waits = job.host_waits or style != "nccl"
        self._job, self._style = job, style
        self._all = simulate(ran)
        holders = self._all.keys() - job.dead - recorder.missing
        self._held = {rank: self._kept(self._all[rank], recorder) for rank in holders}
        self._calls = {
            rank: {
                (task.operation.group.name, task.turn): task
                for task in tasks
                if isinstance(task.operation, Collective)
            }
            for rank, tasks in self._held.items()
        }
        self._issued: dict[tuple[int, str], int] = defaultdict(int)
        self._posted = set()
        for rank, tasks in self._all.items():
            for task in tasks:
                if isinstance(task.operation, Collective):
                    self._issued[rank, task.operation.group.name] += 1
                self._posted.update(task.turns)

    def _kept(self, tasks: Sequence[Task], recorder: Recorder) -> list[Task]:
        """The tasks of which the ring holds an entry."""
        held, room = [], recorder.ring
        for task in reversed(tasks):
            if isinstance(task.operation, Collective) or self._style == "nccl":
                if room <= 0:
                    break
                is_batch = isinstance(task.operation, Batch)
                room -= len(task.turns) + 1 if is_batch else 1
                if task.done_ns is None or not recorder.only_active:
                    held.append(task)
        return held[::-1]

    @property
    def keeps_splits(self) -> bool:
        """Whether the recorder notes an all-to-all's splits."""
        return self._style == "nccl"

    @property
    def hangs(self) -> bool:
        """Whether a dump holds an operation that did not complete."""
        return any(task.done_ns is None for tasks in self._held.values() for task in tasks)

    def absent(self, culprit: int) -> bool:
        """Whether a rank waits, by its dump, in an operation that the culprit never entered."""
        return any(
            task.done_ns is None and self._lacks(task, culprit)
            for rank, tasks in self._held.items()
            if rank != culprit
            for task in tasks
        )

    def idle(self, culprit: int) -> bool:
        """Whether a rank is absent where others wait, and waits in nothing itself.

        One that waits as well looks like any victim.
        """
        waits = any(task.done_ns is None for task in self._held.get(culprit, ()))
        return self.absent(culprit) and not waits

    def waits_for_lost(self, culprit: int) -> bool:
        """Whether a rank waits, by what dumps hold, for ranks without a dump and nobody else.

        It looks like any victim of theirs: that it should not be there, only another rank's
        order of calls could tell.
        """
        waits = [task for task in self._held.get(culprit, ()) if task.done_ns is None]
        if not waits or not isinstance(waits[0].operation, Collective):
            return False
        group = waits[0].operation.group
        joined = {rank for rank in self._held if self._issued[rank, group.name] > waits[0].turn}
        absent = set(group.members) - joined
        return bool(absent) and absent.isdisjoint(self._held)

    def with_dumps(self, culprits: frozenset[int]) -> frozenset[int]:
        """Those of several culprits that left a dump, or all where none did.

        Where one is shown, others without a dump may have lost it and wait for that one.
        """
        return culprits & self._held.keys() or culprits

    def _lacks(self, task: Task, culprit: int) -> bool:
        if not isinstance(task.operation, Collective):
            return any(
                culprit in channel[1:] and (channel, not is_send, turn) not in self._posted
                for channel, is_send, turn in task.turns
            )
        group = task.operation.group
        if culprit not in group.members or self._issued[culprit, group.name] > task.turn:
            return False
        # Gloo's dumps do not name the members of a group, but those of all ranks are known.
        return (
            self._style != "gloo"
            or group.description == "default_pg"
            or any(name == group.name for name, _ in self._calls.get(culprit, ()))
        )

    def differs(self, asked: Iterable[int], kind: str, turn: int) -> frozenset[int]:
        """The culprits whose call of a turn is held beside more calls of ranks that are right.

        Those of the own group count, and where they are not more, those of all groups of the
        kind and size.
        """
        culprits = {*self.at_fault, *asked}
        joined = {
            rank: groups_of(self._job.groups, rank)[kind]
            for rank, calls in self._calls.items()
            if kind in groups_of(self._job.groups, rank)
            and (groups_of(self._job.groups, rank)[kind].name, turn) in calls
        }
        found = set()
        for culprit in culprits & joined.keys() & set(asked):
            mine = joined[culprit]
            here = {rank for rank, group in joined.items() if group == mine}
            kin = {r for r, group in joined.items() if len(group.members) == len(mine.members)}
            if any(len(ranks - culprits) > len(ranks & culprits) for ranks in (here, kin)):
                found.add(culprit)
        return frozenset(found)

    def smaller_side(self, side: Iterable[int], group: Group, turn: int) -> frozenset[int]:
        """Of a group's calls of a turn that dumps hold, the fewer: this side's or the others'."""
        held = {rank for rank, calls in self._calls.items() if (group.name, turn) in calls}
        sides = sorted((held & set(side), held - set(side)), key=len)
        return frozenset(sides[0] if len(sides[0]) < len(sides[1]) else ())

    def holds_all(self, group: Group, turn: int) -> bool:
        """Whether every member's dump holds its call of a turn."""
        return all((group.name, turn) in self._calls.get(rank, ()) for rank in group.members)

    def not_begun(self, culprit: int) -> bool:
        """Whether dumps hold the first task that only the culprit's device did not begin."""
        stuck = next((task for task in self._all[culprit] if task.begun_ns is None), None)
        if stuck is None or stuck not in self._held.get(culprit, ()):
            return False
        if not isinstance(stuck.operation, Collective):
            return False
        place = stuck.operation.group.name, stuck.turn
        return any(
            place in calls and calls[place].begun_ns is not None
            for rank, calls in self._calls.items()
            if rank != culprit
        )


def _layout(rng: random.Random, with_stages: bool) -> Layout:
    most = rng.choice(_MOST_RANKS)
    while True:
        tp, dp = rng.choice(_DIMENSIONS), rng.choice(_DIMENSIONS)
        layout = Layout(tp, dp, rng.choice((1, 2, 2, 3, 4)) if with_stages else 1)
        if 2 <= layout.world <= most:
            break
    experts = [ep for ep in (2, 4) if dp % ep == 0 and ep < dp]
    return replace(layout, ep=rng.choice(experts)) if experts and rng.random() < 0.3 else layout


def mixed(layout: Layout, rng: random.Random) -> Job:
    """A job of random collectives in random groups, which all ranks call in the same order."""
    groups = layout.groups()
    programs: dict[int, Program] = {rank: [] for rank in range(layout.world)}
    kinds = sorted({group.description for group in groups})
    for _ in range(rng.randrange(4, 24)):
        kind = rng.choice(kinds)
        operation = rng.choice(
            ("all_reduce", "_all_gather_base", "_reduce_scatter_base", "broadcast", "all_to_all")
        )
        shape = (rng.choice((4, 16, 100, 4096)), rng.choice((2, 8)))
        dtype = rng.choice(("BFloat16", "Float", "Long"))
        overlapped = rng.random() < 0.2
        work = rng.randrange(100_000, 3 * MILLISECOND)
        waits = rng.random() < 0.15
        for rank, program in programs.items():
            group = groups_of(groups, rank)[kind]
            if operation == "all_to_all":
                call = replace(exchange(group, rank), overlapped=overlapped)
            else:
                call = _sized(group, operation, shape, dtype, overlapped)
            program += [Compute(work), call, *([Synchronize()] if waits else [])]
    world = groups[0]
    if rng.random() < 0.5:
        for program in programs.values():
            program += [Collective(world, "all_reduce", ((1,),), ((1,),)), Synchronize()]
    return Job(groups, programs)


def _sized(
    group: Group, operation: str, shape: tuple[int, int], dtype: str, overlapped: bool
) -> Collective:
    """A collective on a tensor that each member holds a part of, or the whole."""
    rows, columns = shape
    whole = ((rows * len(group.members), columns),)
    inputs = whole if operation == "_reduce_scatter_base" else (shape,)
    outputs = whole if operation == "_all_gather_base" else (shape,)
    return Collective(group, operation, inputs, outputs, dtype, overlapped=overlapped)


def _healthy(rng: random.Random, style: str) -> tuple[Job, Layout, str]:
    """A job without a fault, its layout and the name of its program."""
    layout = _layout(rng, with_stages=style == "nccl")
    program = rng.choice(("train", "train", "mixed", "mixed", "data parallel", "1f1b"))
    if program == "mixed":
        return mixed(layout, rng), layout, program
    if program == "data parallel" or (program == "1f1b" and style != "nccl"):
        layout = Layout(1, layout.world, 1)
        return data_parallel(layout.world, steps=rng.randrange(2, 8)), layout, "data parallel"
    if program == "1f1b":
        stages = rng.choice((2, 3, 4, 8))
        job = one_forward_one_backward(stages, rng.randrange(2, 8))
        return job, Layout(1, stages, 1), program
    job = train(
        layout,
        steps=rng.randrange(1, 4),
        microbatches=rng.randrange(1, 3),
        batched=rng.random() < 0.5,
        overlapped=rng.random() < 0.3,
    )
    return job, layout, program


def _recorder(rng: random.Random, style: str, fault: str, job: Job) -> Recorder:
    world = len(job.programs)
    skewed = rng.random() < 0.5
    skew = {rank: rng.randrange(-(10**10), 10**10) for rank in range(world)} if skewed else {}
    # The CPU recorders' marks of an abort hide that a job hung where nobody is missing.
    aborted = (
        rng.random() < 0.15 and fault not in ("healthy", "straggler") and style != "torchcomms"
    )
    lost = rng.sample(range(world), rng.randrange(1, 3)) if rng.random() < 0.15 < world / 30 else ()
    return Recorder(
        ring=rng.randrange(4, 40) if rng.random() < 0.3 else 2000,
        only_active=style == "nccl" and not aborted and rng.random() < 0.15,
        timing=style == "nccl" and rng.random() < 0.4,
        skew_ns=skew,
        aborted=aborted,
        missing=frozenset(lost),
    )


def _culprits(rng: random.Random, job: Job, kind: str) -> tuple[int, ...]:
    """One rank, or two that are fewer than half of each group that both are in."""
    members = sorted({r for g in job.groups if g.description == kind for r in g.members})
    first = rng.choice(members)
    if rng.random() < 0.2:
        second = rng.choice(members)
        if first != second and _are_few(job, {first, second}):
            return tuple(sorted((first, second)))
    return (first,)


def _are_few(job: Job, ranks: Iterable[int]) -> bool:
    """Whether ranks are fewer than half of each group that several of them are in."""
    shares = [(len({*ranks} & {*group.members}), len(group.members)) for group in job.groups]
    return all(among < 2 or 2 * among < size for among, size in shares)


def _kinds(job: Job) -> list[str]:
    """The kinds of groups that ranks can wait in."""
    return sorted({group.description for group in job.groups if len(group.members) > 1})


def _turns(job: Job, ranks: Iterable[int], kind: str, but: str = "") -> list[int]:
    """Which collectives of a kind of group all these ranks call, but for those of an operation."""
    found: set[int] | None = None
    for rank in ranks:
        calls = [
            step
            for step in job.programs[rank]
            if isinstance(step, Collective) and step.group.description == kind
        ]
        mine = {at for at, step in enumerate(calls) if step.operation != but}
        found = mine if found is None else found & mine
    return sorted(found or ())


def _lone_pair(job: Job, culprit: int, kind: str) -> frozenset[int]:
    """The members of a group of two that has no other of its kind; else none."""
    group = groups_of(job.groups, culprit)[kind]
    kin = [g for g in job.groups if g.description == kind and len(g.members) == 2]
    return frozenset(group.members if len(group.members) == 2 and len(kin) == 1 else ())


def _absence(rng: random.Random, fault: str, job: Job) -> _Draft | None:
    kind = rng.choice(_kinds(job))
    ranks = _culprits(rng, job, kind)
    if fault == "dead" and len(ranks) == len(job.programs):
        return None
    what: type = rng.choice((Collective, Collective, Collective, Transfer, Batch))
    counts = [
        sum(isinstance(s, what) and s.group.description == kind for s in job.programs[rank])
        for rank in ranks
    ]
    if not min(counts):
        return None
    nth = rng.randrange(min(counts))
    _ABSENCES[fault](job, ranks, kind, nth, what)
    told = f"{list(ranks)} before {what.__name__} {nth} in {kind}"
    return _Draft(job, frozenset(ranks), told, lambda s, _: frozenset(filter(s.idle, ranks)))


def _change(rng: random.Random, fault: str, job: Job) -> _Draft | None:
    kind = rng.choice(_kinds(job))
    ranks = _culprits(rng, job, kind)
    turns = _turns(job, ranks, kind, but="all_to_all" if fault == "size" else "")
    if not turns:
        return None
    nth = rng.choice(turns)
    culprits = frozenset(ranks)
    pair = frozenset(r for rank in ranks for r in _lone_pair(job, rank, kind))
    _CHANGES[fault](job, ranks, kind, nth)

    def shown(dumps: _Shown, _: Recorder) -> frozenset[int]:
        if pair:
            return frozenset()
        found = dumps.differs(ranks, kind, nth)
        if fault in ("extra call", "skipped call"):
            found |= frozenset(filter(dumps.absent, ranks))
        return found

    return _Draft(job, culprits | pair, f"{list(ranks)} in call {nth} in {kind}", shown)


def _splits(rng: random.Random, fault: str, job: Job) -> _Draft | None:
    kind = rng.choice(_kinds(job))
    rank = rng.choice(sorted(job.programs))
    mine = groups_of(job.groups, rank).get(kind)
    calls = [
        (turn, step)
        for turn, step in enumerate(
            s
            for s in job.programs[rank]
            if isinstance(s, Collective) and s.group.description == kind
        )
        if step.operation == "all_to_all"
    ]
    if not calls or mine is None:
        return None
    turn = calls[0][0]
    faults.other_splits(job, [rank], kind)

    def shown(dumps: _Shown, _: Recorder) -> frozenset[int]:
        # In a pair what one sends too much, the other expects too little. Only NCCL's
        # recorder keeps the splits.
        tells = len(mine.members) > 2 and dumps.holds_all(mine, turn) and dumps.keeps_splits
        return frozenset([rank] if tells else ())

    allowed = mine.members if len(mine.members) == 2 else (rank,)
    return _Draft(job, frozenset(allowed), f"{rank} in call {turn} in {kind}", shown)


def _swap(rng: random.Random, fault: str, job: Job) -> _Draft | None:
    kinds = _kinds(job)
    if len(kinds) < 2:
        return None
    first, second = rng.sample(kinds, 2)
    (rank, *_) = _culprits(rng, job, first)
    turns = sorted({*_turns(job, [rank], first)} & {*_turns(job, [rank], second)})
    if not turns:
        return None
    nth = rng.choice(turns)
    faults.swapped(job, [rank], first, second, nth)
    pair = _lone_pair(job, rank, first) & _lone_pair(job, rank, second)

    def shown(dumps: _Shown, _: Recorder) -> frozenset[int]:
        told = not pair and dumps.absent(rank)
        return frozenset([rank] if told else ())

    return _Draft(job, frozenset([rank]) | pair, f"{rank}, call {nth} in {first}, {second}", shown)


def _even_sides(rng: random.Random, fault: str, job: Job) -> _Draft | None:
    world = len(job.programs)
    if world % 2:
        return None
    turns = _turns(job, job.programs, "default_pg", but="all_to_all")
    if not turns:
        return None
    half = rng.sample(sorted(job.programs), world // 2)
    nth = rng.choice(turns)
    inject = rng.choice((faults.other_size, faults.other_dtype, faults.other_operation))
    inject(job, half, "default_pg", nth)
    told = f"{inject.__name__} of {sorted(half)} in call {nth} in default_pg"
    # Where dumps are lost, the sides that are left may be uneven.
    return _Draft(
        job,
        frozenset(),
        told,
        lambda dumps, _: frozenset(),
        lambda dumps: dumps.smaller_side(half, job.groups[0], nth),
    )


def _stuck_device(rng: random.Random, fault: str, job: Job) -> _Draft | None:
    kind = rng.choice(_kinds(job))
    (rank, *_) = _culprits(rng, job, kind)
    turns = _turns(job, [rank], kind)
    if not turns:
        return None
    nth = rng.choice(turns)
    faults.device_stuck(job, [rank], kind, nth)

    def shown(dumps: _Shown, recorder: Recorder) -> frozenset[int]:
        told = recorder.timing and not recorder.aborted and dumps.not_begun(rank)
        return frozenset([rank] if told else ())

    return _Draft(job, frozenset([rank]), f"{rank} before call {nth} in {kind}", shown)


def _straggler(rng: random.Random, fault: str, job: Job) -> _Draft | None:
    rank = rng.choice(sorted(job.programs))
    every = rng.choice((1, 2, 3))
    faults.slowed(job, rank, rng.randrange(40, 120) * MILLISECOND, every)

    def shown(dumps: _Shown, recorder: Recorder) -> frozenset[int]:
        return frozenset()

    return _Draft(job, frozenset([rank]), f"{rank}, every {every}", shown)


def _two_faults(rng: random.Random, fault: str, job: Job) -> _Draft | None:
    drafts = []
    for _ in range(2):
        kind = rng.choice(sorted({*_ABSENCES, "operation", "size", "dtype"}))
        inject = _absence if kind in _ABSENCES else _change
        draft = inject(rng, kind, job)
        taken = {rank for other in drafts for rank in other.culprits}
        if draft is None or taken & draft.culprits:
            return None
        drafts.append(draft)
    first, second = drafts
    if not _are_few(job, first.culprits | second.culprits):
        return None

    def shown(dumps: _Shown, recorder: Recorder) -> frozenset[int]:
        return dumps.with_dumps(first.shown(dumps, recorder) | second.shown(dumps, recorder))

    told = f"{first.told}, and {second.told}"
    return _Draft(job, first.culprits | second.culprits, told, shown)


_INJECT: dict[str, Callable[[random.Random, str, Job], _Draft | None]] = {
    "healthy": lambda rng, fault, job: _Draft(job, frozenset(), "", lambda *_: frozenset()),
    **dict.fromkeys(_ABSENCES, _absence),
    **dict.fromkeys(_CHANGES, _change),
    "splits": _splits,
    "swapped order": _swap,
    "even sides": _even_sides,
    "stuck device": _stuck_device,
    "straggler": _straggler,
    "two faults": _two_faults,
}


def draw(rng: random.Random, faults_: Sequence[str] = FAULTS) -> Made:
    """Draw a job.

    Args:
        rng: what decides everything.
        faults_: the kinds of jobs to draw from.

    Returns:
        The job, its dumps to be, and the right answer.
    """
    fault = rng.choice(faults_)
    while True:
        style = rng.choice(("nccl", "nccl", "nccl", "gloo", "torchcomms"))
        if fault == "stuck device":
            style = "nccl"  # the others have no device
        job, layout, program = _healthy(rng, style)
        job.host_waits = style == "nccl" and rng.random() < 0.15
        job.seed = rng.randrange(1 << 30)
        draft = _INJECT[fault](rng, fault, job)
        if draft is not None:
            break
    recorder = _recorder(rng, style, fault, job)
    dumps = _Shown(draft, style, recorder)
    shown = draft.shown(dumps, recorder)
    culprits = draft.named(dumps) if draft.named else draft.culprits
    without_dump = recorder.missing | draft.job.dead
    is_told = shown and not all(map(dumps.waits_for_lost, shown))
    return Made(
        fault=fault,
        told=f"{fault} {draft.told}; {layout}, {program}, {style}, {recorder}",
        job=draft.job,
        style=style,
        recorder=recorder,
        culprits=culprits,
        shown=shown,
        lost=without_dump - culprits if culprits & without_dump or not is_told else frozenset(),
        hangs=dumps.hangs,
    )
