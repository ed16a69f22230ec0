"""Stacks snapshots: which line every rank's threads are at.

Two formats. The debug server's ``stacks_<time>.txt``: per rank a line
``=== Rank N: URL ===``, then Python's faulthandler text, most recent call first. And the
output of ``py-spy dump``, alone or per rank under the same headings
(``pyspy_dump_<time>.txt``).
"""

from __future__ import annotations

import re
from pathlib import Path

from fr_analysis.trace import Frame, RankStacks, ThreadStack

MAX_BYTES = 256 << 20

_RANK = re.compile(r"^=== Rank (\d{1,6}): .* ===$")
_ERROR = re.compile(r"^Error: (\d+)")
_FAULTHANDLER_THREAD = re.compile(
    r"^(Current thread|Thread) (0x[0-9a-f]+).*\(most recent call first\)"
)
_FAULTHANDLER_FRAME = re.compile(r'^\s+File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)$')
_PYSPY_THREAD = re.compile(r"^Thread (\S+) \((?:active|idle)[^)]*\)(?:: (?P<name>.*))?$")
_PYSPY_FRAME = re.compile(r"^\s+(?P<name>\S.*) \((?P<file>[^()]*):(?P<line>\d+)\)$")


def _read_threads(lines: list[str]) -> tuple[ThreadStack, ...]:
    threads: list[ThreadStack] = []
    name: str | None = None
    frames: list[Frame] = []

    def finish() -> None:
        if name is not None:
            threads.append(ThreadStack(name, tuple(frames)))

    for line in lines:
        heading = _FAULTHANDLER_THREAD.match(line) or _PYSPY_THREAD.match(line)
        if heading:
            finish()
            name, frames = heading[2] if heading.re is _FAULTHANDLER_THREAD else heading[1], []
            continue
        frame = _FAULTHANDLER_FRAME.match(line) or _PYSPY_FRAME.match(line)
        if frame and name is not None:
            frames.append(Frame(frame["file"], int(frame["line"]), frame["name"]))
    finish()
    return tuple(threads)


def read_stacks(path: Path) -> dict[int, RankStacks]:
    """Read one snapshot.

    Args:
        path: a text file as the debug server or ``py-spy dump`` writes it.

    Returns:
        Stacks by rank; a rank that the server could not reach has an ``error``. Empty
        where the file is no such text.
    """
    try:
        with path.open("rb") as stream:
            text = stream.read(MAX_BYTES).decode("utf-8", errors="replace")
    except OSError:
        return {}
    sections: dict[int, list[str]] = {}
    current: list[str] = []
    for line in text.splitlines():
        heading = _RANK.match(line)
        if heading:
            current = sections.setdefault(int(heading[1]), [])
        else:
            current.append(line)
    stacks: dict[int, RankStacks] = {}
    for rank, lines in sections.items():
        error = next((_ERROR.match(line) for line in lines if line.strip()), None)
        stacks[rank] = RankStacks(
            rank,
            path,
            () if error else _read_threads(lines),
            f"did not answer the debug server (status {error[1]})" if error else None,
        )
    return stacks
