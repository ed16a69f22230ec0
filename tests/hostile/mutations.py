"""Real dumps, changed: which changes there are, and what may become of an answer.

A mutation is made of a number and a seed alone, so none is kept: ``mutation(jobs, seed, number)``
makes the same bytes again. The kinds follow one another, so that each is there as often.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import pickle
import pickletools
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

import zstandard
from tests.hostile.both_ways import assert_same, read_short, read_whole

from fr_analysis.cli import ExitStatus, main
from fr_analysis.errors import UnreadableDump
from fr_analysis.read import read_dump
from fr_analysis.read.dump import build_dump
from fr_analysis.read.files import rank_of_name
from fr_analysis.trace import UNKNOWN, RankDump

ROOT = Path(__file__).resolve().parents[2]
CASES = ROOT.parent / "shared" / "cases"


@dataclass(frozen=True)
class Job:
    """The dumps of one job, as they lie in a folder."""

    name: str
    files: tuple[Path, ...]
    world: int


def real_jobs() -> list[Job]:
    """Jobs of which dumps are kept: in this repository, and beside it where they are there."""
    kept = ROOT / "tests" / "data" / "gloo_hang_3ranks"
    jobs = [Job(kept.name, tuple(sorted(kept.glob("trace_*"))), 3)]
    for told in sorted(CASES.glob("*/expected.json")):
        expected = json.loads(told.read_text())
        for key in expected.keys() & {"pattern", "json_pattern"}:
            files = tuple(sorted(told.parent.glob(expected[key])))
            jobs.append(Job(f"{told.parent.name} {key}", files, expected["world_size"]))
    return sorted(jobs, key=lambda job: job.name)


@dataclass(frozen=True)
class Mutation:
    """One file of a job, changed."""

    kind: str
    job: Job
    file: Path
    content: bytes


# -- how bytes and data are changed ---------------------------------------------------------

ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 255, 1 << 31, 1 << 63, -(1 << 63), 10**30, 2.5, float("nan")),
    *("", "x" * 10_000, "\x1b[31m\n", "\ud800", "0", "-1", "9" * 400, "[0, 1]", "0-999999"),
    *([], [[]], [None], [[1, "x"]], {}, {"a": {"b": []}}, [[0] * 70] * 70),
)
ODD_BUT_NOT_IN_JSON: tuple[Any, ...] = (b"bytes", (1, (2, (3,))), {1, 2}, bytearray(9), 1j)
OPCODES = [opcode.code.encode("latin-1") for opcode in pickletools.opcodes]


@dataclass(frozen=True)
class _Before:
    """A file that is to be changed: what it holds, and what the dice say."""

    content: bytes
    others: list[bytes]
    dice: random.Random

    @cached_property
    def data(self) -> Any:
        """A copy of its own, to be changed."""
        data = trusted(self.content)
        assert data is not None
        return data

    @property
    def is_json(self) -> bool:
        return self.content[:1] != b"\x80"

    def packed(self, data: object) -> bytes:
        """In the file's own format."""
        return json.dumps(data).encode() if self.is_json else pickle.dumps(data, 2)

    def cut(self) -> tuple[int, int]:
        """Two places, seldom far apart."""
        begin = self.dice.randrange(len(self.content))
        return begin, begin + self.dice.choice((1, 2, 4, 8, 30, 300, 3000))

    def steps(self) -> list[int]:
        """Places of the opcodes, and the end; of JSON, of all bytes."""
        if self.is_json:
            return list(range(len(self.content) + 1))
        return [at for _, _, at in pickletools.genops(self.content) if at is not None]

    def place(self) -> tuple[Any, Any]:
        """A place in the data where a value stands: what holds it, and its key or index."""
        at: Any = self.data
        while True:
            held = list(at) if isinstance(at, dict) else list(range(len(at)))
            key = self.dice.choice(held)
            deeper = isinstance(at[key], list | dict) and at[key]
            if not deeper or self.dice.random() < 0.3:
                return at, key
            at = at[key]


def _flip(before: _Before) -> bytes:
    content = bytearray(before.content)
    for _ in range(before.dice.choice((1, 1, 1, 2, 8))):
        content[before.dice.randrange(len(content))] ^= 1 << before.dice.randrange(8)
    return bytes(content)


def _set(before: _Before) -> bytes:
    content = bytearray(before.content)
    content[before.dice.randrange(len(content))] = before.dice.randrange(256)
    return bytes(content)


def _end(before: _Before) -> bytes:
    return before.content[: before.dice.randrange(len(before.content))]


def _leave_out(before: _Before) -> bytes:
    begin, end = before.cut()
    return before.content[:begin] + before.content[end:]


def _insert(before: _Before) -> bytes:
    begin, _ = before.cut()
    more = before.dice.randbytes(before.dice.choice((1, 2, 4, 60)))
    return before.content[:begin] + more + before.content[begin:]


def _double(before: _Before) -> bytes:
    begin, end = before.cut()
    return before.content[:end] + before.content[begin:]


def _replace_opcode(before: _Before) -> bytes:
    at = before.dice.choice(before.steps()[:-1])
    return before.content[:at] + before.dice.choice(OPCODES) + before.content[at + 1 :]


def _leave_out_opcode(before: _Before) -> bytes:
    steps = before.steps()
    at = before.dice.randrange(len(steps) - 1)
    return before.content[: steps[at]] + before.content[steps[at + 1] :]


def _double_opcode(before: _Before) -> bytes:
    steps = before.steps()
    at = before.dice.randrange(len(steps) - 1)
    return before.content[: steps[at + 1]] + before.content[steps[at] :]


def _double_key(before: _Before) -> bytes:
    key = before.dice.choice(sorted(before.data))
    value = before.dice.choice((None, [], {}, 7, "2.10"))
    if before.is_json:
        return before.content.rstrip()[:-1] + f", {json.dumps({key: value})[1:]}".encode()
    pushed = pickle.dumps(key, 2)[2:-1], pickle.dumps(value, 2)[2:-1]
    return before.content[:-1] + b"".join(pushed) + b"s."


def _another_type(before: _Before) -> bytes:
    holder, key = before.place()
    odd = ODD if before.is_json else ODD + ODD_BUT_NOT_IN_JSON
    holder[key] = before.dice.choice(odd)
    # Not json.dumps(1j): what JSON cannot say is not in ODD.
    return pickle.dumps(before.data, 2) if not before.is_json else before.packed(before.data)


def _without_a_value(before: _Before) -> bytes:
    holder, key = before.place()
    del holder[key]
    return before.packed(before.data)


def _other_numbers(before: _Before) -> bytes:
    for entry in before.data.get("entries") or []:
        for key in [key for key, value in entry.items() if type(value) is int]:
            if before.dice.random() < 0.1:
                entry[key] += before.dice.choice((-1, 1, 1 << 31, 1 << 62, 1 << 64, -(1 << 64)))
    return before.packed(before.data)


def _other_order(before: _Before) -> bytes:
    entries = before.data.get("entries") or []
    match before.dice.randrange(4):
        case 0:
            before.dice.shuffle(entries)
        case 1:
            entries.reverse()
        case 2:
            entries *= 2
        case 3:
            del entries[before.dice.randrange(len(entries) + 1) :]
    return before.packed(before.data)


def _of_another_rank(before: _Before) -> bytes:
    return before.dice.choice(before.others)


def _another_protocol(before: _Before) -> bytes:
    return pickle.dumps(before.data, before.dice.randrange(6))


def _as_json(before: _Before) -> bytes:
    indent = before.dice.choice((None, 1))
    encoding = before.dice.choice(("utf-8", "utf-8", "utf-8-sig", "utf-16"))
    return json.dumps(before.data, indent=indent, default=str).encode(encoding)


def _damaged_json(before: _Before) -> bytes:
    text = json.dumps(before.data, default=str).encode()
    change = before.dice.choice((_flip, _set, _end, _leave_out, _insert, _double))
    return change(replace(before, content=text))


def _compressed(before: _Before) -> bytes:
    return before.dice.choice((gzip.compress, zstandard.compress))(before.content)


def _damaged_compressed(before: _Before) -> bytes:
    change = before.dice.choice((_flip, _set, _end, _leave_out, _insert, _double))
    return change(replace(before, content=_compressed(before)))


def _damaged_inside(before: _Before) -> bytes:
    return _compressed(replace(before, content=_flip(before)))


def _followed(before: _Before) -> bytes:
    return before.content + before.dice.choice(
        (before.content, b"\x00" * 9, b"\n", before.dice.randbytes(20), before.others[0])
    )


def _another_file(before: _Before) -> bytes:
    size = len(before.content)
    return before.dice.choice(
        (b"", b"\x00" * size, before.dice.randbytes(size), b"step 1\n" * 9, b"\x80", b"{", b"PAR1")
    )


KINDS: dict[str, Callable[[_Before], bytes]] = {
    "bits flipped": _flip,
    "byte replaced": _set,
    "cut short": _end,
    "bytes left out": _leave_out,
    "bytes inserted": _insert,
    "bytes doubled": _double,
    "opcode replaced": _replace_opcode,
    "opcode left out": _leave_out_opcode,
    "opcode doubled": _double_opcode,
    "key doubled": _double_key,
    "value of another type": _another_type,
    "value left out": _without_a_value,
    "other and huge numbers": _other_numbers,
    "entries in another order": _other_order,
    "another rank's dump": _of_another_rank,
    "pickle of protocol 0 to 5": _another_protocol,
    "written as JSON": _as_json,
    "damaged JSON": _damaged_json,
    "compressed": _compressed,
    "compressed, then damaged": _damaged_compressed,
    "damaged, then compressed": _damaged_inside,
    "followed by more": _followed,
    "another kind of file": _another_file,
}


def mutation(jobs: list[Job], seed: int, number: int) -> Mutation:
    """One mutation, the same each time for the same jobs, seed and number."""
    dice = random.Random(f"{seed}/{number}")
    kind = list(KINDS)[number % len(KINDS)]
    job = dice.choice(jobs)
    file = dice.choice(job.files)
    others = [other.read_bytes() for other in job.files if other != file]
    before = _Before(file.read_bytes(), others, dice)
    return Mutation(kind, job, file, KINDS[kind](before))


# -- what becomes of it ------------------------------------------------------------------------


class Outcome(StrEnum):
    """What a changed file may lead to; the first three are as they should be.

    A wrong answer that nothing gives away is ``SILENT``, ``MISREAD`` or ``UNSTABLE``. Whether the
    answer to another dump is right is no question here: a dump has no checksum, and one whose
    numbers are changed is a dump still.
    """

    REFUSED = "refused, with a reason that names the file"
    SAME = "same answer"
    OTHER = "a whole dump of other content"
    """The trusted reading of the test, too, finds a dump, and in it something else."""
    CRASH = "crash"
    """An exception that is none of ours, or an exit status without a meaning."""
    UNEXPLAINED = "refused without a reason"
    SILENT = "read, though it is no dump"
    """The trusted reading of the test finds none."""
    MISREAD = "read as something else than it is"
    """What was read is not what the trusted reading finds."""
    UNSTABLE = "another answer to the same content"
    TWO_WAYS = "read differently by the fast reader"


GOOD = frozenset({Outcome.REFUSED, Outcome.SAME, Outcome.OTHER})


class _Trusted(pickle._Unpickler):
    """Python's unpickler in Python, for what this test has made; it calls nothing all the same."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        raise pickle.UnpicklingError(f"{module_name}.{global_name}")


def trusted(content: bytes) -> Any:
    """What a file holds, read without any code of the analyzer; None where it is damaged."""
    try:
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        elif content[:4] == b"\x28\xb5\x2f\xfd":
            with zstandard.open(io.BytesIO(content)) as stream:
                content = stream.read()
        if content[:1] == b"\x80":
            return _Trusted(io.BytesIO(content)).load()
    except Exception:
        return None
    for part in (content, *reversed(content.splitlines())):
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(part.decode("utf-8-sig"))
    return None


class Answers:
    """Answers about jobs of which one file is changed.

    The files are copied into a folder, where one at a time is replaced.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, str] = {}

    def judge(self, changed: Mutation) -> tuple[Outcome, str]:
        """What becomes of the answer, and what is to be known of it."""
        folder = self._folder / changed.job.name.replace(" ", "_")
        if changed.job.name not in self._known:
            folder.mkdir()
            for file in changed.job.files:
                shutil.copy(file, folder)
            _, self._known[changed.job.name], _ = self._ask(changed.job, folder)
        path = folder / changed.file.name
        try:
            path.write_bytes(changed.content)
            return self._judge(changed, path, self._known[changed.job.name])
        finally:
            shutil.copy(changed.file, path)

    def _ask(self, job: Job, folder: Path) -> tuple[int, str, str]:
        """Exit status, answer and complaint of the command."""
        out, err = io.StringIO(), io.StringIO()
        options = ["--format", "json", "--expected-world-size", str(job.world)]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main([str(folder), *options])
        return status, out.getvalue(), err.getvalue()

    def _judge(self, changed: Mutation, path: Path, known: str) -> tuple[Outcome, str]:
        try:
            status, answer, complaint = self._ask(changed.job, path.parent)
            whole, (short, _) = read_whole(path), read_short(path)
            result = read_dump(rank_of_name(path.name) or 0, path)
        except Exception as error:
            return Outcome.CRASH, repr(error)
        try:
            assert_same(short, whole)
        except AssertionError as error:
            return Outcome.TWO_WAYS, str(error)
        if status == ExitStatus.BAD_INPUT:
            told = complaint.partition(": ")[2].strip()
            good = "\n" not in told and path.name in told
            return (Outcome.REFUSED if good else Outcome.UNEXPLAINED), complaint
        if status not in list(ExitStatus) or not answer:
            return Outcome.CRASH, f"{status}: {complaint}"
        reasons = {Path(one["path"]).name: one["reason"] for one in json.loads(answer)["unread"]}
        if path.name in reasons:
            reason = reasons[path.name]
            return (Outcome.REFUSED if reason else Outcome.UNEXPLAINED), reason
        content = trusted(changed.content)
        if content is None or not isinstance(result, RankDump):
            return Outcome.SILENT, str(result)[:200]
        try:
            expected = build_dump(content, result.rank, path)
            assert_same(replace(result, written_ns=UNKNOWN), expected)
        except (UnreadableDump, AssertionError) as error:
            return Outcome.MISREAD, str(error)
        if answer == known:
            return Outcome.SAME, ""
        if repr(content) == repr(trusted(changed.file.read_bytes())):
            return Outcome.UNSTABLE, answer
        return Outcome.OTHER, ""


def judged(
    jobs: list[Job], seed: int, numbers: range, folder: Path
) -> Iterator[tuple[int, Mutation, Outcome, str]]:
    """Make mutations, and judge each."""
    answers = Answers(folder)
    for number in numbers:
        changed = mutation(jobs, seed, number)
        yield (number, changed, *answers.judge(changed))


def counted(outcomes: Iterator[tuple[int, Mutation, Outcome, str]]) -> Counter[tuple[str, Outcome]]:
    """How often each kind has had each outcome."""
    return Counter((changed.kind, outcome) for _, changed, outcome, _ in outcomes)
