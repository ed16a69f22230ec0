"""Where on the timeline each operation is: its track, beginning and end, and the arrows.

Slices of one track must nest or lie apart, or viewers drop them. A rank's calls of one group
may well overlap, since the host runs ahead of its device; but a communicator carries out one
after the other, and so does a pair of ranks with its sends, and with its receives. Hence a
track per rank and group, or per rank, group, direction and peer, and on it no slice begins
before the one in front of it has ended.

Everything is in numpy columns with one element per operation of all ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from fr_analysis.attribute.evidence import ranks_text
from fr_analysis.match import Progress
from fr_analysis.match.clocks import Clocks
from fr_analysis.match.columns import EndToEnd
from fr_analysis.match.p2p import still_pending
from fr_analysis.match.semantics import ROOTED, is_batch_end, operation_name, point_to_point
from fr_analysis.trace import UNKNOWN, Completion, IntColumn, Signature

MOST_NESTED = 32
"""Pending slices of one track lie within each other; viewers stop at some hundred levels."""
MOST_ARROW_ENDS = 200_000
"""More than this no viewer draws at a bearable speed."""
_ENDLESS = np.iinfo(np.int64).max

Mask = npt.NDArray[np.bool_]


class End(IntEnum):
    """What the end of an operation on the timeline is."""

    RECORDED = 0
    OF_BATCH = 1
    """Of the entry that closes its batch."""
    LAST_JOIN = 2
    """The backend records no ends: when the last member known to have joined did so."""
    UNTOLD = 3
    """Nothing tells it."""
    PENDING = 4
    NEVER_WHOLE = 5
    """It is marked as over without a time, but by its dump a member never joined: a timeout
    leaves such marks, too."""


_OPEN = (End.PENDING, End.NEVER_WHOLE)


class TrackKind(IntEnum):
    """What a track holds."""

    COLLECTIVES = 0
    SENDS = 1
    RECEIVES = 2
    BATCHES = 3
    """The entries that close batches of others."""


@dataclass(frozen=True, slots=True)
class Track:
    """One track: of a rank and a group (its index), for transfers with one peer.

    ``peer`` is the peer's position in the group, UNKNOWN where there is none to tell.
    """

    rank: int
    group: int
    kind: TrackKind
    peer: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The timeline, a line per operation that has a time, track by track.

    Attributes:
        operations: the columns that ``place`` points into.
        tracks: what ``track`` counts.
        origin_ns: the wall clock at 0, by the reference rank's clock.
        end_us: when everything drawn has begun or ended.
        place, track: of the operation.
        start_us, stop_us, called_us: from ``origin_ns`` on; an open one stops where it starts;
            ``called_us`` is when the host made the call, or UNKNOWN.
        end: an ``End``.
        is_open: it has no end.
        is_instant: it is open, but too many others on its track are as well.
        begun: the start is when the device was seen to begin it.
        behind: the start is when what is in front of it on its track was over.
        missing: by line, who did not join a collective, as far as dumps tell.
    """

    operations: EndToEnd
    tracks: tuple[Track, ...]
    origin_ns: int
    end_us: int
    place: IntColumn
    track: IntColumn
    start_us: IntColumn
    stop_us: IntColumn
    called_us: IntColumn
    end: IntColumn
    is_open: Mask
    is_instant: Mask
    begun: Mask
    behind: Mask
    missing: dict[int, str]


@dataclass(frozen=True, slots=True)
class Arrows:
    """Arrows through the members of a collective, in the order in which they begin it.

    Attributes:
        phase: per line of the layout "s" (first), "t" (one between), "f" (last), or "".
        flow: per line the collective's number among all.
        collectives: how many are joined up so. left_out: how many are not, being too many.
    """

    phase: list[str]
    flow: IntColumn
    collectives: int
    left_out: int


class _Times:
    """All times by the reference rank's clock, UNKNOWN where not recorded."""

    def __init__(self, operations: EndToEnd, clocks: Clocks) -> None:
        of_rank = np.array([clocks.correction_ns(r) for r in operations.ranks], dtype=np.int64)
        correction = of_rank[np.searchsorted(operations.ranks, operations.rank)]

        def corrected(times: IntColumn) -> IntColumn:
            return np.where(times == UNKNOWN, UNKNOWN, np.maximum(times - correction, 0))

        self.called = corrected(operations.column(lambda o: o.created_ns))
        self.begun = corrected(operations.column(lambda o: o.started_ns))
        self.over = corrected(operations.column(lambda o: o.completed_ns))
        start = np.where(self.begun != UNKNOWN, self.begun, self.called)
        # An entry without any of them cannot be placed.
        self.start = np.where(start != UNKNOWN, start, self.over)


def lay_out(progress: Progress, clocks: Clocks) -> Layout:
    """Place every operation that has a time.

    Args:
        progress: the matched dumps.
        clocks: by which the ranks' times are made comparable.

    Returns:
        The layout.
    """
    operations = EndToEnd(progress.trace)
    times = _Times(operations, clocks)
    group = _groups(operations, progress)
    missing = _missing(operations, progress)
    all_ends, all_stops = _ends(operations, progress, times, group, missing)

    place = np.flatnonzero(times.start != UNKNOWN)
    kind, peer = operations.of_signatures(_kind), operations.of_signatures(_peer_position)
    keys = np.stack([operations.rank, group, kind, peer])[:, place]
    distinct, track = np.unique(keys, axis=1, return_inverse=True)
    track = track.reshape(-1)
    order = np.lexsort((place, track))
    place, track = place[order], track[order]
    start, stop, end = times.start[place], all_stops[place], all_ends[place]
    is_open = np.isin(end, _OPEN)
    is_first = np.r_[True, track[1:] != track[:-1]][: len(track)]

    # A root may be done before the others join: its next call proves that it was.
    rooted = operations.of_signatures(lambda s: operation_name(s.operation) in ROOTED)[place] == 1
    following = np.r_[np.where(is_first, _ENDLESS, start)[1:], _ENDLESS][: len(start)]
    capped = np.minimum(stop, np.maximum(following, start))
    stop = np.where(rooted & (end == End.LAST_JOIN), capped, stop)
    stop = np.where(stop == UNKNOWN, start, stop)

    front = _latest_before(track, np.where(is_open, start, stop))
    begin = np.maximum(start, front)
    begin = np.where(is_open, begin, np.minimum(begin, stop))
    called = times.called[place]
    origin = min(
        int(begin.min(initial=_ENDLESS)), int(called[called != UNKNOWN].min(initial=_ENDLESS))
    )

    def from_origin(moments: IntColumn) -> IntColumn:
        # Whole microseconds: by fractions, slices that touch overlap in some readers.
        return (moments - origin) // 1000

    start_us = from_origin(begin)
    stop_us = np.where(is_open, start_us, from_origin(stop))
    line_of = np.full(len(operations.rank), UNKNOWN, dtype=np.int64)
    line_of[place] = np.arange(len(place))
    return Layout(
        operations=operations,
        tracks=tuple(Track(r, g, TrackKind(k), p) for r, g, k, p in distinct.T.tolist()),
        origin_ns=origin if len(place) else 0,
        end_us=int(stop_us.max(initial=0)),
        place=place,
        track=track,
        start_us=start_us,
        stop_us=stop_us,
        called_us=np.where(called == UNKNOWN, UNKNOWN, from_origin(called)),
        end=end,
        is_open=is_open,
        is_instant=is_open & (_count_so_far(is_first, is_open) > MOST_NESTED),
        begun=times.begun[place] != UNKNOWN,
        behind=begin > start,
        missing={int(line_of[at]): text for at, text in missing.items() if line_of[at] != UNKNOWN},
    )


def join_up(progress: Progress, layout: Layout) -> Arrows:
    """Draw arrows through the collectives: those that hang first, then the newest.

    Args:
        progress: the matched dumps.
        layout: where their operations are.

    Returns:
        The arrows, with at most ``MOST_ARROW_ENDS`` ends.
    """
    count = len(layout.place)
    phase, flow = np.zeros(count, dtype=np.int8), np.full(count, UNKNOWN, dtype=np.int64)
    line_of = np.full(len(layout.operations.rank), UNKNOWN, dtype=np.int64)
    slices = np.flatnonzero(~layout.is_instant)
    line_of[layout.place[slices]] = slices
    line = line_of[layout.operations.places(progress)]
    _, segment = _collectives(progress)
    line, segment = line[line != UNKNOWN], segment[line != UNKNOWN]

    size = np.bincount(segment)
    hangs = np.bincount(segment, weights=layout.is_open[line]) > 0
    newest = np.zeros(len(size), dtype=np.int64)
    np.maximum.at(newest, segment, layout.start_us[line])
    several = np.flatnonzero(size > 1)
    several = several[np.lexsort((-newest[several], ~hangs[several]))]
    chosen = several[np.cumsum(size[several]) <= MOST_ARROW_ENDS]

    wanted = np.isin(segment, chosen)
    line, segment = line[wanted], segment[wanted]
    # By time, and at one time by place in the file: readers sort so.
    order = np.lexsort((line, layout.start_us[line], segment))
    line, segment = line[order], segment[order]
    changes = segment[1:] != segment[:-1]
    flow[line], phase[line] = segment, 2
    phase[line[np.r_[True, changes][: len(line)]]] = 1
    phase[line[np.r_[changes, True][: len(line)]]] = 3
    names = ("", "s", "t", "f")
    return Arrows(
        [names[at] for at in phase.tolist()], flow, len(chosen), len(several) - len(chosen)
    )


def _kind(signature: Signature) -> TrackKind:
    transfer = point_to_point(signature.operation)
    if transfer is not None:
        return TrackKind.SENDS if transfer.is_send else TrackKind.RECEIVES
    return TrackKind.BATCHES if is_batch_end(signature.operation) else TrackKind.COLLECTIVES


def _peer_position(signature: Signature) -> int:
    transfer = point_to_point(signature.operation)
    # Numbers of any length may stand in a name; a position beyond all ranks is none.
    if transfer is None or transfer.peer is None or transfer.peer >= 1 << 32:
        return UNKNOWN
    return transfer.peer


def _groups(operations: EndToEnd, progress: Progress) -> IntColumn:
    """Per place the index of the process group."""
    local = operations.column(lambda o: o.group)
    of_rank = progress.groups.of_rank
    tables = [np.array(of_rank[rank], dtype=np.int64) for rank in operations.ranks.tolist()]
    if not tables:
        return local
    firsts = np.cumsum([0, *(len(table) for table in tables)])[:-1]
    groups: IntColumn = np.concatenate(tables)[
        firsts[np.searchsorted(operations.ranks, operations.rank)] + local
    ]
    return groups


def _collectives(progress: Progress) -> tuple[IntColumn, IntColumn]:
    """Where each collective begins in the table of all, and to which one each row belongs."""
    group, number = progress.group, progress.number
    is_new = np.ones(len(group), dtype=np.bool_)
    is_new[1:] = (np.diff(group) != 0) | (np.diff(number) != 0)
    return np.flatnonzero(is_new), np.cumsum(is_new) - 1


def _missing(operations: EndToEnd, progress: Progress) -> dict[int, str]:
    """By place who did not join a collective, where the dump of a member says so."""
    lasts, behind, silent = [], [], []
    for group, advances in zip(progress.groups.groups, progress.advances, strict=True):
        known = sorted((advances[m].last_joined, m) for m in group.members if m in advances)
        lasts.append(np.array([last for last, _ in known], dtype=np.int64))
        behind.append([member for _, member in known])
        silent.append(ranks_text(m for m in group.members if m not in advances))
    slowest = np.array([last[0] if len(last) else _ENDLESS for last in lasts], dtype=np.int64)
    if not len(progress.group):
        return {}
    places = operations.places(progress)
    texts: dict[tuple[int, int], str] = {}
    found = {}
    for at in np.flatnonzero(progress.number > slowest[progress.group]).tolist():
        index = int(progress.group[at])
        count = int(np.searchsorted(lasts[index], progress.number[at]))
        if (index, count) not in texts:
            absent = ranks_text(behind[index][:count])
            texts[index, count] = f"{absent}; no dump: {silent[index]}" if silent[index] else absent
        found[int(places[at])] = texts[index, count]
    return found


def _ends(
    operations: EndToEnd,
    progress: Progress,
    times: _Times,
    group: IntColumn,
    missing: dict[int, str],
) -> tuple[IntColumn, IntColumn]:
    """Per place an ``End`` and its time, UNKNOWN where it has none."""
    count = len(operations.rank)
    completion = operations.column(lambda o: o.completion)
    pending = np.concatenate(
        [still_pending(progress.trace.dumps[r]) for r in operations.ranks.tolist()]
        or [np.zeros(0, dtype=np.bool_)]
    )
    joined = np.full(count, UNKNOWN, dtype=np.int64)
    table = operations.places(progress)
    if len(table):
        begins, segment = _collectives(progress)
        joined[table] = np.maximum.reduceat(times.start[table], begins)[segment]
    closed = _closings(operations, times, group)
    is_missing = np.zeros(count, dtype=np.bool_)
    is_missing[list(missing)] = True
    rooted = operations.of_signatures(lambda s: operation_name(s.operation) in ROOTED) == 1

    over = times.over.copy()
    end = np.full(count, End.UNTOLD, dtype=np.int64)
    untimed = (over == UNKNOWN) & (completion > Completion.PENDING)
    in_batch = untimed & (closed != UNKNOWN)
    marked = untimed & ~in_batch & (joined != UNKNOWN)
    never = marked & is_missing & ~rooted & (completion != Completion.COMPLETED)
    end[over != UNKNOWN] = End.RECORDED
    end[pending & (over == UNKNOWN)] = End.PENDING
    end[in_batch], over[in_batch] = End.OF_BATCH, closed[in_batch]
    end[marked], over[marked] = End.LAST_JOIN, joined[marked]
    end[never], over[never] = End.NEVER_WHOLE, UNKNOWN
    return end, over


def _closings(operations: EndToEnd, times: _Times, group: IntColumn) -> IntColumn:
    """Per place when the next entry that closes a batch of its rank and group was over."""
    found = np.full(len(operations.rank), UNKNOWN, dtype=np.int64)
    closing = operations.of_signatures(lambda s: is_batch_end(s.operation)) == 1
    if not closing.any():
        return found
    order = np.lexsort((np.arange(len(found)), group, operations.rank))
    at = np.where(closing[order], np.arange(len(order)), len(order))
    at = np.minimum.accumulate(at[::-1])[::-1]
    has = at < len(order)
    line, closer = order[has], order[at[has]]
    same = (operations.rank[line] == operations.rank[closer]) & (group[line] == group[closer])
    found[line[same]] = times.over[closer[same]]
    return found


def _latest_before(track: IntColumn, moments: IntColumn) -> IntColumn:
    """Per line the latest moment of the lines before it on its track; UNKNOWN for the first."""
    if not len(track):
        return moments
    # The maximum so far of each track in one go: a later track counts above all earlier ones.
    distinct, rank = np.unique(moments, return_inverse=True)
    highest = np.maximum.accumulate(track * len(distinct) + rank.reshape(-1))
    latest: IntColumn = np.full(len(track), UNKNOWN, dtype=np.int64)
    latest[1:] = distinct[highest[:-1] % len(distinct)]
    return np.where(np.r_[True, track[1:] != track[:-1]], UNKNOWN, latest)


def _count_so_far(is_first: Mask, what: Mask) -> IntColumn:
    """Per line how many of a kind its track holds up to it."""
    if not len(what):
        return np.zeros(0, dtype=np.int64)
    total = np.cumsum(what)
    before: IntColumn = (total - what)[is_first]
    counts: IntColumn = total - before[np.cumsum(is_first) - 1]
    return counts
