"""JSON copies of binary dumps, for a person or a tool that reads no pickle (``--debug``)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from fr_analysis.errors import FrAnalysisError, UnreadableDump
from fr_analysis.read.decode import decode


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
        if dump.parent.is_file():
            lines.append(f"{dump}: not copied, it is in a reduced file")
            continue
        target = (directory or dump.parent) / f"{dump.name}.json"
        try:
            content = json.dumps(decode(dump), indent=1, default=repr)
        except UnreadableDump as reason:
            lines.append(f"{dump}: not copied, it {reason}")
            continue
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("x", encoding="utf-8") as stream:
                stream.write(content + "\n")
        except FileExistsError:
            lines.append(f"{target}: is there already and was left as it is")
        except OSError as error:
            raise FrAnalysisError(f"{target}: cannot be written ({error.strerror})") from None
        else:
            lines.append(f"{target}: written")
    return lines
