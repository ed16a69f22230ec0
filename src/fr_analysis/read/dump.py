"""From the plain data of one dump to a ``RankDump``.

Format: the dictionary that torch's FlightRecorder writes, versions 2.0 to 2.10, as
``torch/csrc/distributed/c10d/FlightRecorder.hpp`` (keys) and
``torch/distributed/flight_recorder`` (readers) define it; torchcomms writes the same
keys. Fields came over time, so a missing one is normal: 2.2 brought
``collective_seq_id``, ``p2p_seq_id``, ``is_p2p``, dtypes and ``timeout_ms``, 2.3
``pg_status``. JSON dumps write a null time as 0 and leave ``entries`` out when empty.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from fr_analysis.errors import NotADump, UnreadableDump
from fr_analysis.read.fields import (
    Entries,
    Flags,
    Parsed,
    Table,
    are,
    by_objects,
    codes,
    combined,
    integers,
    nested_list_keys,
    number_list_keys,
    plain_keys,
    text_list_keys,
)
from fr_analysis.read.shortened import Repeats
from fr_analysis.trace import (
    DEFAULT_GROUP,
    UNKNOWN,
    Completion,
    Frame,
    GroupName,
    GroupStatus,
    IntColumn,
    Operations,
    RankDump,
    Signature,
    distinct,
)

# Far beyond any real dump. A file of kilobytes may name one list a million times, so what
# is bounded is what the analysis does with the parts, not only how many bytes they have.
MAX_OPERATIONS = 1_000_000
MAX_GROUPS = 100_000
MAX_MEMBERS = 20_000_000
"""Of all groups together that one dump declares."""
MAX_TIME_NS = 1 << 62
"""In the year 2116; differences of such times fit into 64 bits."""
MAX_RANK = 999_999
MAX_NAME = 512
MAX_FRAMES = 512
MAX_TENSORS = 100_000
MAX_DIMENSIONS = 64
_MAX_INT = (1 << 63) - 1

_DECIMAL = re.compile(r"-?[0-9]{1,18}")
_RANK_SPAN = re.compile(r"^\s*(\d{1,6})\s*-\s*(\d{1,6})\s*$")
_RANK_LIST = re.compile(r"^\s*[\[(]?\s*(\d{1,6}\s*(?:,\s*\d{1,6}\s*)*,?)\s*[\])]?\s*$")


def _is_int(value: object) -> TypeGuard[int]:
    return type(value) is int and -_MAX_INT <= value <= _MAX_INT


def _number(value: object) -> int:
    """An integer, given as such or as the decimal text that JSON dumps write."""
    if _is_int(value):
        return value
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        return int(value)
    return UNKNOWN


def _time(value: object) -> int:
    return value if _is_int(value) and 0 < value < MAX_TIME_NS else UNKNOWN


def _text(value: object) -> str:
    """A text that can be printed: control characters would reach the reader's terminal."""
    if not isinstance(value, str):
        return ""
    value = value[:MAX_NAME]
    return value if value.isprintable() else "".join(c if c.isprintable() else "?" for c in value)


def parse_ranks(value: object) -> tuple[int, ...] | None:
    """Read a group's ``ranks``, which may be a list, its text, or ``"0-7"``.

    Args:
        value: what the dump holds: ``[0, 1]``, ``"[0, 1]"``, ``"[0,1]"`` or ``"0-1"``.

    Returns:
        The ranks in ascending order, or None where it names none or is no such list
        (torch's Gloo process group writes ``"[]"`` on members).
    """
    if isinstance(value, str):
        if len(value) > 8 * (MAX_RANK + 1):
            return None
        return _known_ranks(value) if len(value) <= _COMMON_TEXT else _ranks_of_text(value)
    if not isinstance(value, list | tuple) or not value:
        return None
    if not all(_is_int(rank) and 0 <= rank <= MAX_RANK for rank in value):
        return None
    return tuple(sorted(set(value)))


def _ranks_of_text(text: str) -> tuple[int, ...] | None:
    span = _RANK_SPAN.match(text)
    if span:
        first, last = int(span[1]), int(span[2])
        return tuple(range(first, last + 1)) if first <= last else None
    listed = _RANK_LIST.match(text)
    if not listed:
        return None  # empty, a name, a call: never evaluated, whatever it says
    return tuple(sorted(set(map(int, listed[1].rstrip(", \t\r\n").split(",")))))


_COMMON_TEXT = 1 << 16
_known_ranks = functools.lru_cache(maxsize=64)(_ranks_of_text)
"""All ranks of a job declare its large groups alike."""


def _sizes(value: object) -> tuple[tuple[int, ...], ...] | None:
    """Tensor shapes: a list of lists of dimensions, or one flat list for one tensor."""
    if not isinstance(value, list | tuple) or len(value) > MAX_TENSORS:
        return None
    shapes: list[tuple[int, ...]] = []
    flat: list[int] = []
    for shape in value:
        if isinstance(shape, list | tuple):
            if len(shape) > MAX_DIMENSIONS or not all(map(_is_int, shape)):
                return None
            shapes.append(tuple(shape))
        elif _is_int(shape) and len(flat) < MAX_DIMENSIONS:
            flat.append(shape)
        else:
            return None
    if flat:
        return None if shapes else (tuple(flat),)
    return tuple(shapes)


def _texts(value: object) -> tuple[str, ...] | None:
    if not isinstance(value, list | tuple) or len(value) > MAX_TENSORS:
        return None
    return tuple(_text(item) for item in value)


def _operation(value: object) -> str:
    return _text(value) or "unknown"


def _splits(value: object) -> tuple[int, ...] | None:
    if not isinstance(value, list | tuple) or not value or len(value) > MAX_TENSORS:
        return None
    return tuple(value) if all(_is_int(item) for item in value) else None


def _frame(value: object) -> Frame:
    if not isinstance(value, dict):
        return Frame("?", 0, "?")
    line = value.get("line")
    return Frame(
        _text(value.get("filename")) or "?",
        line if _is_int(line) else 0,
        _text(value.get("name")) or "?",
    )


def _signatures(entries: Entries) -> tuple[IntColumn, tuple[Signature, ...]]:
    """What each operation was called with: an index per entry, and the distinct signatures."""

    parts: list[Parsed[Any]] = [
        Parsed(entries.values("profiling_name"), plain_keys, _operation),
        Parsed(entries.values("input_sizes"), nested_list_keys, _sizes),
        Parsed(entries.values("output_sizes"), nested_list_keys, _sizes),
        Parsed(entries.values("input_dtypes"), text_list_keys, _texts),
        Parsed(entries.values("output_dtypes"), text_list_keys, _texts),
    ]
    for direction in ("input", "output"):
        # torch's own name, and that of TorchComms.
        names = f"{direction}_split_sizes", f"{direction}_splits"
        told = [entries.values(name) for name in names if entries.is_anywhere(name)]
        values = [
            next((v for v in found if v is not None), None) for found in zip(*told, strict=True)
        ]
        parts.append(Parsed(values or [None] * len(entries.distinct), number_list_keys, _splits))
    column, distinct = combined([part.column for part in parts])
    signatures = (
        Signature(*(part.items[at] for part, at in zip(parts, indices, strict=True)))
        for indices in distinct
    )
    return column, tuple(signatures)


def _stacks(entries: Entries) -> tuple[IntColumn, tuple[tuple[Frame, ...], ...]]:
    """The stack of each call: an index per entry or UNKNOWN, and the distinct stacks.

    torch memoises frames by pointer: equal stacks are lists of the same objects.
    """
    values = entries.values("frames")
    if not all(type(frames) is list and len(frames) <= MAX_FRAMES for frames in values):
        values = [
            frames[:MAX_FRAMES] if isinstance(frames, list | tuple) else [] for frames in values
        ]
    frame_of_object: dict[int, Frame] = {}

    def stack_of(frames: Any) -> tuple[Frame, ...]:
        for value in frames:
            if id(value) not in frame_of_object:
                frame_of_object[id(value)] = _frame(value)
        return tuple(frame_of_object[id(value)] for value in frames)

    parsed = Parsed(values, by_objects, stack_of)
    # An empty stack is none.
    is_stack = np.array([bool(stack) for stack in parsed.items], dtype=np.bool_)
    index_of = np.where(is_stack, np.cumsum(is_stack) - 1, UNKNOWN)
    return index_of[parsed.column], tuple(stack for stack in parsed.items if stack)


def _transfers(entries: Entries, signature: IntColumn, table: tuple[Signature, ...]) -> Flags:
    """Which of the distinct entries are of sends or receives."""
    told = entries.values("is_p2p")
    found = are(told, True)
    if None in told:  # before 2.2
        for at, entry in enumerate(entries.distinct):
            if "is_p2p" not in entry:
                name = table[signature[at]].operation
                found[at] = bool(re.match(r"\w+:(send|recv) \d+(->|<-)\d+", name))
    return found


def _sequence_numbers(entries: Entries, is_p2p: Flags) -> IntColumn:
    """The sequence number of each operation, among collectives or among transfers."""
    number = entries.numbers("collective_seq_id", _number)
    if is_p2p.any():
        number = np.where(is_p2p, entries.numbers("p2p_seq_id", _number), number)
    return _or_else(number, entries, "seq_id")  # before 2.2


def _records(entries: Entries) -> IntColumn:
    """Each operation's number in its recorder."""
    return _or_else(entries.numbers("record_id", _number), entries, "id")  # before 2.2


def _or_else(number: IntColumn, entries: Entries, name: str) -> IntColumn:
    """A column of numbers, with those of another field where they are not known."""
    unknown = number == UNKNOWN
    return np.where(unknown, entries.numbers(name, _number), number) if unknown.any() else number


_SCHEDULED, _STARTED, _COMPLETED = 1, 2, 3
_STATES = {"scheduled": _SCHEDULED, "started": _STARTED, "completed": _COMPLETED}


def _completions(
    parts: EntryParts, completed_ns: IntColumn, number: IntColumn, completed_up_to: IntColumn
) -> npt.NDArray[np.int8]:
    """Judge each entry by the signs that its backend gives.

    NCCL sets ``state`` to ``completed``. On CPU ``state`` stays ``scheduled`` for ever
    and ``retired``, or the group's ``last_completed_collective``, is the only sign.
    """
    passed = (number != UNKNOWN) & (number <= completed_up_to)
    # The strongest sign counts, so it comes last.
    completion = np.full(len(number), Completion.UNKNOWN, dtype=np.int8)
    completion[parts.under_way] = Completion.PENDING
    completion[passed | parts.retired] = Completion.RETIRED
    completion[parts.timed] = Completion.TIMED
    completion[(parts.state == _COMPLETED) | (completed_ns != UNKNOWN)] = Completion.COMPLETED
    return completion


def _close_batches(closes: Flags, operations: Operations) -> None:
    """Give the operations of a batch the completion of the entry that closes it, in place.

    NCCL records the operations of one ``batch_isend_irecv`` or coalescing manager under
    one number, then an entry ``coalesced``; only that one is ever updated. Batches of
    transfers all have the same number: they do not count as transfers.
    """
    group, number, completion = operations.group, operations.number, operations.completion
    for closing in np.flatnonzero(closes).tolist():
        row = closing - 1
        while (
            row >= 0
            and not closes[row]
            and group[row] == group[closing]
            and number[row] == number[closing]
        ):
            completion[row] = completion[closing]
            row -= 1


def _statuses(content: dict[str, Any]) -> dict[int, GroupStatus]:
    """``pg_status``: counters keyed by the rank's local ``pg_id``."""
    table = content.get("pg_status")
    if not isinstance(table, dict):
        return {}
    statuses = {}
    for key, counters in table.items():
        local_id = _number(key)
        if local_id == UNKNOWN or not isinstance(counters, dict):
            continue
        statuses[local_id] = GroupStatus(
            _number(counters.get("last_enqueued_collective")),
            _number(counters.get("last_started_collective")),
            _number(counters.get("last_completed_collective")),
        )
    return statuses


def _declarations(
    content: dict[str, Any],
) -> tuple[dict[str, tuple[GroupName, tuple[int, ...] | None]], tuple[int, ...] | None]:
    """``pg_config``: groups by name with their members, and the ranks under no name.

    torch's Gloo process group writes one nameless key that belongs to no group; its
    ranks, where it has any, are the best that is known of the default group.
    """
    table = content.get("pg_config")
    declared: dict[str, tuple[GroupName, tuple[int, ...] | None]] = {}
    nameless: tuple[int, ...] | None = None
    if not isinstance(table, dict):
        return declared, nameless
    if len(table) > MAX_GROUPS:
        raise UnreadableDump(f"declares {len(table)} process groups, more than any job has")
    left = MAX_MEMBERS
    for key, config in table.items():
        if not isinstance(key, str) or not isinstance(config, dict):
            continue
        name, description = _text(key), _text(config.get("desc"))
        members = parse_ranks(config.get("ranks"))
        left -= len(members or ())
        if left < 0:
            raise UnreadableDump(f"declares groups of more than {MAX_MEMBERS} ranks together")
        if name:
            declared[name] = (GroupName(name, description), members)
        else:
            nameless = members
    return declared, nameless


def _status_by_name(
    declared: list[str], statuses: dict[int, GroupStatus], seen: dict[str, int]
) -> dict[str, GroupStatus]:
    """Join counters, keyed by local id, to group names.

    Entries tell the local id of a group. For a group without entries the ids are joined
    by order of creation, which both numberings follow, and only if that order agrees
    with every pair that the entries tell.
    """
    joined = {name: statuses[local] for name, local in seen.items() if local in statuses}
    if len(declared) == len(statuses) and all(map(_DECIMAL.fullmatch, declared)):
        by_order = dict(zip(sorted(declared, key=int), sorted(statuses), strict=True))
        if all(by_order.get(name) == local for name, local in seen.items()):
            joined = {name: statuses[local] for name, local in by_order.items()}
    return joined


def _numbers_per_recorder(content: dict[str, Any], operations: Operations) -> bool:
    """Whether collectives are numbered over all groups of the recorder (TorchComms).

    There ``collective_seq_id`` and ``record_id`` run together even across groups, and
    ``pg_status`` is there but empty: torch's own recorders fill it.
    """
    collectives = ~operations.is_p2p
    if not collectives.any() or content.get("pg_status") != {}:
        return False
    offset = operations.number[collectives] - operations.record[collectives]
    return bool((offset <= offset[0]).all()) and bool(
        (np.diff(operations.number[collectives]) > 0).all()
    )


def _health(content: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """``health_check_results``: device to ``{"status": ..., "output": ...}``."""
    table = content.get("health_check_results")
    if not isinstance(table, dict):
        return {}
    return {
        _text(device): (_text(result.get("status")), _text(result.get("output")))
        for device, result in table.items()
        if isinstance(result, dict)
    }


def _shift_default_group(
    declared: dict[str, tuple[GroupName, tuple[int, ...] | None]], first_rank: int
) -> None:
    """Make a torchft replica group's default group name global ranks, in place.

    Each replica group counts its ranks from 0. Does what ``torchfrtrace --transform-ft``
    does, to the default group only.
    """
    for name, (group_name, members) in declared.items():
        if group_name.description == DEFAULT_GROUP and members is not None:
            declared[name] = group_name, tuple(first_rank + member for member in members)


def contradiction(content: object, dump: RankDump) -> str | None:
    """What in a dump's content speaks against the rank that its name tells.

    Args:
        content: the plain data of the dump.
        dump: what ``build_dump`` made of it.

    Returns:
        The reason, or None. A process records only in groups that it belongs to.
    """
    told = content.get("rank") if isinstance(content, dict) else None
    if _is_int(told) and told != dump.rank:
        return f"its name says rank {dump.rank}, but its content rank {told}; rename it"
    recorded = set(map(int, distinct(dump.operations.group)))
    for at, (group, members) in enumerate(zip(dump.groups, dump.declared_members, strict=True)):
        if members and dump.rank not in members and at in recorded:
            some = f"{members[0]}-{members[-1]}" if len(members) > 1 else f"{members[0]}"
            return (
                f"its name says rank {dump.rank}, but it recorded operations of group {group}, "
                f"whose ranks are within {some}; find out whose dump it is and rename it "
                "(torchft counts ranks per replica group: see --transform-ft)"
            )
    return None


@dataclass(frozen=True, eq=False)
class EntryParts:
    """All that the entries of a dump hold but their numbers and times, as columns.

    Dumps that are alike share it, so none of its columns can be written to.

    Attributes:
        entries: what it was made of.
        names: names of the groups in ``group``, with their descriptions where the entries tell.
        group, signature, stack, local_id, is_p2p, state: one value per entry.
        under_way, retired, timed, closes: which entries are not complete, are retired, are retired
            and timed, and close a batch.
        signatures, stacks: what ``signature`` and ``stack`` are indices into.
        local_ids: by group name, the id that its last entry tells.
    """

    entries: Entries
    names: tuple[GroupName, ...]
    group: IntColumn
    signature: IntColumn
    stack: IntColumn
    local_id: IntColumn
    is_p2p: Flags
    state: npt.NDArray[np.int8]
    under_way: Flags
    retired: Flags
    timed: Flags
    closes: Flags
    signatures: tuple[Signature, ...]
    stacks: tuple[tuple[Frame, ...], ...]
    local_ids: dict[str, int]


def _group_name(value: object) -> GroupName:
    if isinstance(value, list | tuple) and len(value) == 2:
        return GroupName(_text(value[0]), _text(value[1]))
    return GroupName(_text(value), "")


def _entry_parts(content: dict[str, Any], repeats: Repeats | None) -> EntryParts:
    """Check the entries of a dump; those that are no dictionaries are left out."""
    recorded = content.get("entries", [])
    if recorded is None:
        recorded = []
    if not isinstance(recorded, list | tuple):
        raise UnreadableDump("has entries that are not a list")
    entries = Entries([entry for entry in recorded if isinstance(entry, dict)], repeats)
    if len(entries) > MAX_OPERATIONS:
        raise UnreadableDump(f"has {len(entries)} entries, more than any ring buffer holds")
    groups = Parsed(entries.values("process_group"), plain_keys, _group_name)
    local_id = integers(entries.values("pg_id"), _number)
    signature, table = _signatures(entries)
    stack, stacks = _stacks(entries)
    state = codes(entries.values("state"), _STATES)
    told = entries.values("retired")
    retired = are(told, True)
    timed = np.array(["duration_ms" in entry for entry in entries.distinct], dtype=np.bool_)
    ends = np.array([entry.operation.endswith(":coalesced") for entry in table], dtype=np.bool_)
    last = entries.by_last()
    names = [name.name for name in groups.items]
    parts = EntryParts(
        entries=entries,
        names=groups.items,
        group=entries.spread(groups.column),
        signature=entries.spread(signature),
        stack=entries.spread(stack),
        local_id=entries.spread(local_id),
        is_p2p=entries.spread(_transfers(entries, signature, table)),
        state=entries.spread(state),
        under_way=entries.spread((state == _SCHEDULED) | (state == _STARTED) | are(told, False)),
        retired=entries.spread(retired),
        timed=entries.spread(retired & timed),
        closes=entries.spread(ends[signature]),
        signatures=table,
        stacks=stacks,
        local_ids={
            names[at]: local
            for at, local in zip(groups.column[last].tolist(), local_id[last].tolist(), strict=True)
        },
    )
    for column in vars(parts).values():
        if isinstance(column, np.ndarray):
            column.setflags(write=False)
    return parts


def _known_parts(content: dict[str, Any], repeats: Repeats | None) -> EntryParts:
    """What the entries hold, which is known where those of a dump before were alike."""
    alike = repeats.alike if repeats is not None else None
    if alike is None:
        return _entry_parts(content, repeats)
    if alike.parts is None:
        alike.parts = _entry_parts(content, repeats)
    parts: EntryParts = alike.parts
    return parts


def _checked(content: object) -> dict[str, Any]:
    """The dictionary of a dump.

    Raises:
        UnreadableDump: it is none, or of a version that is not understood.
    """
    if not isinstance(content, dict):
        raise NotADump(
            f"holds a {type(content).__name__}, not the dictionary of a Flight Recorder dump"
        )
    if not content.keys() & {"version", "entries", "pg_config"}:
        raise NotADump("has none of the keys version, entries, pg_config of a Flight Recorder dump")
    version = _text(content.get("version"))
    if version and version.split(".")[0] not in ("2", "1"):
        raise UnreadableDump(
            f"has dump version {version}; versions 1 and 2 are understood, "
            "so a newer fr-analysis is needed"
        )
    return content


def _operations(
    entries: Entries, group: IntColumn, parts: EntryParts, statuses: dict[int, GroupStatus]
) -> Operations:
    number = _sequence_numbers(entries, parts.is_p2p)
    started_ns = entries.times("time_discovered_started_ns", _time, MAX_TIME_NS)
    completed_ns = entries.times("time_discovered_completed_ns", _time, MAX_TIME_NS)
    completed_up_to = np.full(len(entries), UNKNOWN, dtype=np.int64)
    for local, status in statuses.items():
        completed_up_to[(parts.local_id == local) & ~parts.is_p2p] = status.last_completed
    operations = Operations(
        group=group,
        signature=parts.signature,
        stack=parts.stack,
        number=number,
        record=_records(entries),
        is_p2p=parts.is_p2p,
        completion=_completions(parts, completed_ns, number, completed_up_to),
        started=(parts.state >= _STARTED) | (started_ns != UNKNOWN),
        created_ns=entries.times("time_created_ns", _time, MAX_TIME_NS),
        started_ns=started_ns,
        completed_ns=completed_ns,
    )
    _close_batches(parts.closes, operations)
    return operations


def build_dump(
    content: object,
    rank: int,
    source: Path,
    *,
    group_world_size: int | None = None,
    repeats: Repeats | None = None,
) -> RankDump:
    """Check one dump's plain data and turn it into columns.

    Args:
        content: what ``decode`` returned for the file.
        rank: the rank that the file belongs to.
        source: the file, for messages.
        group_world_size: ranks in one torchft replica group, to turn its ranks into the
            job's; None for any other job.
        repeats: the entries that were left out of ``content``, if any.

    Returns:
        The rank's dump. Entries that are no dictionaries are left out.

    Raises:
        UnreadableDump: it is not the dictionary of a Flight Recorder dump.
    """
    content = _checked(content)
    parts = _known_parts(content, repeats)
    entries = Entries(parts.entries.distinct, repeats)
    statuses = _statuses(content)
    declared, nameless = _declarations(content)
    if group_world_size:
        _shift_default_group(declared, rank - rank % group_world_size)
    groups: Table[GroupName] = Table()
    of_name = []
    for name in parts.names:
        # Old versions tell a group's description only where they declare it.
        is_told = name.description or name.name not in declared
        of_name.append(groups.add(name if is_told else declared[name.name][0]))
    column = parts.group if len(groups) == len(of_name) else np.array(of_name)[parts.group]
    operations = _operations(entries, column, parts, statuses)
    recorded_names = {group.name for group in groups.index}
    for text, (group_name, _) in declared.items():
        if text not in recorded_names:
            groups.add(group_name)
    status_by_name = _status_by_name(list(declared), statuses, parts.local_ids)
    members = []
    world: tuple[int, ...] | None = None
    for group in groups.index:
        declaration = declared.get(group.name)
        told = declaration[1] if declaration else None
        if told is not None and group.description == DEFAULT_GROUP:
            world = told
        if told is None and group.description == DEFAULT_GROUP:
            told = nameless
        members.append(told)
    return RankDump(
        rank=rank,
        source=source,
        version=_text(content.get("version")),
        groups=groups.items(),
        declared_members=tuple(members),
        statuses=tuple(status_by_name.get(group.name) for group in groups.index),
        operations=operations,
        signatures=parts.signatures,
        stacks=parts.stacks,
        numbers_per_recorder=_numbers_per_recorder(content, operations),
        health=_health(content),
        world=world,
    )
