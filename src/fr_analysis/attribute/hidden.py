"""What a rank may wait in though its dump does not show it.

A ring that has wrapped has lost the oldest, a timeout or an abort marks as complete what never was,
and counters tell of calls whose entries are gone. Who waits unseen is no cause, and the oldest that
such a ring still holds is not what its rank waits in.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fr_analysis.attribute.waits import Wait, late_to_the_end
from fr_analysis.match.progress import Progress, recorded_and_counted
from fr_analysis.match.semantics import ROOTED, operation_name
from fr_analysis.trace import Completion


class Hidden:
    """Tells of each rank what its dump may hide.

    Args:
        progress: the match.
        waits: what the ranks wait in, as far as dumps show; looked at anew with every question.
    """

    def __init__(self, progress: Progress, waits: Mapping[int, Wait]) -> None:
        self._progress = progress
        self._trace = progress.trace
        self._waits = waits
        self._came: dict[int, tuple[int, int, bool]] = {}

    def may_wait(self, rank: int) -> bool:
        """Whether a rank may wait like the others, though its dump does not show in what."""
        dump = self._trace.dumps.get(rank)
        if dump is None or rank in self._waits:
            return False
        return self._counts_what_is_gone(rank) or (
            len(dump.operations) > 0
            and (
                late_to_the_end(dump.operations)
                or self._may_wait_overwritten(rank)
                or self.ended_unseen(rank)
            )
        )

    def ended_unseen(self, rank: int) -> bool:
        """Whether a rank's newest operation is marked as complete, and may not be."""
        # torch's Gloo retires what timed out: whether an operation was over, nothing tells until a
        # member has gone on. It was not, if others lack in it: members of whom nothing is known
        # (none are declared, and they left no dump, or it is the group's first operation), or
        # those that never joined a rooted one.
        dump = self._trace.dumps[rank]
        operations = dump.operations
        if not len(operations) or operations.completion[-1] != Completion.RETIRED:
            return False
        group = self._progress.groups.of_rank[rank][operations.group[-1]]
        advances = self._progress.advances[group]
        least, newest, all_exact = self._came_to(group)
        if newest > advances[rank].last_joined:
            return False
        if not all_exact:
            return True  # a ring that has wrapped and holds nothing of the group
        is_first = np.count_nonzero(operations.group == operations.group[-1]) == 1
        process_group = self._progress.groups.groups[group]
        if not process_group.declared and (is_first or self._progress.lacks_dumps()):
            return True
        last = dump.signatures[operations.signature[-1]].operation
        return operation_name(last) in ROOTED and (
            least < newest or len(advances) < len(process_group.members)
        )

    def may_have_lost_its_wait(self, rank: int) -> bool:
        """Whether a rank's ring begins amid operations that wait, so that the oldest may be gone.

        Its own counters tell where the oldest must be; dumps of active entries begin there too.
        """
        if not self._begins_pending(rank):
            return False
        dump = self._trace.dumps[rank]
        operations = dump.operations
        pending = operations.completion == Completion.PENDING
        if not any(dump.statuses):
            return True
        for local, status in enumerate(dump.statuses):
            if status is None:
                continue  # a group that the rank has not used
            held = operations.number[pending & ~operations.is_p2p & (operations.group == local)]
            # torch counts from 1, and says -1 where none is complete.
            next_one = max(status.last_completed + 1, 1)
            if status.last_enqueued >= next_one and int(held.min(initial=_ENDLESS)) > next_one:
                return True
        return False

    def may_have_lost_a_transfer(self, rank: int) -> bool:
        """Whether a rank's ring begins amid operations that wait, and more than its counters tell.

        They count no transfers, so one that is gone may be what the rank waits in.
        """
        recorded, counted = recorded_and_counted(self._trace.dumps[rank])
        return self._begins_pending(rank) and (
            self.may_have_lost_its_wait(rank) or recorded > counted
        )

    def _counts_what_is_gone(self, rank: int) -> bool:
        """Whether a rank has called what is not complete, by its counters, and holds it no more."""
        operations = self._trace.dumps[rank].operations
        for local, status in enumerate(self._trace.dumps[rank].statuses):
            if status is None or status.last_enqueued <= max(status.last_completed, 0):
                continue
            held = operations.number[(operations.group == local) & ~operations.is_p2p]
            if status.last_enqueued not in held:
                return True
        return False

    def _may_wait_overwritten(self, rank: int) -> bool:
        """Whether what a rank waits in may be gone from its ring, and from all its peers' rings.

        No member of some group of it waits in anything, and of that group none holds an entry.
        """
        dumps = self._trace.dumps
        if int(dumps[rank].operations.record[0]) <= 0:
            return False
        for index in self._progress.groups.of_rank[rank]:
            group = self._progress.groups.groups[index]
            idle = set(group.members) <= dumps.keys() - self._waits.keys()
            if idle and len(group.members) > 1 and not (self._progress.group == index).any():
                return True
        return False

    def _begins_pending(self, rank: int) -> bool:
        """Whether a rank's first operations are not held, and the oldest held is not complete."""
        operations = self._trace.dumps[rank].operations
        return bool(
            len(operations)
            and operations.record[0] > 0
            and operations.completion[0] == Completion.PENDING
        )

    def _came_to(self, group: int) -> tuple[int, int, bool]:
        """The least and the newest number that members joined, and whether all are exact."""
        if group not in self._came:
            advances = self._progress.advances[group].values()
            joined = [advance.last_joined for advance in advances]
            self._came[group] = min(joined), max(joined), all(a.exact for a in advances)
        return self._came[group]


_ENDLESS = np.iinfo(np.int64).max
