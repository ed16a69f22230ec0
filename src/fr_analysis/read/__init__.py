"""``read``: from files to a ``Trace``. Only this package knows file formats."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from fr_analysis.errors import FrAnalysisError, UnreadableDump
from fr_analysis.read.decode import decode
from fr_analysis.read.dump import build_dump
from fr_analysis.read.files import find_files
from fr_analysis.read.stacks import read_stacks
from fr_analysis.trace import RankDump, RankStacks, Trace, Unread

__all__ = ["read_dump", "read_trace"]


def read_dump(rank: int, path: Path) -> RankDump | Unread:
    """Read one rank's file: a pure function of the file.

    Returns:
        The rank's dump, or why the file is none.
    """
    try:
        return build_dump(decode(path), rank, path)
    except UnreadableDump as reason:
        return Unread(path, str(reason), rank)


def _newest_ns(dump: RankDump) -> int:
    """When the rank last recorded something, on its host's clock; UNKNOWN where it did not."""
    return int(dump.operations.created_ns.max(initial=-1))


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


def read_trace(
    path: str | os.PathLike[str],
    *,
    pattern: str | None = None,
    stacks: Sequence[str | os.PathLike[str]] = (),
    expected_world_size: int | None = None,
    track: Callable[[Sequence[tuple[int, Path]]], Iterable[tuple[int, Path]]] = iter,
) -> Trace:
    """Read the dumps, and the stacks snapshots beside them, that a path means.

    Args:
        path: a directory, one file, a glob, or a prefix of file names.
        pattern: in a directory, take only file names that match this glob.
        stacks: stacks snapshots to use instead of those found beside the dumps.
        expected_world_size: how many ranks the job has, where the dumps do not tell.
        track: passes the files on one by one, such as a progress bar does.

    Returns:
        The trace. Files that could not be used are in ``Trace.unread``.

    Raises:
        FrAnalysisError: there is nothing to read, or nothing of it could be read.
    """
    found = find_files(path, pattern)
    unread = list(found.misfits)
    dumps: list[RankDump] = []
    for rank, file in track(found.dumps):
        result = read_dump(rank, file)
        if isinstance(result, Unread):
            unread.append(result)
        else:
            dumps.append(result)
    if not dumps:
        first = unread[0]
        more = f" (and {len(unread) - 1} more files)" if len(unread) > 1 else ""
        raise FrAnalysisError(f"{first.path}: {first.reason}{more}; no dump could be read")
    dumps, stale = _separate_runs(dumps)
    by_rank, doubles = _one_per_rank(dumps)
    # A rank read well elsewhere is not missing because one more file of it is damaged.
    rank_stacks: dict[int, RankStacks] = {}
    for snapshot in [Path(name) for name in stacks] or found.stacks:
        rank_stacks.update(read_stacks(snapshot))
    return Trace(
        dumps=dict(sorted(by_rank.items())),
        stacks=rank_stacks,
        unread=tuple(unread + stale + doubles),
        expected_world_size=expected_world_size,
    )
