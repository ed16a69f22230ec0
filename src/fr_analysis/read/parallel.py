"""Reads many files at once: each is read on its own, in a process of its own where that pays."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import pickle
import selectors
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor
from pathlib import Path
from typing import IO, TypeVar

Result = TypeVar("Result")
Files = Sequence[tuple[int, Path]]
Read = Callable[[int, Path], Result]

_WORTH_IT_BYTES = 4 << 20
"""With less to read than this, other processes take longer to start than to read it."""
_FILES_AT_ONCE = 8
_PR_SET_PDEATHSIG = 1
_PIPE_BYTES = 1 << 20
"""Of a pipe for results: with the usual 64 KiB, reader and writer wait for each other."""


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


def _is_alone() -> bool:
    """Whether this is the only thread."""
    return threading.active_count() == 1


def _workers_for(files: Files) -> int:
    """In how many processes to read; 1 where one is enough, or where forking is not safe."""
    # Forked processes start at once, with all that is imported; among threads that is not safe.
    if not sys.platform.startswith("linux") or not _is_alone():
        return 1
    if sum(_size(path) for _, path in files) < _WORTH_IT_BYTES:
        return 1
    return min(cores(), len(files))


def _read_some(read: Read[Result], files: Files) -> list[Result]:
    return [read(rank, path) for rank, path in files]


class _Readers(contextlib.AbstractContextManager["_Readers"]):
    """Forked processes that read parts of the files, each part as soon as one is free.

    Each hands its results over in a pipe of its own: where one is killed in the middle, by the
    system for want of memory, its pipe ends, and the others are not held up. They end with us,
    whatever ends us.
    """

    def __init__(self, read: Callable[[Files], object], parts: Sequence[Files], count: int) -> None:
        import fcntl  # not there on Windows, where this class is not used

        self._pids: list[int] = []
        self._results = selectors.DefaultSelector()
        jobs, self._jobs = os.pipe()
        for _ in range(count):
            results, theirs = os.pipe()
            with contextlib.suppress(OSError):
                fcntl.fcntl(results, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            parent = os.getpid()
            pid = os.fork()
            if pid == 0:
                os.close(self._jobs)
                _work(read, parts, jobs, theirs, parent)
            os.close(theirs)
            self._pids.append(pid)
            self._results.register(os.fdopen(results, "rb"), selectors.EVENT_READ)
        os.close(jobs)
        # A pipe holds more numbers than there are parts of the largest job; its end is the last.
        os.set_blocking(self._jobs, False)
        self._left = list(range(len(parts)))[::-1]
        self._hand_out()

    def _hand_out(self) -> None:
        """Put numbers of parts into the pipe, as many as it takes; close it after the last."""
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            while self._left:
                os.write(self._jobs, self._left[-1].to_bytes(4, "little"))
                self._left.pop()
            if self._jobs >= 0:
                os.close(self._jobs)
                self._jobs = -1

    def results(self) -> Iterator[tuple[int, list[object]]]:
        """Parts' results as they come; those of a process that died are lacking."""
        while self._results.get_map():
            for key, _ in self._results.select():
                stream: IO[bytes] = key.fileobj  # type: ignore[assignment]
                try:
                    part, result = pickle.load(stream)  # noqa: S301 (from our own process)
                except (EOFError, pickle.UnpicklingError):
                    self._results.unregister(stream)
                    stream.close()
                    continue
                if self._jobs >= 0:
                    self._hand_out()
                yield part, result

    def __exit__(self, *exception: object) -> None:
        for key in list(self._results.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._results.close()
        if self._jobs >= 0:
            os.close(self._jobs)
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _work(
    read: Callable[[Files], object], parts: Sequence[Files], jobs: int, results: int, parent: int
) -> None:
    """In a forked process: read parts until there are no more, and end."""
    try:
        # Ctrl-C reaches the whole process group; we end when the process that asked does.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            gc.freeze()
            with os.fdopen(results, "wb") as stream:
                while number := os.read(jobs, 4):
                    part = int.from_bytes(number, "little")
                    pickle.dump((part, read(parts[part])), stream, protocol=5)
                    stream.flush()
    finally:
        os._exit(0)


def _forked(
    read: Read[Result], parts: Sequence[Files], workers: int
) -> Generator[list[Result], None, None]:
    """The results of all parts, in order."""

    def read_part(files: Files) -> list[Result]:
        return _read_some(read, files)

    found: dict[int, list[Result]] = {}
    at = 0
    with _Readers(read_part, parts, workers) as readers:
        for part, result in readers.results():
            found[part] = result  # type: ignore[assignment]
            while at in found:
                yield found.pop(at)
                at += 1
    for part in range(at, len(parts)):
        # What a process that died has left.
        yield found[part] if part in found else read_part(parts[part])


def _with(
    executor: Executor, read: Read[Result], parts: Sequence[Files]
) -> Generator[list[Result], None, None]:
    waiting = [executor.submit(_read_some, read, part) for part in parts]
    for part, result in zip(parts, waiting, strict=True):
        try:
            yield result.result()
        except BrokenExecutor:
            yield _read_some(read, part)


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
        executor: what runs ``read``; without one, forked processes where they pay.

    Returns:
        What ``read`` returns, in the order of the files. What a process that died was to read is
        read in this one.
    """
    workers = _workers_for(files)
    if executor is None and workers < 2:
        yield from (read(rank, path) for rank, path in track(files))
        return
    starts = range(0, len(files), _FILES_AT_ONCE)
    parts = [files[start : start + _FILES_AT_ONCE] for start in starts]
    found = _with(executor, read, parts) if executor else _forked(read, parts, workers)
    with contextlib.closing(found):
        shown = iter(track(files))
        for part in found:
            for result in part:
                next(shown)
                yield result
        # A progress bar is closed by its end.
        next(shown, None)
