"""A bomb costs bounded time and memory, see ``bombs``; ``make reliability`` sets all off."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.hostile import bombs

SET_OFF_HERE = (
    "number of 1 MB as 100,000 keys",
    "tuple doubled 60 times by number as a key",
    "tuple doubled 60 times as a key of entries",
    "tuple doubled 60 times as a field",
    "tuple doubled 60 times in lists",
    "lists doubled 60 times in two stacks",
    "gzip of 1 GB of pickle",
)
"""Those that differ most."""


@pytest.mark.parametrize("name", SET_OFF_HERE)
def test_a_bomb_ends_in_bounded_time_and_memory(name: str, tmp_path: Path) -> None:
    assert bombs.defused(name, tmp_path)[1] is None
