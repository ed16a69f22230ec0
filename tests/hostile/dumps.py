"""Dumps made by hypothesis: entries that repeat one another, in the ways that picklers write."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from benchmarks import torch_pickler
from hypothesis import strategies as st
from tests.hostile import properties

NUMBERS = st.one_of(
    st.integers(-2, 70_000),
    st.integers(-(1 << 70), 1 << 70),
    st.sampled_from([None, True, 1 << 31, (1 << 63) - 1, 1 << 63, 0.5, "12", "x"]),
)
TEXTS = st.one_of(
    st.sampled_from(["nccl:all_reduce", "nccl:send 0->1", "completed", "0", "tp", "", "Float"]),
    st.text(max_size=12),
)
SIZES = st.lists(st.lists(st.integers(-1, 1 << 33), max_size=3), max_size=3)
ANYTHING = st.recursive(
    st.one_of(NUMBERS, TEXTS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(TEXTS, inner, max_size=3),
        st.tuples(inner, inner),
    ),
    max_leaves=6,
)
FRAME = st.fixed_dictionaries({"name": TEXTS, "filename": TEXTS, "line": NUMBERS})
REGULAR: dict[str, Any] = {
    "record_id": NUMBERS,
    "pg_id": NUMBERS,
    "process_group": st.tuples(TEXTS, TEXTS),
    "collective_seq_id": NUMBERS,
    "p2p_seq_id": NUMBERS,
    "op_id": NUMBERS,
    "profiling_name": TEXTS,
    "time_created_ns": NUMBERS,
    "input_sizes": SIZES,
    "input_dtypes": st.lists(TEXTS, max_size=2),
    "output_sizes": SIZES,
    "output_dtypes": st.lists(TEXTS, max_size=2),
    "state": TEXTS,
    "time_discovered_started_ns": NUMBERS,
    "time_discovered_completed_ns": NUMBERS,
    "retired": st.booleans(),
    "is_p2p": st.one_of(st.booleans(), NUMBERS),
    "duration_ms": NUMBERS,
    "input_split_sizes": st.one_of(st.none(), st.lists(NUMBERS, max_size=3)),
    "frames": st.lists(FRAME, max_size=3),
}
ODD = {name: st.one_of(value, ANYTHING) for name, value in REGULAR.items()}
ALWAYS = ("record_id", "process_group", "profiling_name", "state")


def _entries(fields: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {name: fields[name] for name in ALWAYS},
        optional={name: value for name, value in fields.items() if name not in ALWAYS},
    )


ENTRIES = [_entries(REGULAR), _entries(REGULAR), _entries(ODD)]
COUNTING = ("record_id", "collective_seq_id", "time_created_ns", "p2p_seq_id", "op_id")
COMMON_OPCODES = b"}](u\x86eahqKMJN.\x94"
LENGTH = 24_000
"""Bytes that a dump has at least, so that it is worth shortening."""


@st.composite
def dumps(draw: st.DrawFn) -> Any:
    """The plain data of a dump whose entries repeat a few, and then one another."""
    entry_of = draw(st.sampled_from(ENTRIES))
    templates = draw(st.lists(entry_of, min_size=1, max_size=4))
    order = draw(st.lists(st.integers(0, len(templates) - 1), min_size=1, max_size=12))
    steps = draw(st.lists(st.integers(0, 1 << 20), min_size=1, max_size=4))
    # As often as makes them worth it, of what an entry takes that is not the first of its kind.
    once, twice = (len(pickle.dumps([*map(dict, templates * n)], 2)) for n in (1, 2))
    count = LENGTH * len(templates) // (twice - once) + len(order)
    entries = []
    for number in range(count):
        entry = dict(templates[order[number % len(order)]])
        for name in COUNTING:
            if type(entry.get(name)) is int:
                entry[name] += number * steps[number % len(steps)]
        entries.append(entry)
    for at in draw(st.lists(st.integers(0, len(entries) - 1), max_size=3)):
        entries[at] = draw(st.one_of(entry_of, ANYTHING))
    return {
        "version": "2.10",
        "pg_config": draw(st.dictionaries(TEXTS, ANYTHING, max_size=2)),
        "entries": entries,
        "pg_status": draw(st.dictionaries(TEXTS, ANYTHING, max_size=2)),
    }


def _by_python(content: Any, protocol: int) -> bytes:
    return pickle.dumps(content, protocol)


def _by_torch(content: Any, _: int) -> bytes:
    frames = [
        frame
        for entry in content["entries"]
        if isinstance(entry, dict) and isinstance(entry.get("frames"), list)
        for frame in entry["frames"]
    ]
    try:
        return torch_pickler.dumps(content, [*frames, content])
    except (TypeError, KeyError, ValueError, OverflowError, UnicodeEncodeError):
        return pickle.dumps(content, 2)  # torch has no such values


@st.composite
def pickles(draw: st.DrawFn) -> bytes:
    """Such a dump, pickled by one of the picklers; perhaps with a few bytes changed."""
    content = draw(dumps())
    write = draw(st.sampled_from([_by_python, _by_python, _by_torch]))
    pickled = bytearray(write(content, draw(st.sampled_from([2, 2, 2, 2, 2, 3, 4]))))
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        at = draw(st.integers(0, len(pickled) - 1))
        pickled[at] = draw(
            st.one_of(st.integers(0, 255), st.sampled_from(b"}](u\x86eahqKMJN.\x94"))
        )
    return bytes(pickled)


LINES = st.sampled_from(
    [
        "=== Rank 0: http://a ===",
        "=== Rank 7: b ===",
        "=== Rank 9999999: c ===",
        "Thread 0x00007f (most recent call first):",
        "Current thread 0x1 [python] (most recent call first):",
        '  File "/job/train.py", line 9 in step',
        '  File "", line 99999999999999999999 in <module>',
        'Thread 12 (active): "MainThread"',
        "    step (train.py:12)",
        "Error: 503",
        "  Rank 7: ClientOSError",
    ]
)


@st.composite
def snapshots(draw: st.DrawFn) -> bytes:
    """Lines of stacks snapshots in any order, among other texts and bytes."""
    lines = draw(st.lists(st.one_of(LINES, st.text(max_size=40)), max_size=30))
    return "\n".join(lines).encode("utf-8", "surrogatepass") + draw(st.binary(max_size=9))


def jobs() -> st.SearchStrategy[list[Any]]:
    """What the files of a job hold: dumps, or anything."""
    return st.lists(st.one_of(dumps(), dumps(), ANYTHING), min_size=1, max_size=3)


PROPERTIES: dict[str, tuple[st.SearchStrategy[Any], Callable[[Any], None]]] = {
    "pickle, both ways": (pickles(), properties.both_ways_read_the_same),
    "JSON, compressed": (dumps(), properties.kept_otherwise_it_is_the_same),
    "job, from files to verdict": (jobs(), properties.job_has_an_answer_or_a_reason),
    "stacks snapshot": (snapshots(), properties.text_is_stacks_or_refused),
}
"""What is made, and what must hold for it."""
