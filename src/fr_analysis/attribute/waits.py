"""The wait-for graph: what every rank waits in, and for whom.

A rank waits in its oldest outstanding operation. There it waits for

- ``absent``: members that never joined, by their own dumps;
- ``held_up``: members that joined but have an older outstanding operation in front of it,
  or whose device has not begun it while others' have;
- ``unknown``: members of whom nothing was read, if no dump explains the wait;
- nobody: everyone joined and nothing moves.

Presence comes first. After a timeout torch's Gloo process group marks the operation as
retired, so such a mark on an operation that some member never joined counts as waiting.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fr_analysis.match.columns import EndToEnd
from fr_analysis.match.p2p import PendingTransfer, match_transfers, peer_rank
from fr_analysis.match.progress import NEVER, Join, Progress
from fr_analysis.match.semantics import ROOTED, operation_name, point_to_point
from fr_analysis.trace import UNKNOWN, Completion, IntColumn, Operations, Signature, distinct


@dataclass(frozen=True, slots=True)
class Wait:
    """What one rank waits in.

    Attributes:
        rank, row: the rank, and the operation's position in its ``Operations``.
        group: index of the process group. number: the matched number; None for P2P.
        absent, held_up, unknown: for whom it waits, see the module.
        finished: members that completed the operation, which here is still pending.
        not_begun: its own device has not begun what other members' devices have.
        marked_complete: the dump marks the operation as complete although it cannot be.
    """

    rank: int
    row: int
    group: int
    number: int | None
    absent: tuple[int, ...] = ()
    held_up: tuple[int, ...] = ()
    unknown: tuple[int, ...] = ()
    finished: tuple[int, ...] = ()
    not_begun: bool = False
    marked_complete: bool = False

    @property
    def targets(self) -> tuple[int, ...]:
        """The ranks it waits for: those that dumps tell, else those without one."""
        if self.finished and not self.absent:
            return ()
        if self.absent or self.held_up:
            return self.absent or self.held_up
        # What its own device has not begun while others have, no rank without a dump holds up.
        return () if self.not_begun else self.unknown


class WaitFinder:
    """Finds every rank's wait; holds what that needs to know of the whole job."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._trace = progress.trace
        # Of every row of the table of collectives.
        columns = EndToEnd(progress.trace)
        places = columns.places(progress)
        self._completion = columns.column(lambda operations: operations.completion)[places]
        self._late = columns.column(completed_late)[places] != 0
        self._needs_all = columns.of_signatures(_needs_all)[places] != 0
        self._numbers: dict[int, dict[int, tuple[int, int]]] = self._numbers_by_row()
        self._joined: dict[tuple[int, int], dict[int, Join]] = {}
        self._newest_of_all: dict[tuple[int, int], bool] = {}
        self._lacking: dict[tuple[int, int], tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self.outdated = self._outdated()
        self.queued: list[Wait] = []
        """Collectives behind what ranks wait in that lack an idle rank: ``find`` fills it."""
        self._transfers = match_transfers(progress.trace, progress.groups)
        # Whether recorders note when the device begins an operation: it is set for a job.
        self._timed = any(
            bool((dump.operations.started & (dump.operations.completion != _COMPLETED)).any())
            or bool((dump.operations.started_ns > 0).any())
            for dump in self._trace.dumps.values()
        )
        self._outstanding = {rank: self._outstanding_rows(rank) for rank in self._trace.dumps}
        self._oldest = {rank: rows[0] for rank, rows in self._outstanding.items() if rows}

    def find(self) -> dict[int, Wait]:
        """Every waiting rank's wait, by rank."""
        waits = {}
        for rank, rows in self._outstanding.items():
            found: list[Wait] = []
            for row in rows[:_MOST_ROWS]:
                if found and not self._may_lack_members(rank, row):
                    continue  # of what comes later, only that is asked
                wait = self._judge(rank, row)
                # What a dump showed as pending is over where the others' dumps are newer.
                if rank not in self.outdated.get(wait.group, ()):
                    found.append(wait)
            if found:
                waits[rank] = self._decisive(found)
                self._queue(wait for wait in found if wait.row > waits[rank].row)
        return waits

    def _may_lack_members(self, rank: int, row: int) -> bool:
        """Whether an outstanding operation is a transfer, or a collective that not all joined."""
        if (rank, row) in self._transfers:
            return True
        return self.absent(*self._numbers[rank][row])[0] != ()

    def _queue(self, later: Iterable[Wait]) -> None:
        """Keep of each group the first collective that lacks a rank with nothing outstanding."""
        groups = set()
        for wait in later:
            idle = wait.number is not None and any(r not in self._oldest for r in wait.absent)
            if idle and wait.group not in groups:
                groups.add(wait.group)
                self.queued.append(wait)

    def _outdated(self) -> dict[int, frozenset[int]]:
        """Per group, members whose dumps are older than what their peers have finished since.

        A collective that a device finished, every member has joined, whatever an older dump
        of one says. Gloo's marks prove it only from the second on: a timeout sets one.
        """
        progress = self._progress
        found = {}
        reliable = self._needs_all & ~self._late
        finished = reliable & (self._completion == Completion.COMPLETED)
        retired = self._needs_all & (self._completion == Completion.RETIRED)
        starts = np.searchsorted(progress.group, np.arange(len(progress.advances) + 1))
        for index, advances in enumerate(progress.advances):
            here = slice(starts[index], starts[index + 1])
            newest = int(progress.number[here][finished[here]].max(initial=-1))
            marks = distinct(progress.number[here][retired[here]])
            if len(marks) > 1:
                newest = max(newest, int(marks[-2]))
            behind = {r for r, a in advances.items() if a.exact and a.last_joined < newest}
            if behind:
                found[index] = frozenset(behind)
        return found

    def oldest_unfinished(self, group: int) -> list[int]:
        """The number of a group's oldest collective that hangs, or that an abort ended, if any."""
        first, last = np.searchsorted(self._progress.group, [group, group + 1])
        unfinished = (self._completion[first:last] == Completion.PENDING) | self._late[first:last]
        numbers: list[int] = self._progress.number[first:last][unfinished][:1].tolist()
        return numbers

    def ended_with(self, rank: int, waiting: Wait) -> Wait | None:
        """The wait of a rank whose operations an abort ended, as it ended another rank's wait.

        Its oldest one that took as long as that wait: it was there before the wait began, and
        was marked as complete by the same timeout. Only the spans are compared, no clocks.
        """
        operations = self._trace.dumps[waiting.rank].operations
        begun, ended = (
            int(column[waiting.row]) for column in (operations.created_ns, operations.completed_ns)
        )
        if not waiting.marked_complete or UNKNOWN in (begun, ended):
            return None
        mine = self._trace.dumps[rank].operations
        spans = mine.completed_ns - mine.created_ns
        as_long = completed_late(mine) & (spans >= ended - begun - ABORT_NS)
        rows = np.flatnonzero(as_long).tolist()
        return self._ended(rank, rows[0]) if rows else None

    def _ended(self, rank: int, row: int) -> Wait:
        """The wait in an operation that an abort ended."""
        progress = self._progress
        at = np.flatnonzero((progress.rank == rank) & (progress.row == row))
        if len(at):
            self._numbers[rank][row] = int(progress.group[at[0]]), int(progress.number[at[0]])
            return self._judge(rank, row)
        dump = self._trace.dumps[rank]
        group = progress.groups.of_rank[rank][dump.operations.group[row]]
        transfer = point_to_point(dump.signatures[dump.operations.signature[row]].operation)
        peer = peer_rank(progress.groups.groups[group], rank, transfer) if transfer else None
        return Wait(
            rank,
            row,
            group,
            None,
            held_up=() if peer is None else (peer,),
            marked_complete=True,
        )

    def in_disagreement(self, rank: int, group: int, number: int) -> Wait | None:
        """The wait of a rank in an operation that its members disagree on.

        Marked complete or not: after a timeout such marks say nothing. It is the rank's newest
        operation, or one that the abort ended.
        """
        operations = self._trace.dumps[rank].operations
        for join in self._progress.joins(group, number):
            if join.rank == rank:
                late = bool(completed_late(operations)[join.row])
                is_last = join.row == len(operations) - 1
                if late or (is_last and join.completion is not Completion.COMPLETED):
                    is_marked = join.completion is not Completion.PENDING
                    return Wait(rank, join.row, group, number, marked_complete=is_marked)
        return None

    def pending_at_the_end(self, group: int, number: int) -> set[int]:
        """The ranks whose dumps show a collective pending that is everyone's newest operation."""
        if not self._nobody_went_on(group, number):
            return set()
        joins = self._joins(group, number).values()
        return {join.rank for join in joins if join.completion is Completion.PENDING}

    def _decisive(self, found: list[Wait]) -> Wait:
        """The operation that a rank waits in: its oldest one.

        Unless everyone joined that one and nothing holds it up, so that it may be moving,
        and a later one lacks a member that has nothing outstanding itself.
        """
        if found[0].targets or found[0].finished:
            return found[0]
        for wait in found[1:]:
            if wait.absent and any(rank not in self._oldest for rank in wait.absent):
                return wait
        return found[0]

    def _numbers_by_row(self) -> dict[int, dict[int, tuple[int, int]]]:
        """Per rank, row to (group, matched number), of all collectives that may be waited in."""
        table: dict[int, dict[int, tuple[int, int]]] = {rank: {} for rank in self._trace.dumps}
        progress = self._progress
        slowest = np.array(
            [
                min((a.last_joined for a in advances.values() if a.exact), default=_ENDLESS)
                for advances in progress.advances
            ],
            dtype=np.int64,
        )
        if not len(progress.group):
            return table
        beyond = progress.number > slowest[progress.group]
        completion, late = self._completion, self._late
        wanted = (completion == Completion.PENDING) | (
            beyond & ((completion != Completion.COMPLETED) | late)
        )
        incomplete = {
            group.index
            for group in progress.groups.groups
            if any(member not in progress.advances[group.index] for member in group.members)
        }
        if incomplete:
            # Where a member left no dump, the newest operation may be the one it never joined.
            places, part = np.unique(
                np.stack([progress.group, progress.rank]), axis=1, return_inverse=True
            )
            last = [progress.advances[group][rank].last_joined for group, rank in places.T.tolist()]
            newest = progress.number == np.array(last, dtype=np.int64)[part.reshape(-1)]
            # What any member has left behind is over.
            newest &= progress.number == self._furthest()[progress.group]
            # torch's Gloo retires what timed out, and after that its rank calls nothing more.
            final = np.zeros(max(self._trace.dumps) + 1, dtype=np.int64)
            for rank, dump in self._trace.dumps.items():
                final[rank] = len(dump.operations) - 1
            is_last = progress.row == final[progress.rank]
            weak = (completion == Completion.RETIRED) & is_last
            weak |= completion == Completion.UNKNOWN
            # Whatever an abort ended may lack that member; what was done in time is over.
            done = np.full(len(progress.advances), NEVER, dtype=np.int64)
            in_time = (completion == Completion.COMPLETED) & ~late
            np.maximum.at(done, progress.group[in_time], progress.number[in_time])
            weak = newest & weak | late & (progress.number > done[progress.group])
            wanted |= weak & np.isin(progress.group, list(incomplete))
        for at in np.flatnonzero(wanted):
            place = int(progress.group[at]), int(progress.number[at])
            table[int(progress.rank[at])][int(progress.row[at])] = place
        return table

    def _furthest(self) -> IntColumn:
        """Per group, the newest number that any member joined."""
        furthest = np.full(len(self._progress.advances), NEVER, dtype=np.int64)
        np.maximum.at(furthest, self._progress.group, self._progress.number)
        return furthest

    def _outstanding_rows(self, rank: int) -> list[int]:
        """Rows of operations that are not complete, oldest first."""
        dump = self._trace.dumps[rank]
        rows = []
        for row, (group, number) in self._numbers[rank].items():
            completion = dump.operations.completion[row]
            if completion == Completion.PENDING:
                if not self._is_ending(rank, row, group, number):
                    rows.append(row)
                continue
            name = operation_name(dump.signatures[dump.operations.signature[row]].operation)
            absent, unknown = self.absent(group, number)
            # A root may rightly be done before the others join, unless an abort ended it; nobody
            # else may. Where it left no dump, it may be all that most of them miss.
            ended = row == len(dump.operations) - 1 and (
                completed_late(dump.operations)[row]
                or (not absent and self._most_ended_with(group, number))
            )
            may_be_done = name in ROOTED and not ended
            # torch's Gloo calls nothing after a timeout: what a member has gone on from, is over.
            is_over = completion == Completion.TIMED or (
                completion == Completion.RETIRED and not self._nobody_went_on(group, number)
            )
            if not may_be_done and (absent or (unknown and not is_over)):
                rows.append(row)
        rows.extend(row for holder, row in self._transfers if holder == rank)
        return sorted(rows)

    def _most_ended_with(self, group: int, number: int) -> bool:
        """Whether most members joined a collective, and called nothing after it."""
        members = self._progress.groups.groups[group].members
        most = 2 * len(self._joins(group, number)) > len(members)
        return most and self._nobody_went_on(group, number)

    def _nobody_went_on(self, group: int, number: int) -> bool:
        """Whether a collective is the newest operation of all who are known to have joined it."""
        place = group, number
        if place not in self._newest_of_all:
            self._newest_of_all[place] = all(
                join.row == len(self._trace.dumps[rank].operations) - 1
                for rank, join in self._joins(group, number).items()
            )
        return self._newest_of_all[place]

    def _is_ending(self, rank: int, row: int, group: int, number: int) -> bool:
        """Whether a pending operation is about to be marked as complete.

        Without a device, an operation that all members joined and that one of them has
        behind it is over: this rank's mark follows within milliseconds. Where a member went on
        to its next operation long before its dump was written, no mark follows: what this rank
        lacks never came.
        """
        dump = self._trace.dumps[rank]
        recorded = dump.signatures[dump.operations.signature[row]].operation
        if not recorded.startswith("gloo:") or any(self.absent(group, number)):
            return False
        over = (Completion.RETIRED, Completion.TIMED)
        done = [join for join in self._joins(group, number).values() if join.completion in over]
        return bool(done) and not any(map(self._went_on_long_ago, done))

    def _went_on_long_ago(self, join: Join) -> bool:
        """Whether a rank called its next operation long before its dump was written."""
        dump = self._trace.dumps[join.rank]
        created = dump.operations.created_ns
        if dump.written_ns == UNKNOWN or join.row + 1 >= len(created):
            return False
        went_on = int(created[join.row + 1])
        return went_on != UNKNOWN and dump.written_ns - went_on >= FRESH_NS

    def _joins(self, group: int, number: int) -> dict[int, Join]:
        """Who joined a collective, by rank; many ranks ask for the same one."""
        place = group, number
        if place not in self._joined:
            self._joined[place] = {join.rank: join for join in self._progress.joins(*place)}
        return self._joined[place]

    def absent(self, group: int, number: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Members that never joined a collective, and members of whom nothing is known."""
        place = group, number
        if place not in self._lacking:
            self._lacking[place] = self._find_absent(group, number)
        return self._lacking[place]

    def _find_absent(self, group: int, number: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        advances = self._progress.advances[group]
        absent, unknown = [], []
        for member in self._progress.groups.groups[group].members:
            advance = advances.get(member)
            if member in self.outdated.get(group, ()):
                continue
            if advance is None:
                unknown.append(member)
            elif advance.last_joined < number:
                absent.append(member)
        return tuple(absent), tuple(unknown)

    def _judge(self, rank: int, row: int) -> Wait:
        transfer = self._transfers.get((rank, row))
        if transfer is not None:
            return self._judge_transfer(transfer)
        group, number = self._numbers[rank][row]
        completion = self._trace.dumps[rank].operations.completion[row]
        absent, unknown = self.absent(group, number)
        if absent or completion != Completion.PENDING:
            return Wait(
                rank,
                row,
                group,
                number,
                absent=absent,
                held_up=() if absent else self._held_up_late(rank, group, number),
                unknown=unknown,
                marked_complete=bool(completion != Completion.PENDING),
            )
        joins = self._joins(group, number)
        held_up, finished = [], []
        without_dump = set(unknown)
        for member in self._progress.groups.groups[group].members:
            if member == rank or member in without_dump:
                continue
            if self._finished(member, group, joins.get(member), joins[rank], number):
                finished.append(member)
            elif self._held_up(member, joins.get(member), joins[rank]):
                held_up.append(member)
        others_begun = any(j.started for r, j in joins.items() if r != rank)
        return Wait(
            rank,
            row,
            group,
            number,
            held_up=tuple(held_up),
            unknown=unknown,
            finished=tuple(finished),
            not_begun=others_begun and not joins[rank].started and self._timed,
        )

    def _held_up_late(self, rank: int, group: int, number: int) -> tuple[int, ...]:
        """Members that an abort ended in this operation and in an older one in front of it."""
        return tuple(
            member
            for member, join in sorted(self._joins(group, number).items())
            if member != rank
            and bool(completed_late(self._trace.dumps[member].operations)[join.row])
            and self._oldest.get(member, join.row) < join.row
        )

    def _finished(
        self, member: int, group: int, join: Join | None, mine: Join, number: int
    ) -> bool:
        if join is not None:
            return join.completion == Completion.COMPLETED
        # It joined but holds no entry: completed ones are left out of onlyActive dumps, and a
        # ring may have lost one that is pending. The member's own counter tells, where it counts
        # as the match does.
        dump = self._trace.dumps[member]
        of_member = self._progress.groups.of_rank[member]
        # Others may list a member that knows nothing of the group.
        status = dump.statuses[of_member.index(group)] if group in of_member else None
        if status and status.last_enqueued != UNKNOWN and mine.recorded_number == number:
            return status.last_completed >= number
        return not (dump.operations.completion > Completion.PENDING).any()

    def _held_up(self, member: int, join: Join | None, mine: Join) -> bool:
        if join is None or join.completion != Completion.PENDING:
            return False
        if mine.started and not join.started and self._timed:
            return True
        return self._oldest.get(member, join.row) < join.row

    def _judge_transfer(self, transfer: PendingTransfer) -> Wait:
        wait = Wait(transfer.rank, transfer.row, transfer.group, None)
        if transfer.peer is None:
            return wait
        if transfer.peer not in self._trace.dumps:
            return Wait(transfer.rank, transfer.row, transfer.group, None, unknown=(transfer.peer,))
        if transfer.counterpart is None:
            return Wait(transfer.rank, transfer.row, transfer.group, None, absent=(transfer.peer,))
        if self._oldest.get(transfer.peer, transfer.counterpart) < transfer.counterpart:
            return Wait(transfer.rank, transfer.row, transfer.group, None, held_up=(transfer.peer,))
        return wait


_COMPLETED = Completion.COMPLETED
_ENDLESS = np.iinfo(np.int64).max
_MOST_ROWS = 4096
FRESH_NS = 1_000_000_000
"""What began so shortly before a dump was written may be moving."""
ABORT_NS = 5_000_000_000
"""An operation that took this long may have been ended by an abort."""


def _needs_all(signature: Signature) -> bool:
    """Whether nobody can be done with an operation before everybody has joined it."""
    return operation_name(signature.operation) not in ROOTED


def completed_late(operations: Operations) -> npt.NDArray[np.bool_]:
    """Which operations were seen to complete so late that an abort may have ended them.

    NCCL's abort after a timeout marks what hung as completed (pytorch#119249).
    """
    known = (operations.created_ns != UNKNOWN) & (operations.completed_ns != UNKNOWN)
    late: npt.NDArray[np.bool_] = known & (
        operations.completed_ns - operations.created_ns >= ABORT_NS
    )
    return late


def late_to_the_end(operations: Operations) -> bool:
    """Whether an abort may have ended one of the operations, since which none was called."""
    late = operations.completed_ns[completed_late(operations)]
    return bool(late.max(initial=UNKNOWN) >= operations.created_ns.max(initial=0))


def reachable(start: int, edges: dict[int, tuple[int, ...]]) -> set[int]:
    """Every rank that ``start`` waits for, directly or through others."""
    seen: set[int] = set()
    stack = list(edges.get(start, ()))
    while stack:
        rank = stack.pop()
        if rank not in seen:
            seen.add(rank)
            stack.extend(edges.get(rank, ()))
    return seen


def cycles(edges: dict[int, tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Sets of ranks that wait for each other and for nobody else."""
    return [
        members
        for members in components(edges)
        if all(target in members for rank in members for target in edges.get(rank, ()))
    ]


def components(edges: dict[int, tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Sets of ranks that wait for each other, and maybe for others.

    They are the strongly connected components of more than one rank (Tarjan's algorithm,
    without recursion).
    """
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    on_stack: set[int] = set()
    stack: list[int] = []
    components: list[tuple[int, ...]] = []
    for root in edges:
        if root in index:
            continue
        work = [(root, iter(edges.get(root, ())))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, successors = work[-1]
            for successor in successors:
                if successor not in index:
                    index[successor] = low[successor] = len(index)
                    stack.append(successor)
                    on_stack.add(successor)
                    work.append((successor, iter(edges.get(successor, ()))))
                    break
                if successor in on_stack:
                    low[node] = min(low[node], index[successor])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    component = set()
                    while True:
                        member = stack.pop()
                        on_stack.discard(member)
                        component.add(member)
                        if member == node:
                            break
                    if len(component) > 1:
                        components.append(tuple(sorted(component)))
    return components
