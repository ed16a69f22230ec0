"""The trace: what every rank recorded, as columns, free of any file format.

``read`` makes it, ``match`` and ``attribute`` only look at it. A rank's operations are
held as numpy arrays with one element per recorded operation, in the order in which the
rank recorded them; texts, shapes and stacks are held once in side tables and referred
to by index. What is in the tables is there in great numbers, and tuples are made, compared and
handed to other processes several times as fast as other objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt

IntColumn = npt.NDArray[np.int64]

DEFAULT_GROUP = "default_pg"
"""How torch describes the group of all ranks."""

UNKNOWN = -1
"""In an index, number or time column: the dump does not say."""


def distinct(column: IntColumn) -> IntColumn:
    """The values in a column, each once, ascending; without what ``np.unique`` has to import."""
    ordered = np.sort(column)
    is_new = np.append(True, ordered[1:] != ordered[:-1])
    found: IntColumn = ordered[is_new[: len(ordered)]]
    return found


class Source(Protocol):
    """Where something was read: a ``Path``, or a URL.

    ``str()`` gives it without passwords, and ``name`` is its last part.
    """

    @property
    def name(self) -> str:
        """The last part, which tells the rank."""

    def with_name(self, name: str, /) -> Self:
        """Another one beside it."""

    def __fspath__(self) -> str:
        """The whole as text."""


class Completion(IntEnum):
    """What a dump says of an operation's completion.

    From weak to strong. ``RETIRED``: torch's Gloo process group retires an operation
    that timed out, too. ``TIMED``: TorchComms retired it and says how long it took, but
    does so at once for an asynchronous one. ``COMPLETED``: the device was seen to finish.
    """

    UNKNOWN = 0
    PENDING = 1
    RETIRED = 2
    TIMED = 3
    COMPLETED = 4


class Frame(NamedTuple):
    """One line of a stack: file, line number, function."""

    filename: str
    line: int
    name: str

    def __str__(self) -> str:
        return f"{self.filename}:{self.line} in {self.name}"


class Signature(NamedTuple):
    """What an operation was called with, apart from the tensors' values.

    ``None`` for a field that the dump does not hold. Sizes are one tuple of dimensions
    per tensor, dtypes one name per tensor.
    """

    operation: str
    input_sizes: tuple[tuple[int, ...], ...] | None
    output_sizes: tuple[tuple[int, ...], ...] | None
    input_dtypes: tuple[str, ...] | None
    output_dtypes: tuple[str, ...] | None
    input_splits: tuple[int, ...] | None = None
    output_splits: tuple[int, ...] | None = None


class GroupName(NamedTuple):
    """How one rank names a process group: unique name and description."""

    name: str
    description: str

    def __str__(self) -> str:
        if self.description and self.description not in (self.name, "undefined"):
            return f"{self.name or '(no name)'} ({self.description})"
        return self.name or "(no name)"


class GroupStatus(NamedTuple):
    """One rank's own count of a group's collectives (``pg_status``), UNKNOWN where absent."""

    last_enqueued: int
    last_started: int
    last_completed: int


@dataclass(frozen=True, slots=True)
class Operations:
    """The columns: one element per recorded operation, in recorded order.

    Attributes:
        group: index into ``RankDump.groups``.
        signature: index into ``RankDump.signatures``.
        stack: index into ``RankDump.stacks``, or UNKNOWN.
        number: ``collective_seq_id``, or ``p2p_seq_id`` where ``is_p2p``.
        record: ``record_id``, which counts all operations of the recorder.
        is_p2p: whether it is a send or recv.
        completion: a ``Completion``.
        started: whether the dump says that the device began it.
        created_ns, started_ns, completed_ns: wall clock of the rank's host, or UNKNOWN.
    """

    group: IntColumn
    signature: IntColumn
    stack: IntColumn
    number: IntColumn
    record: IntColumn
    is_p2p: npt.NDArray[np.bool_]
    completion: npt.NDArray[np.int8]
    started: npt.NDArray[np.bool_]
    created_ns: IntColumn
    started_ns: IntColumn
    completed_ns: IntColumn

    def __len__(self) -> int:
        return len(self.group)


@dataclass(frozen=True, slots=True)
class RankDump:
    """What one rank recorded.

    Attributes:
        rank: the rank in the job.
        source: the file or URL it came from.
        version: the dump format's version, ``"2.10"``.
        groups: the process groups in which it recorded or declared something.
        declared_members: per group (same index) the global ranks it declares, or None.
        statuses: per group (same index) its own counters, or None.
        operations: the columns.
        signatures, stacks: side tables; a stack is innermost frame first.
        numbers_per_recorder: sequence numbers count over all groups of the recorder
            (TorchComms), not per group.
        health: node health as NVIDIA's resiliency tools add it: device to status and text.
        world: the members of the default group, where the dump declares them; else None.
        written_ns: when the file was written, or UNKNOWN.
    """

    rank: int
    source: Source
    version: str
    groups: tuple[GroupName, ...]
    declared_members: tuple[tuple[int, ...] | None, ...]
    statuses: tuple[GroupStatus | None, ...]
    operations: Operations
    signatures: tuple[Signature, ...]
    stacks: tuple[tuple[Frame, ...], ...]
    numbers_per_recorder: bool
    health: dict[str, tuple[str, str]]
    world: tuple[int, ...] | None
    written_ns: int = UNKNOWN


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """One thread of a rank in a stacks snapshot, innermost frame first."""

    thread: str
    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class RankStacks:
    """A rank's threads in the newest stacks snapshot; ``error`` where it did not answer."""

    rank: int
    source: Source
    threads: tuple[ThreadStack, ...]
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Unread:
    """A file that could not be used, with the reason."""

    path: Source
    reason: str
    rank: int | None = None


class UnreadMany(Unread):
    """A file of many ranks that could not be used; which ranks it has, nobody can tell."""

    __slots__ = ()


class Silence(NamedTuple):
    """How a rank of a running job gave no answer.

    ``reason`` is one phrase, ``connection refused``. ``is_reached`` says whether its host was: else
    the rank may do well, and nothing is known of it.
    """

    reason: str
    is_reached: bool


@dataclass(frozen=True, slots=True)
class Trace:
    """All that was read: dumps and stacks by rank, and the files that could not be used.

    ``expected_world_size`` is the number of ranks that the user says the job has. ``silences`` has
    the ranks of a running job that gave no answer; it is None where files were read.
    """

    dumps: dict[int, RankDump]
    stacks: dict[int, RankStacks] = field(default_factory=dict)
    unread: tuple[Unread, ...] = ()
    expected_world_size: int | None = None
    silences: Mapping[int, Silence] | None = None

    def unreached(self, ranks: Iterable[int]) -> tuple[int, ...]:
        """Those of some ranks that could not be reached, so that nothing is known of them."""
        silences = self.silences or {}
        return tuple(r for r in ranks if r in silences and not silences[r].is_reached)
