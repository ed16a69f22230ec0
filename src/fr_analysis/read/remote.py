"""Dumps and stacks snapshots at URLs, through fsspec: ``s3://bucket/job/dumps/``.

The places are listed once. Each object is then fetched by the process that reads it, many at once,
into a temporary directory, and read from there as a local file is. What starts threads runs in
forked processes where that is possible, so that this one stays free to fork more.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import functools
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fr_analysis.errors import FrAnalysisError, UnreadableDump, printable
from fr_analysis.read.decode import MAX_FILE_BYTES
from fr_analysis.read.files import (
    MAX_DEPTH,
    Found,
    copy_of,
    dumps_among,
    is_wanted,
    no_dump_in,
    stacks_among,
    with_ranks,
    without_copies,
)
from fr_analysis.read.parallel import apart, can_fork, cores, read_parts
from fr_analysis.read.reduced import Contents, Results
from fr_analysis.read.stacks import MAX_BYTES, read_stacks
from fr_analysis.trace import UNKNOWN, RankDump, RankStacks, Source, Unread

PATIENCE_S = 20.0
"""How long a server may stay silent."""

_AT_ONCE = 64
"""Requests of one process under way at one time: what counts for small objects is the way there."""
_PART = 16
"""Objects per part for an executor, of which it is not known how many workers it has."""
_PART_BYTES = 256 << 20
"""Fetched at one time at most, unless it is one object."""

_PASSWORD = re.compile(r"(?<=://)(?P<user>[^/@:\s]*):(?!\d*/)(?:[^/\s]*|[^@\s]*)@")
_QUERY = re.compile(r"(?P<place>https?://[^?\s\"']*)\?[^\s\"']*")

# Of a server that stayed silent: when it may be asked again. Else each part would wait anew.
_silent_until: dict[str, float] = {}


@dataclass(frozen=True, slots=True)
class Url:
    """An object at a URL.

    Attributes:
        address: the URL that the user gave, which leads to the file system.
        path: the object's path within this file system.
        shown: its URL for messages, without passwords and signatures.
        size: in bytes, where it is known.
        written_ns: when it was written, where the file system tells. Object stores tell
            when it was uploaded, which is something else.
    """

    address: str = field(repr=False)
    path: str = field(repr=False)
    shown: str
    size: int | None = field(default=None, compare=False)
    written_ns: int = field(default=UNKNOWN, compare=False)

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.shown.rstrip("/").rpartition("/")[2]

    def with_name(self, name: str, /) -> Url:
        """Another object beside it."""
        path, query = self.path, ""
        if urlsplit(self.path).scheme in ("http", "https"):
            path, mark, rest = self.path.partition("?")
            query = mark + rest
        beside = [text.rstrip("/").rpartition("/")[0] for text in (path, self.shown)]
        return Url(self.address, f"{beside[0]}/{name}{query}", f"{beside[1]}/{name}")

    def __fspath__(self) -> str:
        return self.shown

    def __str__(self) -> str:
        return self.shown


def redacted(text: str) -> str:
    """A text that may hold URLs, without their passwords and queries, which may be signatures."""
    return _QUERY.sub(r"\g<place>", _PASSWORD.sub(r"\g<user>:***@", text))


def _reason(error: BaseException) -> str:
    """What went wrong, in one line."""
    if isinstance(error, TimeoutError):
        return f"the server did not answer for {PATIENCE_S:g} seconds"
    if isinstance(error, FileNotFoundError):
        return "there is no such object"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{tempfile.gettempdir()}: {error.strerror}"
    lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return printable(redacted(lines[0].strip())[:300])


def _options(scheme: str) -> dict[str, Any]:
    """Options for S3, whose own defaults wait for minutes and open ten connections."""
    if scheme not in ("s3", "s3a"):
        return {}
    import fsspec.config

    config = {
        "connect_timeout": 5,
        "read_timeout": PATIENCE_S,
        "retries": {"max_attempts": 2},
        "max_pool_connections": _AT_ONCE,
    }
    own = fsspec.config.conf.get(scheme, {}).get("config_kwargs", {})
    # In one piece: the pieces of a large object would come without a sign of life.
    return {"config_kwargs": config | own, "max_concurrency": 1}


def _load(address: str) -> None:
    """Import what reads a URL, in this process for all that are forked from it.

    Raises:
        FrAnalysisError: it is not installed, or there is no such thing.
    """
    shown = printable(redacted(address))
    scheme = address.partition("://")[0].lower()
    extra = "s3" if scheme in ("s3", "s3a") else "remote"
    if "::" in address:
        raise FrAnalysisError(f"{shown}: a chain of URLs is not read; name one place")
    try:
        import fsspec
    except ImportError:
        raise FrAnalysisError(
            f"{shown}: URLs are read with fsspec; pip install 'fr-analysis[{extra}]'"
        ) from None
    try:
        fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        hint = f"pip install 'fr-analysis[{extra}]'" if extra == "s3" else _reason(error)
        raise FrAnalysisError(f"{shown}: a package for {scheme}:// is missing; {hint}") from None
    except ValueError:
        raise FrAnalysisError(f"{shown}: {scheme}:// is no kind of URL that fsspec knows") from None


def _open(address: str) -> tuple[Any, str]:
    """The file system that a URL leads to, and the path within."""
    import fsspec.core

    opened: tuple[Any, str] = fsspec.core.url_to_fs(
        address, **_options(address.partition("://")[0].lower())
    )
    return opened


def _run(coroutine: Any) -> Any:
    """Run a coroutine in fsspec's thread, where its file systems live."""
    from fsspec.asyn import get_loop

    return asyncio.run_coroutine_threadsafe(coroutine, get_loop()).result()


def _start(system: Any, operation: str, *arguments: Any, **options: Any) -> Any:
    """An operation of a file system as a coroutine, also of one that knows none."""
    if system.async_impl:
        return getattr(system, f"_{operation}")(*arguments, **options)
    return asyncio.to_thread(getattr(system, operation), *arguments, **options)


def _gate(system: Any) -> asyncio.Semaphore:
    """How many operations may run at once: one where the file system may have one connection."""
    return asyncio.Semaphore(_AT_ONCE if system.async_impl else 1)


# -- finding -----------------------------------------------------------------------------


class _Search:
    """Finds what a URL means, as ``files.find_files`` does for a local path."""

    def __init__(self, address: str, pattern: str | None) -> None:
        self.address = address
        self.pattern = pattern
        self.shown = printable(redacted(address))
        self.misfits: list[Unread] = []
        self.system, self.path = _open(address)
        self.gate = _gate(self.system)
        # What a process found before need not be so now.
        self.system.invalidate_cache()
        base = address.partition("?")[0] if self._is_http() else address
        stripped = self.path.partition("?")[0] if self._is_http() else self.path
        base = base.rstrip("/")
        self._front = base[: -len(stripped)] if stripped and base.endswith(stripped) else None

    def _is_http(self) -> bool:
        return self.address.lower().startswith(("http:", "https:"))

    def url(self, info: dict[str, Any]) -> Url:
        """An object that the file system has told of."""
        path = info["name"].rstrip("/")
        front = self._front
        whole = self.system.unstrip_protocol(path) if front is None else front + path
        written = info.get("mtime")
        return Url(
            self.address,
            path,
            printable(redacted(whole)),
            info.get("size"),
            int(written * 1e9) if isinstance(written, int | float) else UNKNOWN,
        )

    async def ask(self, operation: str, *arguments: Any, **options: Any) -> Any:
        async with self.gate:
            started = _start(self.system, operation, *arguments, **options)
            return await asyncio.wait_for(started, PATIENCE_S)

    async def listed(self, path: str) -> tuple[list[Url], list[Url]]:
        """Files and folders of one folder, without the hidden ones."""
        files: list[Url] = []
        folders: list[Url] = []
        for info in await self.ask("ls", path, detail=True):
            # Stores note an empty object, named like the folder, for a folder made by hand.
            if info["name"].rstrip("/") == path.rstrip("/"):
                continue
            url = self.url(info)
            if not url.name.startswith("."):
                (folders if info["type"] == "directory" else files).append(url)
        return files, sorted(folders, key=str)

    async def below(self, path: str) -> tuple[list[Url], tuple[Url, ...]]:
        """The dumps below a folder, and the stacks snapshots in it.

        Folders are looked into only where there are no dumps beside them, all of one depth at once.
        """
        dumps: list[Url] = []
        stacks: tuple[Url, ...] = ()
        level = [Url(self.address, path, self.shown)]
        for depth in range(MAX_DEPTH + 1):
            answers = await asyncio.gather(
                *(self.listed(folder.path) for folder in level), return_exceptions=True
            )
            deeper: list[Url] = []
            for folder, answer in zip(level, answers, strict=True):
                if isinstance(answer, BaseException):
                    if not depth:
                        raise answer
                    self.misfits.append(Unread(folder, f"cannot be listed ({_reason(answer)})"))
                    continue
                files, folders = answer
                if not depth:
                    stacks = stacks_among(files)
                found, misfits = dumps_among(files, folders, self.pattern)
                dumps += found
                if found:
                    self.misfits += misfits
                else:
                    deeper += folders
            level = deeper
        return dumps, stacks

    async def near(self, folder: str) -> tuple[Url, ...]:
        """Stacks snapshots in a folder."""
        with contextlib.suppress(Exception):  # they are not needed
            return stacks_among((await self.listed(folder))[0])
        return ()

    async def named(self) -> list[Url]:
        """What a glob means, or a prefix of names."""
        if "*" in self.path or (re.search(r"[?\[]", self.path) and not self._is_http()):
            infos = await self.ask("glob", self.path, detail=True)
            files = [self.url(info) for info in infos.values() if info["type"] != "directory"]
        else:
            files = []
        if not files:
            folder, slash, _ = self.path.rpartition("/")
            if slash:
                try:
                    files, _ = await self.listed(folder)
                except FileNotFoundError:
                    files = []
            files = [file for file in files if file.path.startswith(self.path)]
        return without_copies(file for file in files if is_wanted(file))

    async def found(self) -> Found[Url]:
        """All of it.

        Raises:
            FrAnalysisError: there is no such object, or no dump under it.
        """
        is_folder = self.address.endswith("/")
        info = None
        if not is_folder:
            with contextlib.suppress(FileNotFoundError):
                info = await self.ask("info", self.path)
            is_folder = info is not None and info["type"] == "directory"
        folder = self.path.rpartition("/")[0]
        if is_folder:
            files, stacks = await self.below(self.path)
            if not files:
                raise no_dump_in(self.shown, self.pattern)
            if not stacks and self.path.rpartition("/")[2] == "per_rank":
                stacks = await self.near(folder)
        else:
            files = [self.url(info)] if info is not None else await self.named()
            if not files:
                raise FrAnalysisError(
                    f"{self.shown}: no such object, and no dump's name begins with it"
                )
            stacks = await self.near(folder) if folder else ()
        dumps, nameless = with_ranks(files)
        return Found(dumps, stacks, (*self.misfits, *nameless))


def _find(request: tuple[str, str | None]) -> Found[Url] | str:
    """What a URL means, or the error's text: it may run in another process."""
    shown = printable(redacted(request[0]))
    try:
        found: Found[Url] = _run(_Search(*request).found())
    except FrAnalysisError as error:
        return str(error)
    except FileNotFoundError:
        return f"{shown}: there is no such place, or no bucket of this name"
    except Exception as error:
        return f"{shown}: cannot be listed ({_reason(error)})"
    return found


def find_urls(address: str, pattern: str | None = None) -> Found[Url]:
    """Find the dumps and the stacks snapshots that a user means by a URL.

    Args:
        address: the URL of a folder, of an object, a glob, or a prefix of names.
        pattern: in a folder, take only names that match this glob.

    Returns:
        As ``files.find_files`` does.

    Raises:
        FrAnalysisError: there is no such object, no dump under it, or no way to get there.
    """
    _load(address)
    _silent_until.clear()
    found = apart(_find, (address, pattern))
    if isinstance(found, str):
        raise FrAnalysisError(found)
    return found


def url_of(address: str) -> Url:
    """One object that the user names.

    Raises:
        FrAnalysisError: what reads such a URL is not installed.
    """
    _load(address)
    return Url(address, "", printable(redacted(address)))


# -- fetching ----------------------------------------------------------------------------


async def _fetch_one(system: Any, url: Url, target: Path, limit: int) -> str | None:
    """Fetch an object into a file; why it could not be, or None."""
    from fsspec.callbacks import Callback

    too_large = f"is larger than {limit >> 30} GiB; is it a dump?"
    if limit < 1 << 30:
        too_large = f"is larger than {limit >> 20} MiB"

    def check(size: int | None, value: int, **_: object) -> None:
        if max(size or 0, value) > limit:
            raise UnreadableDump(too_large)

    if (url.size or 0) > limit:
        return too_large
    callback = Callback(hooks={"check": check})
    task = asyncio.ensure_future(
        _start(system, "get_file", url.path, str(target), callback=callback)
    )
    fetched = -1
    while not task.done() and callback.value > fetched:
        fetched = callback.value
        await asyncio.wait({task}, timeout=PATIENCE_S)
    if not task.done():
        task.cancel()
        raise TimeoutError
    try:
        task.result()
    except UnreadableDump as reason:
        return str(reason)
    return None


async def _fetch_all(
    system: Any, wanted: Sequence[tuple[Url, Path]], limit: int
) -> list[str | None]:
    """Fetch objects at once; for each why it could not be, or None."""
    gate = _gate(system)
    silent = 0

    async def fetch(url: Url, target: Path) -> str | None:
        nonlocal silent
        async with gate:
            try:
                if _silent_until.get(url.address, 0) > time.monotonic():
                    raise TimeoutError
                return await _fetch_one(system, url, target, limit)
            except Exception as error:
                silent += isinstance(error, TimeoutError)
                return f"cannot be fetched ({_reason(error)})"

    reasons = await asyncio.gather(*(fetch(url, target) for url, target in wanted))
    if silent and silent == len(wanted):
        _silent_until[wanted[0][0].address] = time.monotonic() + PATIENCE_S
    return reasons


def _fetch(urls: Sequence[Url], folder: Path, limit: int) -> list[Path | str]:
    """Fetch objects into a folder: for each the file, or why there is none."""
    targets = []
    for number, url in enumerate(urls):
        # The end of the name tells the rank, and no name of an object can lead elsewhere.
        name = re.sub(r"[^\w.-]", "_", url.name)[-50:]
        targets.append(folder / f"{number}_{name}")
    try:
        system, path = _open(urls[0].address)
        located = [dataclasses.replace(url, path=url.path or path) for url in urls]
        wanted = list(zip(located, targets, strict=True))
        reasons: list[str | None] = _run(_fetch_all(system, wanted, limit))
    except Exception as error:  # such as a package that a worker lacks
        reasons = [f"cannot be fetched ({_reason(error)})"] * len(urls)
    return [reason or target for reason, target in zip(reasons, targets, strict=True)]


Read = Callable[[Sequence[tuple[int, Path]]], list[Results]]


def _of(url: Url, file: Path, results: Results) -> Results:
    """What was read from a temporary file, as read from where this came from."""
    if isinstance(results, list):
        return [
            dataclasses.replace(result, source=url, written_ns=url.written_ns)
            if isinstance(result, RankDump)
            else dataclasses.replace(result, path=url)
            for result in results
        ]

    def below(source: Source) -> Url:
        inner = os.path.relpath(source, file)
        return dataclasses.replace(url, path=f"{url.path}/{inner}", shown=f"{url.shown}/{inner}")

    def named(unread: list[Unread]) -> list[Unread]:
        return [dataclasses.replace(found, path=below(found.path)) for found in unread]

    return Contents(
        dumps=[dataclasses.replace(dump, source=below(dump.source)) for dump in results.dumps],
        unread=named(results.unread),
        misfits=named(results.misfits),
        stacks={
            rank: dataclasses.replace(stacks, source=below(stacks.source))
            for rank, stacks in results.stacks.items()
        },
        bad_stacks=named(results.bad_stacks),
    )


def read_part(read: Read, folder: str | None, files: Sequence[tuple[int, Url]]) -> list[Results]:
    """Fetch and read some objects: a function of them alone.

    Args:
        read: reads one local file.
        folder: where to make a temporary directory, which is removed; None for a worker's own
            directory, or the usual place.
        files: rank and URL of each, all of one file system.

    Returns:
        For each the dump, or why there is none; where it is damaged, its copy in JSON too, if
        there is one beside it.
    """
    try:
        with tempfile.TemporaryDirectory(
            prefix="fr-analysis-", dir=folder or _scratch()
        ) as temporary:
            return _read_in(Path(temporary), read, files)
    except OSError as error:
        reason = f"cannot be fetched ({_reason(error)})"
        return [[Unread(url, reason, rank)] for rank, url in files]


def _fetch_and_read(
    folder: Path, read: Read, files: Sequence[tuple[int, Url]]
) -> list[Results | str]:
    """What each of some objects holds, or why it could not be fetched."""
    results: list[Results | str] = []
    there: list[tuple[int, Path]] = []
    for (rank, _), target in zip(
        files, _fetch([url for _, url in files], folder, MAX_FILE_BYTES), strict=True
    ):
        if isinstance(target, Path):
            there.append((rank, target))
        results.append("" if isinstance(target, Path) else target)
    places = [at for at, reason in enumerate(results) if not reason]
    for at, (_, target), found in zip(places, there, read(there), strict=True):
        results[at] = _of(files[at][1], target, found)
        target.unlink()
    return results


def _read_in(folder: Path, read: Read, files: Sequence[tuple[int, Url]]) -> list[Results]:
    results: list[Results] = []
    damaged: list[int] = []
    for at, found in enumerate(_fetch_and_read(folder, read, files)):
        rank, url = files[at]
        if isinstance(found, str):
            results.append([Unread(url, found, rank)])
            continue
        results.append(found)
        if isinstance(found, list) and isinstance(found[0], Unread):
            damaged.append(at)
    if damaged:
        copies = [(files[at][0], copy_of(files[at][1])) for at in damaged]
        for at, copy in zip(damaged, _fetch_and_read(folder, read, copies), strict=True):
            before = results[at]
            if isinstance(before, list) and isinstance(copy, list):
                results[at] = before + copy
    return results


def _scratch() -> str | None:
    """In a worker of Dask its own directory: the next worker clears it where this one is killed."""
    worker = sys.modules.get("distributed.worker")
    if worker is not None:
        with contextlib.suppress(ValueError):  # this process is none
            return str(worker.get_worker().local_directory)
    return None


def _parts(files: Sequence[tuple[int, Url]], length: int) -> Iterator[Sequence[tuple[int, Url]]]:
    """The files in parts that are neither too many nor too large."""
    start, held = 0, 0
    for at, (_, url) in enumerate(files):
        size = url.size or 0
        if at > start and (at - start == length or held + size > _PART_BYTES):
            yield files[start:at]
            start, held = at, 0
        held += size
    if files:
        yield files[start:]


def read_urls(
    read: Read,
    files: Sequence[tuple[int, Url]],
    track: Callable[[Sequence[tuple[int, Source]]], Iterable[object]],
    executor: Executor | None,
    failed: Callable[[Results], bool],
) -> Iterator[Results]:
    """Fetch and read objects, many at once.

    Args:
        read: reads one local file.
        files: rank and URL of each, all of one file system.
        track, executor, failed: as in ``parallel.read_all``.

    Returns:
        What ``read_part`` returns, in the order of the files.
    """
    if executor is not None:
        part = functools.partial(read_part, read, None)
        yield from read_parts(part, list(_parts(files, _PART)), track(files), executor, 0, failed)
        return
    workers = min(cores(), len(files)) if can_fork() else 0
    # Several parts for each process, so that none waits long for the last.
    length = min(_AT_ONCE, max(_PART, len(files) // (4 * workers))) if workers else _AT_ONCE
    parts = list(_parts(files, length))
    # Ours, not each process's own: these may be killed, as by Ctrl-C.
    with tempfile.TemporaryDirectory(prefix="fr-analysis-") as folder:
        part = functools.partial(read_part, read, folder)
        yield from read_parts(part, parts, track(files), None, min(workers, len(parts)), failed)


def _stacks(url: Url) -> dict[int, RankStacks] | str:
    """A snapshot's stacks, or why there are none."""
    try:
        with tempfile.TemporaryDirectory(prefix="fr-analysis-") as folder:
            (target,) = _fetch([url], Path(folder), MAX_BYTES)
            if isinstance(target, str):
                return target
            found = read_stacks(target)
    except UnreadableDump as reason:
        return str(reason)
    except OSError as error:
        return f"cannot be fetched ({_reason(error)})"
    return {rank: dataclasses.replace(stacks, source=url) for rank, stacks in found.items()}


def read_stacks_at(url: Source) -> dict[int, RankStacks]:
    """Fetch and read one stacks snapshot, as ``stacks.read_stacks`` does.

    Raises:
        UnreadableDump: it cannot be fetched, or holds no stacks.
    """
    assert isinstance(url, Url)
    found = apart(_stacks, url)
    if isinstance(found, str):
        raise UnreadableDump(found)
    return found
