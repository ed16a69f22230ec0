"""What holds for the items of a side table, such as a dump's signatures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np

from fr_analysis.trace import IntColumn

T = TypeVar("T")


class PerTable(Generic[T]):
    """What a function says of the items of a side table: many ranks share one, asked once."""

    def __init__(self, of: Callable[[T], int]) -> None:
        self._of = of
        # The table is held too, so that its id stays its own.
        self._known: dict[int, tuple[tuple[T, ...], IntColumn]] = {}

    def __call__(self, table: tuple[T, ...]) -> IntColumn:
        """What it says, by index."""
        if id(table) not in self._known:
            found = np.fromiter(map(self._of, table), dtype=np.int64, count=len(table))
            self._known[id(table)] = table, found
        return self._known[id(table)][1]
