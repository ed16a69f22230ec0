"""``read``: from files to a ``Trace``. Only this package knows file formats."""

from __future__ import annotations

import dataclasses
import gc
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fr_analysis.errors import FrAnalysisError, NotADump, UnreadableDump, printable
from fr_analysis.read.decode import decode_distinct, shorten
from fr_analysis.read.dump import MAX_RANK, build_dump, contradiction
from fr_analysis.read.files import (
    Found,
    Stray,
    copy_of,
    find_files,
    is_reduced,
    is_url,
    prefix_of_name,
    rank_of_name,
)
from fr_analysis.read.parallel import read_all
from fr_analysis.read.reduced import Contents, Results, read_reduced
from fr_analysis.read.shortened import Shortened
from fr_analysis.read.stacks import read_stacks
from fr_analysis.trace import UNKNOWN, RankDump, RankStacks, Source, Trace, Unread, UnreadMany

__all__ = ["ft_size_of", "read_contents", "read_dump", "read_trace", "without_strays"]


def read_dump(rank: int, path: Path, *, group_world_size: int | None = None) -> RankDump | Unread:
    """Read one rank's file: a pure function of the file.

    Args:
        rank: the rank that the file's name tells; 0 where it tells none.
        path: the file.
        group_world_size: ranks in one torchft replica group; None for any other job.

    Returns:
        The rank's dump, or why the file is none.
    """
    (short,) = shorten([path])
    return _read_dump(rank, path, group_world_size, short)


def _read_dump(
    rank: int, path: Path, group_world_size: int | None, short: Shortened | None
) -> RankDump | Unread:
    try:
        with _ONE_AT_A_TIME, _collector_off():
            return _read_content(rank, path, group_world_size, short)
    except OSError as error:
        return Unread(path, f"cannot be read ({error.strerror})", rank)
    except NotADump as reason:
        return Stray(path, str(reason), rank)
    except UnreadableDump as reason:
        return Unread(path, str(reason), rank)
    except (MemoryError, RecursionError) as error:
        return Unread(path, f"asks for more than a dump needs ({type(error).__name__})", rank)


_ONE_AT_A_TIME = threading.Lock()
"""Threads of an executor's worker take turns: the limit on memory is one for all of a process."""


@contextmanager
def _collector_off() -> Iterator[None]:
    """Keep the collector from looking at a dump's many objects again and again: none is a cycle."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _read_content(
    rank: int, path: Path, group_world_size: int | None, short: Shortened | None
) -> RankDump | Unread:
    content, repeats = decode_distinct(path, short)
    told = content.get("rank") if isinstance(content, dict) else None
    if rank_of_name(path.name) is None and type(told) is int and 0 <= told <= MAX_RANK:
        rank = told
    dump = build_dump(content, rank, path, group_world_size=group_world_size, repeats=repeats)
    # torchft's other groups go on counting per replica group.
    against = None if group_world_size else contradiction(content, dump)
    if against:
        return Unread(path, against, rank)
    return dataclasses.replace(dump, written_ns=path.stat().st_mtime_ns)


_LEFT_OVER_NS = 600 * 1_000_000_000


class _Shared:
    """Side tables that many ranks have alike, kept once: in a large job they outweigh the rest."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}
        self._ids: set[int] = set()

    def holds(self, value: object) -> bool:
        """Whether this very object is one of those that are kept."""
        return id(value) in self._ids

    def once(self, dump: RankDump) -> RankDump:
        """The dump, with the tables of an earlier one where these are equal."""

        def same(value: Any) -> Any:
            if id(value) in self._ids:
                return value
            kept = self._known.setdefault(value, value)
            self._ids.add(id(kept))
            return kept

        return dataclasses.replace(
            dump,
            groups=same(dump.groups),
            declared_members=tuple(map(same, dump.declared_members)),
            signatures=same(dump.signatures),
            stacks=same(dump.stacks),
            world=same(dump.world),
        )


def _failed(results: Results) -> bool:
    return isinstance(results, list) and isinstance(results[0], Unread)


class _FileReader:
    """Reads files: reduced ones, or dumps; where one is damaged, its copy in JSON too.

    What it makes of a file depends on that file alone. Which others it reads at the same time, or
    has read before, makes a difference only for the time and the memory that it takes.
    """

    def __init__(self, group_world_size: int | None) -> None:
        self._group_world_size = group_world_size
        self.shared = _Shared()

    def __reduce__(self) -> tuple[type[_FileReader], tuple[int | None]]:
        # To another process it goes without what it remembers.
        return _FileReader, (self._group_world_size,)

    def __call__(self, files: Sequence[tuple[int, Path]]) -> list[Results]:
        short = shorten([path for _, path in files])
        return [self._read(*file, one) for file, one in zip(files, short, strict=True)]

    def _read(self, rank: int, path: Path, short: Shortened | None) -> Results:
        # What could be shortened is a pickle.
        if short is None and is_reduced(path):
            try:
                with _ONE_AT_A_TIME:
                    return read_reduced(path, group_world_size=self._group_world_size)
            except UnreadableDump as reason:
                return [UnreadMany(path, str(reason))]
        result = _read_dump(rank, path, self._group_world_size, short)
        if isinstance(result, RankDump):
            return [self.shared.once(result)]
        if not copy_of(path).is_file():
            return [result]
        copy = read_dump(rank, copy_of(path), group_world_size=self._group_world_size)
        return [result, copy]


def without_strays(unread: Sequence[Unread], dumps: Sequence[RankDump]) -> list[Unread]:
    """Leave out files of another kind that only happen to end in a number, such as logs."""
    prefixes = {prefix_of_name(dump.source.name) for dump in dumps}
    return [
        Unread(found.path, found.reason, found.rank) if isinstance(found, Stray) else found
        for found in unread
        if not isinstance(found, Stray) or prefix_of_name(found.path.name) in prefixes
    ]


def _newest_ns(dump: RankDump) -> int:
    """When the rank last recorded something, on its host's clock; UNKNOWN where it did not."""
    return int(dump.operations.created_ns.max(initial=-1))


def _leftovers(dumps: list[RankDump]) -> tuple[list[RankDump], list[Unread]]:
    """Leave out a dump whose rank stopped long before all others' records begin.

    Ranks of one job record at the same time: this one's is left over from an earlier job
    that wrote to the same place.
    """
    kept, stale = [], []
    begins = sorted(
        (int(dump.operations.created_ns.min()), dump.rank) for dump in dumps if len(dump.operations)
    )
    for dump in dumps:
        newest = _newest_ns(dump)
        others = sum(rank != dump.rank for _, rank in begins[:3])
        begin = next((at for at, rank in begins if rank != dump.rank), 0)
        gap = begin - newest
        if newest > 0 and others > 1 and gap > _LEFT_OVER_NS:
            stale.append(
                Unread(
                    dump.source,
                    f"recorded its last operation {gap // 60_000_000_000} minutes before all other "
                    "dumps begin: it is left over from an earlier job, so it is left out",
                    dump.rank,
                )
            )
        else:
            kept.append(dump)
    return kept, stale


def _separate_runs(dumps: list[RankDump]) -> tuple[list[RankDump], list[Unread]]:
    """Keep the newest run where a folder holds dumps of jobs of different size.

    Dumps of one job agree on the ranks of the job wherever they declare them.
    """
    worlds: dict[tuple[int, ...], int] = {}
    for dump in dumps:
        if dump.world:
            worlds[dump.world] = max(worlds.get(dump.world, -1), _newest_ns(dump))
    if len(worlds) < 2:
        return dumps, []
    newest = max(worlds, key=lambda world: worlds[world])
    kept, stale = [], []
    for dump in dumps:
        outside = dump.world is None and dump.rank not in newest
        if (dump.world and dump.world != newest) or outside:
            size = f"of {len(dump.world)} ranks" if dump.world else "of another size"
            stale.append(
                Unread(
                    dump.source,
                    f"belongs to an earlier job {size}; the newest dumps are of a job of "
                    f"{len(newest)} ranks, so it is left out",
                    None,
                )
            )
        else:
            kept.append(dump)
    return kept, stale


def _ran_at_once(older: RankDump, newer: RankDump) -> bool:
    """Whether two dumps of the same rank are of two jobs, none of which has replaced the other.

    Of one job, the later dump still holds what was recorded when the earlier one was written. A
    file that a copy has made younger than it is may pass for one of a job that still runs.
    """
    times, others = older.operations.created_ns, newer.operations.created_ns
    known = others[others != UNKNOWN]
    if not len(known) or older.numbers_per_recorder != newer.numbers_per_recorder:
        return False  # two recorders of one rank do not record the same
    until = _newest_ns(older)
    if isinstance(older.source, Path):
        # A job that hangs records nothing more while another one begins.
        until = max(until, older.written_ns)
    return int(known.min()) <= until and not np.isin(known, times).any()


def _refuse_jobs_at_once(dumps: list[RankDump]) -> None:
    """Take the newest dump of a rank only where it is of the same job, or of the next one.

    Raises:
        FrAnalysisError: there are dumps of jobs that ran at the same time.
    """
    places: dict[str, None] = {}
    known: dict[int, list[RankDump]] = {}
    for dump in dumps:
        for other in known.setdefault(dump.rank, []):
            older, newer = sorted((dump, other), key=_newest_ns)
            if _ran_at_once(older, newer):
                places |= dict.fromkeys(_places_of(other.source, dump.source))
        known[dump.rank].append(dump)
    if places:
        first, *_, last = places
        between = f", {len(places) - 2} more" if len(places) > 2 else ""
        raise FrAnalysisError(
            f"{printable(first)}{between} and {printable(last)} hold dumps of the same ranks, of "
            f"{'two' if len(places) == 2 else len(places)} jobs: name one of them; if they are one "
            "job's, name each file after its rank in the whole job"
        )


def _places_of(first: Source, second: Source) -> Iterator[str]:
    """Where two files differ: the folder of each, or the prefix of their names."""
    parts, others = str(first).split("/"), str(second).split("/")
    at = next((i for i, (a, b) in enumerate(zip(parts, others, strict=False)) if a != b), 0)
    for names in (parts, others):
        is_file = at == len(names) - 1
        last = prefix_of_name(names[at]) if is_file else names[at]
        yield "/".join((*names[:at], last))


def _one_per_rank(dumps: list[RankDump]) -> tuple[dict[int, RankDump], list[Unread]]:
    """Where two files claim one rank, keep the one that recorded last and report the other."""
    chosen: dict[int, RankDump] = {}
    doubles: list[Unread] = []
    for dump in dumps:
        other = chosen.get(dump.rank)
        if other is None:
            chosen[dump.rank] = dump
            continue
        newer, older = (dump, other) if _newest_ns(dump) > _newest_ns(other) else (other, dump)
        chosen[dump.rank] = newer
        doubles.append(
            Unread(
                older.source,
                f"is a second dump of rank {dump.rank}; {printable(newer.source)} recorded later "
                "and is used",
                dump.rank,
            )
        )
    return chosen, doubles


def _read_snapshots(sources: Sequence[Source], contents: Contents) -> None:
    """Add what snapshots hold, and those that hold nothing."""
    for source in sources:
        try:
            contents.add_stacks(_read_snapshot(source))
        except UnreadableDump as reason:
            contents.bad_stacks.append(Unread(source, str(reason)))


def ft_size_of(transform_ft: bool, group_world_size: int | None) -> int | None:
    """How many ranks a replica group of torchft has; None where ranks are those of the job.

    Raises:
        FrAnalysisError: the job is of torchft, and the size is not given.
    """
    if transform_ft and (group_world_size is None or group_world_size < 1):
        raise FrAnalysisError(
            "--transform-ft needs --group-world-size: the ranks in one replica group of torchft"
        )
    return group_world_size if transform_ft else None


def read_contents(
    found: Found[Any],
    *,
    stacks: Sequence[str | os.PathLike[str]] = (),
    track: Callable[[Sequence[tuple[int, Source]]], Iterable[object]] = iter,
    group_world_size: int | None = None,
    executor: Executor | None = None,
) -> Contents:
    """Read files each on its own, deciding nothing about them together.

    Args:
        found: the files.
        stacks, track, executor: as of ``read_trace``.
        group_world_size: ranks in one torchft replica group; None for any other job.

    Returns:
        All that they hold, what reduced files carry included.
    """
    contents = Contents(misfits=list(found.misfits))
    shared = _Shared()
    read = _FileReader(group_world_size)
    if all(isinstance(file, Path) for _, file in found.dumps):
        all_results = read_all(read, found.dumps, track, executor, _failed, read.shared.holds)
    else:
        from fr_analysis.read.remote import read_urls

        all_results = read_urls(read, found.dumps, track, executor, _failed)
    for results in all_results:
        if isinstance(results, Contents):
            results.dumps = list(map(shared.once, results.dumps))
            contents.add(results)
            continue
        for result in results:
            if isinstance(result, Unread):
                contents.unread.append(result)
            else:
                contents.dumps.append(shared.once(result))
    # As their files lie when they are not reduced.
    contents.dumps.sort(key=lambda dump: dump.rank)
    contents.unread.sort(key=lambda unread: -1 if unread.rank is None else unread.rank)
    if stacks:
        contents.stacks, contents.bad_stacks = {}, []
    named = [_snapshot_source(os.fspath(name)) for name in stacks]
    _read_snapshots(named or found.stacks, contents)
    return contents


def _find(path: str, pattern: str | None) -> Found[Any]:
    if not is_url(path):
        return find_files(path, pattern)
    from fr_analysis.read.remote import find_urls

    return find_urls(path, pattern)


def _read_snapshot(source: Source) -> dict[int, RankStacks]:
    if isinstance(source, Path):
        return read_stacks(source)
    from fr_analysis.read.remote import read_stacks_at

    return read_stacks_at(source)


def _snapshot_source(name: str) -> Source:
    if not is_url(name):
        return Path(name)
    from fr_analysis.read.remote import url_of

    return url_of(name)


def read_trace(
    path: str | os.PathLike[str],
    *,
    pattern: str | None = None,
    stacks: Sequence[str | os.PathLike[str]] = (),
    expected_world_size: int | None = None,
    track: Callable[[Sequence[tuple[int, Source]]], Iterable[object]] = iter,
    transform_ft: bool = False,
    group_world_size: int | None = None,
    executor: Executor | None = None,
) -> Trace:
    """Read the dumps, and the stacks snapshots beside them, that a path means.

    Args:
        path: a directory, one file, a glob, or a prefix of file names; or a URL that fsspec
            knows, of the same kinds.
        pattern: in a directory, take only file names that match this glob.
        stacks: stacks snapshots, files or URLs, to use instead of those found beside the dumps.
        expected_world_size: how many ranks the job has, where the dumps do not tell.
        track: passes the files on one by one, such as a progress bar does.
        transform_ft: the job is of torchft, whose replica groups each count ranks from 0:
            take the members of their default groups as ranks of the job.
        group_world_size: how many ranks a replica group of torchft has.
        executor: runs the reading of files; without one, they are read in as many processes
            as there are cores where that is faster. What it cannot read is read here.

    Returns:
        The trace. Files that could not be used are in ``Trace.unread``.

    Raises:
        FrAnalysisError: there is nothing to read, or nothing of it could be read.
    """
    ft_size = ft_size_of(transform_ft, group_world_size)
    if expected_world_size is not None and not 1 <= expected_world_size <= MAX_RANK + 1:
        raise FrAnalysisError(
            f"a job of {expected_world_size} ranks is expected: it may have 1 to {MAX_RANK + 1}"
        )
    text = os.fspath(path)
    if executor is not None and not is_url(text):
        text = os.path.abspath(text)  # its workers may be in another directory
    contents = read_contents(
        _find(text, pattern),
        stacks=stacks,
        track=track,
        group_world_size=ft_size,
        executor=executor,
    )
    dumps = contents.dumps
    unread = contents.misfits + contents.unread
    if not dumps:
        first = unread[0]
        more = f" (and {len(unread) - 1} more files)" if len(unread) > 1 else ""
        raise FrAnalysisError(
            f"{printable(first.path)}: {first.reason}{more}; no dump could be read"
        )
    unread = without_strays(unread, dumps)
    _refuse_jobs_at_once(dumps)
    stale: list[Unread] = []
    if ft_size is None:
        dumps, stale = _separate_runs(dumps)
        dumps, leftovers = _leftovers(dumps)
        stale += leftovers
    by_rank, doubles = _one_per_rank(dumps)
    return Trace(
        dumps=dict(sorted(by_rank.items())),
        stacks=contents.stacks,
        unread=tuple(unread + stale + doubles + contents.bad_stacks),
        expected_world_size=expected_world_size,
    )
