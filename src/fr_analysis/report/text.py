"""The diagnosis as text for a terminal or a job's log."""

from __future__ import annotations

from collections.abc import Sequence

from fr_analysis.attribute.evidence import named_ranks, ranks_text
from fr_analysis.diagnosis import Condition, Diagnosis, Fault, Suspect, Verdict
from fr_analysis.errors import printable
from fr_analysis.trace import Frame

_CONDITIONS = {
    Condition.ALIVE: "alive, but never joined",
    Condition.SILENT: "left no dump",
    Condition.UNREADABLE: "its dump could not be read",
    Condition.AHEAD: "ran ahead of the others",
    Condition.DISAGREES: "differs from its peers",
    Condition.WAITING: "waits in a cycle",
    Condition.DEVICE: "its peers finished what is pending on its device",
    Condition.LATE: "joins late again and again",
}

KINDS = {
    "rank_missing": "a rank is missing",
    "operation_mismatch": "ranks call different operations",
    "size_mismatch": "ranks pass tensors of different size",
    "dtype_mismatch": "ranks pass tensors of different dtype",
    "split_mismatch": "all-to-all splits do not fit each other",
    "membership_mismatch": "ranks disagree on what a process group is",
    "order_deadlock": "ranks enter groups in different order: a deadlock",
    "p2p_unmatched": "a send or recv has no counterpart",
    "p2p_cycle": "sends and receives wait for each other: a deadlock",
    "no_progress": "everyone joined and nothing moves",
    "straggler": "a rank is late",
}
"""A kind of fault in words."""


def headline(diagnosis: Diagnosis) -> str:
    """The verdict in one sentence."""
    if diagnosis.verdict is Verdict.HEALTHY:
        count = len(diagnosis.ranks)
        return f"HEALTHY: nothing is outstanding on {count} rank{'s' if count != 1 else ''}."
    if diagnosis.verdict is Verdict.UNDETERMINED:
        return "UNDETERMINED: the dumps do not decide who is to blame."
    if not diagnosis.suspects:
        kinds = ", ".join(dict.fromkeys(fault.kind.value for fault in diagnosis.faults))
        return f"FAULT: {kinds}; no single rank is to blame."
    suspects = named_ranks(diagnosis.suspects)
    if diagnosis.victims:
        waits = "wait" if len(diagnosis.victims) != 1 else "waits"
        return f"FAULT: suspect {suspects}; {named_ranks(diagnosis.victims)} {waits}."
    return f"FAULT: suspect {suspects}."


def _stack_lines(stack: Sequence[Frame]) -> list[str]:
    return [f"    {frame}" for frame in stack]


def alike_suspects(
    details: Sequence[Suspect], *, stacks: bool = False
) -> list[tuple[list[int], list[str]]]:
    """Suspects of whom the same is known, put together: a dead node takes many ranks along.

    Args:
        details: the suspects. stacks: add their stacks.

    Returns:
        Ranks, and lines on what is known of each of them.
    """
    found: dict[tuple[str, ...], list[int]] = {}
    for suspect in details:
        found.setdefault(tuple(_known_of(suspect, stacks)), []).append(suspect.rank)
    return [(ranks, list(lines)) for lines, ranks in found.items()]


def _known_of(suspect: Suspect, stacks: bool) -> list[str]:
    lines = [_CONDITIONS[suspect.condition]]
    if suspect.location:
        lines.append(f"  is at {suspect.location}")
    elif suspect.stack:
        lines.append(f"  is at {suspect.stack[0]}")
    if suspect.last_call:
        number = f" #{suspect.last_seq_id}" if suspect.last_seq_id is not None else ""
        at = f", called at {suspect.last_call.code}" if suspect.last_call.code else ""
        lines.append(
            f"  last recorded {suspect.last_call.describe()}{number} "
            f"of group {suspect.last_group}{at}"
        )
    if stacks and suspect.stack:
        lines.append("  its stack, most recent call first:")
        lines.extend(_stack_lines(suspect.stack))
    return lines


def _fault_lines(fault: Fault, position: int, total: int, stacks: bool) -> list[str]:
    order = f"Fault {position} of {total}" if total > 1 else "Fault"
    lines = [f"{order}: {fault.kind.value} ({KINDS[fault.kind.value]})"]
    lines.extend(f"  {text}" for text in fault.evidence)
    if fault.victims:
        lines.append(f"  victims: {named_ranks(fault.victims)}")
    for call in fault.calls if stacks else ():
        if call.stack:
            lines.append(f"  {call.describe()} of {named_ranks(call.ranks)} was called at:")
            lines.extend(_stack_lines(call.stack))
    return lines


def render_text(diagnosis: Diagnosis, *, stacks: bool = False) -> str:
    """Render a diagnosis.

    Args:
        diagnosis: the answer.
        stacks: add the stacks of the calls and of the suspects.

    Returns:
        Lines of plain text, without colour, ending in a newline.
    """
    lines = [headline(diagnosis), ""]
    if diagnosis.details:
        lines.append("Suspects")
        for ranks, (condition, *rest) in alike_suspects(diagnosis.details, stacks=stacks):
            lines.append(f"  {named_ranks(ranks)}: {condition}")
            lines.extend(f"  {line}" for line in rest)
        lines.append("")
    for position, fault in enumerate(diagnosis.faults, start=1):
        lines.extend(_fault_lines(fault, position, len(diagnosis.faults), stacks))
        lines.append("")
    if diagnosis.unread:
        lines.append("Not used")
        lines.extend(f"  {printable(unread.path)}: {unread.reason}" for unread in diagnosis.unread)
        lines.append("")
    if diagnosis.notes:
        lines.append("Notes")
        lines.extend(f"  {note}" for note in diagnosis.notes)
        lines.append("")
    if diagnosis.verdict is not Verdict.HEALTHY:
        lines.append(f"Restart: {diagnosis.attribution_state.value}")
    read = f"Read the dumps of {named_ranks(diagnosis.ranks)}"
    if diagnosis.missing_dumps:
        read += f"; none of {ranks_text(diagnosis.missing_dumps)}"
    lines.append(f"{read}.")
    return "\n".join(lines) + "\n"
