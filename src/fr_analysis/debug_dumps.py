"""JSON copies of binary dumps, for a person or a tool that reads no pickle (``--debug``)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from fr_analysis.errors import FrAnalysisError, UnreadableDump, printable
from fr_analysis.read.decode import COMPRESSION, MAX_FILE_BYTES, decode

COPY_FLOOR = 16 << 20
"""Characters of a copy that are always written."""


class _NoCopyError(Exception):
    """A dump that JSON cannot say; the message is the reason."""


def write_json_copies(dumps: Iterable[Path], directory: Path | None) -> list[str]:
    """Write every dump as JSON, beside it or into a directory; nothing is overwritten.

    Args:
        dumps: the dumps' files. Those that are JSON already are passed over.
        directory: where to write; None for beside each dump. It is made if it is not there.

    Returns:
        One line per file: what was written, or why not.

    Raises:
        FrAnalysisError: a copy cannot be written.
    """
    lines = []
    for dump in dumps:
        if dump.suffix == ".json":
            continue
        shown = printable(dump)
        if dump.parent.is_file():
            lines.append(f"{shown}: not copied, it is in a reduced file")
            continue
        target = (directory or dump.parent) / f"{dump.name}.json"
        try:
            content = decode(dump)
            most = min(MAX_FILE_BYTES, max(COPY_FLOOR, COMPRESSION * dump.stat().st_size))
            _make_directory(target.parent)
            _write(content, target, most)
        except (UnreadableDump, _NoCopyError) as reason:
            lines.append(f"{shown}: not copied, it {reason}")
        except FileExistsError:
            lines.append(f"{printable(target)}: is there already and was left as it is")
        except OSError as error:
            raise FrAnalysisError(
                f"{printable(target)}: cannot be written ({error.strerror})"
            ) from None
        else:
            lines.append(f"{printable(target)}: written")
    return lines


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise FrAnalysisError(
            f"{printable(directory)}: is no directory, so no JSON copies can be written there"
        ) from None


def _write(content: object, target: Path, most: int) -> None:
    """Write a new file, piece by piece: a pickle may name one list any number of times.

    Raises:
        FileExistsError: there is such a file.
        _NoCopyError: JSON cannot say what the dump holds. Nothing is left of the file then.
    """
    with target.open("x", encoding="utf-8") as stream:
        try:
            for piece in json.JSONEncoder(indent=1, default=repr).iterencode(content):
                stream.write(piece)
                most -= len(piece)
                if most < 0:
                    raise _NoCopyError("would be far larger as JSON than a dump of its size is")
            stream.write("\n")
            stream.flush()
        except BaseException as error:
            target.unlink(missing_ok=True)
            if isinstance(error, RecursionError):
                raise _NoCopyError("is nested too deeply for JSON") from None
            if isinstance(error, ValueError):  # a list that holds itself, a number without end
                raise _NoCopyError(f"cannot be said in JSON ({error})") from None
            raise
