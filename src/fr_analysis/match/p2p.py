"""Sends and receives: which have their counterpart posted, and which wait for it.

Both sides count ``p2p_seq_id`` on their own and ring buffers begin anywhere, so what is
compared is what is pending now: a send that waits has its counterpart as soon as the
peer holds a pending receive for it, in order.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fr_analysis.match.groups import Groups, ProcessGroup
from fr_analysis.match.semantics import PointToPoint, is_batch_end, point_to_point
from fr_analysis.trace import UNKNOWN, Completion, RankDump, Trace


@dataclass(frozen=True, slots=True)
class Batches:
    """Where one rank issued batches of transfers (``batch_isend_irecv``).

    Attributes:
        inner: which operations are transfers of a batch.
        closing: which operations close such a batch.
        groups: the rank's groups in which it issued any, or one of which only the end is left.
    """

    inner: npt.NDArray[np.bool_]
    closing: npt.NDArray[np.bool_]
    groups: frozenset[int]


def find_batches(dump: RankDump) -> Batches:
    """Tell a rank's batched transfers from lone ones.

    NCCL closes a batch with an entry of its own, the only one of the batch that is ever
    updated; a dump of active entries lacks that of a complete batch. A lone transfer
    counts ``p2p_seq_id`` up, a batched one does not. A ring that has wrapped may begin with the
    closing entry: it tells of a batch, unless such entries close collectives in that group.
    """
    operations = dump.operations
    count = len(operations)
    inner, closing = np.zeros(count, dtype=np.bool_), np.zeros(count, dtype=np.bool_)
    transfers = [point_to_point(s.operation) is not None for s in dump.signatures]
    ends = [is_batch_end(s.operation) for s in dump.signatures]
    if dump.numbers_per_recorder or not count or not (any(transfers) or any(ends)):
        return Batches(inner, closing, frozenset())
    newest: dict[int, int] = {}
    signatures, groups = operations.signature.tolist(), operations.group.tolist()
    numbers = operations.number.tolist()
    for row in range(count if any(transfers) else 0):
        group = groups[row]
        if transfers[signatures[row]]:
            number = numbers[row]
            inner[row] = number == 0 or (number != UNKNOWN and number == newest.get(group))
            newest[group] = number
        elif ends[signatures[row]]:
            at = row - 1
            while at >= 0 and transfers[signatures[at]] and groups[at] == group:
                if at < row - 1 and numbers[at] != numbers[row - 1]:
                    break
                inner[at] = closing[row] = True
                at -= 1
    found = {groups[row] for row in np.flatnonzero(inner)}
    if ends[signatures[0]] and operations.record[0] > 0:
        closed = np.array(ends)[operations.signature] & (operations.group == groups[0])
        if np.array_equal(np.flatnonzero(closed & ~closing), [0]):
            found.add(groups[0])
    return Batches(inner, closing, frozenset(found))


@dataclass(frozen=True, slots=True)
class PendingTransfer:
    """One pending send or recv.

    Attributes:
        rank, row: who posted it, and the position in its ``Operations``.
        group: index of the process group.
        is_send: direction.
        peer: the other global rank; None where the recorder does not tell.
        counterpart: row of the peer's pending counterpart; None where it has posted none.
    """

    rank: int
    row: int
    group: int
    is_send: bool
    peer: int | None
    counterpart: int | None = None


def peer_rank(group: ProcessGroup, rank: int, operation: PointToPoint) -> int | None:
    """The peer of a rank's send or recv as a global rank: operations name positions in the group.

    None where neither the recorder nor the group's size tells it.
    """
    if operation.peer is not None and operation.peer < len(group.members):
        return group.members[operation.peer]
    if operation.peer is None and len(group.members) == 2:
        return next(member for member in group.members if member != rank)
    return None


def _closed(batches: Batches) -> npt.NDArray[np.bool_]:
    """Which transfers are directly followed, up to its end, by the entry closing their batch."""
    closed = np.zeros(len(batches.inner), dtype=np.bool_)
    for row in map(int, np.flatnonzero(batches.closing)):
        at = row - 1
        while at >= 0 and batches.inner[at] and not batches.closing[at]:
            closed[at] = True
            at -= 1
    return closed


def still_pending(dump: RankDump) -> npt.NDArray[np.bool_]:
    """Which of a rank's operations are pending, transfers of batches that are over left out."""
    pending: npt.NDArray[np.bool_] = dump.operations.completion == Completion.PENDING
    if not (dump.operations.completion == Completion.COMPLETED).any():
        # Only active entries were dumped: a batch without the one that closes it is over.
        batches = find_batches(dump)
        pending &= ~batches.inner | _closed(batches)
    return pending


def match_transfers(trace: Trace, groups: Groups) -> dict[tuple[int, int], PendingTransfer]:
    """Pair the pending sends and receives of all ranks.

    Args:
        trace: the dumps.
        groups: the job's process groups.

    Returns:
        Every pending transfer by (rank, row).
    """
    posted: dict[tuple[int, int, int, bool], list[PendingTransfer]] = defaultdict(list)
    alone: list[PendingTransfer] = []
    for rank, dump in trace.dumps.items():
        kinds = [point_to_point(signature.operation) for signature in dump.signatures]
        operations = dump.operations
        for row in map(int, np.flatnonzero(still_pending(dump))):
            kind = kinds[operations.signature[row]]
            if kind is None:
                continue
            index = groups.of_rank[rank][operations.group[row]]
            peer = peer_rank(groups.groups[index], rank, kind)
            transfer = PendingTransfer(rank, row, index, kind.is_send, peer)
            if peer is None:
                alone.append(transfer)
            else:
                posted[index, rank, peer, kind.is_send].append(transfer)

    found = {(transfer.rank, transfer.row): transfer for transfer in alone}
    for (index, rank, peer, is_send), mine in posted.items():
        theirs = posted.get((index, peer, rank, not is_send), [])
        for at, transfer in enumerate(mine):
            counterpart = theirs[at].row if at < len(theirs) else None
            found[rank, transfer.row] = PendingTransfer(
                rank, transfer.row, index, is_send, peer, counterpart
            )
    return found
