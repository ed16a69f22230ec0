"""The diagnosis: plain, immutable data. Reports print it and decide nothing.

Everything here is part of the stable public API.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from fr_analysis.trace import Frame, Unread


class Verdict(StrEnum):
    """The answer in one word."""

    HEALTHY = "healthy"
    """Nothing is outstanding and every expected dump was read."""
    FAULT = "fault"
    """At least one fault is established."""
    UNDETERMINED = "undetermined"
    """The evidence does not decide; ``Diagnosis.notes`` say what is missing."""


class FaultKind(StrEnum):
    """What went wrong."""

    RANK_MISSING = "rank_missing"
    OPERATION_MISMATCH = "operation_mismatch"
    SIZE_MISMATCH = "size_mismatch"
    DTYPE_MISMATCH = "dtype_mismatch"
    SPLIT_MISMATCH = "split_mismatch"
    MEMBERSHIP_MISMATCH = "membership_mismatch"
    ORDER_DEADLOCK = "order_deadlock"
    P2P_UNMATCHED = "p2p_unmatched"
    P2P_CYCLE = "p2p_cycle"
    NO_PROGRESS = "no_progress"
    STRAGGLER = "straggler"


class AttributionState(StrEnum):
    """Whether restarting without the named ranks can help.

    ``CONTINUE``: yes, or nothing is wrong: a rank is missing, dead or silent, or its
    device is stuck. ``STOP``: no; the program itself is at fault and would hang again,
    or nothing could be isolated.
    """

    CONTINUE = "CONTINUE"
    STOP = "STOP"


class Condition(StrEnum):
    """What is known of a suspect, as far as the evidence goes."""

    ALIVE = "alive"
    """Its dump or its stack is there, but it never joined."""
    SILENT = "silent"
    """It left no dump, being dead or unable to answer."""
    UNREADABLE = "unreadable"
    """Its dump is there but could not be read."""
    AHEAD = "ahead"
    """It called an operation that its peers did not."""
    DISAGREES = "disagrees"
    """It called an operation in another way than most of its peers."""
    WAITING = "waiting"
    """It waits in a cycle of ranks that wait for each other."""
    DEVICE = "device"
    """Its peers finished an operation that is still pending on it."""
    LATE = "late"
    """It joined, but so late that the others waited for it again and again."""


def shapes_text(sizes: Sequence[tuple[int, ...]]) -> str:
    """Tensors' sizes as ``8x16, scalar``."""
    return ", ".join("x".join(map(str, size)) or "scalar" for size in sizes)


@dataclass(frozen=True, slots=True)
class Call:
    """An operation as some ranks called it.

    Attributes:
        operation: its plain name, ``all_reduce``. recorded_name: as the backend recorded it,
            ``nccl:all_reduce``.
        input_sizes, output_sizes: dimensions per tensor, None where not recorded.
        dtypes: name per input tensor, else per output tensor.
        ranks: who called it so.
        code: innermost frame outside torch of the first of the ranks. stack: all its frames,
            innermost first; empty where not recorded.
    """

    operation: str
    recorded_name: str
    input_sizes: tuple[tuple[int, ...], ...] | None
    output_sizes: tuple[tuple[int, ...], ...] | None
    dtypes: tuple[str, ...] | None
    ranks: tuple[int, ...]
    code: Frame | None = None
    stack: tuple[Frame, ...] = ()

    def describe(self) -> str:
        """One phrase: operation, sizes and dtype."""
        sizes = self.input_sizes or self.output_sizes
        shape = shapes_text(sizes or ())
        kinds = "/".join(dict.fromkeys(self.dtypes or ()))
        text = " ".join(part for part in (shape, kinds) if part)
        return f"{self.operation}({text})" if text else self.operation


@dataclass(frozen=True, slots=True)
class Suspect:
    """One rank to blame, with what is known of it."""

    rank: int
    condition: Condition
    stack: tuple[Frame, ...] = ()
    """Its main thread in the stacks snapshot, innermost frame first."""
    location: Frame | None = None
    """Innermost line of it outside torch and the standard library."""
    last_call: Call | None = None
    """The last operation that it recorded."""
    last_group: str = ""
    last_seq_id: int | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """One independent cause.

    ``suspects`` are the ranks to blame, ``victims`` those that wait because of them.
    ``collective_seq_id`` is the number that the waiting ranks recorded, None where they
    recorded different ones. ``calls`` says who joined with what.
    """

    kind: FaultKind
    group: str
    group_description: str
    group_members: tuple[int, ...]
    collective: str
    collective_seq_id: int | None
    suspects: tuple[int, ...]
    victims: tuple[int, ...]
    calls: tuple[Call, ...]
    evidence: tuple[str, ...]
    first_seen_ns: int | None = None
    """When the first rank entered the collective, on its host's clock."""


@dataclass(frozen=True, slots=True)
class StuckGroup:
    """A process group at the front: its waiting members and those they wait for."""

    group: str
    group_description: str
    collective: str
    collective_seq_id: int | None
    waiting: tuple[int, ...]
    missing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Edge:
    """One edge of the wait-for graph: ``waiter`` waits for ``awaited`` in a group."""

    waiter: int
    awaited: int
    group: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What the dumps say.

    Attributes:
        verdict: healthy, fault or undetermined.
        suspects: ranks to blame, most certain first.
        victims: ranks that wait because of them; never suspects as well.
        wavefront: the stuck groups that lead to the suspects.
        attribution_state: whether a restart without the suspects can help.
        faults: independent causes, earliest first.
        details: per suspect, what is known of it.
        unread: files that could not be used, with reasons.
        notes: what limits the answer, and how to get more.
        ranks: ranks with a dump. operations: how many operations each of them holds.
        missing_dumps: ranks of the job without a usable dump.
        waits: the wait-for graph.
    """

    verdict: Verdict
    suspects: tuple[int, ...]
    victims: tuple[int, ...]
    wavefront: tuple[StuckGroup, ...]
    attribution_state: AttributionState
    faults: tuple[Fault, ...]
    details: tuple[Suspect, ...]
    unread: tuple[Unread, ...]
    notes: tuple[str, ...]
    ranks: tuple[int, ...]
    operations: tuple[int, ...]
    missing_dumps: tuple[int, ...]
    waits: tuple[Edge, ...] = field(default=())
