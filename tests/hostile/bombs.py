"""Files that ask for far more time or memory than their size: what they hold, and how they are run.

For each of them: the command, in a process of its own, ends by itself with a reason or an answer
within ``SECONDS``, and gets by with ``MEMORY``. A bomb is at most ``LARGEST`` bytes.
"""

from __future__ import annotations

import gzip
import os
import pickle
import resource
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import zstandard

SECONDS = 60
"""Most bombs end within one; a machine that has other things to do is left room."""
BOUND_OF_A_READ_S = 20
"""For a file of 64 KB, in a process that runs already."""
MEMORY = 2 << 30
"""Bytes of address space that the process is given: less than any bomb asks for."""
LARGEST = 8 << 20

PROTO = b"\x80\x02"


def text(value: str) -> bytes:
    """The opcode of a text."""
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def get(number: int) -> bytes:
    """The opcode that pushes what has been given a number."""
    return b"j" + struct.pack("<I", number)


def put(number: int) -> bytes:
    """The opcode that gives a number."""
    return b"r" + struct.pack("<I", number)


def dumped(**fields: bytes) -> bytes:
    """A pickled dump with these fields, which are opcodes that push them."""
    head = PROTO + b"}(" + text("version") + text("2.10")
    return head + b"".join(text(name) + value for name, value in fields.items()) + b"u."


def entries(*pushed: bytes) -> bytes:
    """The opcodes of a list."""
    return b"](" + b"".join(pushed) + b"e"


def entry(**fields: bytes) -> bytes:
    """The opcodes of an entry."""
    return b"}(" + b"".join(text(name) + value for name, value in fields.items()) + b"u"


DOUBLED = b")" + b"2\x86" * 60
"""A tuple of twice a tuple of twice a tuple: 2 to the 60 of them, to who counts."""
DOUBLED_BY_NUMBER = b")" + b"".join(put(n) + b"0" + get(n) * 2 + b"\x86" for n in range(60))
DOUBLED_SET = b"\x8f" + b"(" + DOUBLED + b"\x90"


def doubled_list(first: int) -> bytes:
    """A list of twice a list, as above; its parts are given the numbers from the first on."""
    steps = (put(n) + b"0](" + get(n) * 2 + b"e" for n in range(first, first + 60))
    return b"]" + b"".join(steps)


def _frames() -> bytes:
    """Two stacks that begin and end alike, and in the middle are equal, to who compares."""
    ends = b"}" + put(0) + b"0"
    stacks = (b"](" + get(0) + doubled_list(100 * at) + get(0) + b"e" for at in (1, 2))
    return PROTO + ends + dumped(entries=entries(*(entry(frames=one) for one in stacks)))[2:]


def _long_stack_named_often() -> bytes:
    """A stack of 500 frames that 100,000 entries have, beside one that differs in the middle."""
    ends = b"}" + put(0) + b"0"
    long = b"](" + get(0) + b"}" * 498 + get(0) + b"e"
    named = b"}(" + text("frames") + long + put(1) + b"u" + put(2)
    other = entry(frames=long)
    return PROTO + ends + dumped(entries=entries(named, other, get(2) * 100_000))[2:]


def _long_tuple_named_often() -> bytes:
    """A tuple of 100,000 numbers that is the key of as many values."""
    long = b"(" + b"K\x01" * 100_000 + b"t" + put(0) + b"0"
    return PROTO + long + b"}(" + (get(0) + b"N") * 100_000 + b"u."


def _huge_number_named_often() -> bytes:
    """A number of a megabyte that is the key of 100,000 values."""
    number = b"\x8b" + struct.pack("<i", 1 << 20) + b"\x7f" * (1 << 20) + put(0) + b"0"
    return PROTO + number + b"}(" + (get(0) + b"N") * 100_000 + b"u."


def _huge_size_named_often() -> bytes:
    """A number of a megabyte that is the size of 100,000 tensors."""
    number = b"\x8b" + struct.pack("<i", 1 << 20) + b"\x7f" * (1 << 20) + put(0) + b"0"
    sizes = entry(input_sizes=b"](](" + get(0) + b"ee")
    return PROTO + number + dumped(entries=entries(sizes + put(1), get(1) * 100_000))[2:]


def _groups_of_all_ranks() -> bytes:
    """100,000 groups, each of a million ranks."""
    span = text("0-999999") + put(0) + b"0"
    config = entry(desc=text("x"), ranks=get(0))
    groups = b"}(" + b"".join(text(str(n)) + get(1) for n in range(100_000)) + b"u"
    return PROTO + span + config + put(1) + b"0" + dumped(pg_config=groups)[2:]


def _entries_named_often() -> bytes:
    """One entry, a million and one times."""
    return dumped(entries=entries(entry(state=text("x")) + put(0), get(0) * 1_000_001))


def nested_json(depth: int) -> bytes:
    """Lists in lists."""
    return b'{"version": "2.10", "entries": ' + b"[" * depth + b"]" * depth + b"}"


MADE: dict[str, Callable[[], bytes]] = {
    # Texts, numbers and bytes that say that they are longer than the file.
    "text of 1 TB": lambda: b"\x80\x04\x8d" + struct.pack("<Q", 1 << 40) + b"x.",
    "bytes of 4 EB": lambda: b"\x80\x04\x8e" + struct.pack("<Q", 1 << 62) + b"x.",
    "bytearray of 1 TB": lambda: b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b"x.",
    "number of 2 GB": lambda: PROTO + b"\x8b" + struct.pack("<i", (1 << 31) - 1) + b"x.",
    "frame of 4 EB": lambda: b"\x80\x04\x95" + struct.pack("<Q", 1 << 62) + b"}.",
    "value number 4,294,967,295": lambda: PROTO + b"]" + put((1 << 32) - 1) + b".",
    "value number 268,435,455": lambda: PROTO + b"]" + put((1 << 28) - 1) + b".",
    # Giant numbers that are there.
    "number of 4 MB in decimal": lambda: PROTO + b"L" + b"9" * (4 << 20) + b"L\n.",
    "number of 4 MB in an entry": lambda: dumped(
        entries=entries(
            entry(
                collective_seq_id=b"\x8b" + struct.pack("<i", 4 << 20) + b"\x7f" * (4 << 20),
            )
        )
    ),
    "number of 4 MB in JSON": lambda: b'{"version": ' + b"9" * (4 << 20) + b"}",
    "number of 1 MB as 100,000 keys": _huge_number_named_often,
    "number of 1 MB as 100,000 sizes": _huge_size_named_often,
    # Nested.
    "lists, 1,000,000 deep": lambda: PROTO + b"]" * 1_000_000 + b"a" * 999_999 + b".",
    "tuples, 1,000,000 deep": lambda: PROTO + b")" + b"\x85" * 1_000_000 + b".",
    "tuples, 1,000,000 deep, as a key": lambda: PROTO + b"})" + b"\x85" * 1_000_000 + b"K\x01s.",
    "tuples, 1,000,000 deep, in a group's name": lambda: dumped(
        entries=entries(entry(process_group=b")" + b"\x85" * 1_000_000))
    ),
    "JSON, 100,000 deep": lambda: nested_json(100_000),
    "JSON, 100,000 deep, cut": lambda: nested_json(100_000)[:50_000],
    "marks": lambda: PROTO + b"(" * (4 << 20),
    # Parts that are repeated by reference.
    "tuple doubled 60 times as a key": lambda: PROTO + b"}" + DOUBLED + b"K\x01s.",
    "tuple doubled 60 times by number as a key": lambda: (
        PROTO + b"}(" + DOUBLED_BY_NUMBER + b"K\x01u."
    ),
    "tuple doubled 60 times as a key of entries": lambda: dumped(
        entries=entries(b"}" + DOUBLED + b"K\x01s")
    ),
    "tuple doubled 60 times in a set": lambda: b"\x80\x04" + DOUBLED_SET + b".",
    "tuple doubled 60 times in a frozenset": lambda: b"\x80\x04(" + DOUBLED + b"\x91.",
    "tuple doubled 60 times as a field": lambda: dumped(
        entries=entries(
            *(
                entry(**{name: DOUBLED})
                for name in ("process_group", "profiling_name", "state", "frames", "pg_id")
            )
        )
    ),
    "tuple doubled 60 times in lists": lambda: dumped(
        entries=entries(
            *(
                entry(**{name: b"](" + DOUBLED + b"e"})
                for name in ("input_sizes", "output_dtypes", "input_split_sizes", "frames")
            )
        )
    ),
    "tuple doubled 60 times in lists of lists": lambda: dumped(
        entries=entries(
            entry(input_sizes=b"](](" + DOUBLED + b"ee"),
            entry(input_dtypes=b"](](" + DOUBLED + b"ee"),
        )
    ),
    "lists doubled 60 times in two stacks": _frames,
    "list doubled 60 times as entries": lambda: dumped(entries=doubled_list(0)),
    "tuple of 100,000 as 100,000 keys": _long_tuple_named_often,
    "stack of 500 frames in 100,000 entries": _long_stack_named_often,
    "entry named 1,000,001 times": _entries_named_often,
    "group of 1,000,000 ranks named 100,000 times": _groups_of_all_ranks,
    # Compressed.
    "gzip of 1 GB of JSON": lambda: gzip.compress(b'{"entries": [' + b"0," * (1 << 29), 1),
    "gzip of 1 GB of pickle": lambda: gzip.compress(PROTO + b"]" + b"(" * (1 << 30), 1),
    "zstd of 1 GB of JSON": lambda: zstandard.compress(b'{"entries": [' + b"0," * (1 << 29)),
    "gzip of gzip of 64 MB": lambda: gzip.compress(
        gzip.compress(pickle.dumps({"entries": [0] * (1 << 24)}, 2), 1), 1
    ),
}
"""The bombs by name, made when they are needed."""


@dataclass(frozen=True)
class Ran:
    """How the command ended."""

    status: int
    stdout: str
    stderr: str
    seconds: float
    peak_bytes: int


def run_bounded(*arguments: object) -> Ran:
    """Run the command in a process of its own, with no more memory than ``MEMORY``.

    Raises:
        subprocess.TimeoutExpired: it has not ended within ``SECONDS``.
    """

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))

    begin = time.monotonic()
    # The peak is of the command's own process, not of all children so far.
    measured = (
        "import resource, sys; from fr_analysis.cli import main; status = main();"
        "peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss;"
        "print(peak, file=sys.stderr); sys.exit(status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", measured, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        preexec_fn=limit,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
        check=False,
    )
    stderr, _, peak = done.stderr.rstrip("\n").rpartition("\n")
    seconds = time.monotonic() - begin
    if not peak.isdigit():  # it has not come to that
        stderr, peak = done.stderr, "0"
    return Ran(done.returncode, done.stdout, stderr, seconds, int(peak) << 10)


def defused(name: str, folder: Path) -> tuple[Ran, str | None]:
    """Set a bomb off, alone in a folder.

    Returns:
        How the command ended, and what is wrong with that, if anything.
    """
    content = MADE[name]()
    path = folder / "rank_0"
    path.write_bytes(content)
    ran = run_bounded(path)
    if len(content) > LARGEST:
        return ran, f"is {len(content)} bytes itself"
    if "Traceback" in ran.stderr or ran.status not in (0, 1, 2, 3):
        return ran, f"ends with {ran.status}: {ran.stderr[-300:]}"
    if ran.status == 2 and str(path) not in ran.stderr:
        return ran, f"is refused without a reason: {ran.stderr[-300:]}"
    return ran, None
