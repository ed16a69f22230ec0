"""How the bytes of an entry are to be read: which of them hold its numbers and times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import NamedTuple

import numpy as np

from fr_analysis.read.walk import (
    FLOAT,
    GET,
    INTEGERS,
    LONG1,
    LONG_GET,
    LONG_PUT,
    PUSHES,
    PUT,
    PUTS,
    TEXT,
    Bytes,
    Fields,
    Flags,
    Irregular,
    Walker,
    Words,
    number_at,
)
from fr_analysis.trace import IntColumn

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
LEFT_OUT = frozenset({"op_id", "duration_ms"})
"""Fields that differ too, and of which no number is used."""
MOST_SHAPES = 400
"""So many layouts of entries are looked for; rarer ones are decoded as they are."""

_ARGUMENT = np.zeros(256, dtype=np.int64)
"""By opcode: how many bytes of its argument may differ between entries of one layout."""
for _opcode, _length in {**PUSHES, **PUTS}.items():
    _ARGUMENT[_opcode] = _length - 1


class Span(NamedTuple):
    """Bytes of a number: the place of the first, how many, and whether it is signed."""

    first: int
    size: int
    signed: bool


def span_of(content: bytes, name: str, value: int, start: int) -> Span | None:
    """The bytes of a field that may differ between entries that are alike; None if there are none.

    Args:
        content: a pickle.
        name: the field.
        value: the place of its value.
        start: the place to count from.
    """
    if name not in COUNTING and name not in LEFT_OUT:
        return None
    opcode = content[value]
    size = INTEGERS.get(opcode)
    if size:
        return Span(value - start + 1, size, size == 4)
    if opcode == LONG1 and content[value + 1] <= 8:
        return Span(value - start + 2, content[value + 1], True)
    if opcode == FLOAT and name in LEFT_OUT:
        return Span(value - start + 1, 8, False)
    return None


def bytes_of(spans: Sequence[Span]) -> IntColumn:
    """Places of all bytes of some numbers."""
    return np.array(
        [at for span in spans for at in range(span.first, span.first + span.size)], dtype=np.int64
    )


@dataclass(frozen=True, slots=True)
class Numbers:
    """Where the numbers of a counting field are.

    Attributes:
        entries: which entries hold one, ascending.
        first, size, signed: of each number, its bytes, see ``Span``.
    """

    entries: IntColumn
    first: IntColumn
    size: IntColumn
    signed: Flags

    @classmethod
    def of(cls, spans: Sequence[tuple[int, Span]]) -> Numbers:
        """From entries, ascending, and the bytes of each."""
        rows = np.array([(at, *span) for at, span in spans], dtype=np.int64)
        entries, first, size, signed = rows.reshape(-1, 4).T
        return cls(entries, first, size, signed.astype(np.bool_))

    def read(self, content: Bytes) -> IntColumn:
        """The numbers."""
        return content.integers(self.first, self.size, self.signed)

    def part(self, cut: slice, begin: int) -> Numbers:
        """Some of the numbers, their entries counted from one on."""
        return Numbers(self.entries[cut] - begin, self.first[cut], self.size[cut], self.signed[cut])

    def moved(self, by: int) -> Numbers:
        """The same, where the bytes are elsewhere."""
        return Numbers(self.entries, self.first + by, self.size, self.signed)

    def joined(self, other: Numbers) -> Numbers:
        """With others behind them."""
        return Numbers(
            np.append(self.entries, other.entries),
            np.append(self.first, other.first),
            np.append(self.size, other.size),
            np.append(self.signed, other.signed),
        )

    def by_entry(self) -> Numbers:
        """In the order of their entries."""
        order = np.argsort(self.entries)
        return Numbers(self.entries[order], self.first[order], self.size[order], self.signed[order])


@dataclass(frozen=True, slots=True)
class Layout:
    """How the bytes of an entry are to be read; places count from its beginning.

    Attributes:
        length: of the entry. keys: its fields, by the numbers that refer to them, and their names.
        fixed: a mask with a byte of ones for each byte that is the same in all entries of this
            layout: all but the arguments of opcodes; and of these the names of fields, and what
            tuples are made of.
        columns: the words that tell entries of this layout apart. told: of each, a mask of the
            bytes that do: arguments, but no numbers and times.
        numbers: place, bytes and signedness of the counting fields that are integers.
        free: places of the bytes that may differ between entries that are alike.
        puts: places of the numbers, of four bytes, that values are given.
        gets, long_gets: places of the numbers, of one byte and of four, that are referred to.
        texts: numbers that must be of texts.
    """

    length: int
    keys: list[tuple[int, str]]
    fixed: Words
    columns: IntColumn
    told: Words
    numbers: dict[str, Span]
    free: IntColumn
    puts: IntColumn
    gets: IntColumn
    long_gets: IntColumn
    texts: frozenset[int]


class Entry(Walker):
    """Steps through one entry."""

    most_steps = 2_000

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self._in_tuples: list[int] = []
        """Places of references to what tuples are made of."""

    def _make_tuple(self, parts: Sequence[int]) -> None:
        for part in parts:
            if number_at(self.content, part) is not None:
                self._in_tuples.append(part)
            elif self.content[part] != TEXT:
                raise Irregular

    def _closed(self, opcode: int, height: int) -> bool:
        return height == 1 and not self.marks

    def items(self) -> Iterator[tuple[int, int]]:
        """After the entry: places of its keys and values."""
        return zip(self.stack[1::2], self.stack[2::2], strict=False)

    def layout(self, start: int, end: int, fields: Fields) -> Layout:
        """Read the entry between two places.

        Raises:
            Irregular: there is no entry.
        """
        if self.run(start) != end:
            raise Irregular
        content = self.content
        steps = np.array(self.steps)
        opcodes = np.frombuffer(content, dtype=np.uint8)[steps]
        if (opcodes == PUT).any():
            raise Irregular  # as it is in few entries, the first ones
        sizes = _ARGUMENT[opcodes]
        firsts = steps - start + 1
        for at in np.flatnonzero(opcodes == LONG1).tolist():
            firsts[at] += 1
            sizes[at] = content[steps[at] + 1]
        puts = firsts[opcodes == LONG_PUT]
        numbers: dict[str, Span] = {}
        unused: list[Span] = []
        same_for_all = self._in_tuples.copy()
        keys = []
        for key, value in self.items():
            number = number_at(content, key)
            if number is None or number not in fields:
                raise Irregular
            name = fields[number]
            keys.append((number, name))
            same_for_all.append(key)
            span = span_of(content, name, value, start)
            if span and name in COUNTING:
                numbers[name] = span
            elif span:
                unused.append(span)
        free = bytes_of([*numbers.values(), *unused])
        arguments = bytes_of(list(map(Span, firsts.tolist(), sizes.tolist(), repeat(False))))
        fixed = np.zeros(8 * ((end - start) // 8 + 1), dtype=np.uint8)
        fixed[: end - start] = 255
        told = fixed.copy()
        fixed[arguments] = 0
        # A field is known by its name: entries of one layout have the same.
        fixed[
            bytes_of([Span(at - start + 1, PUSHES[content[at]] - 1, False) for at in same_for_all])
        ] = 255
        told[free] = 0
        told[bytes_of([Span(first, 4, False) for first in puts.tolist()])] = 0
        same = fixed.view("<u8")
        own = told.view("<u8") & ~same
        columns = np.flatnonzero(own)
        texts = {number_at(content, reference) for reference in self._in_tuples}
        return Layout(
            end - start,
            keys,
            same,
            columns,
            own[columns],
            numbers,
            free,
            puts,
            firsts[opcodes == GET],
            firsts[opcodes == LONG_GET],
            frozenset(number for number in texts if number is not None),
        )


class KnownLayouts:
    """Layouts seen in other dumps of this process: all ranks of a job have much the same."""

    def __init__(self) -> None:
        self._count = 0
        self._by_length: dict[int, list[tuple[Layout, Words]]] = {}

    def find(self, words: Words, length: int, fields: Fields) -> Layout | None:
        """The layout of an entry of these words and bytes; None where it is not known."""
        for layout, fixed in self._by_length.get(length, ()):
            if (words[: len(fixed)] & layout.fixed == fixed).all() and all(
                fields.get(number) == name for number, name in layout.keys
            ):
                return layout
        return None

    def add(self, layout: Layout, words: Words) -> None:
        """Remember the layout of an entry of these words."""
        if self._count >= MOST_SHAPES:
            self._count = 0
            self._by_length.clear()
        self._count += 1
        known = self._by_length.setdefault(layout.length, [])
        known.append((layout, words[: len(layout.fixed)] & layout.fixed))


known_layouts = KnownLayouts()
