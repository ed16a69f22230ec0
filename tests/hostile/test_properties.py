"""What holds for any input, tried with made ones; ``make reliability`` tries many more."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from tests.hostile import dumps, properties
from tests.hostile.both_ways import read_short

# The same examples each time: what `make test` says depends on the code alone.
SHORTLY = settings(
    max_examples=15,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("name", dumps.PROPERTIES)
def test_holds_for_whatever_is_made(name: str) -> None:
    made, holds = dumps.PROPERTIES[name]

    @SHORTLY
    @given(made)
    def look(one: Any) -> None:
        holds(one)

    look()


@pytest.mark.filterwarnings("ignore:Generating overly large repr")
def test_what_does_not_hold_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    found: Callable[..., object] = properties.read_short
    monkeypatch.setattr(properties, "read_short", lambda path: ("none", found(path)[1]))
    made, holds = dumps.PROPERTIES["JSON, compressed"]

    @settings(SHORTLY, phases=[Phase.generate], report_multiple_bugs=False)
    @given(made)
    def look(one: Any) -> None:
        holds(one)

    with pytest.raises(AssertionError):
        look()


def test_dumps_made_here_are_shortened_often() -> None:
    """Otherwise a way would be compared with itself."""
    left_out = []

    @settings(SHORTLY, max_examples=30)
    @given(dumps.pickles())
    def look(content: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "rank_3"
            path.write_bytes(content)
            left_out.append(read_short(path)[1])

    look()
    assert sum(left_out) > len(left_out) / 10
