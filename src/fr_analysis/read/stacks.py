"""Stacks snapshots: which line every rank's threads are at.

Two formats. The debug server's ``stacks_<time>.txt``: per rank a line
``=== Rank N: URL ===``, then Python's faulthandler text, most recent call first. And the
output of ``py-spy dump``, per rank under the same headings (``pyspy_dump_<time>.txt``) or
of one process, whose rank the file's name tells (``pyspy_3.txt``).
"""

from __future__ import annotations

import re
import stat
from pathlib import Path

from fr_analysis.errors import UnreadableDump
from fr_analysis.read.dump import _text
from fr_analysis.read.files import rank_of_stacks_name
from fr_analysis.trace import Frame, RankStacks, ThreadStack

MAX_BYTES = 64 << 20
"""Largest snapshot that is read: that of a thousand ranks has some ten."""

_DIGITS = 18
"""Most digits of a line number that fit into 64 bits."""

_RANK = re.compile(r"^=== Rank (\d{1,6}): .* ===$")
_WHY_NOT = re.compile(r"^  Rank (\d{1,6}): (.+)")
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
            name = _text(heading[2] if heading.re is _FAULTHANDLER_THREAD else heading[1])
            frames = []
            continue
        frame = _FAULTHANDLER_FRAME.match(line) or _PYSPY_FRAME.match(line)
        if frame and name is not None:
            # The text is as untrusted as a dump: of any length, with any characters.
            number = int(frame["line"]) if len(frame["line"]) <= _DIGITS else 0
            frames.append(Frame(_text(frame["file"]), number, _text(frame["name"])))
    finish()
    return tuple(threads)


def _read_section(rank: int, source: Path, lines: list[str], why: str) -> RankStacks:
    """What one rank answered: its threads, or why there are none."""
    first = next((line.strip() for line in lines if line.strip()), "nothing")
    status = _ERROR.match(first)
    threads = () if status else _read_threads(lines)
    if threads:
        return RankStacks(rank, source, threads)
    if status:
        error = f"the debug server got no stacks of it (status {status[1]}{why and f', {why}'})"
    else:
        error = f"no stacks: {_one_line(first)}"
    return RankStacks(rank, source, (), error)


def _one_line(text: str) -> str:
    return "".join(char for char in text[:200] if char.isprintable())


def stacks_of_rank(rank: int, source: Path, text: str) -> RankStacks:
    """Read what one rank answered when it was asked for its stacks.

    Args:
        rank: the rank.
        source: where the text came from, for messages.
        text: faulthandler's text, as a worker of the debug server answers ``dump_traceback``,
            or the output of ``py-spy dump``.

    Returns:
        Its threads, or an ``error`` where the text holds none.
    """
    return _read_section(rank, source, text.splitlines(), "")


def read_stacks(path: Path) -> dict[int, RankStacks]:
    """Read one snapshot.

    Args:
        path: a text file as the debug server or ``py-spy dump`` writes it.

    Returns:
        Stacks by rank; a rank that did not answer has an ``error``.

    Raises:
        UnreadableDump: it cannot be read, or holds no stacks.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise UnreadableDump("is not a regular file")
        with path.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise UnreadableDump(f"cannot be read ({error.strerror})") from None
    if len(content) > MAX_BYTES:
        raise UnreadableDump(f"is larger than {MAX_BYTES >> 20} MiB; is it a stacks snapshot?")
    text = content.decode("utf-8", errors="replace")
    sections: dict[int, list[str]] = {}
    current: list[str] = []
    alone = current
    for line in text.splitlines():
        heading = _RANK.match(line)
        if heading:
            current = sections.setdefault(int(heading[1]), [])
        else:
            current.append(line)
    if sections:
        # "PARTIAL DATA: 1/2 workers responded", and below it why each other one did not.
        reasons = [found for line in alone if (found := _WHY_NOT.match(line))]
        why = {int(found[1]): _one_line(found[2]) for found in reasons}
        return {
            rank: _read_section(rank, path, lines, why.get(rank, ""))
            for rank, lines in sections.items()
        }
    threads = _read_threads(alone)
    if not threads:
        raise UnreadableDump(
            "holds no stacks; expected a stacks file of the debug server or output of py-spy dump"
        )
    rank = rank_of_stacks_name(path.name)
    if rank is None:
        raise UnreadableDump(
            "holds the stacks of one process, and its name does not tell of which rank: "
            "name it pyspy_<rank>.txt"
        )
    return {rank: RankStacks(rank, path, threads)}
