"""What a rank's program is made of."""

from __future__ import annotations

import math
from dataclasses import dataclass

Shape = tuple[int, ...]

MILLISECOND = 1_000_000


@dataclass(frozen=True)
class Group:
    """A process group: unique name, description, and global ranks in group order."""

    name: str
    description: str
    members: tuple[int, ...]


@dataclass(frozen=True)
class Collective:
    """One rank's call of a collective.

    ``overlapped`` is ``async_op=True`` with a late wait: what follows on the device does
    not wait for it. ``inner`` are the parts of a coalesced call, which are recorded too.
    """

    group: Group
    operation: str
    inputs: tuple[Shape, ...] = ((1024,),)
    outputs: tuple[Shape, ...] = ((1024,),)
    dtype: str = "BFloat16"
    input_splits: tuple[int, ...] | None = None
    output_splits: tuple[int, ...] | None = None
    overlapped: bool = False

    def needs(self) -> tuple[object, ...]:
        """What every member must call it with, or it never completes."""
        if self.operation == "all_to_all":
            return (self.operation, self.dtype)
        if self.operation in ("broadcast", "scatter"):
            return (self.operation, numel(self.outputs), self.dtype)
        return (self.operation, numel(self.inputs), self.dtype)


def exchange(group: Group, rank: int, uneven: bool = True) -> Collective:
    """A legal all-to-all: what one member sends is what the other expects."""

    def rows(sender: int, receiver: int) -> int:
        return 4 + ((3 * sender + receiver) % 5 if uneven else 0)

    me = group.members.index(rank)
    size = len(group.members)
    sent = tuple(rows(me, to) for to in range(size))
    received = tuple(rows(source, me) for source in range(size))
    return Collective(
        group,
        "all_to_all",
        ((sum(sent), 16),),
        ((sum(received), 16),),
        input_splits=sent,
        output_splits=received,
    )


@dataclass(frozen=True)
class Transfer:
    """A send or recv; ``peer`` is a global rank."""

    group: Group
    is_send: bool
    peer: int
    shape: Shape = (512, 64)


@dataclass(frozen=True)
class Batch:
    """``batch_isend_irecv``: transfers that are issued together, in one group."""

    transfers: tuple[Transfer, ...]

    @property
    def group(self) -> Group:
        """The group of the transfers."""
        return self.transfers[0].group


@dataclass(frozen=True)
class Compute:
    """Host and device work that takes time."""

    duration_ns: int = MILLISECOND


@dataclass(frozen=True)
class Synchronize:
    """The host waits for its device, as ``.item()`` does."""


@dataclass(frozen=True)
class Sleep:
    """The host never goes on."""


@dataclass(frozen=True)
class StickDevice:
    """A kernel that never ends: the host goes on, nothing after it begins on the device."""


Operation = Collective | Transfer | Batch | Compute | Synchronize | Sleep | StickDevice
Communication = Collective | Transfer | Batch
Program = list[Operation]


def numel(shapes: tuple[Shape, ...]) -> int:
    """Elements of all tensors together."""
    return sum(math.prod(shape) for shape in shapes)
