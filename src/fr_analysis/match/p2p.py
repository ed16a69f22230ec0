"""Sends and receives: which have their counterpart posted, and which wait for it.

Both sides count ``p2p_seq_id`` on their own and ring buffers begin anywhere, so what is
compared is what is pending now: a send that waits has its counterpart as soon as the
peer holds a pending receive for it, in order.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from fr_analysis.match.groups import Groups, ProcessGroup
from fr_analysis.match.semantics import PointToPoint, point_to_point
from fr_analysis.trace import Completion, Trace


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


def _peer_rank(group: ProcessGroup, rank: int, operation: PointToPoint) -> int | None:
    """The peer as a global rank: operations name positions in the group."""
    if operation.peer is not None and operation.peer < len(group.members):
        return group.members[operation.peer]
    if operation.peer is None and len(group.members) == 2:
        return next(member for member in group.members if member != rank)
    return None


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
        for row in map(int, np.flatnonzero(operations.completion == Completion.PENDING)):
            kind = kinds[operations.signature[row]]
            if kind is None:
                continue
            index = groups.of_rank[rank][operations.group[row]]
            peer = _peer_rank(groups.groups[index], rank, kind)
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
