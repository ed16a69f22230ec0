"""Which tuples are flat: told without a stack, so that what stands in between matters."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from fr_analysis.read.tuples import has_flat_tuples
from plain_dumps import dump

PROTO = b"\x80\x02"
TEXT = b"X\x01\x00\x00\x00a"


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("content", [dump(), dump(entries=300), (), (1, None), {"a": (True, 2.5)}])
def test_what_picklers_write_is_flat(protocol: int, content: Any) -> None:
    assert has_flat_tuples(pickle.dumps(content, protocol))


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("content", [((),), ("a", ("b",)), (1, 2, 3, 4), ([],), {"a": ("b", {})}])
def test_other_tuples_are_not(protocol: int, content: Any) -> None:
    assert not has_flat_tuples(pickle.dumps(content, protocol))


@pytest.mark.parametrize(
    "code",
    [
        b")\x85",
        TEXT + b"\x85\x85",
        TEXT + b"\x85q\x000h\x00\x85",
        TEXT + b"\x85q\x00h\x00\x86",
        TEXT + b"\x85q\x00h\x00q\x01h\x01\x86",
        TEXT + b"\x85(eq\x00h\x00\x86",  # nothing put into a tuple
        TEXT + b"\x85(uq\x00h\x00\x86",
        TEXT + b"\x85q\x00h\x00(eq\x01h\x01\x86",
        TEXT + b"\x85q\x00q\x01h\x01\x85",
        TEXT + b"\x85\x80\x02q\x01h\x01\x85",
        TEXT + b"\x85\x94h\x00\x85",
        TEXT + b"\x94" + TEXT + b"\x85\x94h\x01\x85",
        TEXT + b"q\x05" + TEXT + b"\x85\x94h\x01\x85",
        TEXT + b"\x852\x86",
        b"(" + TEXT + b"t",
        b"\x85",
        b"(e",
        b"q\x00",
        TEXT[:-1],
        b"\xff",
    ],
)
def test_no_way_around(code: bytes) -> None:
    assert not has_flat_tuples(PROTO + code + b".")


def test_of_a_pickle_that_is_cut_it_cannot_be_told() -> None:
    whole = pickle.dumps({"a": ("b", 1 << 40)}, 4)
    assert has_flat_tuples(whole)
    assert not any(has_flat_tuples(whole[:length]) for length in range(len(whole)))
