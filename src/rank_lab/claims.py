"""What a page or a test claims of a run, and whether the analyzer's diagnosis bears it out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from fr_analysis import Diagnosis


@dataclass(frozen=True, slots=True)
class Claims:
    """The outcome that is claimed; None where nothing is.

    Attributes:
        verdict: the diagnosis' verdict.
        kind: kind of the first fault. group: its group's name. collective: its operation.
        collective_seq_id: the number that the waiting ranks recorded.
        suspects, victims: ranks, in ascending order.
        operations: how many operations each rank's dump holds, from rank 0 on.
        stuck_in: the function in which every suspect is, by the stacks snapshot.
    """

    verdict: str | None = None
    kind: str | None = None
    group: str | None = None
    collective: str | None = None
    collective_seq_id: int | None = None
    suspects: tuple[int, ...] | None = None
    victims: tuple[int, ...] | None = None
    operations: tuple[int, ...] | None = None
    stuck_in: str | None = None

    @classmethod
    def from_mapping(cls, table: Mapping[str, Any]) -> Claims:
        """Read claims from a table, as a TOML file holds them.

        Raises:
            ValueError: the table has a key that is no claim.
        """
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(table) - known):
            raise ValueError(f"no such claim: {', '.join(unknown)}; known are {sorted(known)}")
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in table.items()
        }
        return cls(**values)


def differences(claims: Claims, diagnosis: Diagnosis) -> tuple[str, ...]:
    """Compare a diagnosis with what is claimed.

    Returns:
        One phrase per difference; empty where every claim holds.
    """
    fault = diagnosis.faults[0] if diagnosis.faults else None
    found: dict[str, Any] = {
        "verdict": diagnosis.verdict.value,
        "kind": fault.kind.value if fault else None,
        "group": fault.group if fault else None,
        "collective": fault.collective if fault else None,
        "collective_seq_id": fault.collective_seq_id if fault else None,
        "suspects": tuple(sorted(diagnosis.suspects)),
        "victims": diagnosis.victims,
        "operations": diagnosis.operations,
        "stuck_in": ", ".join(
            dict.fromkeys(s.location.name if s.location else "nowhere" for s in diagnosis.details)
        ),
    }
    wrong = []
    for field in fields(claims):
        claimed = getattr(claims, field.name)
        if claimed is not None and claimed != found[field.name]:
            wrong.append(f"{field.name} is {found[field.name]!r}, claimed is {claimed!r}")
    return tuple(wrong)
