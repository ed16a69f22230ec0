"""Steps through a pickle of plain data without unpickling it, and takes numbers from its bytes.

Opcodes: the module ``pickletools`` of Python. Understood are those of plain data in protocol 2, in
which torch writes, by its own pickler or by Python's.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fr_analysis.trace import IntColumn

Words = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]

Shape = tuple[int, tuple[int, ...]]
"""How many values are on a pickle's stack, and the heights of its marks."""

MOST_STEPS = 50_000
"""Opcodes that are stepped through one by one: beyond that a dump is not regular enough."""


def code(opcode: bytes) -> int:
    return opcode[0]


PROTO, STOP = map(code, (pickle.PROTO, pickle.STOP))
MARK, APPEND, APPENDS = map(code, (pickle.MARK, pickle.APPEND, pickle.APPENDS))
SETITEM, SETITEMS = map(code, (pickle.SETITEM, pickle.SETITEMS))
TUPLE, TUPLE1, TUPLE2, TUPLE3 = map(
    code, (pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3)
)
EMPTY_DICT, EMPTY_LIST = map(code, (pickle.EMPTY_DICT, pickle.EMPTY_LIST))
TEXT, LONG1 = map(code, (pickle.BINUNICODE, pickle.LONG1))
GET, LONG_GET = map(code, (pickle.BINGET, pickle.LONG_BINGET))
PUT, LONG_PUT = map(code, (pickle.BINPUT, pickle.LONG_BINPUT))
FLOAT = code(pickle.BINFLOAT)

INTEGERS = {code(pickle.BININT1): 1, code(pickle.BININT2): 2, code(pickle.BININT): 4}
"""Opcodes of integers, and the bytes that their arguments have; the last is signed."""

PUSHES = {
    **{code(opcode): 1 for opcode in (pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE)},
    **{code(opcode): 1 for opcode in (pickle.EMPTY_TUPLE, pickle.EMPTY_LIST, pickle.EMPTY_DICT)},
    **{opcode: 1 + size for opcode, size in INTEGERS.items()},
    FLOAT: 9,
    GET: 2,
    LONG_GET: 5,
}
"""Opcodes that put a value on the stack, and their length with their arguments."""
PUTS = {PUT: 2, LONG_PUT: 5}
TUPLES = {TUPLE1: 1, TUPLE2: 2, TUPLE3: 3}


class Irregular(Exception):
    """The pickle is not as it should be to be shortened."""


class Walker:
    """Steps through a pickle and keeps its stack, of which only places are remembered.

    Attributes:
        stack: for each value on the stack, the place of the opcode that put it there.
        marks: heights of the stack at its marks.
        steps: places of all opcodes that were stepped on.
    """

    most_steps: ClassVar[int] = MOST_STEPS
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
                length = PUSHES.get(opcode)
                if length:
                    if opcode == EMPTY_DICT and at in self.rows:
                        at = self._jump(self.rows[at])
                    else:
                        stack.append(at)
                        at += length
                elif opcode == LONG1:
                    stack.append(at)
                    at += 2 + content[at + 1]
                elif opcode == MARK:
                    marks.append(len(stack))
                    at += 1
                elif opcode in (APPENDS, SETITEMS):
                    height = marks.pop()
                    at += 1
                    if self._closed(opcode, height):
                        return at
                    del stack[height:]
                elif opcode in PUTS:
                    self._put(at, opcode)
                    at += PUTS[opcode]
                elif opcode in TUPLES:
                    self._make_tuple(stack[-TUPLES[opcode] :])
                    del stack[-TUPLES[opcode] :]
                    stack.append(at)
                    at += 1
                elif opcode == APPEND:
                    self._closed(opcode, len(stack) - 1)
                    stack.pop()
                    at += 1
                elif opcode == TEXT:
                    stack.append(at)
                    at += 5 + int.from_bytes(content[at + 1 : at + 5], "little")
                elif opcode == SETITEM:
                    del stack[-2:]
                    at += 1
                elif opcode == TUPLE:
                    height = marks.pop()
                    self._make_tuple(stack[height:])
                    del stack[height:]
                    stack.append(at)
                    at += 1
                elif opcode == PROTO:
                    at += 2
                elif opcode == STOP:
                    return at + 1
                else:
                    raise Irregular
        except IndexError:
            raise Irregular from None
        raise Irregular


Fields = dict[int, str]
"""Names of an entry's fields, by the numbers that refer to them."""


def number_at(content: bytes, at: int) -> int | None:
    """The number that a reference at this place has; None where there is none."""
    if content[at] == GET:
        return content[at + 1]
    if content[at] == LONG_GET:
        return int.from_bytes(content[at + 1 : at + 5], "little")
    return None


class Texts:
    """The texts that a pickle refers to by number: names of fields are among them."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._text_of: dict[int, bytes] = {}

    def add(self, number: int, at: int) -> None:
        """The value at this place is given a number."""
        if self._content[at] == TEXT:
            self._text_of[number] = self._text(at)

    def _text(self, at: int) -> bytes:
        start = at + 5
        length = int.from_bytes(self._content[at + 1 : start], "little")
        return self._content[start : start + length]

    def numbered(self, number: int) -> bytes | None:
        """The text that has a number, in UTF-8; None where it is no text, or nothing has it."""
        return self._text_of.get(number)

    def at(self, at: int) -> bytes | None:
        """The text that is, or is referred to, at this place."""
        number = number_at(self._content, at)
        if number is not None:
            return self._text_of.get(number)
        return self._text(at) if self._content[at] == TEXT else None

    def have(self, numbers: frozenset[int]) -> bool:
        """Whether these numbers are all of texts."""
        return numbers <= self._text_of.keys()

    def fields(self, keys: Sequence[int]) -> Fields:
        """The names at these places, in their order, by the numbers that refer to them.

        Raises:
            Irregular: a name is no text, or has not been given one number.
        """
        names = [self.at(key) for key in keys]
        wanted = set(names)
        numbers = {text: number for number, text in self._text_of.items() if text in wanted}
        told = sum(text in wanted for text in self._text_of.values())
        if not len(names) == len(wanted) == len(numbers) == told:
            raise Irregular
        return {numbers[name]: name.decode("utf-8", "replace") for name in names if name}


class DumpWalker(Walker):
    """Steps through a dump, and knows its texts.

    Attributes:
        texts: those that were given a number so far. last_put: the last number that was given.
    """

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self.texts = Texts(content)
        self.last_put = -1

    def _put(self, at: int, opcode: int) -> None:
        number = int.from_bytes(self.content[at + 1 : at + PUTS[opcode]], "little")
        # Picklers count; with a number given twice it would matter what is left out.
        if not self.last_put < number < len(self.content):
            raise Irregular
        self.last_put = number
        self.texts.add(number, self.stack[-1])

    def _make_tuple(self, parts: Sequence[int]) -> None:
        if any(self.texts.at(part) is None for part in parts):
            raise Irregular

    def begins_entries(self, height: int) -> bool:
        """Whether what lies on the stack from a height on is the beginning of the entries."""
        stack = self.stack
        return (
            height >= 2
            and self.marks[-1:] == [height]
            and self.content[stack[height - 1]] == EMPTY_LIST
            and self.texts.at(stack[height - 2]) == b"entries"
        )


class Bytes:
    """The bytes of a pickle, to be taken from many places at once."""

    def __init__(self, content: bytes, padding: int) -> None:
        self._bytes = np.frombuffer(content + bytes(padding), dtype=np.uint8)

    def words(self, places: IntColumn, count: int) -> Words:
        """So many words of eight bytes from each place on."""
        windows = np.lib.stride_tricks.as_strided(
            self._bytes, (len(self._bytes) - 8 * count + 1, 8 * count), (1, 1), writeable=False
        )
        return windows[places].view("<u8")

    def unsigned(self, places: IntColumn, size: int) -> IntColumn:
        """Unsigned integers of one byte or of four."""
        windows = np.lib.stride_tricks.as_strided(
            self._bytes, (len(self._bytes) - size + 1, size), (1, 1), writeable=False
        )
        return windows[places].view(f"<u{size}")[..., 0].astype(np.int64)

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
