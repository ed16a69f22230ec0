"""What each operation means: whom it needs, and what its callers must agree on.

Names are those that backends record: ``nccl:all_reduce``, ``gloo:broadcast``,
``nccl:_all_gather_base``, ``nccl:send 0->1``. The backend in front is dropped, and the
names that torch uses for variants of one operation are read as one.
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass

from fr_analysis.trace import Signature

_P2P = re.compile(r"^(?P<kind>send|recv|isend|irecv)(?: (?P<me>\d+)(?:->|<-)(?P<peer>\d+))?$")

_VARIANTS = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "all_reduce_barrier": "barrier",
    "allreduce_sparse": "all_reduce",
    "_all_gather_base": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "all_gather_single": "all_gather",
    "all_gather_v": "all_gather",
    "allgather": "all_gather",
    "allgather_coalesced": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_v": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "all_to_all_v_single": "all_to_all",
    "all_to_all_v": "all_to_all",
    "all_to_allv": "all_to_all",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "_broadcast_oop": "broadcast",
    "_reduce_oop": "reduce",
}

ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})
"""A member may rightly finish these before every other member has joined."""

_AGREE_ON_INPUT = frozenset({"all_reduce", "all_gather", "reduce_scatter", "reduce", "gather"})
_AGREE_ON_OUTPUT = frozenset({"broadcast", "scatter"})


@dataclass(frozen=True, slots=True)
class PointToPoint:
    """A send or recv; ranks are positions in the group, None where not recorded."""

    is_send: bool
    me: int | None
    peer: int | None


@functools.lru_cache(maxsize=4096)
def operation_name(recorded: str) -> str:
    """``nccl:_all_gather_base`` to ``all_gather``; an unknown name stays as it is."""
    name = recorded.rpartition(":")[2].strip()
    return _VARIANTS.get(name, name)


@functools.lru_cache(maxsize=65536)
def point_to_point(recorded: str) -> PointToPoint | None:
    """Read ``nccl:send 0->1`` or ``nccl:recv 1<-0``; None for a collective."""
    match = _P2P.match(recorded.rpartition(":")[2].strip())
    if not match:
        return None
    return PointToPoint(
        match["kind"].endswith("send"),
        int(match["me"]) if match["me"] else None,
        int(match["peer"]) if match["peer"] else None,
    )


def is_batch_end(recorded: str) -> bool:
    """Whether the entry only closes a batch of others (``nccl:coalesced``)."""
    return recorded.endswith(":coalesced")


def elements(sizes: tuple[tuple[int, ...], ...] | None) -> int | None:
    """Number of elements of all tensors together; a scalar counts as one."""
    return None if sizes is None else sum(math.prod(shape) for shape in sizes)


@dataclass(frozen=True, slots=True)
class Agreement:
    """What every member must call one operation with; None where it may differ or is unknown."""

    operation: str
    elements: int | None
    dtypes: tuple[str, ...] | None


@functools.lru_cache(maxsize=65536)
def agreement(signature: Signature) -> Agreement:
    """Reduce a signature to what must be equal on all members.

    Shapes may differ where only the number of elements counts. The list forms of
    all_gather and reduce_scatter hold the members' parts on one side, so only the side
    that every member shares is compared; all-to-all is compared by its totals elsewhere.
    """
    name = operation_name(signature.operation)
    if name in _AGREE_ON_INPUT:
        size = elements(signature.input_sizes)
        dtypes = signature.input_dtypes
    elif name in _AGREE_ON_OUTPUT:
        size = elements(signature.output_sizes)
        dtypes = signature.output_dtypes
    elif name == "all_to_all":
        size, dtypes = None, signature.input_dtypes
    else:
        return Agreement(name, None, None)
    return Agreement(name, size, tuple(sorted(set(dtypes))) if dtypes else None)
