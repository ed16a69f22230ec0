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
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import IO, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
Files = Sequence[tuple[int, Path]]
ReadPart = Callable[[Sequence[Item]], list[Result]]

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


def size_of(path: Path) -> int:
    """A file's size in bytes; 0 where it cannot be told."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _is_alone() -> bool:
    """Whether this is the only thread."""
    return threading.active_count() == 1


def can_fork() -> bool:
    """Whether forking is safe. Forked processes start at once, with all that is imported."""
    return sys.platform.startswith("linux") and _is_alone()


def _workers_for(files: Files) -> int:
    """In how many processes to read; 1 where one is enough, or where forking is not safe."""
    if not can_fork():
        return 1
    if sum(size_of(path) for _, path in files) < _WORTH_IT_BYTES:
        return 1
    return min(cores(), len(files))


def _never(result: object) -> bool:
    return False


class _Sender(pickle.Pickler):
    """Hands results over; a value that is kept goes only once, and is then referred to."""

    def __init__(self, stream: IO[bytes], is_kept: Callable[[object], bool]) -> None:
        super().__init__(stream, protocol=5)
        self._is_kept = is_kept
        self._number_of: dict[int, int] = {}

    def persistent_id(self, value: object) -> tuple[int, list[object] | None] | None:
        if type(value) is not tuple or not self._is_kept(value):
            return None
        number = self._number_of.get(id(value))
        if number is not None:
            return number, None
        self._number_of[id(value)] = len(self._number_of)
        return len(self._number_of) - 1, list(value)

    def send(self, result: object) -> None:
        """Write one result."""
        self.dump(result)
        self.clear_memo()


class _Receiver(pickle.Unpickler):
    """Takes over one result from a ``_Sender``, a process of our own: nothing of it is refused."""

    def __init__(self, stream: IO[bytes], kept: dict[int, tuple[object, ...]]) -> None:
        super().__init__(stream)
        self._kept = kept

    def persistent_load(self, reference: tuple[int, list[object] | None]) -> tuple[object, ...]:
        number, items = reference
        if items is not None:
            self._kept[number] = tuple(items)
        return self._kept[number]


class _Readers(contextlib.AbstractContextManager["_Readers"]):
    """Forked processes that read parts of the files, each part as soon as one is free.

    Each hands its results over in a pipe of its own: where one is killed in the middle, by the
    system for want of memory, its pipe ends, and the others are not held up. They end with us,
    whatever ends us.
    """

    def __init__(
        self,
        read: Callable[[Sequence[Item]], object],
        parts: Sequence[Sequence[Item]],
        count: int,
        is_kept: Callable[[object], bool],
    ) -> None:
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
                _work(read, parts, jobs, theirs, parent, is_kept)
            os.close(theirs)
            self._pids.append(pid)
            self._results.register(os.fdopen(results, "rb"), selectors.EVENT_READ, {})
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
                    part, result = _Receiver(stream, kept=key.data).load()
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
    read: Callable[[Sequence[Item]], object],
    parts: Sequence[Sequence[Item]],
    jobs: int,
    results: int,
    parent: int,
    is_kept: Callable[[object], bool],
) -> None:
    """In a forked process: read parts until there are no more, and end."""
    try:
        # Ctrl-C reaches the whole process group; we end when the process that asked does.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            gc.freeze()
            with os.fdopen(results, "wb") as stream:
                sender = _Sender(stream, is_kept)
                while number := os.read(jobs, 4):
                    part = int.from_bytes(number, "little")
                    sender.send((part, read(parts[part])))
                    stream.flush()
    finally:
        os._exit(0)


def _forked(
    read_part: ReadPart[Item, Result],
    parts: Sequence[Sequence[Item]],
    workers: int,
    is_kept: Callable[[object], bool],
) -> Generator[list[Result], None, None]:
    """The results of all parts, in order."""
    found: dict[int, list[Result]] = {}
    at = 0
    with _Readers(read_part, parts, workers, is_kept) as readers:
        for part, result in readers.results():
            found[part] = result  # type: ignore[assignment]
            while at in found:
                yield found.pop(at)
                at += 1
    for part in range(at, len(parts)):
        # What a process that died has left.
        yield found[part] if part in found else read_part(parts[part])


def _with(
    executor: Executor,
    read_part: ReadPart[Item, Result],
    parts: Sequence[Sequence[Item]],
    failed: Callable[[Result], bool],
) -> Generator[list[Result], None, None]:
    """The results of all parts, in order; what fails elsewhere is read here."""
    waiting: list[Future[list[Result]]] = []
    rescued = 0
    try:
        waiting.extend(executor.submit(read_part, part) for part in parts)
        for part, future in zip(parts, waiting, strict=True):
            try:
                results = future.result()
            except Exception:
                # Whatever befell the executor or its workers. An error of ours comes again here.
                results = read_part(part)
            lost = [at for at, result in enumerate(results) if failed(result)]
            if lost:
                # Only here is it certain that a file is bad: elsewhere it may be out of sight.
                again = read_part([part[at] for at in lost])
                for at, result in zip(lost, again, strict=True):
                    rescued += not failed(result)
                    results[at] = result
            yield results
    finally:
        for future in waiting:
            future.cancel()
    if rescued:
        import logging

        logging.getLogger(__name__).warning(
            "fr-analysis: %d of %d files could not be read by the executor and were read here: "
            "its workers need to see the files by the same path, with the same rights",
            rescued,
            sum(map(len, parts)),
        )


def apart(function: Callable[[Item], Result], argument: Item) -> Result:
    """Call a function where the threads that it starts do not matter: where possible, in a fork.

    Args:
        function: what to call; its result can be pickled. It must not raise.
        argument: what to call it with.

    Returns:
        Its result.
    """
    if not can_fork():
        return function(argument)
    with contextlib.closing(
        _forked(lambda given: [function(given[0])], [[argument]], 1, _never)
    ) as found:
        return next(found)[0]


def read_all(
    read: ReadPart[tuple[int, Path], Result],
    files: Files,
    track: Callable[[Files], Iterable[object]],
    executor: Executor | None = None,
    failed: Callable[[Result], bool] = _never,
    is_kept: Callable[[object], bool] = _never,
) -> Iterator[Result]:
    """Read files, at once where that is faster.

    Args:
        read: reads some files, given rank and path of each, with no other effect; it may run in
            another process.
        files: rank and path of each.
        track: passes the files on one by one, such as a progress bar does.
        executor: what runs ``read``; without one, forked processes where they pay.
        failed: whether a result says that a file could not be read. What the executor could
            not read is read in this process again, whose word counts.
        is_kept: whether a tuple is one that ``read`` goes on to keep, and may return again.

    Returns:
        What ``read`` returns, in the order of the files. What a process that died was to read is
        read in this one.
    """
    workers = _workers_for(files)
    starts = range(0, len(files), _FILES_AT_ONCE)
    parts = [files[start : start + _FILES_AT_ONCE] for start in starts]
    forks = workers if workers > 1 else 0
    yield from read_parts(read, parts, track(files), executor, forks, failed, is_kept)


def read_parts(
    read_part: ReadPart[Item, Result],
    parts: Sequence[Sequence[Item]],
    tracked: Iterable[object],
    executor: Executor | None,
    workers: int,
    failed: Callable[[Result], bool],
    is_kept: Callable[[object], bool] = _never,
) -> Iterator[Result]:
    """Read parts of the files, each in one go, with an executor or in forked processes.

    Args:
        read_part: reads the files of one part.
        parts: the files.
        tracked: gives one element for each file, such as a progress bar does.
        executor: what runs ``read_part``; without one, forked processes do, or this one.
        workers: in how many processes to read without an executor; 0 for in this one.
        failed, is_kept: as in ``read_all``.

    Returns:
        What ``read_part`` returns, in the order of the files.
    """
    if executor is not None:
        found = _with(executor, read_part, parts, failed)
    elif workers:
        found = _forked(read_part, parts, workers, is_kept)
    else:
        found = (read_part(part) for part in parts)
    with contextlib.closing(found):
        shown = iter(tracked)
        for results in found:
            for result in results:
                next(shown)
                yield result
        # A progress bar is closed by its end.
        next(shown, None)
