"""Who has joined which collective: one grid of sequence number by rank per group.

``Progress`` holds all collectives of all ranks as one table of columns, sorted by
group, number and rank, so that a group's collective is one run of rows, and per group
how far each rank has come. Sends and receives are matched apart, see ``p2p``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fr_analysis.match.groups import Groups, ProcessGroup, group_kind, resolve_groups
from fr_analysis.match.p2p import Batches, find_batches
from fr_analysis.match.semantics import agreement, is_batch_end, point_to_point
from fr_analysis.match.side_tables import PerTable
from fr_analysis.trace import (
    UNKNOWN,
    Completion,
    GroupStatus,
    IntColumn,
    RankDump,
    Signature,
    Trace,
    distinct,
)

NEVER = -1
"""Below every sequence number: torch counts from 1, TorchComms from 0."""


@dataclass(frozen=True, slots=True)
class Join:
    """One rank's part in one collective."""

    rank: int
    row: int
    """Position in the rank's own ``Operations``."""
    signature: Signature
    completion: Completion
    started: bool
    created_ns: int
    recorded_number: int


@dataclass(frozen=True, slots=True)
class Advance:
    """How far one rank has come in one group.

    Attributes:
        first_held: number of the oldest collective it still holds; None where it holds none.
        last_joined: number of the newest one that it joined; ``NEVER`` where it holds none.
        exact: ``last_joined`` is known; else it only is older than anything still pending.
    """

    first_held: int | None
    last_joined: int
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Progress:
    """The match of all ranks.

    Attributes:
        trace, groups: what was matched.
        advances: per group index, how far each member has come; members of whom nothing
            can be said (no dump, or an empty one without counters) are left out.
        group, number, rank, row: the collectives' table, sorted by the first three.
        code: number of the distinct ``semantics.Agreement`` that the row needs.
    """

    trace: Trace
    groups: Groups
    advances: tuple[dict[int, Advance], ...]
    group: IntColumn
    number: IntColumn
    rank: IntColumn
    row: IntColumn
    code: IntColumn

    def joins(self, group: int, number: int) -> list[Join]:
        """Who joined a group's collective of this number, and with what, by rank."""
        first, last = np.searchsorted(self.group, [group, group + 1])
        low, high = np.searchsorted(self.number[first:last], [number, number + 1]) + first
        return [self._join(int(at)) for at in range(low, high)]

    def _join(self, at: int) -> Join:
        rank, row = int(self.rank[at]), int(self.row[at])
        dump = self.trace.dumps[rank]
        operations = dump.operations
        return Join(
            rank,
            row,
            dump.signatures[operations.signature[row]],
            Completion(int(operations.completion[row])),
            bool(operations.started[row]),
            int(operations.created_ns[row]),
            int(operations.number[row]),
        )

    def never_joined(self, group: int, rank: int, numbers: IntColumn) -> npt.NDArray[np.bool_]:
        """Which of a group's collectives a rank never joined.

        Args:
            group: index of the group. rank: a member.
            numbers: those of the collectives.

        Returns:
            For each, whether it is newer than the last one that the rank joined. Of a rank of which
            nothing can be said, of none.
        """
        advance = self.advances[group].get(rank)
        return numbers > advance.last_joined if advance else np.zeros(len(numbers), dtype=np.bool_)

    def disagreements(self) -> Iterator[tuple[int, int]]:
        """Group and number of collectives whose joins do not all need the same agreement."""
        if not len(self.group):
            return
        starts = np.flatnonzero(
            np.r_[True, (np.diff(self.group) != 0) | (np.diff(self.number) != 0)]
        )
        lowest = np.minimum.reduceat(self.code, starts)
        highest = np.maximum.reduceat(self.code, starts)
        for at in starts[lowest != highest]:
            yield int(self.group[at]), int(self.number[at])

    def lacks_dumps(self) -> bool:
        """Whether a rank of the job has no usable dump."""
        return any(rank not in self.trace.dumps for rank in self.groups.world)

    def group_named(self, index: int) -> ProcessGroup:
        """The group of an index."""
        return self.groups.groups[index]


def _is_collective(signature: Signature) -> bool:
    """Neither P2P nor the end of a batch."""
    name = signature.operation
    return point_to_point(name) is None and not is_batch_end(name)


def _local_numbers(
    dump: RankDump, rows: npt.NDArray[np.bool_], by_occurrence: bool
) -> tuple[IntColumn, bool]:
    """Number a rank's collectives within each group.

    Returns:
        The numbers, and whether they can be compared with other ranks' as they are.
    """
    operations = dump.operations
    if not by_occurrence:
        return operations.number, True
    numbers = np.full(len(operations), UNKNOWN, dtype=np.int64)
    for group in distinct(operations.group[rows]):
        at = np.flatnonzero(rows & (operations.group == group))
        numbers[at] = np.arange(len(at))
    whole = not len(operations) or int(operations.record.min()) <= 0
    return numbers, whole


def recorded_and_counted(dump: RankDump) -> tuple[int, int]:
    """How many operations a rank recorded in all, and how many its counters count."""
    counted = sum(max(status.last_enqueued, 0) for status in dump.statuses if status)
    return int(dump.operations.record.max(initial=-1)) + 1, counted


def is_whole(dump: RankDump) -> bool:
    """Whether the ring buffer still holds the rank's first operation, and all since."""
    records = dump.operations.record
    return not len(records) or int(records[-1]) == len(records) - 1


def _without_batches(dump: RankDump, numbers: IntColumn, batches: Batches) -> IntColumn:
    """Numbers as they were had the batches of transfers not been counted."""
    numbers = numbers.copy()
    for group in batches.groups:
        mine = dump.operations.group == group
        numbers[mine] -= np.cumsum(batches.closing[mine])
    return numbers


def _batched(trace: Trace, groups: Groups, batches: dict[int, Batches]) -> set[int]:
    """The groups in which batches of transfers were issued, and all that are of their kind.

    Ring buffers that have wrapped may have lost every batch of a group.
    """
    kinds = [group_kind(group.name, len(group.members)) for group in groups.groups]
    seen = {groups.of_rank[rank][local] for rank, b in batches.items() for local in b.groups}
    seen |= _counted_otherwise(trace, groups, kinds)
    batched = {kinds[index] for index in seen}
    return seen | {index for index, kind in enumerate(kinds) if kind in batched}


def _counted_otherwise(trace: Trace, groups: Groups, kinds: list[str]) -> set[int]:
    """Groups of which one member has finished more than another, as far on as it, has called.

    No collective is finished that not all have called, so they count more than collectives. As far
    on are ranks that have called equally many in their groups of all other kinds. A rank without
    anything pending may have been aborted, which counts all as finished.
    """
    called: list[dict[int, GroupStatus]] = [{} for _ in groups.groups]
    for rank, dump in trace.dumps.items():
        if not is_whole(dump):
            for index, status in zip(groups.of_rank[rank], dump.statuses, strict=True):
                if status is not None and status.last_enqueued != UNKNOWN:
                    called[index][rank] = status
    found = set()
    for index, members in enumerate(called):
        if len(members) < 2:
            continue
        behind = min(members, key=lambda rank: members[rank].last_enqueued)
        finished = {r: s for r, s in members.items() if s.last_completed < s.last_enqueued}
        ahead = max(finished, key=lambda rank: finished[rank].last_completed, default=behind)
        if members[ahead].last_completed <= members[behind].last_enqueued:
            continue
        others = [
            {
                kinds[other]: called[other][rank].last_enqueued
                for other in groups.of_rank[rank]
                if kinds[other] != kinds[index] and rank in called[other]
            }
            for rank in (behind, ahead)
        ]
        if others[0] and others[0] == others[1]:
            found.add(index)
    return found


def _align_at_pending(parts: list[tuple[int, IntColumn, npt.NDArray[np.bool_]]]) -> list[int]:
    """Offsets that line up windows of unknown beginning at their first pending collective.

    A rank that holds no pending one has ended just before. Used only where neither the
    sequence number nor the beginning of the ring buffer says where a window stands.
    """
    lengths = []
    for _, numbers, pending in parts:
        first = np.flatnonzero(pending)
        lengths.append(int(first[0]) if len(first) else len(numbers))
    longest = max(lengths, default=0)
    return [longest - length for length in lengths]


def _with_one_numbering(trace: Trace) -> Trace:
    """The trace, whose recorders all number in one way: no job has two kinds of them.

    A dump of one group fits both ways, so those of several groups decide; most of them, since one
    may be damaged. Where there are none, a recorder's count is its only group's.
    """
    counting = [d for d in trace.dumps.values() if (~d.operations.is_p2p).any()]
    if len({dump.numbers_per_recorder for dump in counting}) < 2:
        return trace
    telling = [dump for dump in counting if len(distinct(dump.operations.group)) > 1]
    if 2 * sum(dump.numbers_per_recorder for dump in telling) > len(telling):
        return trace
    per_group = {r: replace(dump, numbers_per_recorder=False) for r, dump in trace.dumps.items()}
    return replace(trace, dumps=per_group)


def match(trace: Trace) -> Progress:
    """Match every rank's collectives.

    Per group by sequence number where the backend counts per group; by order of
    occurrence where it counts over all groups of a recorder (TorchComms).

    Args:
        trace: the dumps of one job.

    Returns:
        The progress of every group.
    """
    trace = _with_one_numbering(trace)
    groups = resolve_groups(trace)
    per_recorder = [dump for dump in trace.dumps.values() if dump.numbers_per_recorder]
    # With one group in the whole job a recorder-wide count is a count per group,
    # and unlike the order of occurrence it survives a wrapped ring buffer.
    wrapped = any(int(d.operations.record.min()) > 0 for d in per_recorder)
    one_group = all(len(distinct(d.operations.group)) == 1 for d in per_recorder)
    by_occurrence = bool(per_recorder) and not (wrapped and one_group)

    batches = {rank: find_batches(dump) for rank, dump in trace.dumps.items()}
    # Starting a batch of transfers counts as a collective, on those ranks only that take part.
    batched = _batched(trace, groups, batches)
    codes: dict[object, int] = {}
    code_of: PerTable[Signature] = PerTable(
        lambda signature: codes.setdefault(agreement(signature), len(codes))
    )
    collective = PerTable(_is_collective)
    pieces: dict[int, _Piece] = {}
    unplaced: dict[int, list[tuple[int, IntColumn, npt.NDArray[np.bool_]]]] = {}
    for rank, dump in trace.dumps.items():
        operations = dump.operations
        if not len(operations):
            continue
        rows = (collective(dump.signatures)[operations.signature] != 0) & ~operations.is_p2p
        if not rows.any():
            continue
        numbers, placed = _local_numbers(dump, rows, by_occurrence and dump.numbers_per_recorder)
        if batched:
            numbers = _without_batches(dump, numbers, batches[rank])
        global_group = np.array(groups.of_rank[rank], dtype=np.int64)[operations.group]
        at = np.flatnonzero(rows & (numbers != UNKNOWN))
        piece = _Piece(
            global_group[at], numbers[at], at, code_of(dump.signatures)[operations.signature[at]]
        )
        pieces[rank] = piece
        unknown = by_occurrence and (wrapped or not placed)
        if unknown or batched:
            for index in distinct(piece.group):
                if not unknown and index not in batched:
                    continue
                mine = piece.group == index
                pending = operations.completion[at[mine]] == Completion.PENDING
                unplaced.setdefault(int(index), []).append((rank, piece.number[mine], pending))
    for index, parts in unplaced.items():
        if index in batched and all(is_whole(trace.dumps[rank]) for rank in trace.dumps):
            continue
        for (rank, _, _), offset in zip(parts, _align_at_pending(parts), strict=True):
            mine = pieces[rank].group == index
            pieces[rank].number[mine] = offset + np.arange(np.count_nonzero(mine))
    return Progress(
        trace=trace,
        groups=groups,
        advances=_advances(trace, groups, pieces, batched),
        **_table(pieces),
    )


@dataclass(frozen=True, slots=True)
class _Piece:
    """One rank's collectives, in recorded order: the columns of ``Progress``, but for the rank."""

    group: IntColumn
    number: IntColumn
    row: IntColumn
    code: IntColumn


def _table(pieces: dict[int, _Piece]) -> dict[str, IntColumn]:
    """The columns of ``Progress``: all pieces in the order of group, number, rank and row."""

    def joined(parts: Iterable[IntColumn]) -> IntColumn:
        return np.concatenate([np.zeros(0, dtype=np.int64), *parts])

    group = joined(piece.group for piece in pieces.values())
    number = joined(piece.number for piece in pieces.values())
    ranks = sorted(pieces)
    assert ranks == list(pieces)  # so that a stable sort leaves them in order
    span = int(number.max(initial=0)) - int(number.min(initial=0)) + 1
    if span * (int(group.max(initial=0)) + 1) < 1 << 62:
        # One key is sorted many times as fast as two.
        order = np.argsort(group * span + (number - number.min(initial=0)), kind="stable")
    else:
        order = np.lexsort((number, group))
    lengths = [len(pieces[rank].row) for rank in ranks]
    return {
        "group": group[order],
        "number": number[order],
        "rank": np.repeat(np.array(ranks, dtype=np.int64), lengths)[order],
        "row": joined(piece.row for piece in pieces.values())[order],
        "code": joined(piece.code for piece in pieces.values())[order],
    }


def _advances(
    trace: Trace, groups: Groups, pieces: dict[int, _Piece], batched: set[int]
) -> tuple[dict[int, Advance], ...]:
    """How far each rank has come in each of its groups."""
    advances: list[dict[int, Advance]] = [{} for _ in groups.groups]
    for rank, piece in pieces.items():
        for index in distinct(piece.group).tolist():
            mine = piece.number[piece.group == index]
            advances[index][rank] = Advance(int(mine.min()), int(mine.max()))
    whole: dict[int, bool] = {}
    for member, dump in trace.dumps.items():
        for local, index in enumerate(groups.of_rank[member]):
            status = dump.statuses[local]
            if status and status.last_enqueued != UNKNOWN and index not in batched:
                held = advances[index].get(member, Advance(None, NEVER))
                last = max(status.last_enqueued, held.last_joined)
                advances[index][member] = Advance(held.first_held, last)
            elif status and not len(dump.operations):
                # Its own counter says that it enqueued nothing.
                advances[index].setdefault(member, Advance(None, NEVER))
        operations = dump.operations
        if not len(operations):
            continue
        # Nothing of a group in a ring that is whole: it never joined. In a ring that has
        # wrapped: what it joined is so old that it cannot be what others wait for now.
        whole[member] = int(operations.record.min()) <= 0
    for group_ in groups.groups:
        known = advances[group_.index]
        for member in group_.members:
            if member in whole and member not in known:
                known[member] = Advance(None, NEVER, exact=whole[member])
    return tuple(advances)
