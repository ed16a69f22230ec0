"""Tables of what the ranks recorded: for a person who wants to see for themselves."""

from __future__ import annotations

from collections.abc import Collection

from fr_analysis.attribute.evidence import ranks_text
from fr_analysis.errors import printable
from fr_analysis.match import Progress
from fr_analysis.match.semantics import elements, operation_name
from fr_analysis.trace import UNKNOWN, Completion, RankDump, Signature, Trace

_STATES = {
    Completion.UNKNOWN: "",
    Completion.PENDING: "pending",
    Completion.RETIRED: "done",
    Completion.TIMED: "done",
    Completion.COMPLETED: "done",
}


def _table(rows: list[list[object]], headers: list[str]) -> str:
    from tabulate import tabulate  # only for those who want tables

    return tabulate(rows, headers=headers, tablefmt="plain", disable_numparse=True)


def operation_text(signature: Signature) -> str:
    size = elements(signature.input_sizes or signature.output_sizes)
    dtypes = "/".join(dict.fromkeys(signature.input_dtypes or signature.output_dtypes or ()))
    inside = " ".join(str(part) for part in (size, dtypes) if part not in (None, ""))
    return f"{operation_name(signature.operation)}({inside})"


def _wanted(group_text: str, groups: Collection[str]) -> bool:
    """Whether a group is asked for, by name, description or part of one; all if none is."""
    return not groups or any(asked in group_text for asked in groups)


def _oldest_pending(dump: RankDump, groups: Collection[str]) -> str:
    operations = dump.operations
    for row in range(len(operations)):
        group = str(dump.groups[operations.group[row]])
        if operations.completion[row] == Completion.PENDING and _wanted(group, groups):
            text = operation_text(dump.signatures[operations.signature[row]])
            return f"{text} #{operations.number[row]} of {group}"
    return ""


def rank_table(trace: Trace, ranks: Collection[int] = (), groups: Collection[str] = ()) -> str:
    """One line per rank: how much it recorded and what it has been in for longest.

    Args:
        trace: the dumps.
        ranks: show these only; all if empty.
        groups: look for pending operations in these only, by name or part of it.

    Returns:
        The table as text, ending in a newline.
    """
    rows: list[list[object]] = []
    for rank, dump in trace.dumps.items():
        if ranks and rank not in ranks:
            continue
        operations = dump.operations
        pending = int((operations.completion == Completion.PENDING).sum())
        rows.append(
            [
                rank,
                len(operations),
                pending,
                _oldest_pending(dump, groups),
                dump.version,
                printable(dump.source),
            ]
        )
    return (
        _table(rows, ["Rank", "Operations", "Pending", "Oldest pending", "Version", "File"]) + "\n"
    )


def group_table(
    progress: Progress, ranks: Collection[int] = (), groups: Collection[str] = ()
) -> str:
    """Process groups whose members have not all come equally far: who has come how far.

    Args:
        progress: the matched dumps.
        ranks: show these only; all if empty.
        groups: show these only, by name or part of it.

    Returns:
        The table as text, ending in a newline.
    """
    rows: list[list[object]] = []
    level = 0
    for group in progress.groups.groups:
        if not _wanted(str(group.name), groups):
            continue
        at: dict[int, list[int]] = {}
        for rank, advance in progress.advances[group.index].items():
            if not ranks or rank in ranks:
                at.setdefault(advance.last_joined, []).append(rank)
        if len(at) < 2:
            level += 1
            continue
        rows.extend(
            [str(group.name), ranks_text(group.members), max(number, 0), ranks_text(at[number])]
            for number in sorted(at, reverse=True)
        )
    rest = f"In {level} {'other ' if rows else ''}groups all members have come equally far.\n"
    table = _table(rows, ["Group", "Members", "Last joined", "Ranks"]) + "\n" if rows else ""
    return table + rest


def entry_table(
    progress: Progress, ranks: Collection[int] = (), groups: Collection[str] = ()
) -> str:
    """All collectives side by side: a line per sequence number, a column per rank.

    Args:
        progress: the matched dumps.
        ranks: show these only; all if empty.
        groups: show these only, by name or part of it.

    Returns:
        A table per process group as text, ending in a newline. ``-`` marks a collective
        that a rank does not hold: it never joined, or its ring buffer has dropped it.
    """
    texts = []
    for group in progress.groups.groups:
        shown = [
            rank
            for rank in group.members
            if rank in progress.trace.dumps and (not ranks or rank in ranks)
        ]
        if not shown or not _wanted(str(group.name), groups):
            continue
        mine = progress.group == group.index
        rows: list[list[object]] = []
        for number in sorted(set(progress.number[mine].tolist())):
            cells: dict[int, list[str]] = {}
            for join in progress.joins(group.index, number):
                state = _STATES[join.completion]
                cells.setdefault(join.rank, []).append(
                    f"{operation_text(join.signature)} {state}".strip()
                )
            rows.append([number, *("; ".join(cells.get(rank, ["-"])) for rank in shown)])
        headers = ["#", *(f"Rank {rank}" for rank in shown)]
        texts.append(f"Group {group.name}\n{_table(rows, headers)}\n")
    transfers = _transfer_table(progress.trace, ranks, groups)
    return "\n".join([*texts, *([transfers] if transfers else [])]) or "No entries.\n"


def _transfer_table(trace: Trace, ranks: Collection[int], groups: Collection[str]) -> str:
    """Sends and receives in the order in which each rank recorded them."""
    rows: list[list[object]] = []
    for rank, dump in trace.dumps.items():
        if ranks and rank not in ranks:
            continue
        operations = dump.operations
        for row in operations.is_p2p.nonzero()[0].tolist():
            group = str(dump.groups[operations.group[row]])
            if _wanted(group, groups):
                number = int(operations.number[row])
                rows.append(
                    [
                        rank,
                        number if number != UNKNOWN else "",
                        group,
                        operation_text(dump.signatures[operations.signature[row]]),
                        _STATES[Completion(int(operations.completion[row]))],
                    ]
                )
    if not rows:
        return ""
    return f"Sends and receives\n{_table(rows, ['Rank', '#', 'Group', 'Operation', 'State'])}\n"


def health_table(trace: Trace, ranks: Collection[int] = ()) -> str:
    """Node health as NVIDIA's resiliency tools add it to dumps (``health_check_results``).

    Args:
        trace: the dumps.
        ranks: show these only; all if empty.

    Returns:
        The table as text, or one line saying that no dump holds any.
    """
    rows: list[list[object]] = [
        [rank, device, status, " ".join(output.split())]
        for rank, dump in trace.dumps.items()
        if not ranks or rank in ranks
        for device, (status, output) in dump.health.items()
    ]
    if not rows:
        return "No dump holds health check results.\n"
    return _table(rows, ["Rank", "Device", "Status", "Output"]) + "\n"
