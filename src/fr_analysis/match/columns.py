"""All ranks' operations laid end to end, for what looks at all of them at once.

A loop over ranks that each time searches the table of all collectives for the rank's own
rows takes time that grows with the square of the job; one column over all ranks does not.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fr_analysis.match.progress import Progress
from fr_analysis.match.side_tables import PerTable
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
        return self._joined(lambda dump: np.asarray(of(dump.operations), dtype=np.int64))

    def of_signatures(self, of: Callable[[Signature], int]) -> IntColumn:
        """What a function says of every operation's signature, asked once per table of them."""
        found = PerTable(of)
        return self._joined(lambda dump: found(dump.signatures)[dump.operations.signature])

    def of_stacks(self, of: Callable[[tuple[Frame, ...]], int]) -> IntColumn:
        """What a function says of every operation's stack, of ``()`` where none is recorded."""
        found, none = PerTable(of), of(())
        # The last is for UNKNOWN, which is -1.
        return self._joined(lambda dump: np.append(found(dump.stacks), none)[dump.operations.stack])

    def _joined(self, of: Callable[[RankDump], IntColumn]) -> IntColumn:
        parts = [of(dump) for dump in self._dumps]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

    def places(self, progress: Progress) -> IntColumn:
        """The place of each row of the table of collectives."""
        # Looking up by rank takes a fraction of the time of a search.
        start_of = np.zeros(int(self.ranks.max(initial=-1)) + 1, dtype=np.int64)
        start_of[self.ranks] = self._starts
        places: IntColumn = start_of[progress.rank] + progress.row
        return places
