"""Whether a pickle's tuples are short and flat, told before anything of it is unpickled.

A dictionary hashes its keys, and Python hashes a tuple anew each time, by recursion: a tuple of two
references to a tuple of two references, and so on, forty times, is a hundred bytes and takes weeks
to hash, in C code that nothing interrupts; nested a million times it ends the process. The tuples
of dumps are names of process groups, two texts.

Opcodes: the module ``pickletools`` of Python. No stack is kept: what a tuple is made of must stand
right before it, and what is not as picklers write it counts as not flat.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

_GETS = {pickle.BINGET: 1, pickle.LONG_BINGET: 4}
_PUTS = {pickle.BINPUT: 1, pickle.LONG_BINPUT: 4, pickle.MEMOIZE: 0}
_SIZED = {pickle.BINUNICODE: 4, pickle.SHORT_BINUNICODE: 1, pickle.LONG1: 1}
"""Opcodes whose argument begins with its size, and the bytes of that."""
_SIMPLE = {
    **dict.fromkeys((pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE), 0),
    pickle.BININT: 4,
    pickle.BININT1: 1,
    pickle.BININT2: 2,
    pickle.BINFLOAT: 8,
    **_SIZED,
    **_GETS,
}
"""Opcodes that push what a tuple may be made of."""
_TUPLES = {pickle.TUPLE1: 1, pickle.TUPLE2: 2, pickle.TUPLE3: 3}
_EMPTY = (pickle.EMPTY_LIST, pickle.EMPTY_DICT)
_CLOSING = (pickle.APPENDS, pickle.SETITEMS)
_SILENT = {**_PUTS, pickle.PROTO: 1, pickle.FRAME: 8}
"""Opcodes that leave the stack as it is."""
_LENGTHS = {
    **_SIMPLE,
    **_SILENT,
    **dict.fromkeys(_TUPLES, 0),
    **dict.fromkeys((*_EMPTY, pickle.EMPTY_TUPLE, pickle.MARK, *_CLOSING), 0),
    **dict.fromkeys((pickle.APPEND, pickle.SETITEM, pickle.STOP), 0),
}
"""All opcodes that are known, and the bytes of their arguments."""

Flags = npt.NDArray[np.bool_]
Places = npt.NDArray[np.int64]


def _among(opcodes: Iterable[bytes]) -> Flags:
    """Of all bytes, which are one of these opcodes."""
    table = np.zeros(256, dtype=np.bool_)
    table[[opcode[0] for opcode in opcodes]] = True
    return table


_LENGTH = np.zeros(256, dtype=np.int64)
for _opcode, _length in _LENGTHS.items():
    _LENGTH[_opcode[0]] = 1 + _length
_IS_KNOWN, _IS_SILENT, _IS_PUT = map(_among, (_LENGTHS, _SILENT, _PUTS))
_IS_SIMPLE, _IS_GET, _IS_EMPTY = map(_among, (_SIMPLE, _GETS, _EMPTY))
_IS_CLOSING = _among(_CLOSING)
_IS_TUPLE = _among((*_TUPLES, pickle.EMPTY_TUPLE))
_MARK, _STOP = pickle.MARK[0], pickle.STOP[0]


def has_flat_tuples(content: bytes) -> bool:
    """Whether all tuples in a pickle are of at most three texts, numbers, truths and None.

    Args:
        content: the pickle.

    Returns:
        False also where that cannot be told, be it that the pickle is damaged, or that it has
        opcodes that no dump has.
    """
    codes = np.frombuffer(content, dtype=np.uint8)
    places = _places(codes)
    opcodes = codes[places]
    if not len(opcodes) or opcodes[-1] != _STOP or not _IS_KNOWN[opcodes].all():
        return False
    loud = np.flatnonzero(~_IS_SILENT[opcodes])
    puts = np.flatnonzero(_IS_PUT[opcodes])
    # What each number is given to was pushed by the last opcode before it that does anything.
    before = np.searchsorted(loud, puts) - 1
    if (before < 0).any():
        return False
    given_to = opcodes[loud[before]]
    if _IS_GET[given_to].any():
        return False
    numbers = _numbers(codes, places[puts])
    of_tuples = None if numbers is None else numbers[_IS_TUPLE[given_to]]
    return of_tuples is not None and _are_flat(codes, places[loud], of_tuples)


def _places(codes: npt.NDArray[np.uint8]) -> Places:
    """Where a pickle's opcodes are, up to the first one that is not known or is the last."""
    ends = np.arange(len(codes)) + _LENGTH[codes]
    for opcode, width in _SIZED.items():
        at = np.flatnonzero(codes[: max(len(codes) - width, 0)] == opcode[0])
        ends[at] += _little_endian(codes, at + 1, width)
    ends[(codes == _STOP) | ~_IS_KNOWN[codes]] = len(codes)
    end_of = memoryview(ends.tobytes()).cast("q")  # many times as fast, one by one
    places = []
    place = 0
    while place < len(codes):
        places.append(place)
        place = end_of[place]
    return np.array(places, dtype=np.int64)


def _little_endian(codes: npt.NDArray[np.uint8], at: Places, width: int) -> Places:
    """Unsigned numbers of so many bytes from each place on."""
    found: Places = codes[at[:, None] + np.arange(width)] @ (256 ** np.arange(width))
    return found


def _numbers(codes: npt.NDArray[np.uint8], puts: Places) -> Places | None:
    """The numbers that are given; None where some are told, and others count."""
    counted = codes[puts] == pickle.MEMOIZE[0]
    if counted.all():
        return np.arange(len(puts))
    return None if counted.any() else _told(codes, puts)


def _told(codes: npt.NDArray[np.uint8], places: Places) -> Places:
    """The numbers that opcodes to give and to get have as arguments."""
    found = np.empty(len(places), dtype=np.int64)
    for opcode, width in {**_GETS, **_PUTS}.items():
        mine = np.flatnonzero(codes[places] == opcode[0])
        found[mine] = _little_endian(codes, places[mine] + 1, width)
    return found


def _are_flat(codes: npt.NDArray[np.uint8], places: Places, of_tuples: Places) -> bool:
    """Whether what tuples are made of is pushed right before them, and is no tuple.

    Args:
        codes: the pickle.
        places: of the opcodes that do anything.
        of_tuples: the numbers that were given to tuples.
    """
    opcodes = codes[places]
    simple = _IS_SIMPLE[opcodes]
    gets = np.flatnonzero(_IS_GET[opcodes])
    simple[gets[np.isin(_told(codes, places[gets]), of_tuples)]] = False
    for opcode, length in _TUPLES.items():
        made = np.flatnonzero(opcodes == opcode[0])
        if made[:1].size and made[0] < length:
            return False
        for back in range(1, length + 1):
            if not simple[made - back].all():
                return False
    # Nothing put into a tuple is no error, and leaves the tuple where it was.
    marks = np.flatnonzero((opcodes[:-1] == _MARK) & _IS_CLOSING[opcodes[1:]])
    return not (marks[:1] == 0).any() and bool(_IS_EMPTY[opcodes[marks - 1]].all())
