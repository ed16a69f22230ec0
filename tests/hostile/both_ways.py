"""A dump read as usual, and read without what is done for speed: both must say the same."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from fr_analysis.errors import UnreadableDump
from fr_analysis.read.decode import decode, decode_distinct, shorten
from fr_analysis.read.dump import build_dump
from fr_analysis.trace import Operations, RankDump

RANK = 3


def read_whole(path: Path, rank: int = RANK) -> RankDump | str:
    """The dump with all its entries decoded, or why it is none."""
    try:
        return build_dump(decode(path), rank, path)
    except UnreadableDump as error:
        return str(error)


def read_short(path: Path) -> tuple[RankDump | str, bool]:
    """The dump, or why it is none; and whether anything was left out."""
    try:
        (short,) = shorten([path])
        content, repeats = decode_distinct(path, short)
        return build_dump(content, RANK, path, repeats=repeats), repeats is not None
    except UnreadableDump as error:
        return str(error), False


def assert_same(found: RankDump | str, expected: RankDump | str) -> None:
    """Both are the same dump, or both are none, or the whole one takes too much memory."""
    if isinstance(expected, str) and (isinstance(found, str) or "memory" in expected):
        return  # how much memory is in use decides what is refused, and which of two things first
    assert isinstance(found, RankDump), found
    assert isinstance(expected, RankDump), expected
    assert_same_dump(found, expected)


def assert_same_dump(found: RankDump, expected: RankDump) -> None:
    """Two dumps are equal, column by column."""
    for column in dataclasses.fields(Operations):
        np.testing.assert_array_equal(
            getattr(found.operations, column.name),
            getattr(expected.operations, column.name),
            column.name,
        )
    assert dataclasses.replace(found, operations=expected.operations) == expected


def compare(content: bytes, folder: Path) -> bool:
    """Read both ways, and compare; returns whether anything was left out."""
    path = folder / f"rank_{RANK}"
    path.write_bytes(content)
    found, left_out = read_short(path)
    assert_same(found, read_whole(path))
    return left_out
