"""The reduced form: the dumps of many ranks in one Parquet file, for ``fr-analysis reduce``.

One row per recorded operation, dump after dump, each in recorded order. Columns: ``rank``,
then those of ``trace.Operations``; null is UNKNOWN. ``group``, ``signature`` and ``stack``
are indices into the lists of the row's own dump. Pages are compressed with zstd and have
checksums.

All else is in the key-value metadata. ``fr_analysis.format`` is the version of this format,
``1``; a later version may change anything. ``fr_analysis.tables`` is JSON, packed by zlib
(RFC 1950) and written in base64, since metadata is held as text and not compressed. It is
an object with

- tables that the others refer to by index, each row once: ``frames`` (file, line, function),
  ``stacks`` (lists of frames), ``signatures`` (the fields of ``trace.Signature``), ``groups``
  (name, description), ``members`` (ascending ranks, as runs of first, last and step),
- ``dumps``: per dump the fields of ``trace.RankDump`` that are no columns, how many ``rows``
  it has, its ``name``, the path of its file below the folder that was reduced, and the
  ``checksum`` of its rows: CRC-32 over its columns as 64-bit numbers, little end first,
- ``unread``, ``misfits`` and ``bad_stacks``: files that could not be used, each with ``name``,
  ``reason``, ``rank`` and ``kind``: a ``dump``, a ``stray`` file of another kind, which only
  those of all nodes tell from a dump, or a ``reduced`` file,
- ``snapshots``: the ranks' threads, from stacks snapshots beside the dumps,
- ``group_world_size``: of torchft, where ranks were turned into the job's; else null.

Nothing is decided when dumps are reduced: which of them are doubles or left over is for
the analysis, which sees all the files of a job. A reduced file is as untrusted as a dump.
"""

from __future__ import annotations

import base64
import functools
import json
import zlib
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any, TypeVar

import numpy as np
import numpy.typing as npt

from fr_analysis.errors import FrAnalysisError, UnreadableDump, printable
from fr_analysis.read.decode import MAX_FILE_BYTES, _bounded_memory
from fr_analysis.read.dump import (
    MAX_DIMENSIONS,
    MAX_FRAMES,
    MAX_GROUPS,
    MAX_MEMBERS,
    MAX_OPERATIONS,
    MAX_RANK,
    MAX_TENSORS,
    MAX_TIME_NS,
    _text,
)
from fr_analysis.read.files import Stray
from fr_analysis.trace import (
    UNKNOWN,
    Completion,
    Frame,
    GroupName,
    GroupStatus,
    Operations,
    RankDump,
    RankStacks,
    Signature,
    Source,
    ThreadStack,
    Unread,
    UnreadMany,
)

FORMAT = "1"
MAX_TEXT = 4096
"""Characters of a path or of a reason."""

_END = b"PAR1"
_FORMAT_KEY = b"fr_analysis.format"
_TABLES_KEY = b"fr_analysis.tables"
_TABLES_FLOOR = 64 << 20
"""Tables that are always unpacked, in bytes."""
_UNPACKING = 200
"""Most that packing is taken to shrink real tables by."""
_ROW_BYTES = 128
"""Memory that a row takes while it is read, its columns in two forms."""
_ROWS_FLOOR = 4 * MAX_OPERATIONS
_ROWS_PER_BYTE = 16
"""Rows that a file may have per byte of it: real ones have less than three."""
_COLUMNS_FLOOR = 1 << 20
_MEMBERS_PER_BYTE = 64
"""Members of groups, in all dumps of a file together, that it may name per byte of it."""
_MAX_MEMBER = 2 * MAX_RANK
"""A member of a torchft replica group is numbered after the ranks of those before it."""
_FOOTER_BYTES = 1 << 30
MAX_ROWS = 50_000_000
"""Of one table or list that nothing else bounds."""
_INT64 = (1 << 63) - 1

_COLUMNS = {
    "rank": "int32",
    "group": "int32",
    "signature": "int32",
    "stack": "int32",
    "number": "int64",
    "record": "int64",
    "is_p2p": "bool",
    "completion": "int8",
    "started": "bool",
    "created_ns": "int64",
    "started_ns": "int64",
    "completed_ns": "int64",
}
_OPTIONAL = ("stack", "number", "record", "created_ns", "started_ns", "completed_ns")
# What counts up is small as differences. The rest repeats itself, which zstd sees best as it is.
_DIFFERENCES = ("rank", "record", "created_ns", "started_ns", "completed_ns")

_KINDS: dict[str, type[Unread]] = {"dump": Unread, "stray": Stray, "reduced": UnreadMany}

Item = TypeVar("Item", bound=Hashable)
Value = TypeVar("Value")


@dataclass(slots=True)
class Contents:
    """What files hold, before one is compared with another.

    Attributes:
        dumps: in order of rank.
        unread: files that are no usable dumps, in order of rank.
        misfits: files that could not be placed, or not be looked at.
        stacks: by rank, of the last snapshot that has some.
        bad_stacks: stacks snapshots that are none.
    """

    dumps: list[RankDump] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    misfits: list[Unread] = field(default_factory=list)
    stacks: dict[int, RankStacks] = field(default_factory=dict)
    bad_stacks: list[Unread] = field(default_factory=list)

    def add(self, other: Contents) -> None:
        """Take in what another file holds."""
        self.dumps += other.dumps
        self.unread += other.unread
        self.misfits += other.misfits
        self.bad_stacks += other.bad_stacks
        self.add_stacks(other.stacks)

    def add_stacks(self, stacks: dict[int, RankStacks]) -> None:
        """Take in a later snapshot: an answer without threads replaces none."""
        for rank, answer in stacks.items():
            if answer.threads or rank not in self.stacks:
                self.stacks[rank] = answer


Results = list[RankDump | Unread] | Contents
"""What one file holds: a dump, and its copy in JSON where that is needed; or a reduced file."""


def _arrow() -> Any:
    """pyarrow, which takes its time to load: only for those who have reduced files."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        return None
    return pyarrow


_MISSING = "needs pyarrow: pip install 'fr-analysis[parquet]'"


def _schema(arrow: Any) -> Any:
    return arrow.schema(
        [
            arrow.field(name, arrow.type_for_alias(kind), nullable=name in _OPTIONAL)
            for name, kind in _COLUMNS.items()
        ]
    )


def _checksum(operations: Operations) -> int:
    """Of all columns: those of pages do not tell that the footer, which leads to them, is whole."""
    checksum = 0
    for name in _COLUMNS:
        if name != "rank":
            column = np.ascontiguousarray(getattr(operations, name), dtype="<i8")
            checksum = zlib.crc32(column.data, checksum)
    return checksum


def _most_rows(file_bytes: int) -> int:
    """Rows that a file of this size may have: a few bytes can stand for any number of them."""
    return _ROWS_FLOOR + _ROWS_PER_BYTE * file_bytes


# -- writing ---------------------------------------------------------------------------


class _Interned:
    """A table in which each value is kept once."""

    def __init__(self) -> None:
        self._index: dict[Hashable, int] = {}
        self.rows: list[Any] = []

    def at(self, value: Item, row: Callable[[Item], Any] = lambda value: value) -> int:
        """The index of a value; ``row`` is how it is written."""
        at = self._index.setdefault(value, len(self._index))
        if at == len(self.rows):
            self.rows.append(row(value))
        return at


def _runs(members: tuple[int, ...]) -> list[list[int]]:
    """Ascending ranks as runs of first, last and step: 0-7 is one, and so is 0, 8, 16."""
    runs: list[list[int]] = []
    for member in members:
        if runs:
            run = runs[-1]
            if run[0] == run[1]:
                run[1:] = [member, member - run[0]]
                continue
            if member - run[1] == run[2]:
                run[1] = member
                continue
        runs.append([member, member, 1])
    return runs


class _Writer:
    """Collects the tables of one file."""

    def __init__(self) -> None:
        self.frames, self.stacks = _Interned(), _Interned()
        self.signatures, self.groups, self.members = _Interned(), _Interned(), _Interned()

    def stack(self, frames: tuple[Frame, ...]) -> int:
        return self.stacks.at(
            frames,
            lambda stack: [
                self.frames.at(frame, lambda f: [f.filename, f.line, f.name]) for frame in stack
            ],
        )

    def _members(self, ranks: tuple[int, ...] | None) -> int | None:
        return None if ranks is None else self.members.at(ranks, _runs)

    def dump(self, dump: RankDump, name: str) -> dict[str, Any]:
        return {
            "rank": dump.rank,
            "name": name,
            "rows": len(dump.operations),
            "checksum": _checksum(dump.operations),
            "version": dump.version,
            "groups": [self.groups.at(g, lambda g: [g.name, g.description]) for g in dump.groups],
            "declared_members": list(map(self._members, dump.declared_members)),
            "statuses": dump.statuses,
            "signatures": [self.signatures.at(s) for s in dump.signatures],
            "stacks": list(map(self.stack, dump.stacks)),
            "numbers_per_recorder": dump.numbers_per_recorder,
            "health": dump.health,
            "world": self._members(dump.world),
            "written_ns": dump.written_ns,
        }

    def snapshot(self, stacks: RankStacks) -> dict[str, Any]:
        return {
            "rank": stacks.rank,
            "name": printable(stacks.source.name),
            "threads": [[thread.thread, self.stack(thread.frames)] for thread in stacks.threads],
            "error": stacks.error,
        }


def _unread_rows(
    unread: Iterable[Unread], name_of: Callable[[Source], str]
) -> list[dict[str, Any]]:
    return [
        {
            "name": name_of(found.path),
            "reason": found.reason[:MAX_TEXT],
            "rank": found.rank,
            "kind": next(kind for kind, of in _KINDS.items() if type(found) is of),
        }
        for found in unread
    ]


def _tables(
    contents: Contents, name_of: Callable[[Source], str], group_world_size: int | None
) -> bytes:
    writer = _Writer()
    dumps = [writer.dump(dump, name_of(dump.source)) for dump in contents.dumps]
    snapshots = list(map(writer.snapshot, contents.stacks.values()))
    tables = {
        "group_world_size": group_world_size,
        "frames": writer.frames.rows,
        "stacks": writer.stacks.rows,
        "signatures": writer.signatures.rows,
        "groups": writer.groups.rows,
        "members": writer.members.rows,
        "dumps": dumps,
        "unread": _unread_rows(contents.unread, name_of),
        "misfits": _unread_rows(contents.misfits, name_of),
        "bad_stacks": _unread_rows(contents.bad_stacks, lambda path: printable(path.name)),
        "snapshots": snapshots,
    }
    return base64.b64encode(zlib.compress(json.dumps(tables, separators=(",", ":")).encode(), 9))


def need_parquet() -> None:
    """Learn before the work, not after it, that Parquet cannot be written.

    Raises:
        FrAnalysisError: pyarrow is not installed.
    """
    if _arrow() is None:
        raise FrAnalysisError(f"reduce {_MISSING}")


def write_reduced(
    contents: Contents,
    stream: IO[bytes],
    *,
    name_of: Callable[[Source], str],
    group_world_size: int | None = None,
) -> None:
    """Write one reduced file.

    Args:
        contents: what to write.
        stream: where to.
        name_of: a file's path as it is carried: relative, and short.
        group_world_size: of torchft, where ``contents`` has its ranks turned into the job's.

    Raises:
        FrAnalysisError: pyarrow is not installed, or there is more than one file may hold.
        OSError: it cannot be written.
    """
    need_parquet()
    arrow = _arrow()
    schema = _schema(arrow)
    with arrow.parquet.ParquetWriter(
        stream,
        schema,
        compression="zstd",
        compression_level=9,
        use_dictionary=False,
        column_encoding=dict.fromkeys(_DIFFERENCES, "DELTA_BINARY_PACKED"),
        store_schema=False,
        write_statistics=False,
        write_page_checksum=True,
    ) as parquet:
        rows = 0
        for part in _parts(contents.dumps):
            parquet.write_table(_table(arrow, schema, part))
            rows += sum(len(dump.operations) for dump in part)
        packed = _tables(contents, name_of, group_world_size)
        parquet.add_key_value_metadata(
            {_FORMAT_KEY.decode(): FORMAT, _TABLES_KEY.decode(): packed.decode()}
        )
    if rows > _most_rows(stream.tell()) or stream.tell() > MAX_FILE_BYTES:
        raise FrAnalysisError(f"{rows} operations are more than one file may hold: reduce less")


def _parts(dumps: Sequence[RankDump]) -> Iterable[list[RankDump]]:
    """The dumps in parts of so many rows as are compressed together."""
    part: list[RankDump] = []
    rows = 0
    for dump in dumps:
        if part and rows + len(dump.operations) > MAX_OPERATIONS:
            yield part
            part, rows = [], 0
        part.append(dump)
        rows += len(dump.operations)
    if part:
        yield part


def _table(arrow: Any, schema: Any, dumps: Sequence[RankDump]) -> Any:
    arrays = []
    for column in schema:
        if column.name == "rank":
            values = np.concatenate([np.full(len(d.operations), d.rank) for d in dumps])
        else:
            values = np.concatenate([getattr(d.operations, column.name) for d in dumps])
        unknown = values == UNKNOWN if column.nullable else None
        arrays.append(arrow.array(values, type=column.type, mask=unknown))
    return arrow.table(arrays, schema=schema)


# -- reading ---------------------------------------------------------------------------


def _damaged(what: str) -> UnreadableDump:
    return UnreadableDump(f"is a damaged reduced file ({what})")


def _list_of(value: object, most: int, what: str) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise _damaged(f"{what}: no list of at most {most}")
    return value


def _integer(value: object, low: int, high: int, what: str) -> int:
    if type(value) is not int or not low <= value <= high:
        raise _damaged(f"{what}: no number from {low} to {high}")
    return value


def _line(value: object, what: str) -> str:
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise _damaged(f"{what}: no text of at most {MAX_TEXT} characters")
    return printable(value)


def _word(value: object, what: str) -> str:
    return _text(_line(value, what))


def _flag(value: object, what: str) -> bool:
    if not isinstance(value, bool):
        raise _damaged(f"{what}: neither true nor false")
    return value


def _or_none(read: Callable[..., Value], value: object, *more: Any) -> Value | None:
    return None if value is None else read(value, *more)


def _row_at(table: Sequence[Value], at: object, what: str) -> Value:
    return table[_integer(at, 0, len(table) - 1, what)]


def _size(value: object, what: str) -> tuple[int, ...]:
    shape = _list_of(value, MAX_DIMENSIONS, what)
    return tuple(_integer(dimension, -_INT64, _INT64, what) for dimension in shape)


def _sizes(value: object, what: str) -> tuple[tuple[int, ...], ...]:
    return tuple(_size(shape, what) for shape in _list_of(value, MAX_TENSORS, what))


def _dtypes(value: object, what: str) -> tuple[str, ...]:
    return tuple(_word(name, what) for name in _list_of(value, MAX_TENSORS, what))


def _splits(value: object, what: str) -> tuple[int, ...]:
    splits = _list_of(value, MAX_TENSORS, what)
    return tuple(_integer(split, -_INT64, _INT64, what) for split in splits)


def _record(value: object, length: int, what: str) -> list[Any]:
    if len(row := _list_of(value, length, what)) != length:
        raise _damaged(f"{what}: not {length} values")
    return row


def _frame(value: object) -> Frame:
    filename, line, name = _record(value, 3, "frames")
    return Frame(
        _word(filename, "frames"), _integer(line, -_INT64, _INT64, "frames"), _word(name, "frames")
    )


def _signature(value: object) -> Signature:
    readers = (_sizes, _sizes, _dtypes, _dtypes, _splits, _splits)
    name, *fields = _record(value, 1 + len(readers), "signatures")
    read: list[Any] = [
        _or_none(reader, given, "signatures") for reader, given in zip(readers, fields, strict=True)
    ]
    return Signature(_word(name, "signatures"), *read)


def _group(value: object) -> GroupName:
    name, description = _record(value, 2, "groups")
    return GroupName(_word(name, "groups"), _word(description, "groups"))


def _status(value: object) -> GroupStatus:
    return GroupStatus(
        *(_integer(n, -_INT64, _INT64, "statuses") for n in _record(value, 3, "statuses"))
    )


def _path(folder: Path, value: object) -> Path:
    """Where a carried file was, shown as if the reduced file were its folder."""
    name = PurePosixPath(_line(value, "name"))
    if name.is_absolute() or ".." in name.parts or not name.parts:
        raise _damaged("name: no path below a folder")
    return folder / name


@dataclass(frozen=True, slots=True)
class _Header:
    """A dump without its rows: how many it has, their checksum, and what makes a dump of them."""

    rows: int
    checksum: int
    dump_of: Callable[[Operations], RankDump]


class _Tables:
    """The JSON of one file, checked as it is taken out."""

    def __init__(self, content: object, path: Path, file_bytes: int) -> None:
        if not isinstance(content, dict):
            raise _damaged("its tables are no object")
        self._content = content
        self._path = path
        frames = [_frame(row) for row in self._rows("frames")]
        self._stacks = [
            tuple(_row_at(frames, at, "stacks") for at in _list_of(row, MAX_ROWS, "stacks"))
            for row in self._rows("stacks")
        ]
        self._signatures = [_signature(row) for row in self._rows("signatures")]
        self._groups = [_group(row) for row in self._rows("groups")]
        self._ranks_left = MAX_MEMBERS
        self._members = [self._ranks(row) for row in self._rows("members")]
        # A set of ranks that is written once may be named by any number of dumps.
        self._members_left = MAX_MEMBERS + _MEMBERS_PER_BYTE * file_bytes

    def _rows(self, name: str) -> list[Any]:
        return _list_of(self._content.get(name), MAX_ROWS, name)

    def _ranks(self, value: object) -> tuple[int, ...]:
        """One row of ``members``."""
        ranks: list[int] = []
        for run in _list_of(value, MAX_RANK + 1, "members"):
            first, last, step = (
                _integer(number, 0, _MAX_MEMBER, "members") for number in _record(run, 3, "members")
            )
            if step < 1 or last < first or (ranks and first <= ranks[-1]):
                raise _damaged("members: not in ascending order")
            members = range(first, last + 1, step)
            self._ranks_left -= len(members)
            if self._ranks_left < 0:
                raise _damaged(f"members: more than {MAX_MEMBERS} together")
            ranks.extend(members)
        if not ranks:
            raise _damaged("members: a group of none")
        return tuple(ranks)

    def _declared(self, at: object) -> tuple[int, ...]:
        members = _row_at(self._members, at, "declared_members")
        self._members_left -= len(members)
        if self._members_left < 0:
            raise _damaged("declared_members: far more than dumps of its size have")
        return members

    @property
    def group_world_size(self) -> int | None:
        """Of torchft, where ranks were turned into the job's."""
        size = self._content.get("group_world_size")
        return _or_none(_integer, size, 1, MAX_RANK + 1, "group_world_size")

    def headers(self) -> list[_Header]:
        """The dumps, without their rows."""
        return [self._header(row) for row in _list_of(self._rows("dumps"), MAX_RANK + 1, "dumps")]

    def _header(self, row: object) -> _Header:
        if not isinstance(row, dict):
            raise _damaged("dumps: no object")

        def listed(name: str, most: int) -> list[Any]:
            return _list_of(row.get(name), most, name)

        groups = tuple(_row_at(self._groups, at, "groups") for at in listed("groups", MAX_GROUPS))
        declared = tuple(
            _or_none(self._declared, at) for at in listed("declared_members", MAX_GROUPS)
        )
        statuses = tuple(_or_none(_status, status) for status in listed("statuses", MAX_GROUPS))
        if not len(groups) == len(declared) == len(statuses):
            raise _damaged("groups, declared_members and statuses differ in length")
        signatures = listed("signatures", MAX_OPERATIONS)
        stacks = tuple(
            _row_at(self._stacks, at, "stacks") for at in listed("stacks", MAX_OPERATIONS)
        )
        if any(len(stack) > MAX_FRAMES for stack in stacks):
            raise _damaged(f"stacks: more than {MAX_FRAMES} frames")
        health = row.get("health")
        if not isinstance(health, dict):
            raise _damaged("health: no object")
        results = {device: _record(result, 2, "health") for device, result in health.items()}

        dump = functools.partial(
            RankDump,
            rank=_integer(row.get("rank"), 0, MAX_RANK, "rank"),
            source=_path(self._path, row.get("name")),
            version=_word(row.get("version"), "version"),
            groups=groups,
            declared_members=declared,
            statuses=statuses,
            signatures=tuple(_row_at(self._signatures, at, "signatures") for at in signatures),
            stacks=stacks,
            numbers_per_recorder=_flag(row.get("numbers_per_recorder"), "numbers_per_recorder"),
            health={
                _word(device, "health"): (_word(status, "health"), _word(output, "health"))
                for device, (status, output) in results.items()
            },
            world=_or_none(self._declared, row.get("world")),
            written_ns=_integer(row.get("written_ns"), -_INT64, _INT64, "written_ns"),
        )
        return _Header(
            rows=_integer(row.get("rows"), 0, MAX_OPERATIONS, "rows"),
            checksum=_integer(row.get("checksum"), 0, _INT64, "checksum"),
            dump_of=lambda operations: dump(operations=operations),
        )

    def unread(self, name: str) -> list[Unread]:
        """The files of one of the lists of those that could not be used."""
        return [self._unread(row, name) for row in self._rows(name)]

    def _unread(self, row: object, name: str) -> Unread:
        if not isinstance(row, dict):
            raise _damaged(f"{name}: no object")
        kind = row.get("kind")
        if not isinstance(kind, str) or kind not in _KINDS:
            raise _damaged(f"{name}: of no kind that is known")
        return _KINDS[kind](
            _path(self._path, row.get("name")),
            _line(row.get("reason"), "reason"),
            # What a name tells, whether a job has such ranks or not.
            _or_none(_integer, row.get("rank"), 0, 10**19, "rank"),
        )

    def snapshots(self) -> dict[int, RankStacks]:
        """The ranks' threads."""
        found = map(self._snapshot, self._rows("snapshots"))
        return {stacks.rank: stacks for stacks in found}

    def _snapshot(self, row: object) -> RankStacks:
        if not isinstance(row, dict):
            raise _damaged("snapshots: no object")
        threads = []
        for thread in _list_of(row.get("threads"), MAX_ROWS, "threads"):
            name, stack = _record(thread, 2, "threads")
            frames = _row_at(self._stacks, stack, "threads")
            threads.append(ThreadStack(_word(name, "threads"), frames))
        return RankStacks(
            _integer(row.get("rank"), 0, MAX_RANK, "rank"),
            _path(self._path, row.get("name")),
            tuple(threads),
            _or_none(_line, row.get("error"), "error"),
        )


def _unpacked(packed: bytes) -> object:
    limit = max(_TABLES_FLOOR, _UNPACKING * len(packed))
    unpacker = zlib.decompressobj()
    text = unpacker.decompress(base64.b64decode(packed, validate=True), limit)
    if not unpacker.eof:
        raise _damaged("its tables are cut short, or unpack to far more than real ones")
    return json.loads(text)


def _checked(operations: Operations, dump: RankDump) -> RankDump:
    """The dump, if its rows refer to what it has."""

    def within(name: str, low: int, high: int) -> None:
        column = getattr(operations, name)
        if len(column) and not (low <= column.min() and column.max() <= high):
            raise _damaged(f"{name}: not from {low} to {high}")

    within("group", 0, len(dump.groups) - 1)
    within("signature", 0, len(dump.signatures) - 1)
    within("stack", UNKNOWN, len(dump.stacks) - 1)
    within("completion", min(Completion), max(Completion))
    within("number", -_INT64, _INT64)
    within("record", -_INT64, _INT64)
    for name in ("created_ns", "started_ns", "completed_ns"):
        within(name, UNKNOWN, MAX_TIME_NS - 1)
        if (getattr(operations, name) == 0).any():
            raise _damaged(f"{name}: no time is 0")
    return dump


def _column(parquet: Any, name: str, rows: int) -> npt.NDArray[Any]:
    column = parquet.read(columns=[name], use_threads=False).column(0)
    if name in _OPTIONAL:
        column = column.fill_null(UNKNOWN)
    values: npt.NDArray[Any] = column.to_numpy()
    if len(values) != rows:
        raise _damaged(f"{name}: not as many rows as it says")
    return values if _COLUMNS[name] in ("bool", "int8") else values.astype(np.int64, copy=False)


def _read(
    arrow: Any, stream: IO[bytes], path: Path, file_bytes: int
) -> tuple[Contents, int | None]:
    parquet = arrow.parquet.ParquetFile(
        stream,
        pre_buffer=False,
        page_checksum_verification=True,
        thrift_string_size_limit=_FOOTER_BYTES,
        thrift_container_size_limit=_FOOTER_BYTES,
    )
    metadata = parquet.metadata
    told = metadata.metadata or {}
    if _FORMAT_KEY not in told:
        raise _damaged("it does not tell its format")
    version = told[_FORMAT_KEY].decode("utf-8", "replace")
    if version != FORMAT:
        raise UnreadableDump(
            f"is of reduced format {_text(version)}; format {FORMAT} is understood, "
            "so a newer fr-analysis is needed"
        )
    if not parquet.schema_arrow.equals(_schema(arrow)):
        raise _damaged("it has other columns")
    groups = [metadata.row_group(at) for at in range(metadata.num_row_groups)]
    rows = metadata.num_rows
    if sum(group.num_rows for group in groups) != rows:
        raise _damaged("its parts and its rows differ in number")
    if not 0 <= rows <= _most_rows(file_bytes):
        raise _damaged(f"{rows} operations are more than a file of its size holds")
    if sum(group.total_byte_size for group in groups) > _COLUMNS_FLOOR + _ROW_BYTES * rows:
        raise _damaged("its columns unpack to far more than they hold")
    tables = _Tables(_unpacked(told.get(_TABLES_KEY, b"")), path, file_bytes)
    headers = tables.headers()
    if sum(header.rows for header in headers) != rows:
        raise _damaged("its dumps and its rows differ in number")
    columns = {name: _column(parquet, name, rows) for name in _COLUMNS}
    ranks = columns.pop("rank")
    contents = Contents(
        unread=tables.unread("unread"),
        misfits=tables.unread("misfits"),
        stacks=tables.snapshots(),
        bad_stacks=tables.unread("bad_stacks"),
    )
    first = 0
    for header in headers:
        part = slice(first, first + header.rows)
        operations = Operations(**{name: column[part] for name, column in columns.items()})
        dump = _checked(operations, header.dump_of(operations))
        if (ranks[part] != dump.rank).any():
            raise _damaged("rank: rows of another rank than their dump's")
        if _checksum(operations) != header.checksum:
            raise _damaged("its rows are not those that were written")
        contents.dumps.append(dump)
        first += header.rows
    if not contents.dumps and not contents.unread and not contents.misfits:
        raise _damaged("it holds nothing")
    return contents, tables.group_world_size


def _read_stream(
    arrow: Any, stream: IO[bytes], path: Path, file_bytes: int
) -> tuple[Contents, int | None]:
    try:
        with _bounded_memory(file_bytes):
            return _read(arrow, stream, path, file_bytes)
    except (UnreadableDump, OSError, MemoryError, RecursionError):
        raise
    except Exception as error:  # hostile bytes can raise anything from Parquet's reader
        raise _damaged(_text(f"{type(error).__name__}: {error}")) from None


def read_reduced(path: Path, *, group_world_size: int | None = None) -> Contents:
    """Read one reduced file: a pure function of the file.

    Args:
        path: the file.
        group_world_size: ranks in one torchft replica group; None for any other job.

    Returns:
        What it carries. Sources are shown as if the reduced file were a folder.

    Raises:
        UnreadableDump: it is damaged, or no reduced file, or pyarrow is not installed.
    """
    arrow = _arrow()
    if arrow is None:
        raise UnreadableDump(f"is a reduced file: reading it {_MISSING}")
    try:
        file_bytes = path.stat().st_size
        if file_bytes > MAX_FILE_BYTES:
            raise UnreadableDump(f"is larger than {MAX_FILE_BYTES >> 30} GiB; is it reduced?")
        with path.open("rb") as stream:
            stream.seek(max(file_bytes - len(_END), len(_END)))
            if stream.read() != _END:
                raise UnreadableDump(
                    "is a reduced file that is cut short or damaged at its end: copy it anew"
                )
            stream.seek(0)
            contents, size = _read_stream(arrow, stream, path, file_bytes)
    except MemoryError:
        raise UnreadableDump("asks for far more memory than a file of its size needs") from None
    except RecursionError:
        raise _damaged("its tables are nested too deeply") from None
    except OSError as error:
        # pyarrow's own errors of damaged files are of this kind, too, without a number.
        if error.errno is None:
            raise _damaged(_text(str(error))) from None
        raise UnreadableDump(f"cannot be read ({error.strerror})") from None
    if size != group_world_size:
        how = f"with --transform-ft --group-world-size {size}" if size else "without --transform-ft"
        raise UnreadableDump(f"was reduced {how}: analyze it in the same way, or reduce it anew")
    return contents
