"""All ranks' operations laid end to end, for what looks at all of them at once.

A loop over ranks that each time searches the table of all collectives for the rank's own
rows takes time that grows with the square of the job; one column over all ranks does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fr_analysis.match.progress import Progress
from fr_analysis.trace import Frame, IntColumn, Operations, RankDump, Signature, Trace


class EndToEnd:
    """The places of all operations: rank by rank, and in recorded order within a rank.

    Attributes:
        ranks: the ranks with a dump, ascending.
        rank: per place, the rank.
    """

    def __init__(self, trace: Trace) -> None:
        self._dumps = [trace.dumps[rank] for rank in sorted(trace.dumps)]
        self.ranks = np.array([dump.rank for dump in self._dumps], dtype=np.int64)
        lengths = np.array([len(dump.operations) for dump in self._dumps], dtype=np.int64)
        self._starts = np.cumsum(lengths) - lengths
        self.rank: IntColumn = np.repeat(self.ranks, lengths)

    def column(self, of: Callable[[Operations], object]) -> IntColumn:
        """One column of ``Operations`` over all ranks.

        Args:
            of: takes it from a rank's operations: ``lambda operations: operations.number``.

        Returns:
            It, as integers, with one element per place.
        """
        parts = [np.asarray(of(dump.operations), dtype=np.int64) for dump in self._dumps]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

    def of_signatures(self, of: Callable[[Signature], int]) -> IntColumn:
        """What a function says of every operation's signature, asked once per signature."""
        return self._of_table(lambda dump: dump.signatures, lambda o: o.signature, of)

    def of_stacks(self, of: Callable[[tuple[Frame, ...]], int]) -> IntColumn:
        """What a function says of every operation's stack, of ``()`` where none is recorded."""
        # The last is for UNKNOWN, which is -1.
        return self._of_table(lambda dump: (*dump.stacks, ()), lambda o: o.stack, of)

    def _of_table(
        self,
        table: Callable[[RankDump], Sequence[Any]],
        index: Callable[[Operations], IntColumn],
        of: Callable[[Any], int],
    ) -> IntColumn:
        parts = [
            np.array([of(item) for item in table(dump)], dtype=np.int64)[index(dump.operations)]
            for dump in self._dumps
            if len(dump.operations)
        ]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

    def places(self, progress: Progress) -> IntColumn:
        """The place of each row of the table of collectives."""
        # Looking up by rank takes a fraction of the time of a search.
        start_of = np.zeros(int(self.ranks.max(initial=-1)) + 1, dtype=np.int64)
        start_of[self.ranks] = self._starts
        places: IntColumn = start_of[progress.rank] + progress.row
        return places
