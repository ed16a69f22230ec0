"""From the entries of one dump to columns: one field of all entries at a time.

Entries of real dumps are alike: the same keys, numbers where numbers belong, one of a few dozen
shapes. So each field is taken from all entries at once and judged as a whole, and only what is not
as it should be is looked at item by item.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain, repeat
from operator import contains, is_, itemgetter
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from fr_analysis.read.shortened import Repeats
from fr_analysis.trace import UNKNOWN, IntColumn

Item = TypeVar("Item", bound=Hashable)
Scalar = TypeVar("Scalar", bound=np.generic)
Flags = npt.NDArray[np.bool_]

_INT = {int}
_STR_OR_NONE = {str, type(None)}
_STR = {str}
_LIST = {list}
_BOOL = {bool}
_INT_OR_NONE = {int, type(None)}
_MOST_ITEMS = 64
"""Longest list that is looked up by what it holds, not by which object it is."""
_LARGEST_INT = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Entries:
    """The entries of a dump, of which those that are alike may be there once.

    Attributes:
        distinct: entries as they were decoded.
        repeats: which of them the entries of the dump are like, and the numbers of these; None
            where every entry is there itself.
    """

    distinct: Sequence[dict[str, Any]]
    repeats: Repeats | None = None

    def __len__(self) -> int:
        return len(self.distinct if self.repeats is None else self.repeats.entry)

    def values(self, name: str) -> list[Any]:
        """A field of the distinct entries; None where an entry lacks it."""
        try:
            return list(map(itemgetter(name), self.distinct))
        except KeyError:
            return [entry.get(name) for entry in self.distinct]

    def is_anywhere(self, name: str) -> bool:
        """Whether any entry has a field."""
        return any(map(contains, self.distinct, repeat(name)))

    def spread(self, column: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
        """From one value per distinct entry to one per entry."""
        return column if self.repeats is None else column[self.repeats.entry]

    def by_last(self) -> IntColumn:
        """The distinct entries in the order of the last entry that is like each."""
        last = np.arange(len(self.distinct))
        if self.repeats is not None:
            last[self.repeats.entry] = np.arange(len(self.repeats.entry))
        return np.argsort(last)

    def numbers(self, name: str, convert: Callable[[object], int]) -> IntColumn:
        """A counting field as a column, one number per entry; not to be written to.

        Args:
            name: the field, see ``layouts.COUNTING``.
            convert: what to make of a value where not all of them are integers that fit.
        """
        places, own = self._own(name)
        if len(places) == len(self):
            return own
        return self._with(places, own, integers(self.values(name), convert))

    def times(self, name: str, convert: Callable[[object], int], most: int) -> IntColumn:
        """A field of times in nanoseconds as a column, UNKNOWN where there is none.

        Args:
            name: the field, see ``layouts.COUNTING``.
            convert: what to make of a value where one of them is neither an integer nor None.
            most: times from this on are none.
        """
        places, own = self._own(name)
        if len(places) == len(self):
            column = own.copy()
        else:
            column = self._with(places, own, times(self.values(name), convert))
        column[(column <= 0) | (column >= most)] = UNKNOWN
        return column

    def _own(self, name: str) -> tuple[IntColumn, IntColumn]:
        """Places of entries whose own values of a counting field are known, and these."""
        nothing = np.empty(0, dtype=np.int64)
        known = self.repeats.numbers if self.repeats is not None else {}
        return known.get(name, (nothing, nothing))

    def _with(self, places: IntColumn, own: IntColumn, distinct: IntColumn) -> IntColumn:
        """A counting field of all entries, given that of the distinct ones."""
        column = self.spread(distinct)
        if len(places):
            column[places] = own
        return column


def integers(values: Sequence[object], convert: Callable[[object], int]) -> IntColumn:
    """A column of integers.

    Args:
        values: one per entry.
        convert: what to make of a value where not all of them are integers that fit.
    """
    if set(map(type, values)) <= _INT:
        try:
            return np.fromiter(values, dtype=np.int64, count=len(values))
        except OverflowError:
            pass
    return np.fromiter(map(convert, values), dtype=np.int64, count=len(values))


def times(values: Sequence[object], convert: Callable[[object], int]) -> IntColumn:
    """A column of times in nanoseconds, as they are; UNKNOWN where there is none.

    Args:
        values: one per entry, None where there is no time.
        convert: what to make of a value where one of them is something else.
    """
    if set(map(type, values)) <= _INT_OR_NONE:
        try:
            plain = [UNKNOWN if value is None else value for value in values]
            return np.fromiter(plain, dtype=np.int64, count=len(values))
        except OverflowError:
            pass
    return np.fromiter(map(convert, values), dtype=np.int64, count=len(values))


def codes(values: Sequence[Any], code_of: Mapping[str, int]) -> npt.NDArray[np.int8]:
    """A column of small numbers for texts of a few kinds; 0 for any other value.

    Args:
        values: one per entry.
        code_of: the texts that mean something, with numbers from 1 on.
    """
    if set(map(type, values)) <= _STR_OR_NONE:
        found = [code_of.get(value, 0) for value in values]
    else:
        found = [code_of.get(value, 0) if type(value) is str else 0 for value in values]
    return np.fromiter(found, dtype=np.int8, count=len(values))


def are(values: Sequence[object], wanted: bool) -> Flags:
    """Which values are ``True``, or ``False``, not merely taken for it."""
    if set(map(type, values)) <= _BOOL:
        column = np.fromiter(values, dtype=np.bool_, count=len(values))
        return column if wanted else ~column
    return np.fromiter([value is wanted for value in values], dtype=np.bool_, count=len(values))


class Table(Generic[Item]):
    """A side table: each distinct item once, found by an index."""

    def __init__(self) -> None:
        self.index: dict[Item, int] = {}

    def add(self, item: Item) -> int:
        """The item's index; equal items have the same."""
        return self.index.setdefault(item, len(self.index))

    def __len__(self) -> int:
        return len(self.index)

    def items(self) -> tuple[Item, ...]:
        """All items by index."""
        return tuple(self.index)


Keys = Callable[[Sequence[Any]], Sequence[Hashable]]
"""Makes of each value of a field what equal values have in common; one that is not of the shape
that the field has in real dumps raises TypeError, as do values that cannot be looked up."""


# What is hashed is looked at first: a few bytes can make a tuple that takes weeks to hash.


def plain_keys(values: Sequence[Any]) -> Sequence[Hashable]:
    """Keys of texts, or of tuples or lists of texts, which JSON has instead."""
    kinds = set(map(type, values))
    if not kinds <= {tuple, list, *_STR_OR_NONE}:
        raise TypeError
    if kinds & {tuple, list}:
        _held_by([value for value in values if type(value) in (tuple, list)], _STR)
    return [tuple(v) if type(v) is list else v for v in values] if list in kinds else values


def text_list_keys(values: Sequence[Any]) -> Sequence[Hashable]:
    """Keys of lists of texts."""
    if set(map(type, values)) != _LIST:
        raise TypeError
    _held_by(values, _STR)
    return [value[0] if len(value) == 1 else tuple(value) for value in values]


def number_list_keys(values: Sequence[Any]) -> Sequence[Hashable]:
    """Keys of lists of numbers, or of None."""
    lists = [value for value in values if value is not None]
    if not set(map(type, lists)) <= _LIST:
        raise TypeError
    _small_numbers_in(lists)
    return [value and tuple(value) for value in values]


def nested_list_keys(values: Sequence[Any]) -> Sequence[Hashable]:
    """Keys of lists of lists of numbers."""
    if set(map(type, values)) != _LIST:
        raise TypeError
    _small_numbers_in(_held_by(values, _LIST))
    # Of several in a tuple of its own, so that no list of lists is taken for a single list.
    return [tuple(value[0]) if len(value) == 1 else (tuple(map(tuple, value)),) for value in values]


def _held_by(lists: Sequence[Sequence[Any]], types: Set[type]) -> list[Any]:
    """What lists hold together.

    Raises:
        TypeError: it is not of these types, or there is more than a real dump's lists hold: a
            file of kilobytes may name one long list a million times.
    """
    if max(map(len, lists), default=0) > _MOST_ITEMS:
        raise TypeError
    held = list(chain.from_iterable(lists))
    if not set(map(type, held)) <= types:
        raise TypeError
    return held


def _small_numbers_in(lists: Sequence[Sequence[Any]]) -> None:
    """Raise TypeError where lists hold anything but a few numbers that fit into 64 bits."""
    held = _held_by(lists, _INT)
    if held and not -_LARGEST_INT <= min(held) <= max(held) <= _LARGEST_INT:
        raise TypeError


class Parsed(Generic[Item]):
    """A field as items of a side table; what is there often is parsed once.

    Attributes:
        column: the index of each entry's item. items: all items by index.
    """

    def __init__(
        self, values: Sequence[object], keys: Keys, parse: Callable[[object], Item]
    ) -> None:
        table: Table[Item] = Table()
        try:
            found = keys(values)
            examples = dict(zip(found, values, strict=True))
        except (TypeError, LookupError):
            # The values outlive this call, so an object's id stays its own.
            found = list(map(id, values))
            examples = dict(zip(found, values, strict=True))
        index_of = {key: table.add(parse(value)) for key, value in examples.items()}
        self.column: IntColumn = np.fromiter(
            map(index_of.__getitem__, found), dtype=np.int64, count=len(values)
        )
        self.items = table.items()


def by_objects(lists: Sequence[list[Any]]) -> Sequence[Hashable]:
    """Keys of lists that are equal where they hold the same objects, such as frames of a stack."""
    keys = [(len(found), id(found[0]), id(found[-1])) if found else () for found in lists]
    examples = dict(zip(keys, lists, strict=True))
    if all(map(_same_objects, lists, map(examples.__getitem__, keys))):
        return keys
    # A list may be named a million times.
    distinct = {id(found): found for found in lists}
    ids = {number: tuple(map(id, found)) for number, found in distinct.items()}
    return [ids[id(found)] for found in lists]


def _same_objects(one: list[Any], other: list[Any]) -> bool:
    # Not whether they are equal: that may take weeks to tell of lists that hold lists.
    return one is other or all(map(is_, one, other))


def combined(columns: Sequence[IntColumn]) -> tuple[IntColumn, list[tuple[int, ...]]]:
    """Distinct combinations of columns of indices.

    Args:
        columns: of one length, with numbers from 0 on.

    Returns:
        The index of each row's combination, and the combinations.
    """
    rows = np.stack(columns, axis=1)
    weights = rows.max(axis=0, initial=0) + 1
    if float(np.prod(weights, dtype=np.float64)) < 2.0**62:
        mixed = np.zeros(len(rows), dtype=np.int64)
        for column, weight in zip(columns, weights.tolist(), strict=True):
            mixed = mixed * weight + column
        _, firsts, column = np.unique(mixed, return_index=True, return_inverse=True)
        return column, [tuple(row) for row in rows[firsts].tolist()]
    table: Table[tuple[int, ...]] = Table()
    column = np.fromiter(map(table.add, map(tuple, rows.tolist())), dtype=np.int64, count=len(rows))
    return column, list(table.items())
