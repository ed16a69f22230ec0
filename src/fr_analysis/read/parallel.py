"""Reads many files at once: each is read on its own, in a process of its own where that pays."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

Result = TypeVar("Result")
Files = Sequence[tuple[int, Path]]
Read = Callable[[int, Path], Result]

_WORTH_IT_BYTES = 4 << 20
"""With less to read than this, other processes take longer to start than to read it."""
_FILES_AT_ONCE = 8


def cores() -> int:
    """How many processes can run at once here."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _processes(files: Files) -> Executor | None:
    """Processes to read with, or None where one is enough, or where forking is not safe."""
    workers = min(cores(), len(files))
    if workers < 2 or sum(_size(path) for _, path in files) < _WORTH_IT_BYTES:
        return None
    # Forked processes start at once, with all that is imported; among threads that is not safe.
    if "fork" not in multiprocessing.get_all_start_methods() or threading.active_count() > 1:
        return None
    return ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), gc.freeze)


def _read_some(read: Read[Result], files: Files) -> list[Result]:
    return [read(rank, path) for rank, path in files]


def read_all(
    read: Read[Result],
    files: Files,
    track: Callable[[Files], Iterable[tuple[int, Path]]],
    executor: Executor | None = None,
) -> Iterator[Result]:
    """Read files, at once where that is faster.

    Args:
        read: reads one file, with no other effect; it may run in another process.
        files: rank and path of each.
        track: passes the files on one by one, such as a progress bar does.
        executor: what runs ``read``; None chooses.

    Returns:
        What ``read`` returns, in the order of the files. A file whose process died is read again
        in this one.
    """
    with ExitStack() as stack:
        if executor is None and (executor := _processes(files)) is not None:
            stack.enter_context(executor)
        if executor is None:
            yield from (read(rank, path) for rank, path in track(files))
            return
        starts = range(0, len(files), _FILES_AT_ONCE)
        parts = [files[start : start + _FILES_AT_ONCE] for start in starts]
        waiting = [executor.submit(_read_some, read, part) for part in parts]
        results: list[Result] = []
        for at, _ in enumerate(track(files)):
            if at % _FILES_AT_ONCE == 0:
                part = at // _FILES_AT_ONCE
                try:
                    results = waiting[part].result()
                except BrokenProcessPool:
                    results = _read_some(read, parts[part])
                waiting[part].cancel()
            yield results[at % _FILES_AT_ONCE]
