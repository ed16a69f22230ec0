"""Writes plain data as torch's own pickler does, which Python's would write otherwise.

torch's (``torch/csrc/jit/serialization/pickler.cpp``) gives a number, to refer to it later, to
every text and to an object that is held more than once, here: the frames of stacks. Python's gives
one to every list and dictionary too. Protocol 2.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Collection, Mapping
from typing import Any


def _integer(value: int) -> bytes:
    if 0 <= value < 1 << 8:
        return pickle.BININT1 + value.to_bytes(1, "little")
    if 0 <= value < 1 << 16:
        return pickle.BININT2 + value.to_bytes(2, "little")
    if -(1 << 31) <= value < 1 << 31:
        return pickle.BININT + value.to_bytes(4, "little", signed=True)
    return pickle.LONG1 + b"\x08" + value.to_bytes(8, "little", signed=True)


_CONSTANTS = {None: pickle.NONE, True: pickle.NEWTRUE, False: pickle.NEWFALSE}


class _Writer:
    def __init__(self, shared: Collection[object]) -> None:
        self._shared = {id(value) for value in shared}
        self._known: dict[str | int, bytes] = {}
        self.pieces: list[bytes] = [pickle.PROTO + b"\x02"]

    def _remember(self, key: str | int) -> None:
        number = len(self._known)
        short = number < 256
        argument = number.to_bytes(1 if short else 4, "little")
        self._known[key] = (pickle.BINGET if short else pickle.LONG_BINGET) + argument
        self.pieces.append((pickle.BINPUT if short else pickle.LONG_BINPUT) + argument)

    def write(self, value: Any) -> None:
        add = self.pieces.append
        kind = type(value)
        if kind is str:
            if value in self._known:
                add(self._known[value])
            else:
                data = value.encode()
                add(pickle.BINUNICODE + struct.pack("<I", len(data)) + data)
                self._remember(value)
        elif kind is int:
            add(_integer(value))
        elif kind is bool or value is None:
            add(_CONSTANTS[value])
        elif kind is float:
            add(pickle.BINFLOAT + struct.pack(">d", value))
        elif id(value) in self._known:
            add(self._known[id(value)])
        else:
            self._write_container(value)
            if id(value) in self._shared:
                self._remember(id(value))

    def _write_container(self, value: Any) -> None:
        add, write = self.pieces.append, self.write
        if isinstance(value, Mapping):
            add(pickle.EMPTY_DICT + pickle.MARK)
            for key, held in value.items():
                write(key)
                write(held)
            add(pickle.SETITEMS)
        elif isinstance(value, list):
            add(pickle.EMPTY_LIST + pickle.MARK)
            for held in value:
                write(held)
            add(pickle.APPENDS)
        else:
            first, second = value
            write(first)
            write(second)
            add(pickle.TUPLE2)


def dumps(value: Any, shared: Collection[object]) -> bytes:
    """Pickle plain data.

    Args:
        value: texts, numbers, None, and lists, dictionaries and pairs of them.
        shared: objects that are held more than once.

    Returns:
        The pickle.
    """
    writer = _Writer(shared)
    writer.write(value)
    return b"".join([*writer.pieces, pickle.STOP])
