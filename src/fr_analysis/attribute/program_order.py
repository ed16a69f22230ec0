"""Who left the way that most ranks of the whole job went.

Ranks of one program call the same operations in the same order, each in its own groups of a kind,
and differ in how far they have come. Where ranks block each other before their groups have a
history that could be compared (``siblings``), the job as a whole tells who turned off: most ranks
went one way, and a rank called something else where they went on.

Parts of a job may rightly go ways of their own. So the ranks of each pipeline stage are looked at
apart; and nobody is named with whom most of a group went along, nor one that turned off into, or
away from, a kind of group that not both have, nor one that went on after its turn and hung
somewhere else. Who skipped a call, or made one too many, and then went on as most did, hangs where
that shows: in a group of the kind of that call.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from itertools import combinations
from operator import itemgetter

import numpy as np

from fr_analysis.attribute.siblings import Place, Siblings, Way
from fr_analysis.attribute.waits import Wait
from fr_analysis.match.progress import Progress, is_whole
from fr_analysis.trace import IntColumn


@dataclass(frozen=True, slots=True)
class _Turn:
    """Where a rank left the way of most: its step and row, what it and what they called there.

    What they called are codes, see ``Way``.
    """

    step: int
    row: int
    own: int
    common: int


def find_departed(
    progress: Progress, siblings: Siblings, waits: Mapping[int, Wait]
) -> frozenset[int]:
    """The ranks that turned off the way of most in their stage, and wait there.

    Args:
        progress: the match.
        siblings: what each rank recorded, in order.
        waits: what the ranks wait in.

    Returns:
        Those ranks, also one that is awaited and has called nothing since its turn: a timeout may
        hide that it waits. Where a ring does not hold all of its rank's operations, those that
        have called another number of them; none where no way has a majority.
    """
    dumps = progress.trace.dumps
    if not waits:
        return frozenset()
    if not all(map(is_whole, dumps.values())):
        return _departed_by_counts(progress, siblings, waits)
    stages: dict[Hashable, list[int]] = defaultdict(list)
    for rank in dumps:
        stages[siblings.stage(rank)].append(rank)
    found = set()
    awaited = {target for wait in waits.values() for target in wait.targets}
    for ranks in stages.values():
        turns, way = _turns({rank: siblings.way(rank) for rank in ranks})
        staying = next((rank for rank in ranks if rank not in turns), None)
        for rank, turn in turns.items():
            last = waits[rank].row if rank in waits else len(dumps[rank].operations) - 1
            if rank not in waits and (last != turn.row or rank not in awaited):
                continue
            if (
                (last <= turn.row + 1 or _hangs_by_one_call(siblings, rank, turn, way, last))
                and staying is not None
                and siblings.may_have(staying, siblings.tokens[turn.own][0])
                and siblings.may_have(rank, siblings.tokens[turn.common][0])
            ):
                found.add(rank)
    if not found and len(stages) > 1:
        found = _departed_across_stages(progress, siblings, waits)
    return frozenset(rank for rank in found if _stands_alone(progress, rank, found))


def _departed_across_stages(
    progress: Progress, siblings: Siblings, waits: Mapping[int, Wait]
) -> set[int]:
    """The one rank of the job that called another collective than most, and waits there.

    A stage of two has no majority, but two stages that call the same collectives have one. Stages
    may rightly call some that others do not, among themselves: so nobody is named but who waits in
    a group of several stages, while the rest of its own stage stays on the way of most.
    """
    ways = {rank: siblings.way(rank) for rank in progress.trace.dumps}
    is_collective = np.array([token[2] is None for token in siblings.tokens], dtype=bool)
    for rank, way in ways.items():
        collectives = is_collective[way.codes]
        ways[rank] = Way(way.rows[collectives], way.codes[collectives])
    turns, _ = _turns(ways)
    if len(turns) != 1:
        return set()
    ((rank, turn),) = turns.items()
    wait = waits.get(rank)
    if wait is None or wait.row != turn.row:
        return set()
    members = progress.groups.groups[wait.group].members
    stages = {siblings.stage(member) for member in members if member in ways}
    peers = [
        other
        for other, way in ways.items()
        if other != rank
        and siblings.stage(other) == siblings.stage(rank)
        and len(way.codes) > turn.step
    ]
    return {rank} if len(stages) > 1 and peers else set()


def _departed_by_counts(
    progress: Progress, siblings: Siblings, waits: Mapping[int, Wait]
) -> frozenset[int]:
    """Who left the way of most, by how many collectives it has called in each kind of group.

    Of two ranks that go one way, one has called as many as the other of every kind, or more. A
    rank that is behind most of its stage in one kind, and before them in another, has left the way
    where all others are on one.
    """
    stages: dict[Hashable, dict[int, Place]] = defaultdict(dict)
    for rank in progress.trace.dumps:
        place = siblings.place(rank)
        if place is not None:
            stages[siblings.stage_by_kind(rank), tuple(sorted(place.called))][rank] = place
    found = {rank for places in stages.values() for rank in _off_the_way(places)}
    found &= waits.keys()
    return frozenset(rank for rank in found if _stands_alone(progress, rank, found))


def _off_the_way(places: Mapping[int, Place]) -> list[int]:
    """Of ranks in one role, those that went another way than most, if these went one way."""
    alike: dict[Hashable, list[int]] = defaultdict(list)
    for rank, place in places.items():
        alike[place.newest, tuple(sorted(place.called.items()))].append(rank)
    if len(alike) > _MOST_PLACES:
        return []
    camps = [(places[ranks[0]], ranks) for ranks in alike.values()]
    on, off = [], []
    for place, ranks in camps:
        against = sum(len(others) for other, others in camps if place.is_off(other))
        if 2 * against > len(places):
            off.extend(ranks)
        else:
            on.append(place)
    return [] if any(one.is_off(other) for one, other in combinations(on, 2)) else off


def _hangs_by_one_call(
    siblings: Siblings, rank: int, turn: _Turn, way: list[int], waits_in: int
) -> bool:
    """Whether a rank has gone the way of most but for one call, and hangs in that call's kind."""
    mine = siblings.way(rank)
    own = mine.codes[turn.step :][mine.rows[turn.step :] <= waits_in].tolist()
    rest = way[turn.step :]
    own_kind, common_kind, last_kind = (
        siblings.tokens[code][0] for code in (turn.own, turn.common, own[-1])
    )
    skipped = own == rest[1 : 1 + len(own)] and last_kind == common_kind
    added = own[1:] == rest[: len(own) - 1] and last_kind == own_kind
    return skipped or added


def _turns(ways: Mapping[int, Way]) -> tuple[dict[int, _Turn], list[int]]:
    """Where each rank turned off, and the way, as long as more than half of all ranks go it."""
    turns: dict[int, _Turn] = {}
    longest = max((way.codes for way in ways.values()), key=len)
    # Until two differ, or no more than half have come so far, all go together.
    together_until = min(_differ_at(way.codes, longest) for way in ways.values())
    lengths = sorted((len(way.codes) for way in ways.values()), reverse=True)
    step = min(together_until, lengths[len(ways) // 2])
    common_way: list[int] = longest[:step].tolist()
    going = list(ways)
    while going:
        going = [rank for rank in going if len(ways[rank].codes) > step and rank not in turns]
        called = Counter(int(ways[rank].codes[step]) for rank in going)
        common, together = max(called.items(), key=itemgetter(1), default=(None, 0))
        if common is None or 2 * together <= len(ways):
            break
        for rank in going:
            own = int(ways[rank].codes[step])
            if own != common:
                turns[rank] = _Turn(step, int(ways[rank].rows[step]), own, common)
        common_way.append(common)
        step += 1
    return turns, common_way


def _differ_at(codes: IntColumn, others: IntColumn) -> int:
    """The first step at which a way differs from a longer one; the longer one's end if nowhere."""
    differing = np.flatnonzero(codes != others[: len(codes)])
    return int(differing[0]) if len(differing) else len(others)


def _stands_alone(progress: Progress, rank: int, departed: set[int]) -> bool:
    """Whether no group of a rank went along with it: of each, at most half have departed."""
    dumps = progress.trace.dumps
    for index in set(progress.groups.of_rank[rank]):
        known = [member for member in progress.groups.groups[index].members if member in dumps]
        if len(known) > 1 and 2 * len(departed.intersection(known)) > len(known):
            return False
    return True


_MOST_PLACES = 64
"""Ranks that hang wait for each other at a few places; so many different ones say nothing."""
