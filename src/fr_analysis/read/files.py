"""Which files are dumps, and of which rank: decided from paths, before any is opened.

Names in use: ``rank_3``, ``_dump_3``, ``nccl_trace_rank_3``, ``comm_lib_trace_rank_3``,
``nccl_trace_rank_node02_5`` (a host in front), ``rank_3.json``, ``_dump_3.pkl.gz``. The
rank is the last number of the name. What is packed in another way, such as ``rank_3.xz``, counts as
a dump that is there and cannot be read. Only reduced files, which hold many ranks, may have any
name: a file whose name tells no rank is opened to see whether it is one.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from fr_analysis.errors import FrAnalysisError, printable
from fr_analysis.read.dump import MAX_RANK
from fr_analysis.trace import Source, Unread

MAX_DEPTH = 3
"""How deep below a directory dumps are looked for."""

_DUMP_NAME = re.compile(
    r"(?:^|[^0-9])(?P<rank>\d+)(?P<ending>(?:\.(?:json|jsonl|pkl|pickle|bin|gz|zst|zstd|xz|bz2|lz4))*)$"
)
_ARCHIVE_NAME = re.compile(r"\.(?:zip|tar|tgz|tbz2?|txz|tar\.\w+)$")
_MOST_NAMED = 3
_STACKS_NAME = re.compile(r"^(?P<kind>stacks|py-?_?spy).*\.txt$")
_STACKS_OF_ONE = re.compile(r"(?:^|[^0-9])(?P<rank>\d{1,6})\.txt$")
_STACKS_TIME = re.compile(r"_\d{8}_\d{6}\.txt$")


_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")

Place = TypeVar("Place", bound=Source)


@dataclass(frozen=True, slots=True)
class Found(Generic[Place]):
    """The files of one analysis: dumps with their rank, stacks snapshots, and misfits."""

    dumps: tuple[tuple[int, Place], ...]
    stacks: tuple[Place, ...]
    misfits: tuple[Unread, ...]


def is_url(path: str) -> bool:
    """Whether a path is a URL, such as ``s3://bucket/dumps``."""
    return _URL.match(path) is not None


def rank_of_name(name: str) -> int | None:
    """The rank that a dump's file name tells, or None where it tells none."""
    match = _DUMP_NAME.search(name)
    return int(match["rank"][:19]) if match else None


def prefix_of_name(name: str) -> str:
    """What stands in front of the rank in a dump's file name."""
    match = _DUMP_NAME.search(name)
    return name[: match.start("rank")] if match else name


def rank_of_stacks_name(name: str) -> int | None:
    """The rank in the name of one process's stacks: ``pyspy_3.txt``, ``stacks_rank3.txt``."""
    match = None if _STACKS_TIME.search(name) else _STACKS_OF_ONE.search(name)
    return int(match["rank"]) if match else None


class Stray(Unread):
    """A file of another kind: reported only if its name is like those of the dumps."""

    __slots__ = ()


_PARQUET = b"PAR1"
"""The first and the last bytes of Parquet."""
_OF_OURS = b"fr_analysis"
"""In the footer of a reduced file."""


def is_reduced(file: Path) -> bool:
    """Whether a file is a reduced one, which holds many ranks: told by its bytes, not its name.

    One that is damaged at one end is told by the other; Parquet of another kind by its footer.
    """
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            return False
        with file.open("rb") as stream:
            head = stream.read(len(_PARQUET))
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(size - 8, 0))
            tail = stream.read()
            if head != _PARQUET or tail[4:] != _PARQUET:
                return _PARQUET in (head, tail[4:])
            # The length of the footer stands before the last bytes.
            stream.seek(max(size - 8 - int.from_bytes(tail[:4], "little"), 0))
            return _OF_OURS in stream.read()
    except OSError:
        return False


def is_wanted(file: Place) -> bool:
    """Whether a file is a dump by its name, or holds those of many ranks."""
    return rank_of_name(file.name) is not None or _holds_many(file)


def _holds_many(file: Source) -> bool:
    """Whether a file is a reduced one; of an object at a URL only the name tells, not the bytes."""
    return is_reduced(file) if isinstance(file, Path) else file.name.endswith(".parquet")


def _leads_to_directory(child: os.DirEntry[str]) -> bool:
    try:
        return child.is_dir()
    except OSError:  # a link to itself
        return False


@dataclass(slots=True)
class _Search:
    """One search below a directory: dumps found, and what could not be looked at."""

    pattern: str | None
    misfits: list[Unread]

    def dumps_in(self, directory: Path, depth: int = 0) -> list[Path]:
        """The dump files of a directory; those of its folders only where it holds none itself.

        Folders are where per-host collections and the demo's ``per_rank`` put them. Files
        beside them, such as logs, do not count as dumps.
        """
        files: list[Path] = []
        folders: list[Path] = []
        try:
            with os.scandir(directory) as children:
                for child in children:
                    if child.name.startswith("."):
                        continue
                    if child.is_dir(follow_symlinks=False):
                        folders.append(Path(child.path))
                    elif not _leads_to_directory(child):  # a link may lead back
                        files.append(Path(child.path))
        except OSError as error:
            reason = f"cannot be listed ({error.strerror})"
            if not depth:
                raise FrAnalysisError(f"{printable(directory)}: {reason}") from None
            self.misfits.append(Unread(directory, reason))
        files, misfits = dumps_among(files, sorted(folders), self.pattern)
        if files:
            self.misfits.extend(misfits)
            return sorted(files)
        if depth == MAX_DEPTH:
            return []
        return [file for folder in sorted(folders) for file in self.dumps_in(folder, depth + 1)]


def dumps_among(
    files: Iterable[Place], folders: Iterable[Place], pattern: str | None
) -> tuple[list[Place], list[Unread]]:
    """Which files of one directory are dumps; folders that have the name of one are misfits."""
    if pattern is not None:
        files = [file for file in files if fnmatch.fnmatch(file.name, pattern)]
    dumps = without_copies(file for file in files if is_wanted(file))
    prefixes = {prefix_of_name(file.name) for file in dumps}
    names = {file.name for file in dumps}
    misfits = [
        Unread(folder, "is a directory; expected a dump", rank_of_name(folder.name))
        for folder in folders
        if rank_of_name(folder.name) is not None
        and prefix_of_name(folder.name) in prefixes
        and folder.name not in names
    ]
    return dumps, misfits


def copy_of(file: Place) -> Place:
    """Where NVIDIA's ``--debug`` writes the same dump as JSON: beside it."""
    return file.with_name(f"{file.name}.json")


def without_copies(files: Iterable[Place]) -> list[Place]:
    """Leave out the copies in JSON that are beside their dumps."""
    files = list(files)
    copies = {copy_of(file) for file in files}
    return [file for file in files if file not in copies]


def find_files(path: str | os.PathLike[str], pattern: str | None = None) -> Found[Path]:
    """Find the dumps and the stacks snapshots that a user means by a path.

    Args:
        path: a directory, one file, a glob, or a prefix of file names as in
            ``TORCH_FR_DUMP_TEMP_FILE`` (``/tmp/nccl_trace_rank_``).
        pattern: in a directory, take only file names that match this glob.

    Returns:
        Dumps with ranks, stacks snapshots (newest last), and files that cannot be placed.

    Raises:
        FrAnalysisError: there is no such file, or no dump under it.
    """
    text = os.fspath(path)
    if not text:  # most likely a variable that is not set: not the directory we are in
        raise FrAnalysisError("an empty PATH names nothing; name the directory of the dumps")
    shown = printable(text)
    target = Path(text)
    misfits: list[Unread] = []
    stacks_folder = target.parent
    try:
        is_directory, exists = target.is_dir(), target.exists() or target.is_symlink()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise FrAnalysisError(f"{shown}: cannot be looked at ({reason})") from None
    if is_directory:
        stacks_folder = target
        files = _Search(pattern, misfits).dumps_in(target)
        if not files:
            raise no_dump_in(shown, pattern, _archives_in(target))
    elif exists:
        files = [target]
    else:
        matches = sorted(map(Path, glob.glob(text) or glob.glob(glob.escape(text) + "*")))
        files = [match for match in matches if not match.is_dir()]
        files = without_copies(file for file in files if is_wanted(file))
        if not files:
            raise FrAnalysisError(
                f"{shown}: no such file or directory, and no dump's name begins with it"
            )
    dumps, nameless = with_ranks(files)
    return Found(dumps, _stacks_near(stacks_folder), (*misfits, *nameless))


def no_dump_in(shown: str, pattern: str | None, archives: Sequence[str] = ()) -> FrAnalysisError:
    """The error where a directory holds no dump, but maybe archives of these names."""
    wanted = f"matching {pattern!r} " if pattern is not None else ""
    unpack = f"; unpack {', '.join(archives)} first" if archives else ""
    return FrAnalysisError(
        f"{shown}: no dump {wanted}in this directory; expected one file per rank whose "
        f"name ends in the rank, such as rank_0 or nccl_trace_rank_0{unpack}"
    )


def _archives_in(directory: Path) -> list[str]:
    """The names of a few files in a directory that may hold dumps once they are unpacked."""
    names = sorted(child.name for child in directory.iterdir() if _ARCHIVE_NAME.search(child.name))
    return [printable(name) for name in names[:_MOST_NAMED]]


def with_ranks(files: Sequence[Place]) -> tuple[tuple[tuple[int, Place], ...], list[Unread]]:
    """The files in the order of their ranks, and those whose names tell none."""
    misfits: list[Unread] = []
    dumps: list[tuple[int, Place]] = []
    for file in files:
        rank = rank_of_name(file.name)
        if rank is None and (len(files) == 1 or _holds_many(file)):
            rank = 0
        if rank is None or rank > MAX_RANK:
            misfits.append(Unread(file, f"its name tells no rank from 0 to {MAX_RANK}"))
        else:
            dumps.append((rank, file))
    dumps.sort(key=lambda found: (found[0], str(found[1])))
    return tuple(dumps), misfits


def _stacks_near(folder: Path) -> tuple[Path, ...]:
    """Stacks snapshots beside the dumps, or above a ``per_rank`` folder of the debug server's."""
    places = (folder, folder.parent) if folder.name == "per_rank" else (folder,)
    for place in places:
        try:
            found = [f for f in place.iterdir() if _STACKS_NAME.match(f.name) and f.is_file()]
        except OSError:
            continue
        if found:
            return stacks_among(found)
    return ()


def stacks_among(files: Iterable[Place]) -> tuple[Place, ...]:
    """The stacks snapshots of one directory's files, by name.

    Of those taken again and again, the newest of each kind; of those of one process, all.
    """
    found = sorted((f for f in files if _STACKS_NAME.match(f.name)), key=lambda f: f.name)
    newest = {_STACKS_TIME.sub("", f.name): f for f in found if _STACKS_TIME.search(f.name)}
    single = [f for f in found if not _STACKS_TIME.search(f.name)]
    return (*single, *newest.values())
