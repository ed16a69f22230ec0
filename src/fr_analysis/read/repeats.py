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
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from fr_analysis.read.alike import AllNumbers, Mold, Pattern, patterns
from fr_analysis.read.layouts import (
    COUNTING,
    MOST_SHAPES,
    Entry,
    Layout,
    Numbers,
    Span,
    bytes_of,
    known_layouts,
    span_of,
)
from fr_analysis.read.shortened import Repeats, Shortened
from fr_analysis.read.walk import (
    EMPTY_DICT,
    GET,
    LONG_GET,
    LONG_PUT,
    MARK,
    PUT,
    SETITEMS,
    Bytes,
    DumpWalker,
    Fields,
    Irregular,
    Shape,
    Words,
)
from fr_analysis.trace import IntColumn, distinct

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
            numbers = self.bytes.unsigned(self.starts[rows, None] + layout.puts, 4)
            self.first_put[rows], self.last_put[rows] = numbers[:, 0], numbers[:, -1]
            falls = (numbers[:, 1:] <= numbers[:, :-1]).any(axis=1)
            self.layout[rows[falls | (numbers[:, -1] >= most)]] = -1


class _Whole(DumpWalker):
    """Steps through a dump, over the entries that are alike.

    Attributes:
        start, end: where in the bytes of all dumps this one is.
        fields: names of the fields of its first entry; empty until that is stepped through.
        shape: how many values and which marks are on the stack where the first entry begins.
        entries: places of all entries. closings: the places behind those that were put into their
            list at once.
        runs: rows stepped over, from one to before another.
    """

    def __init__(self, content: bytes, start: int, end: int) -> None:
        super().__init__(content)
        self.start, self.end = start, end
        self.fields: Fields = {}
        self.shape: Shape = 0, ()
        self.entries: list[int] = []
        self.closings: list[int] = []
        self.runs: list[tuple[int, int]] = []
        self._at = start
        self._found: _Rows | None = None
        self._list_of_entries = -1

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
        for layout in set().union(*(rows.layout[slice(*run)].tolist() for run in self.runs)):
            if not self.texts.have(rows.layouts[layout].texts):
                raise Irregular

    def _closed(self, opcode: int, height: int) -> bool:
        stack = self.stack
        if opcode == SETITEMS:
            if not self.fields and self.begins_entries(height - 1):
                self._list_of_entries = stack[height - 2]
                self.shape = height - 1, tuple(self.marks)
                self.fields = self.texts.fields(stack[height::2])
                del stack[height:]
                return True
        elif stack[height - 1] == self._list_of_entries:
            self.entries += stack[height:]
            self.closings.append(self.steps[-1] + 1)
        return False

    def _jump(self, row: int) -> int:
        rows = self._found
        assert rows is not None
        end = int(rows.run_end[row])
        first, last = rows.first_put[row:end], rows.last_put[row:end]
        first, last = first[first >= 0], last[first >= 0]
        if len(first):
            if first[0] <= self.last_put or (first[1:] <= last[:-1]).any():
                raise Irregular
            self.last_put = int(last[-1])
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
    return distinct(starts[starts >= 0])


def shortened(contents: Sequence[bytes]) -> list[Shortened | None]:
    """Leave out of dumps the entries that are like an earlier one but for numbers and times.

    Args:
        contents: pickles of plain data. Several of one job at once take much less time than one
            after the other; what comes out is the same.

    Returns:
        The shortened pickles; None where a dump is not regular enough, whatever it is.
    """
    found = [
        patterns.read(one) if SMALLEST_BYTES <= len(one) <= LARGEST_BYTES else None
        for one in contents
    ]
    # Those that are known need not be looked at.
    contents = [b"" if short else one for one, short in zip(contents, found, strict=True)]
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
    found: list[Shortened | None] = [None] * len(walks)
    entries = np.concatenate([np.array(walk.entries, dtype=np.int64) for walk in walks])
    place = np.minimum(np.searchsorted(entries, rows.starts[stepped_over]), len(entries) - 1)
    if (entries[place] != rows.starts[stepped_over]).any():
        return found  # not all of them are entries
    first = _first_alike(rows, stepped_over)
    if first is None:
        return found
    like = np.arange(len(entries))
    like[place] = place[first]
    kept = like == np.arange(len(like))
    fields = _fields(rows, stepped_over, place)
    values = {name: where.read(rows.bytes) for name, where in fields.items()}
    is_left_out = ~kept[place]
    end = 0
    for at, walk in enumerate(walks):
        begin, end = end, end + len(walk.entries)
        mine = slice(*np.searchsorted(rows.starts[stepped_over], (walk.start, walk.end)))
        left_out = stepped_over[mine][is_left_out[mine]]
        if not len(left_out):
            continue
        # Files of one part may be alike, too.
        one = content[walk.start : walk.end]
        found[at] = patterns.read(one)
        if found[at] is not None:
            continue
        own = kept[begin:end]
        count = int(own.sum())
        cuts = {
            name: slice(*np.searchsorted(where.entries, (begin, end)))
            for name, where in fields.items()
        }
        repeats = Repeats(
            (np.cumsum(own) - 1)[like[begin:end] - begin],
            {
                name: (fields[name].entries[cut] - begin, values[name][cut])
                for name, cut in cuts.items()
            },
        )
        remaining = _remaining(walk, rows, left_out)
        found[at] = Shortened(
            b"".join(content[start:stop] for start, stop in remaining), count, repeats
        )
        if patterns.wants(len(one)):
            with contextlib.suppress(Irregular):
                of_rows = {name: fields[name].part(cut, begin) for name, cut in cuts.items()}
                chosen = stepped_over[mine]
                pattern = _pattern(walk, rows, chosen, of_rows, repeats.entry, remaining, count)
                patterns.add(pattern)
                found[at] = pattern.read(one) or found[at]
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
    mixed = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # SplitMix64
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return (mixed ^ (mixed >> np.uint64(31))) | np.uint64(1)


def _fields(rows: _Rows, chosen: IntColumn, place: IntColumn) -> dict[str, Numbers]:
    """Where the numbers and times in the chosen rows are, which are these entries."""
    starts, layout = rows.starts[chosen], rows.layout[chosen]
    nowhere = Span(-1, 0, False)
    found = {}
    for name in dict.fromkeys(name for layout in rows.layouts for name in layout.numbers):
        where = np.array([layout.numbers.get(name, nowhere) for layout in rows.layouts])
        first, size, signed = where.T
        if (first < 0).any():
            has = np.flatnonzero(first[layout] >= 0)
            at, mine, its_place = starts[has], layout[has], place[has]
        else:
            at, mine, its_place = starts, layout, place
        found[name] = Numbers(
            its_place, at + first[mine], size[mine], signed[mine].astype(np.bool_)
        )
    return found


def _remaining(walk: _Whole, rows: _Rows, left_out: IntColumn) -> list[tuple[int, int]]:
    """Where the bytes of a dump are that remain."""
    starts, ends = rows.starts[left_out], rows.ends[left_out]
    # Rows that follow one another are cut out at once.
    alone = starts[1:] != ends[:-1]
    stops, begins = starts[np.append(True, alone)], ends[np.append(alone, True)]
    return list(zip([walk.start, *begins.tolist()], [*stops.tolist(), walk.end], strict=True))


def _pattern(
    walk: _Whole,
    rows: _Rows,
    mine: IntColumn,
    fields: Mapping[str, Numbers],
    entry: IntColumn,
    remaining: Sequence[tuple[int, int]],
    kept: int,
) -> Pattern:
    """What later dumps can be compared with.

    Args:
        walk: through a dump. mine: the rows that it stepped over.
        fields: where the numbers of these rows are, by their entries.
        entry: for each entry, which of those that remain is like it. kept: how many remain.
        remaining: where the bytes are that remain.

    Raises:
        Irregular: the dump is not regular enough.
    """
    content, start = walk.content, walk.entries[0]
    if any(content[at] != MARK or content[at + 1] != EMPTY_DICT for at in walk.closings[:-1]):
        raise Irregular
    free, others = _of_others(walk, frozenset(rows.starts[mine].tolist()))
    steps = [at for at in walk.steps if at >= start]
    references = [_arguments(content, steps, GET, LONG_GET)]
    for at in distinct(rows.layout[mine]).tolist():
        layout = rows.layouts[at]
        starts = rows.starts[mine[rows.layout[mine] == at]][:, None]
        free.append((starts + layout.free).ravel())
        for places, size in ((layout.gets, 1), (layout.long_gets, 4)):
            references.append(rows.bytes.unsigned((starts + places).ravel(), size))
    puts = np.append(_arguments(content, steps, PUT, LONG_PUT), rows.first_put[mine])
    first_put = int(puts[puts >= 0].min(initial=len(content)))
    known = distinct(np.concatenate(references))
    texts = known[known < first_put].tolist()
    if any(walk.texts.numbered(number) is None for number in texts):
        raise Irregular
    for name, where in fields.items():
        others[name] = where.joined(others[name]).by_entry() if name in others else where
    return Pattern(
        Mold.of(content[start : walk.end], np.concatenate(free) - start),
        shape=walk.shape,
        first_put=first_put,
        texts=texts,
        entry=entry,
        kept=kept,
        remaining=[
            (max(begin, start) - start, end - start) for begin, end in remaining if end > start
        ],
        behind=walk.closings[-1] - start,
        numbers=AllNumbers({name: where.moved(-start) for name, where in others.items()}),
    )


def _of_others(
    walk: _Whole, stepped_over: frozenset[int]
) -> tuple[list[IntColumn], dict[str, Numbers]]:
    """The bytes that may differ in entries that were not stepped over, and their numbers."""
    free = []
    found: dict[str, list[tuple[int, Span]]] = defaultdict(list)
    for at, place in enumerate(walk.entries):
        if place in stepped_over:
            continue
        entry = Entry(walk.content)
        entry.run(place)
        spans = {}
        for key, value in entry.items():
            name = (walk.texts.at(key) or b"").decode("utf-8", "replace")
            span = span_of(walk.content, name, value, 0)
            if span:
                spans[name] = span
        free.append(bytes_of(list(spans.values())))
        for name in spans.keys() & COUNTING:
            found[name].append((at, spans[name]))
    return free, {name: Numbers.of(spans) for name, spans in found.items()}


def _arguments(content: bytes, steps: Sequence[int], short: int, long: int) -> IntColumn:
    """The numbers that a pair of opcodes, of one byte and of four, has at some places."""
    sizes = {short: 1, long: 4}
    found = [
        int.from_bytes(content[at + 1 : at + 1 + sizes[content[at]]], "little")
        for at in steps
        if content[at] in sizes
    ]
    return np.array(found, dtype=np.int64)
