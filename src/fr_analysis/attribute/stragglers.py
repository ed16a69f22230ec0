"""Stragglers: ranks that join, but late, so that the others wait for them again and again.

What counts is a rank's own time: from the end of what it did before to its joining, on
its own host's clock. A rank that is late only because it waited for another one has spent
that time inside an operation, and a clock that is ahead by any constant changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fr_analysis.match.clocks import usual_distances, whole_collectives
from fr_analysis.match.columns import EndToEnd
from fr_analysis.match.progress import Progress
from fr_analysis.trace import UNKNOWN, IntColumn, RankDump, distinct

_LEAST_TIMES = 3
_LEAST_TIMES_BY_GUESS = 4
"""Where it is guessed from when the last member joined that a collective was over."""
_LEAST_NS = 20_000_000
"""Less than this is jitter, not lateness."""
_LEAST_SHARE = 0.2
"""Of the time that the record spans, what the others lost by waiting."""


@dataclass(frozen=True, slots=True)
class Lateness:
    """How late one rank joined a group's collectives.

    Attributes:
        rank, group: who and where.
        number: matched number of the first collective that it was late for.
        times, of: how often it was late, and in how many that all members hold.
        typical_ns, total_ns: by how much in the median, and altogether.
    """

    rank: int
    group: int
    number: int
    times: int
    of: int
    typical_ns: int
    total_ns: int


def find_stragglers(progress: Progress) -> list[Lateness]:
    """Ranks that held the others up again and again, the costliest first.

    Args:
        progress: the match of a job in which nothing else is wrong.

    Returns:
        One lateness per rank: of the group in which it cost most.
    """
    found: dict[int, Lateness] = {}
    timed = _ends_recorded(progress)
    own = _own_times(progress, timed)
    # Of two whose clocks may differ, nothing tells which is late at which of the calls.
    least = 2 if timed else 3
    least_times = _LEAST_TIMES if timed else _LEAST_TIMES_BY_GUESS
    # Where nothing declares a group's members, one may have left no dump, and be the late one.
    lost = progress.lacks_dumps()
    spans = {rank: _span(dump) for rank, dump in progress.trace.dumps.items()}
    for index in distinct(progress.group).tolist():
        group = progress.groups.groups[index]
        members = np.array(group.members)
        if len(members) < least or (lost and not group.declared):
            continue
        rows = whole_collectives(progress, group.index, group.members)
        rows = rows[(own[rows] != UNKNOWN).all(axis=1)]
        times = own[rows]
        others = np.sort(times, axis=1)[:, :-1]
        slowest = times.argmax(axis=1)
        excess = times.max(axis=1, initial=0) - others.max(axis=1, initial=0)
        usual = others[:, others.shape[1] // 2]
        late = np.flatnonzero(excess >= np.maximum(_LEAST_NS, usual))
        for member in distinct(slowest[late]).tolist():
            at = late[slowest[late] == member]
            rank, amounts = int(members[member]), np.sort(excess[at])
            if len(at) < least_times or amounts.sum() < _LEAST_SHARE * spans[rank]:
                continue
            lateness = Lateness(
                rank,
                group.index,
                int(progress.number[rows[at[0], 0]]),
                len(at),
                len(rows),
                int(amounts[len(amounts) // 2]),
                int(amounts.sum()),
            )
            if rank not in found or found[rank].total_ns < lateness.total_ns:
                found[rank] = lateness
    return sorted(found.values(), key=lambda lateness: -lateness.total_ns)


def _span(dump: RankDump) -> int:
    created = dump.operations.created_ns[dump.operations.created_ns != UNKNOWN]
    return int(created.max() - created.min()) if len(created) else 0


def _ends_recorded(progress: Progress) -> bool:
    """Whether the recorders say when operations ended."""
    return any(
        bool((dump.operations.completed_ns != UNKNOWN).any())
        for dump in progress.trace.dumps.values()
    )


def _own_times(progress: Progress, timed: bool) -> IntColumn:
    """Per row of the table of collectives, the rank's own time before it joined, or UNKNOWN.

    Where no ends are recorded, only after an operation of the same group: the rank's distance
    from that group's members is in both times then, and falls out.
    """
    ends = _ends(progress, timed)
    all_ranks = EndToEnd(progress.trace)
    started = all_ranks.column(lambda operations: operations.started_ns)
    created = all_ranks.column(lambda operations: operations.created_ns)
    joined = np.where(started != UNKNOWN, started, created)
    # The end of all that the rank did before: the newest end of the rows in front.
    before = [
        np.append(UNKNOWN, np.maximum.accumulate(ends[rank])[:-1])
        for rank in all_ranks.ranks.tolist()
        if len(ends[rank])
    ]
    ended = np.concatenate([np.zeros(0, dtype=np.int64), *before])
    known = (ended != UNKNOWN) & (joined != UNKNOWN)
    if not timed:
        group = all_ranks.column(lambda operations: operations.group)
        known[1:] &= group[1:] == group[:-1]
    own = np.where(known, np.maximum(0, joined - ended), UNKNOWN)
    return own[all_ranks.places(progress)]


def _ends(progress: Progress, timed: bool) -> dict[int, IntColumn]:
    """When each rank's operations ended, on its own clock; UNKNOWN where nothing tells.

    Where no completion is recorded, a collective ended for everyone when its last member
    joined. Clocks are compared by each rank's usual distance from the others.
    """
    ends = {
        rank: dump.operations.completed_ns.copy() for rank, dump in progress.trace.dumps.items()
    }
    if timed:
        return ends
    all_ranks = EndToEnd(progress.trace)
    created = all_ranks.column(lambda operations: operations.created_ns)
    created = created[all_ranks.places(progress)]
    for group in progress.groups.groups:
        rows = whole_collectives(progress, group.index, group.members)
        if not len(rows):
            continue
        joined = created[rows]
        offsets, _ = usual_distances(joined)
        last = (joined - offsets).max(axis=1)
        for at, rank in enumerate(group.members):
            ends[rank][progress.row[rows[:, at]]] = last + offsets[at]
    return ends
