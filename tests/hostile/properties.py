"""What holds for any bytes: hypothesis and the coverage-guided fuzzer look for some for which not.

Each function takes an input, and raises where what it says does not hold.
"""

from __future__ import annotations

import gzip
import json
import pickle
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.hostile.both_ways import RANK, assert_same, compare, read_short, read_whole

from fr_analysis import FrAnalysisError, analyze
from fr_analysis.errors import UnreadableDump
from fr_analysis.read import read_dump
from fr_analysis.read.stacks import read_stacks
from fr_analysis.trace import RankDump, Unread

GOOD_DUMP = Path(__file__).resolve().parents[1] / "data" / "gloo_hang_3ranks" / "trace_1"


class Broken(AssertionError):
    """What should hold does not."""


def insist(holds: bool, what: object) -> None:
    """Raise Broken where something does not hold; ``assert`` would be left out by ``-O``."""
    if not holds:
        raise Broken(what)


@contextmanager
def _file() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / f"rank_{RANK}"


def file_is_read_or_refused(content: bytes) -> None:
    """Any file is a dump, or there is a reason, of one line."""
    with _file() as path:
        path.write_bytes(content)
        result = read_dump(RANK, path)
        insist(isinstance(result, RankDump | Unread), result)
        if isinstance(result, Unread):
            insist(bool(result.reason) and "\n" not in result.reason, result.reason)


def both_ways_read_the_same(content: bytes) -> None:
    """What is left out for speed makes no difference."""
    with _file() as path:
        compare(content, path.parent)


def kept_otherwise_it_is_the_same(content: dict[str, Any]) -> None:
    """JSON that is compressed is the same dump."""
    try:
        text = json.dumps(content).encode()
    except (TypeError, ValueError):
        return  # JSON cannot say it
    with _file() as path:
        path.write_bytes(text)
        plain = read_whole(path)
        path.write_bytes(gzip.compress(text, 1))
        assert_same(read_short(path)[0], plain)


def job_has_an_answer_or_a_reason(contents: Sequence[Any]) -> None:
    """From the files to the verdict, matching and attribution included."""
    with tempfile.TemporaryDirectory() as folder:
        for rank, content in enumerate(contents):
            (Path(folder) / f"rank_{rank}").write_bytes(pickle.dumps(content, 2))
        with suppress(FrAnalysisError):
            diagnosis = analyze(folder)
            both = set(diagnosis.suspects) & set(diagnosis.victims)
            insist(not both, both)
            insist(all(unread.reason for unread in diagnosis.unread), diagnosis.unread)


def file_in_a_job_has_an_answer(content: bytes) -> None:
    """As above, of a job in which one rank's file is anything, and the other's a dump."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "rank_0").write_bytes(content)
        shutil.copy(GOOD_DUMP, Path(folder) / "rank_1")
        diagnosis = analyze(folder)
        insist(1 in diagnosis.ranks, diagnosis.ranks)
        told = {unread.path.name for unread in diagnosis.unread}
        insist(0 in diagnosis.ranks or "rank_0" in told, diagnosis)


def text_is_stacks_or_refused(content: bytes) -> None:
    """Each rank of a snapshot has threads, or the reason why not."""
    with _file() as path, suppress(UnreadableDump):
        path.write_bytes(content)
        for found in read_stacks(path).values():
            insist(bool(found.threads) != bool(found.error), found)
