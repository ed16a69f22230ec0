"""Shortens a pickled dump to the entries that differ, before anything of it is unpickled.

The entries of a ring buffer repeat one another in all but their numbers and times: a job calls the
same few hundred operations again and again, and the pickler writes texts and frames once and then
refers to them. To make a dictionary of each entry, only to find that it is like the one before, is
most of the work of reading a dump. So the bytes of the entries are compared, without the bytes that
hold numbers and times; entries that are alike are left out, all but the first, and what remains is
a small pickle, which is decoded as any other. The numbers and times of all entries are taken from
the bytes, as columns.

Opcodes: the module ``pickletools`` of Python. Understood are those of plain data in protocol 2, in
which torch writes, by its own pickler or by Python's. Whatever is otherwise is no error here: the
dump is then decoded whole. (From protocol 4 on values are numbered by counting, so that nothing can
be left out.) Tuples of anything but texts are none of it either: see ``tuples`` for why.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fr_analysis.trace import IntColumn

Words = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]

COUNTING = frozenset(
    {
        "record_id",
        "id",
        "collective_seq_id",
        "p2p_seq_id",
        "seq_id",
        "time_created_ns",
        "time_discovered_started_ns",
        "time_discovered_completed_ns",
    }
)
"""Fields that differ from one entry to the next like it, and are kept as columns."""
_LEFT_OUT = frozenset({"op_id", "duration_ms"})
"""Fields that differ too, and of which no number is used."""

SMALLEST_BYTES = 16 << 10
LARGEST_BYTES = 64 << 20
"""What smaller and larger files gain is not worth it, or not the memory."""
_MOST_SHAPES = 400
"""So many layouts of entries are looked for; rarer ones are decoded as they are."""
_MOST_STEPS = 50_000
"""Opcodes that are stepped through one by one: beyond that a dump is not regular enough."""


def _code(opcode: bytes) -> int:
    return opcode[0]


_PROTO, _STOP = map(_code, (pickle.PROTO, pickle.STOP))
_MARK, _APPEND, _APPENDS = map(_code, (pickle.MARK, pickle.APPEND, pickle.APPENDS))
_SETITEM, _SETITEMS = map(_code, (pickle.SETITEM, pickle.SETITEMS))
_TUPLE, _TUPLE1, _TUPLE2, _TUPLE3 = map(
    _code, (pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3)
)
_EMPTY_DICT, _EMPTY_LIST = map(_code, (pickle.EMPTY_DICT, pickle.EMPTY_LIST))
_TEXT, _LONG1 = map(_code, (pickle.BINUNICODE, pickle.LONG1))
_GET, _LONG_GET = map(_code, (pickle.BINGET, pickle.LONG_BINGET))
_PUT, _LONG_PUT = map(_code, (pickle.BINPUT, pickle.LONG_BINPUT))
_FLOAT = _code(pickle.BINFLOAT)

_INTEGERS = {_code(pickle.BININT1): 1, _code(pickle.BININT2): 2, _code(pickle.BININT): 4}
"""Opcodes of integers, and the bytes that their arguments have; the last is signed."""

_PUSHES = {
    **{_code(opcode): 1 for opcode in (pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE)},
    **{_code(opcode): 1 for opcode in (pickle.EMPTY_TUPLE, pickle.EMPTY_LIST, pickle.EMPTY_DICT)},
    **{opcode: 1 + size for opcode, size in _INTEGERS.items()},
    _FLOAT: 9,
    _GET: 2,
    _LONG_GET: 5,
}
"""Opcodes that put a value on the stack, and their length with their arguments."""
_PUTS = {_PUT: 2, _LONG_PUT: 5}
_TUPLES = {_TUPLE1: 1, _TUPLE2: 2, _TUPLE3: 3}

_ARGUMENT = np.zeros(256, dtype=np.int64)
"""By opcode: how many bytes of its argument may differ between entries of one layout."""
for _opcode, _length in {**_PUSHES, **_PUTS}.items():
    _ARGUMENT[_opcode] = _length - 1


class _Irregular(Exception):
    """The pickle is not as it should be to be shortened."""


class _Walker:
    """Steps through a pickle and keeps its stack, of which only places are remembered.

    Attributes:
        stack: for each value on the stack, the place of the opcode that put it there.
        marks: heights of the stack at its marks.
        steps: places of all opcodes that were stepped on.
    """

    most_steps: ClassVar[int] = _MOST_STEPS
    rows: Mapping[int, int]
    """Places from which ``_jump`` steps over many values."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.rows = {}
        self.stack: list[int] = []
        self.marks: list[int] = []
        self.steps: list[int] = []

    def _jump(self, row: int) -> int:
        raise NotImplementedError

    def _put(self, at: int, opcode: int) -> None:
        """A value is given a number, by which later ones refer to it."""

    def _make_tuple(self, parts: Sequence[int]) -> None:
        """A tuple is made of the values at these places."""
        raise NotImplementedError

    def _closed(self, opcode: int, height: int) -> bool:
        """A list or dictionary gets the values above a height; returns whether to end."""
        raise NotImplementedError

    def run(self, at: int) -> int:
        """Step from an opcode to the end; returns the place behind it."""
        content, stack, marks, steps = self.content, self.stack, self.marks, self.steps
        try:
            while len(steps) < self.most_steps:
                opcode = content[at]
                steps.append(at)
                length = _PUSHES.get(opcode)
                if length:
                    if opcode == _EMPTY_DICT and at in self.rows:
                        at = self._jump(self.rows[at])
                    else:
                        stack.append(at)
                        at += length
                elif opcode == _LONG1:
                    stack.append(at)
                    at += 2 + content[at + 1]
                elif opcode == _MARK:
                    marks.append(len(stack))
                    at += 1
                elif opcode in (_APPENDS, _SETITEMS):
                    height = marks.pop()
                    at += 1
                    if self._closed(opcode, height):
                        return at
                    del stack[height:]
                elif opcode in _PUTS:
                    self._put(at, opcode)
                    at += _PUTS[opcode]
                elif opcode in _TUPLES:
                    self._make_tuple(stack[-_TUPLES[opcode] :])
                    del stack[-_TUPLES[opcode] :]
                    stack.append(at)
                    at += 1
                elif opcode == _APPEND:
                    self._closed(opcode, len(stack) - 1)
                    stack.pop()
                    at += 1
                elif opcode == _TEXT:
                    stack.append(at)
                    at += 5 + int.from_bytes(content[at + 1 : at + 5], "little")
                elif opcode == _SETITEM:
                    del stack[-2:]
                    at += 1
                elif opcode == _TUPLE:
                    height = marks.pop()
                    self._make_tuple(stack[height:])
                    del stack[height:]
                    stack.append(at)
                    at += 1
                elif opcode == _PROTO:
                    at += 2
                elif opcode == _STOP:
                    return at + 1
                else:
                    raise _Irregular
        except IndexError:
            raise _Irregular from None
        raise _Irregular


Fields = dict[int, str]
"""Names of an entry's fields, by the numbers that refer to them."""


def _number_at(content: bytes, at: int) -> int | None:
    """The number that a reference at this place has; None where there is none."""
    if content[at] == _GET:
        return content[at + 1]
    if content[at] == _LONG_GET:
        return int.from_bytes(content[at + 1 : at + 5], "little")
    return None


class _Texts:
    """The texts that a pickle refers to by number: names of fields are among them."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._text_of: dict[int, str] = {}

    def add(self, number: int, at: int) -> None:
        """The value at this place is given a number."""
        if self._content[at] == _TEXT:
            self._text_of[number] = self._text(at)

    def _text(self, at: int) -> str:
        start = at + 5
        length = int.from_bytes(self._content[at + 1 : start], "little")
        return self._content[start : start + length].decode("utf-8", "replace")

    def at(self, at: int) -> str | None:
        """The text that is, or is referred to, at this place."""
        number = _number_at(self._content, at)
        if number is not None:
            return self._text_of.get(number)
        return self._text(at) if self._content[at] == _TEXT else None

    def have(self, numbers: frozenset[int]) -> bool:
        """Whether these numbers are all of texts."""
        return numbers <= self._text_of.keys()

    def fields(self, keys: Sequence[int]) -> Fields:
        """The names at these places, in their order, by the numbers that refer to them.

        Raises:
            _Irregular: a name is no text, or has not been given one number.
        """
        names = [self.at(key) for key in keys]
        wanted = set(names)
        numbers = {text: number for number, text in self._text_of.items() if text in wanted}
        told = sum(text in wanted for text in self._text_of.values())
        if not len(names) == len(wanted) == len(numbers) == told:
            raise _Irregular
        return {numbers[name]: name for name in names if name is not None}


@dataclass(frozen=True, slots=True)
class _Layout:
    """How the bytes of an entry are to be read; places count from its beginning.

    Attributes:
        length: of the entry. keys: its fields, by the numbers that refer to them, and their names.
        fixed: a mask with a byte of ones for each byte that is the same in all entries of this
            layout: all but the arguments of opcodes; and of these the names of fields, and what
            tuples are made of.
        columns: the words that tell entries of this layout apart. told: of each, a mask of the
            bytes that do: arguments, but no numbers and times.
        numbers: place, bytes and signedness of the counting fields that are integers.
        puts: places of the numbers, of four bytes, that values are given.
        texts: numbers that must be of texts.
    """

    length: int
    keys: list[tuple[int, str]]
    fixed: Words
    columns: IntColumn
    told: Words
    numbers: dict[str, tuple[int, int, bool]]
    puts: IntColumn
    texts: frozenset[int]


class _Entry(_Walker):
    """Steps through one entry."""

    most_steps = 2_000

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self._in_tuples: list[int] = []
        """Places of references to what tuples are made of."""

    def _make_tuple(self, parts: Sequence[int]) -> None:
        for part in parts:
            if _number_at(self.content, part) is not None:
                self._in_tuples.append(part)
            elif self.content[part] != _TEXT:
                raise _Irregular

    def _closed(self, opcode: int, height: int) -> bool:
        return height == 1 and not self.marks

    def layout(self, start: int, end: int, fields: Fields) -> _Layout:
        """Read the entry between two places.

        Raises:
            _Irregular: there is no entry.
        """
        if self.run(start) != end:
            raise _Irregular
        content = self.content
        steps = np.array(self.steps)
        opcodes = np.frombuffer(content, dtype=np.uint8)[steps]
        sizes = _ARGUMENT[opcodes]
        firsts = steps - start + 1
        for at in np.flatnonzero(opcodes == _LONG1).tolist():
            firsts[at] += 1
            sizes[at] = content[steps[at] + 1]
        changes = np.zeros(8 * ((end - start) // 8 + 1) + 1, dtype=np.int8)
        changes[0], changes[end - start] = 1, -1
        fixed = changes.copy()
        np.subtract.at(fixed, firsts, np.sign(sizes))
        np.add.at(fixed, firsts + sizes, np.sign(sizes))
        if (opcodes == _PUT).any():
            raise _Irregular  # as it is in few entries, the first ones
        puts = firsts[opcodes == _LONG_PUT]
        numbers: dict[str, tuple[int, int, bool]] = {}
        untold = [(first, 4) for first in puts.tolist()]
        keys = []
        same_for_all = self._in_tuples.copy()
        for key, value in zip(self.stack[1::2], self.stack[2::2], strict=False):
            number = _number_at(content, key)
            if number is None or number not in fields:
                raise _Irregular
            name = fields[number]
            keys.append((number, name))
            same_for_all.append(key)
            opcode, first = content[value], value - start + 1
            if name in _LEFT_OUT and opcode in _PUSHES:
                untold.append((first, _PUSHES[opcode] - 1))
            elif name not in COUNTING:
                continue
            elif opcode == _LONG1 and content[value + 1] <= 8:
                numbers[name] = first + 1, content[value + 1], True
            elif opcode in _INTEGERS:
                numbers[name] = first, _INTEGERS[opcode], _INTEGERS[opcode] == 4
        for first, size in [*untold, *((first, size) for first, size, _ in numbers.values())]:
            changes[first] -= 1
            changes[first + size] += 1
        # A field is known by its name: entries of one layout have the same.
        for reference in same_for_all:
            fixed[reference - start + 1] += 1
            fixed[reference - start + _PUSHES[content[reference]]] -= 1
        texts = {_number_at(content, reference) for reference in self._in_tuples}
        same, told = _mask(fixed), _mask(changes)
        columns = np.flatnonzero(told & ~same)
        return _Layout(
            end - start,
            keys,
            same,
            columns,
            (told & ~same)[columns],
            numbers,
            puts,
            frozenset(number for number in texts if number is not None),
        )


class _KnownLayouts:
    """Layouts seen in other dumps of this process: all ranks of a job have much the same."""

    def __init__(self) -> None:
        self._count = 0
        self._by_length: dict[int, list[tuple[_Layout, Words]]] = {}

    def find(self, words: Words, length: int, fields: Fields) -> _Layout | None:
        """The layout of an entry of these words and bytes; None where it is not known."""
        for layout, fixed in self._by_length.get(length, ()):
            if (words[: len(fixed)] & layout.fixed == fixed).all() and all(
                fields.get(number) == name for number, name in layout.keys
            ):
                return layout
        return None

    def add(self, layout: _Layout, words: Words) -> None:
        """Remember the layout of an entry of these words."""
        if self._count >= _MOST_SHAPES:
            self._count = 0
            self._by_length.clear()
        self._count += 1
        known = self._by_length.setdefault(layout.length, [])
        known.append((layout, words[: len(layout.fixed)] & layout.fixed))


_known_layouts = _KnownLayouts()


def _mask(changes: npt.NDArray[np.int8]) -> Words:
    """A byte of ones where the changes up to there sum up to one."""
    return (-(np.cumsum(changes[:-1], dtype=np.int8) > 0).astype(np.int8)).view("<u8")


class _Bytes:
    """The bytes of a pickle, to be taken from many places at once."""

    def __init__(self, content: bytes, padding: int) -> None:
        self._bytes = np.frombuffer(content + bytes(padding), dtype=np.uint8)

    def words(self, places: IntColumn, count: int) -> Words:
        """So many words of eight bytes from each place on."""
        windows = np.lib.stride_tricks.as_strided(
            self._bytes, (len(self._bytes) - 8 * count + 1, 8 * count), (1, 1), writeable=False
        )
        return windows[places].view("<u8")

    def numbers(self, places: IntColumn) -> npt.NDArray[np.uint32]:
        """Unsigned integers of four bytes."""
        windows = np.lib.stride_tricks.as_strided(
            self._bytes, (len(self._bytes) - 3, 4), (1, 1), writeable=False
        )
        return windows[places].view("<u4")[..., 0]

    def integers(self, places: IntColumn, sizes: IntColumn, signed: Flags) -> IntColumn:
        """Little-endian integers, of up to eight bytes each."""
        words = self.words(places, 1)[:, 0]
        if (sizes == 8).all():
            return words.view(np.int64)
        shift = (64 - 8 * sizes).astype(np.uint64)
        raised = words << np.minimum(shift, 63)
        found = np.where(
            signed, raised.view(np.int64) >> shift.view(np.int64), (raised >> shift).view(np.int64)
        )
        found[sizes == 0] = 0
        return found


class _Rows:
    """Places that look as if entries began there, and the layouts of what follows them.

    Nothing here is certain but the bytes: a place counts when the walk comes to it.

    Attributes:
        starts, ends: the places. dump: in which of the dumps each is.
        layout: of each, an index into ``layouts``, or -1.
        members: for each layout, which of the places are of it, and the words from there on.
        first_put, last_put: the least and greatest number that values are given, or -1.
        run_end: for each place, the first one from there on that is of no layout.
    """

    def __init__(self, content: bytes, starts: IntColumn, dump: IntColumn, fields: Fields) -> None:
        lengths = np.diff(starts)
        # How long the last one of a dump is, is not known.
        lengths[np.diff(dump) != 0] = 0
        # Of entries with texts or frames of their own, which are longer, there are few.
        longest = min(int(lengths.max(initial=0)), 4 * len(content) // len(starts))
        width = longest // 8 + 1
        self.starts, self.ends, self.dump = starts, np.append(starts[1:], starts[-1]), dump
        self.bytes = _Bytes(content, 8 * width)
        self.layouts: list[_Layout] = []
        self.members: list[tuple[IntColumn, Words]] = []
        self.layout = np.full(len(starts), -1, dtype=np.int64)
        known, counts = np.unique(lengths, return_counts=True)
        tries = _MOST_SHAPES
        for at in np.argsort(-counts, kind="stable").tolist():
            length = int(known[at])
            if counts[at] < 2 or not tries:
                break
            if not 0 < length <= longest:
                continue
            left = np.flatnonzero(lengths == length)
            words = self.bytes.words(starts[left], length // 8 + 1)
            while len(left) > 1 and tries:
                tries -= 1
                start = int(starts[left[0]])
                layout = _known_layouts.find(words[0], length, fields)
                if layout is None:
                    try:
                        layout = _Entry(content).layout(start, start + length, fields)
                    except _Irregular:
                        left, words = left[1:], words[1:]
                        continue
                    _known_layouts.add(layout, words[0])
                alike = ~((words ^ words[0]) & layout.fixed).any(axis=1)
                self.layout[left[alike]] = len(self.layouts)
                self.layouts.append(layout)
                self.members.append((left[alike], words[alike]))
                left, words = left[~alike], words[~alike]
        self.first_put = np.full(len(starts), -1, dtype=np.int64)
        self.last_put = self.first_put.copy()
        self._look_at_puts(most=len(content))
        breaks = np.append(np.flatnonzero(self.layout < 0), len(starts))
        self.run_end = breaks[np.searchsorted(breaks, np.arange(len(starts)))]

    def _look_at_puts(self, most: int) -> None:
        """Take the numbers that values are given; no entry is one in which they do not count up."""
        for at, layout in enumerate(self.layouts):
            if not len(layout.puts):
                continue
            rows = np.flatnonzero(self.layout == at)
            numbers = self.bytes.numbers(self.starts[rows, None] + layout.puts)
            self.first_put[rows], self.last_put[rows] = numbers[:, 0], numbers[:, -1]
            falls = (numbers[:, 1:] <= numbers[:, :-1]).any(axis=1)
            self.layout[rows[falls | (numbers[:, -1] >= most)]] = -1


class _Whole(_Walker):
    """Steps through a dump, over the entries that are alike.

    Attributes:
        start, end: where in the bytes of all dumps this one is.
        fields: names of the fields of its first entry; empty until that is stepped through.
        entries: places of all entries.
        runs: rows stepped over, from one to before another.
    """

    def __init__(self, content: bytes, start: int, end: int) -> None:
        super().__init__(content)
        self.start, self.end = start, end
        self.fields: Fields = {}
        self._texts = _Texts(content)
        self.entries: list[int] = []
        self.runs: list[tuple[int, int]] = []
        self._at = start
        self._found: _Rows | None = None
        self._list_of_entries = -1
        self._last_put = -1

    def to_first_entry(self) -> None:
        """Step to behind the first entry, or to the end where there is none.

        Raises:
            _Irregular: the dump is not as expected.
        """
        self._at = self.run(self._at)

    def to_end(self, rows: _Rows, firsts: Mapping[int, int]) -> None:
        """Step to the end, over rows.

        Args:
            rows: all that could be entries. firsts: the first row of each run, by its place.

        Raises:
            _Irregular: the dump is not as expected.
        """
        self._found, self.rows = rows, firsts
        if self.run(self._at) > self.end:
            raise _Irregular  # it is cut short, and the next one read for its rest
        for layout in set().union(*(rows.layout[slice(*run)].tolist() for run in self.runs)):
            if not self._texts.have(rows.layouts[layout].texts):
                raise _Irregular

    def _put(self, at: int, opcode: int) -> None:
        number = int.from_bytes(self.content[at + 1 : at + _PUTS[opcode]], "little")
        # Picklers count; with a number given twice it would matter what is left out.
        if not self._last_put < number < len(self.content):
            raise _Irregular
        self._last_put = number
        self._texts.add(number, self.stack[-1])

    def _make_tuple(self, parts: Sequence[int]) -> None:
        if any(self._texts.at(part) is None for part in parts):
            raise _Irregular

    def _closed(self, opcode: int, height: int) -> bool:
        stack = self.stack
        if opcode == _SETITEMS:
            if not self.fields and self._is_first_entry(height):
                self._list_of_entries = stack[height - 2]
                self.fields = self._texts.fields(stack[height::2])
                del stack[height:]
                return True
        elif stack[height - 1] == self._list_of_entries:
            self.entries += stack[height:]
        return False

    def _is_first_entry(self, height: int) -> bool:
        """Whether the dictionary below a height is the first in the list called ``entries``."""
        stack = self.stack
        return (
            height >= 3
            and self.marks[-1:] == [height - 1]
            and self.content[stack[height - 2]] == _EMPTY_LIST
            and self._texts.at(stack[height - 3]) == "entries"
        )

    def _jump(self, row: int) -> int:
        rows = self._found
        assert rows is not None
        end = int(rows.run_end[row])
        first, last = rows.first_put[row:end], rows.last_put[row:end]
        first, last = first[first >= 0], last[first >= 0]
        if len(first):
            if first[0] <= self._last_put or (first[1:] <= last[:-1]).any():
                raise _Irregular
            self._last_put = int(last[-1])
        self.runs.append((row, end))
        self.stack += rows.starts[row:end].tolist()
        return int(rows.ends[end - 1])


def _starts(content: npt.NDArray[np.uint8], first: int) -> IntColumn:
    """Places of dictionaries whose first key is referred to by a number.

    Args:
        content: pickles.
        first: the number.
    """
    short = first < 256
    opcodes = bytes([_MARK, _GET if short else _LONG_GET])
    begin = opcodes + first.to_bytes(1 if short else 4, "little")
    places = np.flatnonzero(content == begin[0])
    places = places[: np.searchsorted(places, len(content) - len(begin))]
    for offset in range(len(begin) - 1, 0, -1):
        places = places[content[places + offset] == begin[offset]]
    places = places[places >= 6]
    starts = np.full(len(places), -1, dtype=np.int64)
    # The first values are given numbers of one byte: entries among them are decoded as they are.
    for put, length in ((None, 0), (_LONG_PUT, 5)):
        start = places - 1 - length
        fits = content[start] == _EMPTY_DICT
        if put is not None:
            fits &= content[start + 1] == put
        starts[fits] = start[fits]
    return np.unique(starts[starts >= 0])


@dataclass(frozen=True, slots=True)
class Repeats:
    """What the entries that were left out of a dump are like.

    Attributes:
        entry: for each entry of the dump, which of the shortened one is like it.
        numbers: for each counting field, the places of the entries that hold one, of those that
            could be left out, and the numbers there. Where such an entry is not named here, its
            own value is that of the entry that it is like.
    """

    entry: IntColumn
    numbers: dict[str, tuple[IntColumn, IntColumn]]


@dataclass(frozen=True, slots=True)
class Shortened:
    """A pickle without the entries that are like an earlier one.

    Attributes:
        content: the pickle. kept: how many entries it holds.
    """

    content: bytes
    kept: int
    repeats: Repeats

    def holds(self, plain: object) -> bool:
        """Whether the shortened pickle was decoded to what was expected of it.

        Args:
            plain: what it was decoded to.
        """
        entries = plain.get("entries") if isinstance(plain, dict) else None
        if not isinstance(entries, list) or len(entries) != self.kept:
            return False
        if not all(isinstance(entry, dict) for entry in entries):
            return False
        _, first = np.unique(self.repeats.entry, return_index=True)
        for name, (places, values) in self.repeats.numbers.items():
            at = np.minimum(np.searchsorted(places, first), max(len(places) - 1, 0))
            own = np.flatnonzero(places[at] == first) if len(places) else places
            for kept in map(int, own):
                if entries[kept].get(name) != values[at[kept]]:
                    return False
        return True


def shortened(contents: Sequence[bytes]) -> list[Shortened | None]:
    """Leave out of dumps the entries that are like an earlier one but for numbers and times.

    Args:
        contents: pickles of plain data. Several of one job at once take much less time than one
            after the other; what comes out is the same.

    Returns:
        The shortened pickles; None where a dump is not regular enough, whatever it is.
    """
    content = b"".join(contents)
    ends = np.cumsum([len(one) for one in contents]).tolist()
    # Dumps that refer to the fields of entries by the same numbers are looked at together.
    kin: dict[Hashable, list[tuple[int, _Whole]]] = defaultdict(list)
    for at, (one, end) in enumerate(zip(contents, ends, strict=True)):
        if not SMALLEST_BYTES <= len(one) <= LARGEST_BYTES:
            continue
        walk = _Whole(content, end - len(one), end)
        with contextlib.suppress(_Irregular):
            walk.to_first_entry()
            if walk.fields:
                kin[tuple(walk.fields.items())].append((at, walk))
    found: list[Shortened | None] = [None] * len(contents)
    for alike in kin.values():
        for at, short in zip(
            (at for at, _ in alike), _shorten_all(content, [w for _, w in alike]), strict=True
        ):
            found[at] = short
    return found


def _shorten_all(content: bytes, walks: Sequence[_Whole]) -> list[Shortened | None]:
    """Shorten dumps that refer to the fields of entries by the same numbers."""
    nothing: list[Shortened | None] = [None] * len(walks)
    fields = walks[0].fields
    starts = _starts(np.frombuffer(content, dtype=np.uint8), next(iter(fields)))
    borders = np.array([(walk.start, walk.end) for walk in walks])
    dump = np.searchsorted(borders[:, 0], starts, side="right") - 1
    inside = (dump >= 0) & (starts < borders[dump, 1])
    starts, dump = starts[inside], dump[inside]
    if len(starts) < 2:
        return nothing
    rows = _Rows(content, starts, dump, fields)
    matched = np.flatnonzero(rows.layout >= 0)
    if 2 * len(matched) < len(starts):
        return nothing
    # Entries that are alike follow one another: the walk comes to the first of them.
    firsts = matched[np.diff(matched, prepend=-2) > 1]
    row_at = dict(zip(starts[firsts].tolist(), firsts.tolist(), strict=True))
    good = []
    for at, walk in enumerate(walks):
        with contextlib.suppress(_Irregular):
            walk.to_end(rows, row_at)
            if walk.runs and walk.entries:
                good.append(at)
    if not good:
        return nothing
    stepped_over = np.concatenate([np.arange(*run) for at in good for run in walks[at].runs])
    for at, short in zip(
        good, _shorten(content, [walks[at] for at in good], rows, stepped_over), strict=True
    ):
        nothing[at] = short
    return nothing


def _shorten(
    content: bytes, walks: Sequence[_Whole], rows: _Rows, stepped_over: IntColumn
) -> list[Shortened | None]:
    """Shorten dumps that were walked through to the end."""
    nothing: list[Shortened | None] = [None] * len(walks)
    entries = np.concatenate([np.array(walk.entries, dtype=np.int64) for walk in walks])
    place = np.minimum(np.searchsorted(entries, rows.starts[stepped_over]), len(entries) - 1)
    if (entries[place] != rows.starts[stepped_over]).any():
        return nothing  # not all of them are entries
    first = _first_alike(rows, stepped_over)
    if first is None:
        return nothing
    like = np.arange(len(entries))
    like[place] = place[first]
    kept = like == np.arange(len(like))
    numbers = _numbers(rows, stepped_over, place)
    left_out = stepped_over[~kept[place]]
    found = nothing
    end = 0
    for at, walk in enumerate(walks):
        begin, end = end, end + len(walk.entries)
        mine = left_out[slice(*np.searchsorted(rows.starts[left_out], (walk.start, walk.end)))]
        if not len(mine):
            continue
        own = kept[begin:end]
        index = np.cumsum(own) - 1
        repeats = Repeats(
            index[like[begin:end] - begin],
            {
                name: (places[cut] - begin, values[cut])
                for name, (places, values) in numbers.items()
                for cut in [slice(*np.searchsorted(places, (begin, end)))]
            },
        )
        pieces = _without(content, walk, rows, mine)
        found[at] = Shortened(b"".join(pieces), int(own.sum()), repeats)
    return found


def _first_alike(rows: _Rows, chosen: IntColumn) -> IntColumn | None:
    """For each of the chosen rows, the first one of its dump that tells the same.

    None where different ones could not be told apart, which is as good as impossible.
    """
    position = np.full(len(rows.starts), -1, dtype=np.int64)
    position[chosen] = np.arange(len(chosen))
    found = np.empty(len(chosen), dtype=np.int64)
    for layout, (members, words) in zip(rows.layouts, rows.members, strict=True):
        mine = np.flatnonzero(position[members] >= 0)
        told = words[mine[:, None], layout.columns] & layout.told
        dump = rows.dump[members[mine]]
        *weights, of_dump = _weights(told.shape[1] + 1)
        sums = told @ np.array(weights, dtype=np.uint64) + dump.astype(np.uint64) * of_dump
        _, first, which = np.unique(sums, return_index=True, return_inverse=True)
        same = first[which]
        if (dump != dump[same]).any() or (told != told[same]).any():
            return None
        at = position[members[mine]]
        found[at] = at[same]
    return found


@functools.cache
def _weights(count: int) -> Words:
    """Odd numbers: entries that differ have different sums of words, but for rare collisions."""
    return np.random.default_rng(count).integers(1 << 63, size=count, dtype=np.uint64) * 2 + 1


def _numbers(
    rows: _Rows, chosen: IntColumn, place: IntColumn
) -> dict[str, tuple[IntColumn, IntColumn]]:
    """The numbers and times in the chosen rows, which are these entries."""
    starts, layout = rows.starts[chosen], rows.layout[chosen]
    nowhere = -1, 0, False
    found = {}
    for name in dict.fromkeys(name for layout in rows.layouts for name in layout.numbers):
        where = np.array([layout.numbers.get(name, nowhere) for layout in rows.layouts])
        first, size, signed = where.T
        if (first < 0).any():
            has = np.flatnonzero(first[layout] >= 0)
            at, mine, its_place = starts[has], layout[has], place[has]
        else:
            at, mine, its_place = starts, layout, place
        found[name] = (
            its_place,
            rows.bytes.integers(at + first[mine], size[mine], signed[mine].astype(np.bool_)),
        )
    return found


def _without(content: bytes, walk: _Whole, rows: _Rows, left_out: IntColumn) -> Iterator[bytes]:
    """The pieces of a dump that remain."""
    starts, ends = rows.starts[left_out], rows.ends[left_out]
    # Rows that follow one another are cut out at once.
    alone = starts[1:] != ends[:-1]
    begins, stops = starts[np.append(True, alone)], ends[np.append(alone, True)]
    at = walk.start
    for begin, stop in zip(begins.tolist(), stops.tolist(), strict=True):
        yield content[at:begin]
        at = stop
    yield content[at : walk.end]
