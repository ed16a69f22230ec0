"""Keeps what the parts of ``make reliability`` have found, and renders it for the site.

``python -m benchmarks.reliability.kept`` renders again what is kept.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.tables import circumstances, list_table, measured_on

FOLDER = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Table:
    """A table as the site shows it; cells are reStructuredText."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def as_page(kept: dict[str, Any]) -> str:
    """What a part found in reStructuredText, for the site to include."""
    tables = [
        list_table(table["title"], table["head"], [tuple(row) for row in table["rows"]])
        for table in kept["tables"]
    ]
    return "\n".join([*tables, measured_on(kept), f"Printed by ``{kept['command']}``.", ""])


def keep(part: str, command: str, tables: Sequence[Table], packages: Sequence[str]) -> None:
    """Store what a part found, and show it.

    Args:
        part: names the files here, ``<part>.json`` and ``<part>.rst``.
        command: what to type to measure again.
        tables: what was found.
        packages: those whose versions matter besides Python's.
    """
    kept = {
        "command": command,
        **circumstances(packages),
        "tables": [asdict(table) for table in tables],
    }
    (FOLDER / f"{part}.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    show(part)


def show(part: str) -> None:
    """Render what is kept of a part."""
    kept = json.loads((FOLDER / f"{part}.json").read_text(encoding="utf-8"))
    (FOLDER / f"{part}.rst").write_text(as_page(kept), encoding="utf-8")


def parts() -> list[str]:
    """The parts of which something is kept."""
    return sorted(file.stem for file in FOLDER.glob("*.json"))


if __name__ == "__main__":
    for part in parts():
        show(part)
