"""Looks at a job again and again until it is stuck, or over."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, auto

from fr_analysis.attribute.evidence import named_ranks
from fr_analysis.diagnosis import Diagnosis, StuckGroup, Verdict
from fr_analysis.live.collect import NO_RANKS, NoServerError
from fr_analysis.live.judge import Reading, Take, describe_moves, fronts, moved, read, settle

RETRY_S = 1.0
"""Before a server that did not answer is asked again, to see whether it has gone."""


class End(Enum):
    """Why a watch ended."""

    STUCK = auto()
    """The same ranks have waited in the same place for as long as was asked for."""
    GONE = auto()
    """The debug server has gone, and with it the job."""
    UNREACHED = auto()
    """Nobody answers any more, which does not tell whether the job has ended."""
    INTERRUPTED = auto()


@dataclass(frozen=True, slots=True)
class Watched:
    """How a watch ended.

    Attributes:
        end: why.
        reading: the last one; None where there was none.
        diagnosis: the last answer.
        stands: whether the answer does: the job stood still when it was last seen, the record
            proves a fault, or a rank that was missed had ended. Else it moved, or was seen once.
    """

    end: End
    reading: Reading | None
    diagnosis: Diagnosis | None
    stands: bool


class _Watch:
    """What is remembered from one look to the next."""

    def __init__(self) -> None:
        self.reading: Reading | None = None
        self.diagnosis: Diagnosis | None = None
        self.moves: dict[int, int] = {}
        self.since: dict[tuple[object, ...], float] = {}
        self.stuck_s = 0.0
        self.proven = False
        self.lost: Diagnosis | None = None
        """The answer that blamed ranks which had ended, as long as none of them is back."""

    def look(self, take: Take, now: float, stuck_after_s: float) -> None:
        before, self.reading = self.reading, read(take(NO_RANKS))
        self.moves = moved(before, self.reading) if before else {}
        keys = fronts(self.reading)
        self.since = {key: self.since.get(key, now) for key in keys}
        self.stuck_s = max((now - since for since in self.since.values()), default=0.0)
        found = self.reading.diagnosis
        if self.stuck_s >= stuck_after_s:
            note = f"the ranks that wait have not moved for {self.stuck_s:.0f} s"
            self.diagnosis = replace(found, notes=(note, *found.notes))
        else:
            self.diagnosis = settle(before, self.reading, stuck_after_s) if before else found
        self.proven = before is not None and self.diagnosis.verdict is Verdict.FAULT
        silent = self.reading.snapshot.silent.keys()
        if self.proven and silent >= set(self.diagnosis.suspects):
            self.lost = self.diagnosis
        elif self.lost is not None and not silent >= set(self.lost.suspects):
            self.lost = None

    def ended(self, end: End) -> Watched:
        """What the watch has come to."""
        diagnosis, stands = self.diagnosis, self.stuck_s > 0 or self.proven
        if not stands and self.lost is not None:
            # The others move in the end, in that their operations fail: it is no better for that.
            diagnosis, stands = self.lost, True
        return Watched(end, self.reading, diagnosis, stands)

    def line(self) -> str:
        """What was seen, in one line."""
        assert self.reading is not None
        assert self.diagnosis is not None
        found = self.reading.diagnosis
        suspects = f"suspect {named_ranks(found.suspects)}" if found.suspects else "no suspect"
        here = "; ".join(_describe(group) for group in fronts(self.reading).values())
        if self.stuck_s > 0 and self.diagnosis.verdict is Verdict.FAULT:
            text = f"stuck for {self.stuck_s:.0f} s: {suspects}; {here}"
        elif self.stuck_s > 0:
            text = f"waiting for {self.stuck_s:.0f} s: {here}"
        elif self.moves:
            text = f"moving: {describe_moves(self.moves)}"
        elif here:
            text = f"waiting: {here}"
        else:
            text = "quiet: nothing is outstanding, and no rank recorded anything new"
        if self.proven and not self.stuck_s:
            kinds = ", ".join(dict.fromkeys(fault.kind for fault in self.diagnosis.faults))
            text += f"; fault on record: {kinds}, suspect {named_ranks(self.diagnosis.suspects)}"
        if self.reading.snapshot.silent:
            text += f"; no answer of {named_ranks(sorted(self.reading.snapshot.silent))}"
        if self.reading.snapshot.without_front:
            text += "; the debug server does not answer, the ranks were asked without it"
        return text


def _describe(group: StuckGroup | None) -> str:
    if group is None:
        return "nobody answers"
    number = f" #{group.collective_seq_id}" if group.collective_seq_id is not None else ""
    verb = "waits" if len(group.waiting) == 1 else "wait"
    place = f"in {group.collective}{number} of group {group.group}"
    # A rank whose own device is stuck is missing in what it waits for itself.
    others = [rank for rank in group.missing if rank not in group.waiting]
    missing = f" for {named_ranks(others)}" if others else ""
    if not group.waiting:
        return f"{place[3:]} is open"
    return f"{named_ranks(group.waiting)} {verb}{missing} {place}"


def watch(
    take: Take, interval_s: float, stuck_after_s: float, tell: Callable[[str], None]
) -> Watched:
    """Look at a job until it is stuck, is over, or the user interrupts.

    Args:
        take: takes a snapshot.
        interval_s: seconds from the beginning of one look to that of the next.
        stuck_after_s: how many seconds the same front must last: the same ranks wait for the
            same ranks in the same place, and none of them has recorded anything new.
        tell: is called with one line per look.

    Returns:
        How it ended.

    Raises:
        NoServerError: no debug server answers at the first look.
    """
    watching = _Watch()

    failing_since: float | None = None
    try:
        while True:
            began = time.monotonic()
            try:
                watching.look(take, began, stuck_after_s)
            except NoServerError as error:
                if watching.reading is None:
                    raise
                if failing_since is None:
                    failing_since = began
                    time.sleep(RETRY_S)
                    continue
                if error.is_gone:
                    tell(f"the debug server has gone, so the job has ended: {error}")
                    return watching.ended(End.GONE)
                if began - failing_since >= stuck_after_s:
                    tell(f"no longer reached, so whether the job has ended is not known: {error}")
                    return watching.ended(End.UNREACHED)
                tell(str(error))
            else:
                failing_since = None
                tell(watching.line())
                if watching.stuck_s >= stuck_after_s:
                    return watching.ended(End.STUCK)
            time.sleep(max(0.0, interval_s - (time.monotonic() - began)))
    except KeyboardInterrupt:
        return watching.ended(End.INTERRUPTED)
