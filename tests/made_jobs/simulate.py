"""Runs the ranks' programs against each other until nothing moves any more.

The host of a rank issues operations in order; its device carries them out in order, the
operations of one communicator one after the other. With ``host_waits`` (Gloo, blocking
wait) the host goes on only when an operation is complete; without, it runs ahead of its
device to the next ``Synchronize``.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from dataclasses import dataclass, field

from tests.made_jobs.operations import (
    Batch,
    Collective,
    Communication,
    Compute,
    Group,
    Program,
    Sleep,
    StickDevice,
    Synchronize,
    Transfer,
)

START_NS = 1_758_610_000_000_000_000
ISSUE_NS = 20_000
TRANSPORT_NS = 200_000

Channel = tuple[str, int, int]
"""Group, sender, receiver."""


@dataclass(eq=False)
class Task:
    """One operation of one rank, as issued; times are true, free of any host's clock skew."""

    rank: int
    operation: Communication
    created_ns: int
    place: int
    """Position among the rank's tasks."""
    turn: int = -1
    """For a collective: the how many-th of the rank in its group."""
    turns: tuple[tuple[Channel, bool, int], ...] = ()
    """For transfers: channel, whether it sends, and the how many-th there."""
    begun_ns: int | None = None
    done_ns: int | None = None

    @property
    def stream(self) -> tuple[object, ...]:
        """What it must follow on its device: its communicator."""
        if isinstance(self.operation, Transfer):
            return (self.operation.group.name, self.operation.peer)
        return (self.operation.group.name,)


@dataclass
class Job:
    """Programs by rank, and what else a run needs."""

    groups: list[Group]
    programs: dict[int, Program]
    host_waits: bool = False
    dead: set[int] = field(default_factory=set)
    """Ranks that die at their ``Sleep``: their devices stop too."""
    seed: int = 0


class _Rank:
    """One rank while the job runs."""

    def __init__(self, rank: int, program: Program, seed: int) -> None:
        self.rank = rank
        self.program = program
        self.next = 0
        self.clock = START_NS + random.Random(f"start-{seed}-{rank}").randrange(50_000)
        self.random = random.Random(f"work-{seed}-{rank}")
        self.tasks: list[Task] = []
        self.open: list[Task] = []
        self.work_before: dict[int, int] = defaultdict(int)
        """Device work that goes before the task of a place."""
        self.serial_done = self.clock
        self.stream_done: dict[tuple[object, ...], int] = {}
        self.stuck_from: int | None = None
        """Tasks from this place on never begin."""
        self.gone = False


class Simulation:
    """One run; ``run`` returns every rank's tasks in the order of issue."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._ranks = {
            rank: _Rank(rank, program, job.seed) for rank, program in job.programs.items()
        }
        self._collectives: dict[tuple[str, int], dict[int, Task]] = defaultdict(dict)
        self._channels: dict[tuple[Channel, bool, int], Task] = {}
        self._counts: dict[object, int] = defaultdict(int)
        self._queue: deque[int] = deque(self._ranks)
        self._queued = set(self._queue)

    def run(self) -> dict[int, list[Task]]:
        """Run until nothing moves."""
        while self._queue:
            rank = self._queue.popleft()
            self._queued.discard(rank)
            self._begin(self._ranks[rank])
            self._host(self._ranks[rank])
        return {rank: state.tasks for rank, state in self._ranks.items()}

    def _wake(self, rank: int) -> None:
        if rank in self._ranks and rank not in self._queued:
            self._queued.add(rank)
            self._queue.append(rank)

    # -- the host ---------------------------------------------------------------------

    def _host(self, state: _Rank) -> None:
        waits = self._job.host_waits
        while state.next < len(state.program) and not state.gone:
            step = state.program[state.next]
            if state.open and (waits or isinstance(step, Synchronize)):
                return
            if waits or isinstance(step, Synchronize):
                state.clock = max(
                    state.clock, state.serial_done, *state.stream_done.values(), state.clock
                )
            state.next += 1
            if isinstance(step, Sleep):
                state.gone = True
                if state.rank in self._job.dead:
                    begun = [task for task in state.open if task.begun_ns is None]
                    state.stuck_from = begun[0].place if begun else len(state.tasks)
            elif isinstance(step, Compute):
                work = step.duration_ns + state.random.randrange(1 + step.duration_ns // 20)
                if waits:
                    state.clock += work
                else:
                    state.work_before[len(state.tasks)] += work
            elif isinstance(step, StickDevice):
                state.stuck_from = len(state.tasks)
            elif not isinstance(step, Synchronize):
                state.clock += ISSUE_NS
                self._issue(state, step)
                self._begin(state)

    def _count(self, key: object) -> int:
        self._counts[key] += 1
        return self._counts[key] - 1

    def _issue(self, state: _Rank, step: Communication) -> None:
        task = Task(state.rank, step, state.clock, len(state.tasks))
        if isinstance(step, Collective):
            task.turn = self._count((step.group.name, state.rank))
            self._collectives[step.group.name, task.turn][state.rank] = task
        else:
            turns = []
            for transfer in step.transfers if isinstance(step, Batch) else (step,):
                ends = (state.rank, transfer.peer)
                channel = (transfer.group.name, *(ends if transfer.is_send else ends[::-1]))
                turn = self._count((channel, transfer.is_send))
                turns.append((channel, transfer.is_send, turn))
                self._channels[channel, transfer.is_send, turn] = task
            task.turns = tuple(turns)
        state.tasks.append(task)
        state.open.append(task)

    # -- the device -------------------------------------------------------------------

    def _begin(self, state: _Rank) -> None:
        """Begin every task that nothing on this rank's device holds up."""
        blocked_streams: set[tuple[object, ...]] = set()
        for task in list(state.open):
            if state.stuck_from is not None and task.place >= state.stuck_from:
                return
            if task.begun_ns is None and task.stream not in blocked_streams:
                ready = max(
                    task.created_ns, state.serial_done, state.stream_done.get(task.stream, 0)
                )
                task.begun_ns = ready + state.work_before.get(task.place, 0)
                self._complete(task)
            if task.done_ns is None:
                blocked_streams.add(task.stream)
                overlapped = isinstance(task.operation, Collective) and task.operation.overlapped
                if not overlapped:
                    return

    def _complete(self, task: Task) -> None:
        """Complete what the beginning of a task lets complete."""
        parts = (
            self._collective_parts(task)
            if isinstance(task.operation, Collective)
            else self._transfer_parts(task)
        )
        if parts is None:
            return
        done = max(part.begun_ns or 0 for part in parts) + TRANSPORT_NS
        for part in parts:
            if part.done_ns is not None:
                continue
            part.done_ns = done
            state = self._ranks[part.rank]
            state.open.remove(part)
            state.stream_done[part.stream] = done
            if not (isinstance(part.operation, Collective) and part.operation.overlapped):
                state.serial_done = max(state.serial_done, done)
            self._wake(part.rank)

    def _collective_parts(self, task: Task) -> list[Task] | None:
        assert isinstance(task.operation, Collective)
        group = task.operation.group
        joined = self._collectives[group.name, task.turn]
        parts = [joined[member] for member in group.members if member in joined]
        calls = [part.operation for part in parts if isinstance(part.operation, Collective)]
        if len(parts) < len(group.members) or any(part.begun_ns is None for part in parts):
            return None
        if len({call.needs() for call in calls} | {(c.group.members,) for c in calls}) != 2:
            return None
        if calls[0].input_splits is not None and calls[0].operation == "all_to_all":
            for at, sender in enumerate(calls):
                for to, receiver in enumerate(calls):
                    if (sender.input_splits or ())[to] != (receiver.output_splits or ())[at]:
                        return None
        return parts

    def _transfer_parts(self, task: Task) -> list[Task] | None:
        """Everything that completes with a transfer: a batch needs all its counterparts."""
        others = []
        for channel, is_send, turn in task.turns:
            other = self._channels.get((channel, not is_send, turn))
            if other is None or other.begun_ns is None:
                return None
            others.append(other)
        parts = [task]
        for other in others:
            complete = all(
                (peer := self._channels.get((channel, not is_send, turn))) is not None
                and peer.begun_ns is not None
                for channel, is_send, turn in other.turns
            )
            if complete:
                parts.append(other)
        return parts


def simulate(job: Job) -> dict[int, list[Task]]:
    """Run a job; every rank's tasks in the order of issue."""
    return Simulation(job).run()
