"""A pickled dump without the entries that are like others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fr_analysis.trace import IntColumn


@dataclass(slots=True)
class Alike:
    """What dumps have in common whose entries are alike in all but numbers and times.

    Attributes:
        parts: what the entries of the first of them were made into; None until then.
    """

    parts: Any = None


@dataclass(frozen=True, slots=True)
class Repeats:
    """What the entries that were left out of a dump are like.

    Attributes:
        entry: for each entry of the dump, which of the shortened one is like it.
        numbers: for each counting field, the places of the entries that hold one, of those that
            could be left out, and the numbers there. Where such an entry is not named here, its
            own value is that of the entry that it is like.
        alike: what is known of the entries; None where that is not worth while to know.
    """

    entry: IntColumn
    numbers: dict[str, tuple[IntColumn, IntColumn]]
    alike: Alike | None = None


@dataclass(frozen=True, slots=True)
class Shortened:
    """A pickle without the entries that are like an earlier one.

    Attributes:
        content: the pickle. kept: how many entries it holds: none where all is known of them.
    """

    content: bytes
    kept: int
    repeats: Repeats

    def holds(self, plain: object) -> bool:
        """Whether the shortened pickle was decoded to what was expected of it.

        Args:
            plain: what it was decoded to.
        """
        entries = plain.get("entries") if isinstance(plain, dict) else None
        if not isinstance(entries, list) or len(entries) != self.kept:
            return False
        if not all(isinstance(entry, dict) for entry in entries):
            return False
        if not entries:
            return self.repeats.alike is not None and self.repeats.alike.parts is not None
        _, first = np.unique(self.repeats.entry, return_index=True)
        for name, (places, values) in self.repeats.numbers.items():
            at = np.minimum(np.searchsorted(places, first), max(len(places) - 1, 0))
            own = np.flatnonzero(places[at] == first) if len(places) else places
            for kept in map(int, own):
                if entries[kept].get(name) != values[at[kept]]:
                    return False
        return True
