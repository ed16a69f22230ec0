"""Which files are dumps, and of which rank: decided from paths, before any is opened.

Names in use: ``rank_3``, ``_dump_3``, ``nccl_trace_rank_3``, ``comm_lib_trace_rank_3``,
``nccl_trace_rank_node02_5`` (a host in front), ``rank_3.json``, ``_dump_3.pkl.gz``. The
rank is the last number of the name.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from dataclasses import dataclass
from pathlib import Path

from fr_analysis.errors import FrAnalysisError
from fr_analysis.read.dump import MAX_RANK
from fr_analysis.trace import Unread

MAX_DEPTH = 3
"""How deep below a directory dumps are looked for."""

_DUMP_NAME = re.compile(
    r"(?:^|[^0-9])(?P<rank>\d+)(?P<ending>(?:\.(?:json|jsonl|pkl|pickle|bin|gz|zst|zstd))*)$"
)
_STACKS_NAME = re.compile(r"^(?:stacks|pyspy_dump).*\.txt$")


@dataclass(frozen=True, slots=True)
class Found:
    """The files of one analysis: dumps with their rank, stacks snapshots, and misfits."""

    dumps: tuple[tuple[int, Path], ...]
    stacks: tuple[Path, ...]
    misfits: tuple[Unread, ...]


def rank_of_name(name: str) -> int | None:
    """The rank that a dump's file name tells, or None where it tells none."""
    match = _DUMP_NAME.search(name)
    return int(match["rank"]) if match and len(match["rank"]) <= 18 else None


def _files_below(directory: Path, depth: int) -> tuple[list[Path], list[Path]]:
    """Files and folders directly in a directory, sorted; hidden ones are left out."""
    try:
        children = sorted(directory.iterdir())
    except OSError as error:
        raise FrAnalysisError(f"{directory}: cannot be listed ({error.strerror})") from None
    files = [child for child in children if not child.name.startswith(".") and not child.is_dir()]
    folders = [child for child in children if child.is_dir() and not child.is_symlink()]
    return files, folders if depth < MAX_DEPTH else []


def _dumps_in(directory: Path, pattern: str | None, depth: int = 0) -> list[Path]:
    """The dump files of a directory; those of its folders only where it holds none itself.

    Folders are where per-host collections and the demo's ``per_rank`` put them. Files
    beside them, such as logs, do not count as dumps.
    """
    files, folders = _files_below(directory, depth)
    if pattern is not None:
        files = [file for file in files if fnmatch.fnmatch(file.name, pattern)]
    # NVIDIA's --debug writes <dump>.json beside the dump: the same dump twice.
    names = {file.name for file in files}
    files = [
        file
        for file in files
        if rank_of_name(file.name) is not None
        and file.name.removesuffix(".json") not in (names - {file.name})
    ]
    if files:
        return files
    return [file for folder in folders for file in _dumps_in(folder, pattern, depth + 1)]


def find_files(path: str | os.PathLike[str], pattern: str | None = None) -> Found:
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
    target = Path(text)
    stacks_folder = target.parent
    if target.is_dir():
        stacks_folder = target
        files = _dumps_in(target, pattern)
        if not files:
            wanted = f"matching {pattern!r} " if pattern else ""
            raise FrAnalysisError(
                f"{text}: no dump {wanted}in this directory; expected one file per rank whose "
                "name ends in the rank, such as rank_0 or nccl_trace_rank_0"
            )
    elif target.exists():
        files = [target]
    else:
        matches = sorted(map(Path, glob.glob(text) or glob.glob(glob.escape(text) + "*")))
        files = [match for match in matches if not match.is_dir()]
        files = [file for file in files if rank_of_name(file.name) is not None]
        if not files:
            raise FrAnalysisError(
                f"{text}: no such file or directory, and no dump's name begins with it"
            )

    dumps: list[tuple[int, Path]] = []
    misfits: list[Unread] = []
    for file in files:
        rank = rank_of_name(file.name)
        if rank is None and len(files) == 1:
            rank = 0
        if rank is None or rank > MAX_RANK:
            misfits.append(Unread(file, f"its name tells no rank from 0 to {MAX_RANK}"))
        else:
            dumps.append((rank, file))
    dumps.sort(key=lambda found: (found[0], str(found[1])))
    return Found(tuple(dumps), _stacks_near(stacks_folder), tuple(misfits))


def _stacks_near(folder: Path) -> tuple[Path, ...]:
    """Stacks snapshots beside the dumps or one folder up, where the debug server puts them."""
    for place in (folder, folder.parent):
        try:
            found = [f for f in place.iterdir() if _STACKS_NAME.match(f.name) and f.is_file()]
        except OSError:
            continue
        if found:
            return tuple(sorted(found, key=lambda f: f.name))
    return ()
