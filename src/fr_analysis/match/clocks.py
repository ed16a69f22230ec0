"""How far each rank's clock is from a reference rank's.

Dumps hold the wall clock of each rank's host. A collective that needs all its members ends
on all of them at nearly one moment, so where the recorder saw the ends (NCCL), a rank's
usual distance from the other members is its clock's offset, and how much that distance
varies is the uncertainty.

Where too few ends are recorded, what is left is that no member is done before the last one
has joined. That bounds the offset from both sides. Backends that record no ends (torch's Gloo
process group, TorchComms on CPU) show so much in a ``barrier`` only: who calls it waits in it,
so its next call comes after the end. Their other collectives do not tell a clock that is ahead
from a rank that is late each time.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fr_analysis.match.columns import EndToEnd
from fr_analysis.match.progress import Progress
from fr_analysis.match.semantics import ROOTED, operation_name
from fr_analysis.trace import UNKNOWN, IntColumn

_LEAST = 3
"""Fewer common ends than this do not show how much a distance varies."""


@dataclass(frozen=True, slots=True)
class ClockEstimate:
    """How much a rank's clock is ahead of the reference rank's, in nanoseconds."""

    offset_ns: int
    uncertainty_ns: int

    @property
    def significant(self) -> bool:
        """Whether the clocks differ by more than the estimate may be wrong."""
        return abs(self.offset_ns) > self.uncertainty_ns


@dataclass(frozen=True, slots=True)
class Clocks:
    """The estimates of one job.

    Attributes:
        reference: the rank whose clock the others are compared with; None where no two
            ranks can be compared.
        estimates: by rank, the reference rank included.
        without: ranks that share no collective by which their clock could be compared.
    """

    reference: int | None = None
    estimates: dict[int, ClockEstimate] = field(default_factory=dict)
    without: tuple[int, ...] = ()

    def correction_ns(self, rank: int) -> int:
        """What to take from a rank's times; 0 where no significant offset is known."""
        estimate = self.estimates.get(rank)
        return estimate.offset_ns if estimate and estimate.significant else 0


def whole_collectives(progress: Progress, group: int, members: Sequence[int]) -> IntColumn:
    """The collectives of a group that each of some members still holds.

    Args:
        progress: the matched dumps.
        group: index of the process group.
        members: ranks, ascending.

    Returns:
        Rows of the table of collectives: a line per collective in order of number, a column
        per member. Where a rank holds a number twice, its newest.
    """
    first, last = np.searchsorted(progress.group, [group, group + 1])
    at = np.arange(first, last)
    at = at[np.isin(progress.rank[at], members)]
    number, rank = progress.number[at], progress.rank[at]
    newest = np.ones(len(at), dtype=np.bool_)
    newest[:-1] = (np.diff(number) != 0) | (np.diff(rank) != 0)
    at = at[newest]
    numbers, counts = np.unique(progress.number[at], return_counts=True)
    whole = np.isin(progress.number[at], numbers[counts == len(members)])
    rows: IntColumn = at[whole].reshape(-1, len(members))
    return rows


def usual_distances(times: IntColumn) -> tuple[IntColumn, IntColumn]:
    """How far each member usually is from the middle of all of them.

    Args:
        times: a line per collective, a column per member.

    Returns:
        Per member the median distance, and how much it varies: half the span of the middle
        80 % of its distances.
    """
    # Relative to one member, so that no precision is lost in the medians.
    relative = times - times[:, :1]
    distances = relative - np.median(relative, axis=1, keepdims=True)
    low, middle, high = np.percentile(distances, [10, 50, 90], axis=0)
    return middle.astype(np.int64), np.ceil((high - low) / 2).astype(np.int64)


def estimate_clocks(progress: Progress) -> Clocks:
    """Compare the ranks' clocks by the collectives that all members completed.

    Args:
        progress: the matched dumps.

    Returns:
        The estimates against the lowest of the ranks that can be compared with most others.
        Ranks that share no group are compared through ranks that share one with each of
        them, on the way that adds up to the least uncertainty.
    """
    trace = progress.trace
    all_ranks = EndToEnd(trace)
    places = all_ranks.places(progress)
    rooted = all_ranks.of_signatures(lambda s: operation_name(s.operation) in ROOTED)[places] == 1
    barrier = all_ranks.of_signatures(lambda s: operation_name(s.operation) == "barrier")
    barrier = barrier[places] == 1
    created = all_ranks.column(lambda operations: operations.created_ns)
    # When a rank goes on: when it records its next operation.
    following = np.full(len(created), UNKNOWN, dtype=np.int64)
    same_rank = all_ranks.rank[1:] == all_ranks.rank[:-1]
    following[:-1][same_rank] = created[1:][same_rank]
    begun = all_ranks.column(lambda operations: operations.started_ns)
    joined = np.where(begun != UNKNOWN, begun, created)[places]
    ended = all_ranks.column(lambda operations: operations.completed_ns)[places]
    left = np.where(barrier & (ended == UNKNOWN), following[places], ended)

    links = _Links()
    for group in progress.groups.groups:
        advances = progress.advances[group.index]
        members = [
            rank
            for rank in group.members
            if rank in advances and advances[rank].first_held is not None
        ]
        if len(members) < 2:
            continue
        rows = whole_collectives(progress, group.index, members)
        rows = rows[~rooted[rows].any(axis=1)]
        ends = ended[rows]
        ends = ends[(ends != UNKNOWN).all(axis=1)]
        if len(ends) >= _LEAST:
            distances, spreads = usual_distances(ends)
            for at, rank in enumerate(members):
                links.add(rank, group.index, int(distances[at]), int(spreads[at]))
            continue
        rows = rows[(joined[rows] != UNKNOWN).all(axis=1)]
        for at, (distance, uncertainty) in _bounds(joined[rows], left[rows]).items():
            links.add(members[at], group.index, distance, uncertainty)
    return links.resolve(sorted(trace.dumps))


def _bounds(joined: IntColumn, left: IntColumn) -> dict[int, tuple[int, int]]:
    """Offsets from the first member, of the members whose collectives bound them.

    Args:
        joined: a line per collective, a column per member.
        left: the same, a moment at which the member is done with it, or UNKNOWN.

    Returns:
        By column, the middle between the bounds and half their distance. A member that seems
        to be done before the others join did not wait: it has no bounds.
    """
    if not len(joined):
        return {}
    known = left != UNKNOWN
    lowest = np.where(known[:, :1], joined - left[:, :1], -_FAR).max(axis=0)
    highest = np.where(known, left - joined[:, :1], _FAR).min(axis=0)
    found = {0: (0, 0)}
    for at in range(1, joined.shape[1]):
        low, high = int(lowest[at]), int(highest[at])
        if -_FAR < low <= high < _FAR:
            found[at] = ((low + high) // 2, (high - low + 1) // 2)
    return found if len(found) > 1 else {}


_FAR = 1 << 62
"""Further than any two times of a dump are apart, see ``read``."""


class _Links:
    """Which rank is how far from the common time of which group."""

    def __init__(self) -> None:
        self._of_rank: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        self._of_group: dict[int, list[tuple[int, int, int]]] = defaultdict(list)

    def add(self, rank: int, group: int, distance: int, uncertainty: int) -> None:
        """A rank's clock is ahead of the group's common time by a distance."""
        self._of_rank[rank].append((group, distance, uncertainty))
        self._of_group[group].append((rank, distance, uncertainty))

    def resolve(self, ranks: Sequence[int]) -> Clocks:
        """Follow the links from the rank that most others are linked with."""
        best: dict[int, ClockEstimate] = {}
        reference = None
        seen: set[int] = set()
        for rank in ranks:
            if rank not in seen and rank in self._of_rank:
                found = self._from(rank)
                seen |= found.keys()
                if len(found) > len(best):
                    best, reference = found, rank
        without = tuple(rank for rank in ranks if rank not in best)
        return Clocks(reference, dict(sorted(best.items())), without)

    def _from(self, reference: int) -> dict[int, ClockEstimate]:
        """Every rank's offset by the way of least uncertainty (Dijkstra's algorithm).

        An offset that no clock has is none, so that times stay within 64 bits.
        """
        found: dict[int, ClockEstimate] = {}
        done: set[int] = set()
        queue: list[tuple[int, bool, int, int]] = [(0, True, reference, 0)]
        while queue:
            uncertainty, is_rank, node, offset = heapq.heappop(queue)
            if abs(offset) >= _FAR:
                continue
            if is_rank:
                if node in found:
                    continue
                found[node] = ClockEstimate(offset, uncertainty)
                for group, distance, more in self._of_rank[node]:
                    heapq.heappush(queue, (uncertainty + more, False, group, offset - distance))
            elif node not in done:
                done.add(node)
                for rank, distance, more in self._of_group[node]:
                    heapq.heappush(queue, (uncertainty + more, True, rank, offset + distance))
        return found
