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
be left out.)
"""

from __future__ import annotations

import contextlib
import functools
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fr_analysis.read.layouts import MOST_SHAPES, Entry, Layout, known_layouts
from fr_analysis.read.walk import (
    EMPTY_DICT,
    EMPTY_LIST,
    GET,
    LONG_GET,
    LONG_PUT,
    MARK,
    PUTS,
    SETITEMS,
    Bytes,
    Fields,
    Irregular,
    Texts,
    Walker,
    Words,
)
from fr_analysis.trace import IntColumn

SMALLEST_BYTES = 16 << 10
LARGEST_BYTES = 64 << 20
"""What smaller and larger files gain is not worth it, or not the memory."""


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
        self.bytes = Bytes(content, 8 * width)
        self.layouts: list[Layout] = []
        self.members: list[tuple[IntColumn, Words]] = []
        self.layout = np.full(len(starts), -1, dtype=np.int64)
        known, counts = np.unique(lengths, return_counts=True)
        tries = MOST_SHAPES
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
                layout = known_layouts.find(words[0], length, fields)
                if layout is None:
                    try:
                        layout = Entry(content).layout(start, start + length, fields)
                    except Irregular:
                        left, words = left[1:], words[1:]
                        continue
                    known_layouts.add(layout, words[0])
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


class _Whole(Walker):
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
        self._texts = Texts(content)
        self.entries: list[int] = []
        self.runs: list[tuple[int, int]] = []
        self._at = start
        self._found: _Rows | None = None
        self._list_of_entries = -1
        self._last_put = -1

    def to_first_entry(self) -> None:
        """Step to behind the first entry, or to the end where there is none.

        Raises:
            Irregular: the dump is not as expected.
        """
        self._at = self.run(self._at)

    def to_end(self, rows: _Rows, firsts: Mapping[int, int]) -> None:
        """Step to the end, over rows.

        Args:
            rows: all that could be entries. firsts: the first row of each run, by its place.

        Raises:
            Irregular: the dump is not as expected.
        """
        self._found, self.rows = rows, firsts
        if self.run(self._at) > self.end:
            raise Irregular  # it is cut short, and the next one read for its rest

    def _put(self, at: int, opcode: int) -> None:
        number = int.from_bytes(self.content[at + 1 : at + PUTS[opcode]], "little")
        # Picklers count; with a number given twice it would matter what is left out.
        if not self._last_put < number < len(self.content):
            raise Irregular
        self._last_put = number
        self._texts.add(number, self.stack[-1])

    def _closed(self, opcode: int, height: int) -> bool:
        stack = self.stack
        if opcode == SETITEMS:
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
            and self.content[stack[height - 2]] == EMPTY_LIST
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
                raise Irregular
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
    opcodes = bytes([MARK, GET if short else LONG_GET])
    begin = opcodes + first.to_bytes(1 if short else 4, "little")
    places = np.flatnonzero(content == begin[0])
    places = places[: np.searchsorted(places, len(content) - len(begin))]
    for offset in range(len(begin) - 1, 0, -1):
        places = places[content[places + offset] == begin[offset]]
    places = places[places >= 6]
    starts = np.full(len(places), -1, dtype=np.int64)
    # The first values are given numbers of one byte: entries among them are decoded as they are.
    for put, length in ((None, 0), (LONG_PUT, 5)):
        start = places - 1 - length
        fits = content[start] == EMPTY_DICT
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
        with contextlib.suppress(Irregular):
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
        with contextlib.suppress(Irregular):
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
