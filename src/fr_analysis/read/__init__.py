"""``read``: from files to a ``Trace``. Only this package knows file formats."""

from __future__ import annotations

import dataclasses
import functools
import gc
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fr_analysis.errors import FrAnalysisError, NotADump, UnreadableDump, printable
from fr_analysis.read.decode import decode
from fr_analysis.read.dump import MAX_RANK, build_dump, contradiction
from fr_analysis.read.files import Found, copy_of, find_files, is_url, prefix_of_name, rank_of_name
from fr_analysis.read.parallel import read_all
from fr_analysis.read.stacks import read_stacks
from fr_analysis.trace import RankDump, RankStacks, Source, Trace, Unread

__all__ = ["read_dump", "read_trace"]


def read_dump(rank: int, path: Path, *, group_world_size: int | None = None) -> RankDump | Unread:
    """Read one rank's file: a pure function of the file.

    Args:
        rank: the rank that the file's name tells; 0 where it tells none.
        path: the file.
        group_world_size: ranks in one torchft replica group; None for any other job.

    Returns:
        The rank's dump, or why the file is none.
    """
    try:
        with _ONE_AT_A_TIME, _collector_off():
            return _read_content(rank, path, group_world_size)
    except OSError as error:
        return Unread(path, f"cannot be read ({error.strerror})", rank)
    except NotADump as reason:
        return _Stray(path, str(reason), rank)
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


def _read_content(rank: int, path: Path, group_world_size: int | None) -> RankDump | Unread:
    content = decode(path)
    told = content.get("rank") if isinstance(content, dict) else None
    if rank_of_name(path.name) is None and type(told) is int and 0 <= told <= MAX_RANK:
        rank = told
    dump = build_dump(content, rank, path, group_world_size=group_world_size)
    # torchft's other groups go on counting per replica group.
    against = None if group_world_size else contradiction(content, dump)
    if against:
        return Unread(path, against, rank)
    return dataclasses.replace(dump, written_ns=path.stat().st_mtime_ns)


_LEFT_OVER_NS = 600 * 1_000_000_000


class _Stray(Unread):
    """A file of another kind: reported only if its name is like those of the dumps."""

    __slots__ = ()


def _read_file(rank: int, path: Path, group_world_size: int | None) -> list[RankDump | Unread]:
    """A dump; where it is damaged, its copy in JSON too, if there is one."""
    result = read_dump(rank, path, group_world_size=group_world_size)
    if isinstance(result, RankDump) or not copy_of(path).is_file():
        return [result]
    return [result, read_dump(rank, copy_of(path), group_world_size=group_world_size)]


def _failed(results: Sequence[RankDump | Unread]) -> bool:
    return isinstance(results[0], Unread)


class _Shared:
    """Side tables that many ranks have alike, kept once: in a large job they outweigh the rest."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}

    def once(self, dump: RankDump) -> RankDump:
        """The dump, with the tables of an earlier one where these are equal."""

        def same(value: Any) -> Any:
            return self._known.setdefault(value, value)

        return dataclasses.replace(
            dump,
            groups=same(dump.groups),
            declared_members=tuple(map(same, dump.declared_members)),
            signatures=same(dump.signatures),
            stacks=same(dump.stacks),
            world=same(dump.world),
        )


def _without_strays(unread: list[Unread], dumps: list[RankDump]) -> list[Unread]:
    """Leave out files of another kind that only happen to end in a number, such as logs."""
    prefixes = {prefix_of_name(dump.source.name) for dump in dumps}
    return [
        Unread(found.path, found.reason, found.rank)
        for found in unread
        if not isinstance(found, _Stray) or prefix_of_name(found.path.name) in prefixes
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
                f"is a second dump of rank {dump.rank}; {newer.source} recorded later and is used",
                dump.rank,
            )
        )
    return chosen, doubles


def _read_snapshots(sources: Sequence[Source]) -> tuple[dict[int, RankStacks], list[Unread]]:
    """Stacks by rank, of the last snapshot that has some, and the files that are none."""
    stacks: dict[int, RankStacks] = {}
    unread: list[Unread] = []
    for source in sources:
        try:
            found = _read_snapshot(source)
        except UnreadableDump as reason:
            unread.append(Unread(source, str(reason)))
            continue
        for rank, answer in found.items():
            if answer.threads or rank not in stacks:
                stacks[rank] = answer
    return stacks, unread


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
    if transform_ft and (group_world_size is None or group_world_size < 1):
        raise FrAnalysisError(
            "--transform-ft needs --group-world-size: the ranks in one replica group of torchft"
        )
    ft_size = group_world_size if transform_ft else None
    text = os.fspath(path)
    if executor is not None and not is_url(text):
        text = os.path.abspath(text)  # its workers may be in another directory
    found: Found[Any]
    if is_url(text):
        from fr_analysis.read.remote import find_urls, read_urls

        found = find_urls(text, pattern)
        dump_of = functools.partial(read_dump, group_world_size=ft_size)
        all_results = read_urls(dump_of, found.dumps, track, executor, _failed)
    else:
        found = find_files(text, pattern)
        read = functools.partial(_read_file, group_world_size=ft_size)
        all_results = read_all(read, found.dumps, track, executor, _failed)
    unread = list(found.misfits)
    dumps: list[RankDump] = []
    shared = _Shared()
    for results in all_results:
        for result in results:
            if isinstance(result, Unread):
                unread.append(result)
            else:
                dumps.append(shared.once(result))
    if not dumps:
        first = unread[0]
        more = f" (and {len(unread) - 1} more files)" if len(unread) > 1 else ""
        raise FrAnalysisError(
            f"{printable(first.path)}: {first.reason}{more}; no dump could be read"
        )
    unread = _without_strays(unread, dumps)
    stale: list[Unread] = []
    if ft_size is None:
        dumps, stale = _separate_runs(dumps)
        dumps, leftovers = _leftovers(dumps)
        stale += leftovers
    by_rank, doubles = _one_per_rank(dumps)
    rank_stacks, bad_stacks = _read_snapshots(
        [_snapshot_source(os.fspath(name)) for name in stacks] or found.stacks
    )
    return Trace(
        dumps=dict(sorted(by_rank.items())),
        stacks=rank_stacks,
        unread=tuple(unread + stale + doubles + bad_stacks),
        expected_world_size=expected_world_size,
    )
