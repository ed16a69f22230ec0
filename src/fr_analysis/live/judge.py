"""What one snapshot of a running job cannot tell: whether it hangs, or is between two steps.

A hang and a slow rank look the same at one moment. Two snapshots tell a job that moves: newest
record numbers and counters go up, however short the ring buffer is. And the job's own record
tells how long it has paused before: a wait that is no longer than that is no hang yet.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np

from fr_analysis.attribute import attribute, is_established
from fr_analysis.attribute.evidence import named_ranks
from fr_analysis.attribute.group_creation import NEW_GROUP
from fr_analysis.diagnosis import AttributionState, Diagnosis, Fault, FaultKind, StuckGroup, Verdict
from fr_analysis.live.collect import NO_RANKS, Snapshot
from fr_analysis.live.fetch import Answer
from fr_analysis.match import Progress, match
from fr_analysis.trace import UNKNOWN, Completion, RankDump

PAUSE_S = 1.5
"""Between the two snapshots of one answer."""
SHORT_WAIT_S = 2.0
"""A wait up to this is no hang, even if the job has not paused before."""
LONG_WAIT_S = 60.0
"""A wait from this on is taken for a hang, even if the job has paused as long before."""
_MARGIN = 1.25
"""How much longer than its longest pause a wait must be."""

_LASTING = frozenset(
    {
        FaultKind.OPERATION_MISMATCH,
        FaultKind.SIZE_MISMATCH,
        FaultKind.DTYPE_MISMATCH,
        FaultKind.SPLIT_MISMATCH,
        FaultKind.MEMBERSHIP_MISMATCH,
        FaultKind.STRAGGLER,
    }
)
"""Faults that the record proves, whether the job moves or not."""


@dataclass(frozen=True, slots=True)
class Position:
    """How far one rank has come.

    Attributes:
        recorded: operations that it has recorded since it started, not only those it holds.
        completed: by its groups' own counters. pending: operations that are not complete.
    """

    recorded: int
    completed: int
    pending: int


@dataclass(frozen=True, slots=True)
class Reading:
    """A snapshot, matched and attributed."""

    snapshot: Snapshot
    progress: Progress
    diagnosis: Diagnosis
    positions: dict[int, Position]


def _position(dump: RankDump) -> Position:
    operations = dump.operations
    counters = [status for status in dump.statuses if status is not None]
    enqueued = sum(max(status.last_enqueued, 0) for status in counters)
    return Position(
        recorded=max(int(operations.record.max(initial=UNKNOWN)) + 1, enqueued, len(operations)),
        completed=sum(max(status.last_completed, 0) for status in counters),
        pending=int((operations.completion == Completion.PENDING).sum()),
    )


def read(snapshot: Snapshot) -> Reading:
    """Match and attribute a snapshot; its notes come first in the diagnosis."""
    progress = match(snapshot.trace)
    diagnosis = attribute(progress)
    return Reading(
        snapshot,
        progress,
        replace(diagnosis, notes=(*snapshot.notes, *diagnosis.notes)),
        {rank: _position(dump) for rank, dump in snapshot.trace.dumps.items()},
    )


def moved(before: Reading, after: Reading) -> dict[int, int]:
    """Ranks that came further between two readings, and how many operations they recorded."""
    return {
        rank: position.recorded - before.positions[rank].recorded
        for rank, position in after.positions.items()
        if rank in before.positions and position != before.positions[rank]
    }


def describe_moves(moves: dict[int, int]) -> str:
    """``rank 3 recorded 12 more operations``, ranks that recorded as many put together."""
    alike: dict[int, list[int]] = defaultdict(list)
    for rank, count in moves.items():
        alike[count].append(rank)
    parts = []
    for count, ranks in sorted(alike.items(), reverse=True)[:4]:
        what = f"recorded {count} more operation{'s' if count != 1 else ''}"
        parts.append(f"{named_ranks(ranks)} {what if count > 0 else 'completed operations'}")
    more = f", and {len(alike) - 4} more groups of ranks" if len(alike) > 4 else ""
    return ", ".join(parts) + more


def waited_s(reading: Reading, fault: Fault) -> float | None:
    """Seconds since the first rank entered what a fault is about; None where that is not known.

    From the rank's clock to this host's: as far apart as these are, it is wrong. A clock that is
    ahead of ours shows in a wait that has not begun.
    """
    if fault.first_seen_ns is None or fault.first_seen_ns > reading.snapshot.taken_ns:
        return None
    return (reading.snapshot.taken_ns - fault.first_seen_ns) / 1e9


def _longest_pause_s(reading: Reading, ranks: Iterable[int]) -> float:
    """The longest time between two operations that these ranks recorded one after the other."""
    longest = 0
    for rank in ranks:
        dump = reading.snapshot.trace.dumps.get(rank)
        if dump is not None:
            created = np.sort(dump.operations.created_ns[dump.operations.created_ns != UNKNOWN])
            longest = max(longest, int(np.diff(created).max(initial=0)))
    return longest / 1e9


def _is_lasting(fault: Fault) -> bool:
    # new_group is seen in stacks, which show one moment.
    seen_in_stacks = any(call.recorded_name == NEW_GROUP for call in fault.calls)
    return fault.kind in _LASTING and not seen_in_stacks


def _key(fault: Fault) -> tuple[object, ...]:
    return fault.kind, fault.group, fault.collective_seq_id


def _place(fault: Fault) -> str:
    number = f" #{fault.collective_seq_id}" if fault.collective_seq_id is not None else ""
    return f"{fault.collective}{number} of group {fault.group or fault.group_description}"


def settle(before: Reading, after: Reading, long_wait_s: float = LONG_WAIT_S) -> Diagnosis:
    """The answer that two snapshots give: faults that only one of them shows are left out.

    Args:
        before, after: readings of the same job, a second or more apart.
        long_wait_s: a wait of so many seconds is a fault, however long the job paused before.

    Returns:
        The diagnosis of ``after`` without waits that are over, or no longer than usual. Its
        notes say what moved, and since when the waits that are left have lasted.
    """
    diagnosis = after.diagnosis
    moves = moved(before, after)
    apart_s = (after.snapshot.taken_ns - before.snapshot.taken_ns) / 1e9
    known = {_key(fault) for fault in before.diagnosis.faults}
    kept, notes = [], []
    if moves:
        notes.append(f"the job moves: {describe_moves(moves)} within {apart_s:.1f} s")
    for fault in diagnosis.faults:
        involved = {
            *fault.suspects,
            *fault.victims,
            *(r for call in fault.calls for r in call.ranks),
        }
        if _is_lasting(fault):
            kept.append(fault)
            continue
        waiting = named_ranks(fault.victims or fault.suspects)
        who = f"{waiting} {'waits' if len(fault.victims or fault.suspects) == 1 else 'wait'}"
        if fault.victims and fault.suspects:
            who += f" for {named_ranks(fault.suspects)}"
        if _key(fault) not in known or involved & moves.keys():
            notes.append(
                f"{who} in {_place(fault)}, but did not a moment ago, so it may be moving; "
                "--watch tells whether it stays so"
            )
            continue
        waited = waited_s(after, fault)
        usual_s = _MARGIN * _longest_pause_s(after, involved)
        enough_s = min(max(SHORT_WAIT_S, usual_s), long_wait_s)
        if waited is not None and waited < enough_s:
            notes.append(
                f"{who} in {_place(fault)}, for {waited:.1f} s so far; this job has paused for "
                f"{usual_s / _MARGIN:.1f} s before, so it may only be slow; --watch tells"
            )
            continue
        kept.append(fault)
        since = ""
        if waited is not None and fault.first_seen_ns is not None:
            at = datetime.fromtimestamp(fault.first_seen_ns // 1_000_000_000, UTC)
            since = f" since {at:%H:%M:%S} UTC, for {waited:.0f} s,"
        notes.append(
            f"{_place(fault)} has waited{since} and no rank in it moved between two snapshots "
            f"{apart_s:.1f} s apart; a rank that is very slow looks the same, --watch tells"
        )
    return _with_faults(replace(diagnosis, notes=(*notes, *diagnosis.notes)), kept)


def _with_faults(diagnosis: Diagnosis, kept: Collection[Fault]) -> Diagnosis:
    """A diagnosis with some of its faults only."""
    if len(kept) == len(diagnosis.faults):
        return diagnosis
    blamed = {rank for fault in kept for rank in fault.suspects}
    victims = {rank for fault in kept for rank in fault.victims} - blamed
    return replace(
        diagnosis,
        verdict=Verdict.FAULT if any(map(is_established, kept)) else Verdict.UNDETERMINED,
        faults=tuple(kept),
        suspects=tuple(rank for rank in diagnosis.suspects if rank in blamed),
        victims=tuple(sorted(victims)),
        details=tuple(suspect for suspect in diagnosis.details if suspect.rank in blamed),
        # A job that moves needs no restart.
        attribution_state=diagnosis.attribution_state if kept else AttributionState.CONTINUE,
    )


Take = Callable[[Mapping[int, Answer]], Snapshot]
"""Takes a snapshot; ranks that it is given did not answer a moment ago and are not asked."""


def examine(take: Take, pause_s: float = PAUSE_S) -> tuple[Reading, Diagnosis]:
    """Answer now: with one snapshot where nothing is outstanding, else with two.

    Args:
        take: takes a snapshot.
        pause_s: seconds from one snapshot to the next.

    Returns:
        The last reading, and the answer.
    """
    first = read(take(NO_RANKS))
    if not (first.diagnosis.faults or first.diagnosis.wavefront or first.diagnosis.waits):
        return first, first.diagnosis
    since_s = (time.time_ns() - first.snapshot.taken_ns) / 1e9
    time.sleep(max(0.0, pause_s - since_s))
    second = read(take(first.snapshot.silent))
    return second, settle(first, second)


def fronts(reading: Reading) -> dict[tuple[object, ...], StuckGroup | None]:
    """Where a job stands still: one key per stuck group, the same for as long as it does.

    A key holds the group, its collective, who waits and who is missing, and how far they all
    have come. Where nobody answers at all, that is a front of its own, without a group.
    """
    if reading.snapshot.alone:
        return {("nobody answers",): None}
    return {
        (
            group.group,
            group.collective_seq_id,
            group.waiting,
            group.missing,
            tuple(reading.positions.get(rank) for rank in (*group.waiting, *group.missing)),
        ): group
        for group in reading.diagnosis.wavefront
    }
