"""Recognizes a dump that is like an earlier one of this process in all but numbers and times.

All ranks of a data parallel job call the same operations: from the first entry on, the bytes of
their dumps are the same, but for the arguments of the opcodes that hold numbers and times. What was
found out about the entries of one, such as which of them repeat others, then holds for all; only
the numbers are taken from each. What stands before the entries, such as the groups of a rank, is
stepped through and decoded for every dump.

What comes out of a file is the same as without this; only the time it takes is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

import numpy as np

from fr_analysis.read.layouts import Numbers
from fr_analysis.read.shortened import Alike, Repeats, Shortened
from fr_analysis.read.walk import (
    EMPTY_DICT,
    MARK,
    Bytes,
    DumpWalker,
    Irregular,
    Shape,
    Words,
)
from fr_analysis.trace import IntColumn

_MOST_PATTERNS = 16
_MOST_TEXTS = 16
_LARGEST_BYTES = 2 << 20
"""Of dumps that others are compared with."""
_MOST_IN_VAIN = 32
"""After so many patterns in a row of which none came again, no more are made."""
_WORD = 8


class AllNumbers:
    """Where the numbers of all counting fields are, to be read at once."""

    def __init__(self, fields: Mapping[str, Numbers]) -> None:
        self._fields = list(fields.items())
        self._ends = np.cumsum([len(where.entries) for where in fields.values()]).tolist()
        self._where = reduce(Numbers.joined, fields.values(), Numbers.of([]))

    def read(self, content: bytes, start: int) -> dict[str, tuple[IntColumn, IntColumn]]:
        """The numbers of a dump whose first entry begins at a place, see ``Repeats``."""
        values = self._where.read(Bytes(content[start:], _WORD))
        found = {}
        begin = 0
        for (name, where), end in zip(self._fields, self._ends, strict=True):
            found[name] = where.entries, values[begin:end]
            begin = end
        return found


class _Arrived(Exception):
    """The walk is where the entries of the pattern begin."""


class _Head(DumpWalker):
    """Steps through what stands before the entries of a dump."""

    def arrives(self, at: int) -> bool:
        """Whether the entries begin at a place; it ends there."""
        self.rows = {at: 0}
        try:
            self.run(0)
        except _Arrived:
            begins = self.begins_entries(len(self.stack))
            # Without its entries, the list is without their mark.
            return begins and self.steps[-2] == at - 1 and self.content[at - 1] == MARK
        except Irregular:
            return False
        return False

    def _jump(self, row: int) -> int:
        raise _Arrived

    def _closed(self, opcode: int, height: int) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Mold:
    """The bytes of a dump from its first entry on, without numbers and times.

    Attributes:
        beginning: the first ones, of which all count, so that the others make whole words.
        words: these. mask: ones for the bytes that count.
    """

    beginning: bytes
    words: Words
    mask: Words

    @classmethod
    def of(cls, content: bytes, free: IntColumn) -> Mold:
        """From the bytes, and the places of those that may differ.

        Raises:
            Irregular: numbers are at the very beginning.
        """
        first = len(content) % _WORD
        if (free < first).any():
            raise Irregular
        counts = np.full(len(content) - first, 255, dtype=np.uint8)
        counts[free - first] = 0
        mask = counts.view("<u8")
        return cls(content[:first], np.frombuffer(content, "<u8", offset=first) & mask, mask)

    def __len__(self) -> int:
        return len(self.beginning) + _WORD * len(self.words)

    def fits(self, content: bytes, start: int) -> bool:
        """Whether a dump has these bytes from a place on, up to its end."""
        if not content.startswith(self.beginning, start):
            return False
        words = np.frombuffer(content, dtype="<u8", offset=start + len(self.beginning))
        return not ((words ^ self.words) & self.mask).any()


@dataclass
class Pattern:
    """A dump to compare others with. Places count from the beginning of its first entry.

    Attributes:
        mold: the bytes from there on.
        shape: how many values and which marks are on the stack at the beginning.
        first_put: the first number that is given to a value.
        texts: numbers of texts from before the beginning that are referred to.
        entry: for each entry, which of those that are kept is like it. kept: how many these are.
        remaining: where the bytes are that remain when the others are left out.
        behind: the place behind the last entry and the end of their list.
        numbers: where the numbers and times are.
        known: what is known of dumps that are like this one, by the texts that they refer to.
        has_come_again: whether any was.
    """

    mold: Mold
    shape: Shape
    first_put: int
    texts: Sequence[int]
    entry: IntColumn
    kept: int
    remaining: Sequence[tuple[int, int]]
    behind: int
    numbers: AllNumbers
    known: dict[tuple[bytes | None, ...], Alike] = field(default_factory=dict)
    has_come_again: bool = False

    def read(self, content: bytes) -> Shortened | None:
        """A dump without what is known of it; None where it is not like this one."""
        start = len(content) - len(self.mold)
        if start < 2 or content[start] != EMPTY_DICT or not self.mold.fits(content, start):
            return None
        head = _Head(content)
        if not head.arrives(start) or (len(head.stack), tuple(head.marks)) != self.shape:
            return None
        if head.last_put >= self.first_put:
            return None
        return self._shortened(content, start, head)

    def _shortened(self, content: bytes, start: int, head: _Head) -> Shortened | None:
        texts = tuple(map(head.texts.numbered, self.texts))
        if None in texts:
            return None
        alike = self.known.get(texts)
        if alike is None:
            if len(self.known) >= _MOST_TEXTS:
                self.known.clear()
            alike = self.known.setdefault(texts, Alike())
        if alike.parts is None:
            pieces = [content[:start]]
            pieces += [content[start + begin : start + end] for begin, end in self.remaining]
            kept = self.kept
        else:
            pieces = [content[: start - 1], content[start + self.behind :]]
            kept = 0
        repeats = Repeats(self.entry, self.numbers.read(content, start), alike)
        return Shortened(b"".join(pieces), kept, repeats)


class Patterns:
    """Dumps to compare others with, the last one that was met again first."""

    _patterns: tuple[Pattern, ...]
    _in_vain: int

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Know no dump any more, as at the beginning."""
        self._patterns = ()
        self._in_vain = 0

    def read(self, content: bytes) -> Shortened | None:
        """What is not known of a dump that is like an earlier one; None where none is like it."""
        for pattern in self._patterns:
            found = pattern.read(content)
            if found is None:
                continue
            if not pattern.has_come_again:
                pattern.has_come_again = True
                self._in_vain = 0
            if pattern is not self._patterns[0]:
                others = [other for other in self._patterns if other is not pattern]
                self._patterns = (pattern, *others)
            return found
        return None

    def wants(self, size: int) -> bool:
        """Whether dumps of so many bytes are worth to be added."""
        return size <= _LARGEST_BYTES and self._in_vain < _MOST_IN_VAIN

    def add(self, pattern: Pattern) -> None:
        """Compare later dumps with one."""
        self._in_vain += 1
        self._patterns = (pattern, *self._patterns[: _MOST_PATTERNS - 1])


patterns = Patterns()
