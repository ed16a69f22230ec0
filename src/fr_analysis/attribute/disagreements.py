"""Disagreements inside one collective: operation, size, dtype, splits; and membership.

The odd side is at fault where a clear majority stands against it. Where there is none,
both sides are shown and nobody is blamed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace

from fr_analysis.attribute.waits import ABORT_NS, Wait
from fr_analysis.diagnosis import FaultKind
from fr_analysis.match.columns import EndToEnd
from fr_analysis.match.progress import Join, Progress
from fr_analysis.match.semantics import Agreement, agreement, elements
from fr_analysis.trace import UNKNOWN, Completion


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Members that called one collective of a group differently.

    Attributes:
        group, number: which; number is None where the group itself is disputed.
        odd: ranks on the odd side; empty where no side has a clear majority.
        sides: each side's ranks, the largest first.
        settled: the sides are equal, and groups of the same kind told which is odd.
    """

    kind: FaultKind
    group: int
    number: int | None
    odd: tuple[int, ...]
    sides: tuple[tuple[int, ...], ...]
    settled: bool = False


def split_sides(value_of: Mapping[int, Hashable]) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Who stands against the majority.

    Args:
        value_of: rank to what it holds.

    Returns:
        The odd ranks, empty where no value is held by more than half, and all sides,
        the largest first.
    """
    holders: dict[Hashable, list[int]] = defaultdict(list)
    for rank, value in sorted(value_of.items()):
        holders[value].append(rank)
    sides = sorted((tuple(ranks) for ranks in holders.values()), key=lambda s: (-len(s), s))
    odd: tuple[int, ...] = ()
    if len(sides) > 1 and 2 * len(sides[0]) > len(value_of):
        odd = tuple(sorted(rank for side in sides[1:] for rank in side))
    return odd, sides


def _by_rank(joins: list[Join]) -> dict[int, tuple[Agreement, ...]]:
    """What each rank joined with; a coalesced call joins with several operations at once."""
    table: dict[int, tuple[Agreement, ...]] = {}
    for join in joins:
        table[join.rank] = (*table.get(join.rank, ()), agreement(join.signature))
    return table


def _compare(group: int, number: int, joins: list[Join]) -> Disagreement | None:
    """How the joins of one collective differ; ranks may differ in more than one way.

    The kind is that of the first way. Where it leaves a majority, who differs from that in another
    way is odd as well.
    """
    table = _by_rank(joins)
    views: tuple[tuple[FaultKind, Callable[[Agreement], Hashable]], ...] = (
        (FaultKind.OPERATION_MISMATCH, lambda a: a.operation),
        (FaultKind.SIZE_MISMATCH, lambda a: a.elements),
        (FaultKind.DTYPE_MISMATCH, lambda a: a.dtypes),
    )
    found: Disagreement | None = None
    for kind, view in views:
        held = {rank: tuple(view(a) for a in agreements) for rank, agreements in table.items()}
        known = {rank: value for rank, value in held.items() if None not in value}
        odd, sides = split_sides(known)
        if len(sides) < 2:
            continue
        if found is None:
            found = Disagreement(kind, group, number, odd, tuple(sides))
        elif odd:
            both = tuple(sorted({*found.odd, *odd}))
            right = tuple(rank for rank in found.sides[0] if rank not in odd)
            found = replace(found, odd=both, sides=(right, *sides[1:], *found.sides[1:]))
        if not found.odd:
            break
        table = {rank: value for rank, value in table.items() if rank not in found.odd}
    return found


def _split_sizes(joins: list[Join]) -> dict[int, Hashable] | None:
    """All-to-all whose sent and received elements do not add up, by what each rank holds."""
    held: dict[int, tuple[int, int]] = {}
    for join in joins:
        sent, received = elements(join.signature.input_sizes), elements(join.signature.output_sizes)
        if sent is None or received is None:
            return None
        held[join.rank] = (sent, received)
    if sum(sent for sent, _ in held.values()) == sum(received for _, received in held.values()):
        return None
    return dict(held)


def _split_disagreement(progress: Progress, group: int, joins: list[Join]) -> Disagreement | None:
    """The ranks whose splits do not fit their peers', for an all-to-all that all have joined."""
    process_group = progress.groups.groups[group]
    members = process_group.members
    everyone = process_group.declared or progress.trace.dumps.keys() >= {*progress.groups.world}
    if not everyone or tuple(join.rank for join in joins) != members:
        return None
    with_splits = {
        join.rank: (join.signature.input_splits, join.signature.output_splits) for join in joins
    }
    size = len(members)
    if all(i and o and len(i) == size and len(o) == size for i, o in with_splits.values()):
        wrong: Counter[int] = Counter()
        for at, sender in enumerate(members):
            for to, receiver in enumerate(members):
                sent, expected = with_splits[sender][0], with_splits[receiver][1]
                if sent and expected and sent[to] != expected[at]:
                    wrong.update({sender, receiver})
        if not wrong:
            return None
        most = max(wrong.values())
        odd = tuple(sorted(rank for rank, count in wrong.items() if count == most))
        rest = tuple(rank for rank in members if rank not in odd)
        if 2 * len(odd) >= size:
            odd = ()
        sides = (rest, odd) if odd else (members,)
        number = _number_of(progress, group, joins)
        return Disagreement(FaultKind.SPLIT_MISMATCH, group, number, odd, sides)
    held = _split_sizes(joins)
    if held is None:
        return None
    odd, sides_list = split_sides(held)
    number = _number_of(progress, group, joins)
    return Disagreement(FaultKind.SPLIT_MISMATCH, group, number, odd, tuple(sides_list))


def _number_of(progress: Progress, group: int, joins: list[Join]) -> int:
    first = joins[0]
    at = (progress.group == group) & (progress.rank == first.rank) & (progress.row == first.row)
    return int(progress.number[at][0])


def _all_to_alls(progress: Progress) -> list[tuple[int, int]]:
    """Group and number of every all-to-all, in order."""
    all_ranks = EndToEnd(progress.trace)
    is_one = all_ranks.of_signatures(lambda s: agreement(s).operation == "all_to_all")
    rows = is_one[all_ranks.places(progress)] > 0
    return sorted(
        set(zip(progress.group[rows].tolist(), progress.number[rows].tolist(), strict=True))
    )


def _finished_in_time(progress: Progress, join: Join) -> bool:
    """Whether a device finished an operation, and not an abort long after."""
    if join.completion is not Completion.COMPLETED:
        return False
    ended = int(progress.trace.dumps[join.rank].operations.completed_ns[join.row])
    return UNKNOWN in (ended, join.created_ns) or ended - join.created_ns < ABORT_NS


def find_disagreements(progress: Progress) -> dict[int, Disagreement]:
    """The first disagreement of every group that has one, by group index.

    Only the first: once members differ, all that follows in the group is shifted.
    """
    first: dict[int, Disagreement] = {}
    for group, number in progress.disagreements():
        if group in first:
            continue
        joins = progress.joins(group, number)
        if all(_finished_in_time(progress, join) for join in joins):
            continue  # the devices went through it: whatever it computed, nothing hangs here
        compared = _compare(group, number, joins)
        if compared is not None:
            most = len(compared.sides[0])
            if most < _CLEAR * len(compared.odd) and 2 * most < _joined(progress, group, number):
                compared = replace(compared, odd=())  # the calls that are not held may decide
            first[group] = compared
    for group, number in _all_to_alls(progress):
        known = first.get(group)
        if known is not None and (known.number is None or known.number <= number):
            continue
        found = _split_disagreement(progress, group, progress.joins(group, number))
        if found is not None:
            first[group] = found
    return first


def find_later_disagreements(
    progress: Progress, first: Mapping[int, Disagreement]
) -> list[Disagreement]:
    """More ranks that differ in a group, after its first disagreement.

    Ranks that were odd before are left out, since all that they call is shifted.

    Args:
        progress: the match.
        first: the first disagreement of every group.

    Returns:
        Those in which more than half of the group's members agree, with their odd ranks only.
    """
    odd = {group: set(found.odd) for group, found in first.items() if found.number is not None}
    later = []
    for group, number in progress.disagreements():
        if not odd.get(group) or number <= (first[group].number or 0):
            continue
        joins = [join for join in progress.joins(group, number) if join.rank not in odd[group]]
        found = _compare(group, number, joins)
        members = progress.groups.groups[group].members
        if found is not None and found.odd and 2 * len(found.sides[0]) > len(members):
            odd[group].update(found.odd)
            later.append(found)
    return later


_CLEAR = 4
"""A side so many times as large as the others is the majority, whatever is not held."""


def _joined(progress: Progress, group: int, number: int) -> int:
    """How many members joined a collective, or may have, whether their entries are held or not."""
    advances = progress.advances[group]
    return sum(
        member not in advances or advances[member].last_joined >= number
        for member in progress.groups.groups[group].members
    )


def find_membership_disputes(progress: Progress, waits: Iterable[Wait]) -> dict[int, Disagreement]:
    """Groups that ranks hold different versions of, by group index.

    Also groups that members wait in while another, by its own list of groups, is in none
    such: it never created the group.

    Args:
        progress: the match.
        waits: what the ranks wait in.
    """
    disputes = {}
    for group in progress.groups.groups:
        if group.versions:
            odd, sides = split_sides({r: text for text, ranks in group.versions for r in ranks})
            disputes[group.index] = Disagreement(
                FaultKind.MEMBERSHIP_MISMATCH, group.index, None, odd, tuple(sides)
            )
    for wait in waits:
        outsiders = _without_group(progress, wait)
        if outsiders and wait.group not in disputes:
            members = progress.groups.groups[wait.group].members
            rest = tuple(rank for rank in members if rank not in outsiders)
            disputes[wait.group] = Disagreement(
                FaultKind.MEMBERSHIP_MISMATCH, wait.group, None, outsiders, (rest, outsiders)
            )
    return disputes


def _without_group(progress: Progress, wait: Wait) -> tuple[int, ...]:
    """Members that a rank waits for although they list their groups and not this one."""
    found = []
    waiting = progress.trace.dumps[wait.rank]
    local = progress.groups.of_rank[wait.rank].index(wait.group)
    if waiting.declared_members[local] is None:
        return ()  # a recorder that does not list groups
    for rank in wait.absent:
        dump = progress.trace.dumps.get(rank)
        if dump is None or wait.group in progress.groups.of_rank[rank]:
            continue
        if any(members is not None for members in dump.declared_members):
            found.append(rank)
    return tuple(found)
