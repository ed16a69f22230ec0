"""``attribute``: from ``Progress`` to ``Diagnosis``. Only this package decides blame.

Every rank's wait (``waits``) and every disagreement (``disagreements``) become one graph
of who waits for whom. Its ends are the causes: ranks that others wait for and that wait
for nobody, odd sides of a disagreement, cycles, and operations that everyone has joined
and that do not move. Everyone who waits, directly or through others, is a victim. Where
dumps may hide that a rank waits (``hidden``), or what ranks in its role did is needed to
tell (``siblings``, ``program_order``), nobody is named on waits alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from fr_analysis.attribute.disagreements import (
    Disagreement,
    find_disagreements,
    find_later_disagreements,
    find_membership_disputes,
    split_sides,
)
from fr_analysis.attribute.evidence import Describer
from fr_analysis.attribute.group_creation import NEW_GROUP, find_group_creation
from fr_analysis.attribute.hidden import Hidden
from fr_analysis.attribute.program_order import find_departed
from fr_analysis.attribute.siblings import Siblings
from fr_analysis.attribute.stragglers import find_stragglers
from fr_analysis.attribute.waits import (
    Wait,
    WaitFinder,
    components,
    cycles,
    late_to_the_end,
    reachable,
)
from fr_analysis.diagnosis import (
    AttributionState,
    Condition,
    Diagnosis,
    Edge,
    Fault,
    FaultKind,
    StuckGroup,
    Suspect,
    Verdict,
)
from fr_analysis.match import Progress
from fr_analysis.trace import UNKNOWN, Completion, UnreadMany

__all__ = ["attribute", "is_established"]

_RESTART_HELPS = frozenset({FaultKind.RANK_MISSING, FaultKind.NO_PROGRESS, FaultKind.STRAGGLER})
_BY_PROGRAM = frozenset({Condition.AHEAD, Condition.DISAGREES})
"""What a rank does again when it is started again."""
_IDLE = frozenset({Condition.ALIVE, Condition.SILENT, Condition.UNREADABLE})
"""A rank that takes part in nothing: without it the program may well run."""


class _Attribution:
    """One attribution in progress; ``attribute`` runs it."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.trace = progress.trace
        self.describe = Describer(progress)
        finder = WaitFinder(progress)
        self.waits = finder.find()
        self.outdated = finder.outdated
        self.oldest_unfinished = finder.oldest_unfinished
        self.hidden = Hidden(progress, self.waits)
        self.siblings = Siblings(progress)
        self.departed = find_departed(progress, self.siblings, self.waits)
        self.disagreements = {
            group: self._settled(found) for group, found in find_disagreements(progress).items()
        }
        for found in self.disagreements.values():
            self._add_waits_in(found, finder)
        self._add_waits_ended_by_abort(finder)
        self._find_odd_alone()
        self.disputes = find_membership_disputes(progress, self.waits.values())
        self.edges = self._edges(finder)
        self.idle_behind = self._idle_behind(finder.queued)
        self._explain_lost_dumps()
        self.conditions: dict[int, Condition] = {}
        self.faults: list[Fault] = []
        self.stuck: list[StuckGroup] = []
        self.notes: list[str] = []
        self.undecided = False
        self.creating: frozenset[int] = frozenset()

    def _add_waits_in(self, found: Disagreement, finder: WaitFinder) -> None:
        """Let ranks wait that came no further than a disagreement, whatever marks say.

        Only those that others wait for elsewhere, and those whose dumps still show it pending while
        nobody has gone on: some disagreements do complete, on Gloo.
        """
        if found.number is None:
            return
        awaited = {target for wait in self.waits.values() for target in wait.targets}
        awaited |= finder.pending_at_the_end(found.group, found.number)
        for rank in (rank for side in found.sides for rank in side):
            known = self.waits.get(rank)
            if known is None and rank not in awaited:
                continue
            if known is None or known.marked_complete:
                wait = finder.in_disagreement(rank, found.group, found.number)
                if wait is not None and (known is None or wait.row < known.row):
                    self.waits[rank] = wait

    def _add_waits_ended_by_abort(self, finder: WaitFinder) -> None:
        """Let awaited ranks wait in what the abort marked as complete on all members."""
        todo = list(self.waits.values())
        while todo:
            waiting = todo.pop()
            for rank in waiting.targets:
                if rank in self.waits or rank not in self.trace.dumps:
                    continue
                wait = finder.ended_with(rank, waiting)
                if wait is not None:
                    self.waits[rank] = wait
                    todo.append(wait)

    def _find_odd_alone(self) -> None:
        """Where all peers' dumps are lost, let other groups of the kind be the majority."""
        for wait in self.waits.values():
            lost = wait.unknown and not wait.absent and wait.number is not None
            if not lost or wait.group in self.disagreements or wait.number is None:
                continue
            members = set(self.progress.groups.groups[wait.group].members)
            known = members & self.trace.dumps.keys()
            if len(known) > 1:
                continue
            found = self.siblings.odd_alone(wait.group, wait.number, self._odd())
            if found is not None:
                self.disagreements[wait.group] = found

    def _settled(self, found: Disagreement) -> Disagreement:
        """A disagreement of equal sides, decided by groups of the same kind where they tell."""
        odd = () if found.odd else self.siblings.settle(found)
        if not found.odd and not odd:
            odd = self._departed_side(found)
        if not odd:
            return found
        rest = tuple(rank for side in found.sides for rank in side if rank not in odd)
        return replace(found, odd=odd, sides=(tuple(sorted(rest)), odd), settled=True)

    def _departed_side(self, found: Disagreement) -> tuple[int, ...]:
        """The side of a disagreement that left the way of most of the job, if all of it did."""
        gone = [side for side in found.sides if self.departed.issuperset(side)]
        stayed = [side for side in found.sides if not self.departed.intersection(side)]
        if len(gone) + len(stayed) < len(found.sides) or not stayed:
            return ()
        return tuple(sorted(rank for side in gone for rank in side))

    def _disagreement_of(self, wait: Wait) -> Disagreement | None:
        """The disagreement in whose shadow a rank waits."""
        dispute = self.disputes.get(wait.group)
        if dispute is not None:
            return dispute
        found = self.disagreements.get(wait.group)
        if found is None or wait.number is None or found.number is None:
            return None
        return found if wait.number >= found.number else None

    def _edges(self, finder: WaitFinder) -> dict[int, tuple[int, ...]]:
        edges: dict[int, tuple[int, ...]] = {}
        odd = {rank for dispute in self.disputes.values() for rank in dispute.odd}
        idle_at: dict[int, tuple[int, ...]] = {}
        for rank, wait in self.waits.items():
            disagreement = self._disagreement_of(wait)
            if rank in odd:
                edges[rank] = ()
            elif disagreement is None:
                edges[rank] = wait.targets
            elif rank not in disagreement.odd:
                if wait.group not in idle_at:
                    idle_at[wait.group] = self._idle_at(disagreement, finder)
                edges[rank] = disagreement.odd + idle_at[wait.group]
            else:
                edges[rank] = ()
        return edges

    def _idle_at(self, found: Disagreement, finder: WaitFinder) -> tuple[int, ...]:
        """Members that wait in nothing and never came to what the others disagree on."""
        if found.number is None:
            return ()
        absent, _ = finder.absent(found.group, found.number)
        return tuple(rank for rank in absent if rank not in self.waits)

    def _awaited(self) -> set[int]:
        """The ranks that others wait for."""
        return {target for targets in self.edges.values() for target in targets}

    def _idle_behind(self, queued: Iterable[Wait]) -> dict[tuple[int, int], dict[int, set[int]]]:
        """Ranks that wait in nothing and never came to collectives that others have queued.

        Whatever those wait in first, these will be missing next. Per place, each such rank and who
        has queued it; a single rank that did may have run ahead.
        """
        awaited = self._awaited()
        places: dict[tuple[int, int], dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
        for wait in queued:
            found = self.disagreements.get(wait.group)
            if wait.number is None or (found and (found.number or 0) < wait.number):
                continue
            for rank in wait.absent:
                if rank not in self.waits and rank not in awaited:
                    places[wait.group, wait.number][rank].add(wait.rank)
        first: dict[tuple[int, int], dict[int, set[int]]] = {}
        seen: set[int] = set()
        for place, ranks in sorted(places.items()):
            sure = {r: by for r, by in ranks.items() if len(by) > 1 and r not in seen}
            if sure and not any(map(self.hidden.may_wait, sure)):
                first[place] = sure
                seen.update(sure)
        return first

    def _explain_lost_dumps(self) -> None:
        """Let ranks without a dump wait where causes that dumps show account for it.

        A rank whose dump was lost looks like a dead one. It shares a group with ranks that
        wait for a cause which is known, so most likely it waits as they do.
        """
        dumps = self.trace.dumps
        awaited = self._awaited()
        lost = {rank for rank in awaited if rank not in dumps}
        causes = {rank for rank in awaited - lost if not self.edges.get(rank)}
        causes |= self._odd() | self.departed
        causes |= {rank for ranks in self.idle_behind.values() for rank in ranks}
        if not lost:
            return
        # Whatever an odd rank has gone on to wait for, it would not, had it gone the others' way.
        self.edges.update(dict.fromkeys(causes & (self._odd() | self.departed), ()))
        blocked = {rank for rank in self.waits if reachable(rank, self.edges) & causes} | causes
        for rank in sorted(lost):
            # A cause that waits for the lost rank itself does not account for it.
            accounts = tuple(c for c in sorted(causes) if rank not in reachable(c, self.edges))
            if accounts and self._may_share_a_group(rank, blocked):
                self.edges[rank] = accounts
        self._explain_by_deadlocks(lost)

    def _may_share_a_group(self, rank: int, others: set[int]) -> bool:
        """Whether a rank without a dump is, or may be, in a group with one of several others."""
        return any(
            not group.declared or (rank in group.members and others & set(group.members))
            for group in self.progress.groups.groups
        )

    def _explain_by_deadlocks(self, lost: set[int]) -> None:
        """Let ranks that wait for lost dumps only wait for those that block each other."""
        among_known = {
            rank: tuple(target for target in targets if target not in lost)
            for rank, targets in self.edges.items()
            if rank not in lost
        }
        blocking = {rank for members in components(among_known) for rank in members}
        for rank, targets in self.edges.items():
            if blocking and targets and not among_known.get(rank, targets):
                self.edges[rank] = tuple(sorted(blocking - {rank}))

    # -- causes ---------------------------------------------------------------------

    def run(self) -> None:
        """Find every cause."""
        for disagreement in (*self.disagreements.values(), *self.disputes.values()):
            if disagreement.group not in self.disputes or disagreement.number is None:
                self._add_disagreement(disagreement)
        for disagreement in find_later_disagreements(self.progress, self.disagreements):
            self._add_disagreement(disagreement)
        if self.outdated:
            self.notes.append(self.describe.outdated(self.outdated))
        self._add_group_creation()
        self._add_missing()
        self._add_cycles()
        self._add_departures()
        self._add_stuck_devices()
        if not self.waits and not self.faults:
            self._add_stragglers()
        if not self.faults:
            self._doubt_late_ends()

    def _victims(self, causes: Iterable[int]) -> tuple[int, ...]:
        """Ranks that wait for one of the causes, directly or through others."""
        wanted = set(causes)
        return tuple(
            rank
            for rank in sorted(self.edges)
            if (rank in self.waits or rank in self.creating)
            and rank not in wanted
            and reachable(rank, self.edges) & wanted
        )

    def _blame(self, ranks: Iterable[int], condition: Condition) -> None:
        for rank in ranks:
            self.conditions.setdefault(rank, condition)

    def _add_disagreement(self, found: Disagreement) -> None:
        involved = {rank for side in found.sides for rank in side}
        direct = {rank for rank, wait in self.waits.items() if self._disagreement_of(wait) == found}
        if found.odd:
            victims = set(self._victims(found.odd)) | (direct - set(found.odd))
        else:
            victims = {r for r in self.waits if reachable(r, self.edges) & direct} - involved
        self._blame(found.odd, Condition.DISAGREES)
        self.faults.append(self.describe.disagreement(found, tuple(sorted(victims))))
        if direct or found is self.disagreements.get(found.group):
            self._add_front(found.group, found.number, tuple(sorted(direct)), found.odd)

    def _add_group_creation(self) -> None:
        """Ranks in ``new_group``, which stacks show and dumps do not."""
        found = find_group_creation(self.progress, self.waits, self.edges)
        if found is None:
            return
        self.creating = frozenset(found.creating)
        others = tuple(rank for rank in self.progress.groups.world if rank not in self.creating)
        causes = found.odd or others
        for rank in found.creating:
            self.edges[rank] = () if rank in causes else causes
        if found.idle and self.waits:
            return  # those that wait in a collective name the idle ranks
        for rank in others:
            self.edges[rank] = () if found.odd and rank in causes else found.creating
            if rank in found.idle:
                self._blame([rank], self._condition_of_missing(rank))
        self._blame(found.odd, Condition.DISAGREES)
        inside = [self.waits[rank] for rank in others if rank in self.waits]
        victims = self._victims(found.odd)
        fault = self.describe.group_creation(found, inside, victims)
        self.faults.append(fault)
        place = fault.group, fault.group_description, NEW_GROUP, None
        self.stuck.append(StuckGroup(*place, waiting=found.creating, missing=causes))

    def _add_front(
        self, group: int, number: int | None, waiting: tuple[int, ...], missing: tuple[int, ...]
    ) -> None:
        self.stuck.append(self.describe.stuck_group(group, number, waiting, missing))

    def _add_missing(self) -> None:
        """Ranks that others wait for and that wait for nobody themselves."""
        waited_by: dict[int, list[Wait]] = defaultdict(list)
        for rank, wait in self.waits.items():
            disagreement = self._disagreement_of(wait)
            for target in self.edges[rank]:
                if disagreement is None or target not in disagreement.odd:
                    waited_by[target].append(wait)
        places: dict[tuple[int, int | None, bool], set[int]] = defaultdict(set)
        for rank, waiting in waited_by.items():
            if rank not in self.waits and self.edges.get(rank):
                continue  # its dump was lost, and another cause explains its silence
            if rank in self.creating:
                continue  # told by _add_group_creation
            own = self.waits.get(rank)
            stuck_device = (
                own is not None
                and bool(own.finished)
                and not self.edges[rank]
                and any(wait.number is not None for wait in waiting)
            )
            odd = own is not None and self._disagreement_of(own) is not None
            if (own is not None and not stuck_device) or odd:
                continue
            # Of the operations that lack this rank, the one entered first was lacking first;
            # a collective names the missing rank with more certainty than a transfer.
            first = min(
                waiting,
                key=lambda w: (w.number is None, self.describe.entered_ns(w), w.group),
            )
            places[first.group, first.number, first.number is None].add(rank)
        for (group, number, is_p2p), ranks in places.items():
            self._add_absence(group, number, is_p2p, tuple(sorted(ranks)))
        for (group, number), behind in self.idle_behind.items():
            self._add_idle_behind(group, number, behind)

    def _add_idle_behind(self, group: int, number: int, behind: Mapping[int, set[int]]) -> None:
        """Idle ranks, each with those that have queued what it never came to."""
        missing = tuple(sorted(behind))
        waiting = tuple(sorted({rank for by in behind.values() for rank in by}))
        self._blame(missing, Condition.ALIVE)
        self.faults.append(
            self.describe.absence(
                group,
                number,
                kind=FaultKind.RANK_MISSING,
                missing=missing,
                waiting=waiting,
                suspects=missing,
                victims=waiting,
                ahead=False,
                conditions=self.conditions,
                unseen=(),
            )
        )

    def _add_absence(
        self, group: int, number: int | None, is_p2p: bool, missing: tuple[int, ...]
    ) -> None:
        waiting = tuple(
            rank
            for rank, wait in sorted(self.waits.items())
            if wait.group == group
            and (number is None or (wait.number is not None and wait.number >= number))
            and set(self.edges[rank]) & set(missing)
        )
        held_up = tuple(rank for rank in sorted(self.waits) if set(self.edges[rank]) & set(missing))
        ahead = self._ran_ahead(number, held_up, missing)
        unreached = self.trace.unreached(missing)
        suspects = ahead or tuple(rank for rank in missing if rank not in unreached)
        left = self.departed.issuperset(missing)
        conditions = {
            rank: Condition.DISAGREES if left else self._condition_of_missing(rank)
            for rank in missing
        }
        # Who has begun to write a dump may have waited like the others.
        unread = len(missing) > 1 and Condition.UNREADABLE in conditions.values()
        unseen = tuple(filter(self.hidden.may_wait, missing))
        unsure = unread or unseen != () or suspects == ()
        if not unsure and not self.trace.dumps.keys() & set(missing):
            unsure = (
                self._most_are_lost()
                or self._others_are_lost(held_up, missing)
                or self._only_odd_wait(held_up)
                or self._lost_may_wait(held_up, missing)
            )
        unsure |= self._may_be_elsewhere(held_up, missing)
        unsure |= self._wait_for_each_other(held_up)
        unsure |= ahead == () and self._could_be_ahead(number, held_up, missing)
        if self.departed.issuperset(ahead or missing):
            unsure = False
        if ahead:
            self._blame(ahead, Condition.AHEAD)
        elif not unsure:
            for rank in suspects:
                self._blame([rank], conditions[rank])
        victims = tuple(r for r in self._victims(missing) if r not in suspects)
        self.faults.append(
            self.describe.absence(
                group,
                number,
                kind=FaultKind.P2P_UNMATCHED if is_p2p else FaultKind.RANK_MISSING,
                missing=missing,
                waiting=waiting,
                suspects=() if unsure else suspects,
                victims=victims,
                ahead=bool(ahead),
                conditions=conditions,
                unseen=unseen,
            )
        )
        self._add_front(group, number, waiting, missing)

    def _odd(self) -> set[int]:
        """All ranks that stand against a majority."""
        return {rank for found in self.disagreements.values() for rank in found.odd}

    def _most_are_lost(self) -> bool:
        """Whether most dumps of the job are lost: of who left none, too little is known.

        A job that was asked has told how each of its ranks failed to answer.
        """
        was_asked = self.trace.silences is not None
        return not was_asked and 2 * len(self.trace.dumps) < len(self.progress.groups.world)

    def _others_are_lost(self, held_up: tuple[int, ...], missing: tuple[int, ...]) -> bool:
        """Whether dumps are lost that nobody misses, and a single rank misses these.

        One that waits where it should not misses a dump that was lost as those were.
        """
        lost = set(self.progress.groups.world) - self.trace.dumps.keys()
        awaited = self._awaited()
        return len(held_up) == 1 and not lost <= awaited | set(missing)

    def _only_odd_wait(self, held_up: tuple[int, ...]) -> bool:
        """Whether lost dumps are missed only by ranks that went another way than their peers."""
        odd = self._odd() | self.departed
        return (
            odd.issuperset(held_up)
            or all(map(self.siblings.is_disputed, held_up))
            or all(map(self._waits_alone, held_up))
        )

    def _lost_may_wait(self, held_up: tuple[int, ...], missing: tuple[int, ...]) -> bool:
        """Whether lost dumps may be of ranks that wait for what the other dumps only hint at.

        The ring of a rank that waits for nobody has lost what it waits in; somebody who waits in
        the same collective as others has called less than they had finished by then; or a rank of
        one of their groups went another way than its peers, or called another thing there than
        other groups of the kind.
        """
        together: dict[tuple[int, int], list[int]] = defaultdict(list)
        for rank in held_up:
            wait = self.waits[rank]
            if wait.number is not None:
                together[wait.group, wait.number].append(rank)
        groups = [
            group
            for group in self.progress.groups.groups
            if not set(missing).isdisjoint(group.members)
        ]
        near = {rank for group in groups for rank in group.members if rank in self.trace.dumps}
        return (
            any(
                not self.edges[rank] and self.hidden.may_have_lost_its_wait(rank)
                for rank in self.waits
            )
            or any(
                self.siblings.called_less(rank, (other for other in waiting if other != rank))
                for waiting in together.values()
                for rank in waiting
            )
            or any(map(self.siblings.is_disputed, near))
            or any(map(self.siblings.order_differs, groups))
            or any(
                self.siblings.odd_alone(group.index, number, self._odd())
                for group in groups
                for number in self.oldest_unfinished(group.index)
            )
        )

    def _waits_alone(self, rank: int) -> bool:
        """Whether no other rank is known to have called the collective that a rank waits in."""
        wait = self.waits[rank]
        if wait.number is None:
            return False
        return self.siblings.stands_alone(rank, wait.group, wait.number)

    def _wait_for_each_other(self, ranks: tuple[int, ...]) -> bool:
        """Whether ranks disagree on what comes next, so that they may be wrong to wait for more."""
        in_collectives = {rank: to for rank, to in self.edges.items() if rank not in self.creating}
        return any(set(ranks) <= set(members) for members in components(in_collectives))

    def _may_be_elsewhere(self, held_up: tuple[int, ...], missing: tuple[int, ...]) -> bool:
        """Whether some that lost dumps hold up may be past that, and others wait for them.

        torch's Gloo retires what timed out as it does what is over. Not more of them than are
        missing: that many would not be stuck at once.
        """
        awaited = self._awaited()
        past = [
            rank
            for rank in held_up
            if rank in awaited
            and not self.waits[rank].absent
            and self.trace.dumps[rank].operations.completion[self.waits[rank].row]
            == Completion.RETIRED
        ]
        return 0 < len(past) <= len(missing)

    def _condition_of_missing(self, rank: int) -> Condition:
        own = self.waits.get(rank)
        if own is not None and own.finished:
            return Condition.DEVICE
        if rank in self.trace.dumps:
            return Condition.ALIVE
        if any(
            unread.rank == rank or isinstance(unread, UnreadMany) for unread in self.trace.unread
        ):
            return Condition.UNREADABLE
        stacks = self.trace.stacks.get(rank)
        return Condition.ALIVE if stacks and stacks.threads else Condition.SILENT

    def _could_be_ahead(
        self, number: int | None, held_up: tuple[int, ...], missing: tuple[int, ...]
    ) -> bool:
        """Whether those that missing ranks hold up, here or elsewhere, may have run ahead of them.

        Fewer are held up than are missing, and every missing rank is alive and idle; or, of two,
        most ranks have ended like the missing one, or half of them, and the other is awaited too.
        """
        if number is None:
            return False
        if len(held_up) == len(missing) == 1:
            share = self._alike_in_the_end(missing[0])
            is_awaited = any(held_up[0] in self.edges[rank] for rank in self.waits)
            return share > 1 / 2 or (share == 1 / 2 and is_awaited)
        return len(held_up) < len(missing) and all(
            self._condition_of_missing(rank) == Condition.ALIVE for rank in missing
        )

    def _ran_ahead(
        self, number: int | None, held_up: tuple[int, ...], missing: tuple[int, ...]
    ) -> tuple[int, ...]:
        """A few ranks in a collective that none of several idle peers has called.

        They called one too many: their peers are past it or elsewhere, not behind. Of two, it is
        the one that waits where the other has come as far as most ranks of the job. Also ranks that
        all left the way of most.
        """
        if number is not None and self.departed.issuperset(held_up):
            return held_up
        if not self._could_be_ahead(number, held_up, missing):
            return ()
        if len(missing) == 1:
            return held_up if self._alike_in_the_end(missing[0]) > 1 / 2 else ()
        return held_up if len(held_up) == 1 or self._are_few(held_up, missing) else ()

    def _are_few(self, held_up: tuple[int, ...], missing: tuple[int, ...]) -> bool:
        """Whether ranks wait together for many, most of the job, which all came equally far."""
        places = {(self.waits[rank].group, self.waits[rank].number) for rank in held_up}
        group = self.waits[held_up[0]].group
        came = {self.progress.advances[group][rank] for rank in missing}
        return (
            len(places) == 1
            and len({advance.last_joined for advance in came}) == 1
            and _MANY * len(held_up) <= len(missing)
            and 2 * len(missing) > len(self.trace.dumps)
        )

    def _alike_in_the_end(self, rank: int) -> float:
        """The share of ranks with a dump that wait in nothing and have called as much as a rank.

        Nothing where no other rank has.
        """
        idle = self.trace.dumps.keys() - self.waits.keys()
        if rank not in idle:
            return 0
        alike = [other for other in idle if self.siblings.same_counts(rank, other)]
        return len(alike) / len(self.trace.dumps) if len(alike) > 1 else 0

    def _add_cycles(self) -> None:
        """Ranks that wait for each other."""
        for members in cycles(self.edges):
            if self.creating & set(members):
                continue  # told by _add_group_creation
            inside = [self.waits[rank] for rank in members]
            groups = {wait.group for wait in inside}
            transfers = [wait for wait in inside if wait.number is None]
            p2p = len(transfers) == len(inside)
            kind = FaultKind.P2P_CYCLE if p2p else FaultKind.ORDER_DEADLOCK
            if transfers and not p2p:
                kind = FaultKind.P2P_UNMATCHED
            suspects = self._odd_of_cycle(kind, inside)
            self._blame(suspects, Condition.WAITING if suspects == members else Condition.DISAGREES)
            victims = {r for r in self.waits if reachable(r, self.edges) & set(members)}
            # Where nobody of the circle is to blame, nobody of it is a victim of another either.
            inside_victims = set(members) if suspects else set()
            victims = ((victims - set(members)) | inside_victims) - set(suspects)
            self.faults.append(self.describe.cycle(kind, inside, suspects, tuple(sorted(victims))))
            for group in sorted(groups):
                here = [wait for wait in inside if wait.group == group]
                waiting = tuple(wait.rank for wait in here)
                targets = {t for wait in here for t in wait.targets}
                number = min((w.number for w in here if w.number is not None), default=None)
                self._add_front(group, number, waiting, tuple(sorted(targets & set(members))))

    def _odd_of_cycle(self, kind: FaultKind, inside: list[Wait]) -> tuple[int, ...]:
        """Who of a cycle is to blame; empty where nothing tells."""
        members = tuple(wait.rank for wait in inside)
        known = tuple(r for r in members if self.conditions.get(r) is Condition.DISAGREES)
        if known:
            return known
        # Where a ring has lost the oldest, those that are left may not be each other's.
        transfers = kind is not FaultKind.ORDER_DEADLOCK
        lost = (
            self.hidden.may_have_lost_a_transfer
            if transfers
            else self.hidden.may_have_lost_its_wait
        )
        if any(map(lost, members)):
            return ()
        odd = self.siblings.odd_ones(members) or tuple(sorted(self.departed.intersection(members)))
        if odd:
            # Who waits for odd ones only is kept from doing what its peers do.
            return tuple(r for r in odd if not set(self.edges[r]) <= set(odd)) or odd
        if kind is FaultKind.P2P_CYCLE:
            return members
        if kind is FaultKind.P2P_UNMATCHED:
            # One end is in a transfer, the other in a collective: which of them is wrong
            # to be where it is, the dumps cannot tell.
            return ()
        everyone = all(
            set(self.progress.groups.groups[wait.group].members) >= set(members) for wait in inside
        )
        if everyone:
            odd, _ = split_sides({wait.rank: wait.group for wait in inside})
        # A job of two: each waits for the other, and both are in it alike.
        return odd or (members if len(members) == 2 == len(self.progress.groups.world) else ())

    def _add_stuck_devices(self) -> None:
        """Operations that all members joined and that nothing holds up."""
        places: dict[tuple[int, int | None], list[Wait]] = defaultdict(list)
        for rank, wait in self.waits.items():
            idle = not self.edges[rank] and self._disagreement_of(wait) is None
            if idle and rank not in self.conditions:
                places[wait.group, wait.number].append(wait)
        for (group, number), waits in sorted(
            places.items(), key=lambda item: min(map(self.describe.entered_ns, item[1]))
        ):
            if not self._members_known(group):
                self.notes.append(self.describe.unknown_members(group, number, waits))
                self._add_front(group, number, tuple(wait.rank for wait in waits), ())
                self.undecided = True
                continue
            if group in self.outdated:
                self.undecided = True
                continue
            if all(self.hidden.may_have_lost_its_wait(wait.rank) for wait in waits):
                self.notes.append(self.describe.overwritten(group, number, waits))
                self._add_front(group, number, tuple(wait.rank for wait in waits), ())
                self.undecided = True
                continue
            if all(map(self.describe.is_fresh, waits)) and not any(w.finished for w in waits):
                self.notes.append(self.describe.fresh(group, number, waits))
                self._add_front(group, number, tuple(wait.rank for wait in waits), ())
                self.undecided = True
                continue
            behind = tuple(
                w.rank
                for w in waits
                if (w.finished or w.not_begun) and not self.hidden.may_have_lost_a_transfer(w.rank)
            )
            joined = len(self.progress.groups.groups[group].members)
            suspects = behind if len(behind) < joined else ()
            self._blame(suspects, Condition.DEVICE)
            stuck = tuple(wait.rank for wait in waits)
            victims = tuple(
                r
                for r in sorted(self.edges)
                if r not in suspects and (r in stuck or reachable(r, self.edges) & set(stuck))
            )
            self.faults.append(self.describe.no_progress(group, number, waits, suspects, victims))
            self._add_front(group, number, stuck, suspects)

    def _add_departures(self) -> None:
        """Ranks that left the way of most, where too little is known of groups to tell it else."""
        untold = tuple(sorted(self.departed - self.conditions.keys()))
        if not untold or any(fault.suspects for fault in self.faults):
            return
        victims = tuple(rank for rank in self._victims(untold) if rank in self.waits)
        if not victims:
            return
        self._blame(untold, Condition.DISAGREES)
        inside = [self.waits[rank] for rank in (*untold, *victims) if rank in self.waits]
        self.faults.append(self.describe.cycle(FaultKind.ORDER_DEADLOCK, inside, untold, victims))

    def _add_stragglers(self) -> None:
        """Ranks that hold up a job that moves."""
        for lateness in find_stragglers(self.progress):
            self._blame([lateness.rank], Condition.LATE)
            self.faults.append(self.describe.straggler(lateness))

    def _doubt_late_ends(self) -> None:
        """Where nothing waits: what took as long as a timeout may not have been done at all."""
        late = [r for r, dump in self.trace.dumps.items() if late_to_the_end(dump.operations)]
        if late:
            self.notes.append(self.describe.ended_late(late))
        unseen = [r for r in self.trace.dumps if r not in late and self.hidden.ended_unseen(r)]
        if unseen:
            self.notes.append(self.describe.ended_unseen(unseen))
        self.undecided |= bool(late or unseen)

    def _members_known(self, group: int) -> bool:
        """Whether those that recorded in a group are surely all of its members.

        Where no dump declares them, as with torch's Gloo process group, one complete
        operation tells: every member has recorded that one.
        """
        if self.progress.groups.groups[group].declared:
            return True
        if self.progress.lacks_dumps():
            return False
        return any(
            (dump.operations.completion[local == group] > Completion.PENDING).any()
            for rank, dump in self.trace.dumps.items()
            for local in [np.array(self.progress.groups.of_rank[rank])[dump.operations.group]]
        )

    # -- the answer -----------------------------------------------------------------

    def diagnosis(self) -> Diagnosis:
        """The causes as one answer."""
        order = {id(fault): at for at, fault in enumerate(self.faults)}
        faults = sorted(
            self.faults,
            key=lambda f: (not f.suspects, f.first_seen_ns or 0, order[id(f)]),
        )
        # Most certain first: what holds up most of the job is seen by most of its ranks.
        by_weight = sorted(faults, key=lambda f: -len(f.victims))
        suspects = tuple(dict.fromkeys(rank for fault in by_weight for rank in fault.suspects))
        victims = sorted({r for fault in faults for r in fault.victims} - set(suspects))
        world = self.progress.groups.world
        missing = tuple(rank for rank in world if rank not in self.trace.dumps)
        self.notes.extend(self.describe.notes(faults, missing, self.waits))
        if any(map(is_established, faults)):
            verdict = Verdict.FAULT
        elif (
            faults
            or self.undecided
            or missing
            or self._lacks_a_dump()
            or not self._anything_recorded()
        ):
            verdict = Verdict.UNDETERMINED
        else:
            verdict = Verdict.HEALTHY
        return Diagnosis(
            verdict=verdict,
            suspects=suspects,
            victims=tuple(victims),
            wavefront=tuple(self.stuck),
            attribution_state=self._state(verdict, faults),
            faults=tuple(faults),
            details=tuple(self._detail(rank) for rank in suspects),
            unread=self.trace.unread,
            notes=tuple(self.notes),
            ranks=tuple(self.trace.dumps),
            operations=tuple(len(dump.operations) for dump in self.trace.dumps.values()),
            missing_dumps=missing,
            waits=tuple(
                Edge(rank, target, self._waits_in(rank))
                for rank, targets in sorted(self.edges.items())
                if rank in self.waits or rank in self.creating
                for target in targets
            ),
        )

    def _waits_in(self, rank: int) -> str:
        """The group in which a rank waits; no name where it is in ``new_group``."""
        wait = self.waits.get(rank)
        return self.progress.groups.groups[wait.group].name.name if wait else ""

    def _lacks_a_dump(self) -> bool:
        """Whether a rank's only dump could not be used; stray files and doubles are no loss."""
        return any(
            isinstance(unread, UnreadMany)
            or (unread.rank is not None and unread.rank not in self.trace.dumps)
            for unread in self.trace.unread
        )

    def _anything_recorded(self) -> bool:
        """Operations, or at least counters: dumps of active entries may hold none."""
        return any(
            len(dump.operations)
            or any(status and status.last_enqueued != UNKNOWN for status in dump.statuses)
            for dump in self.trace.dumps.values()
        )

    def _state(self, verdict: Verdict, faults: list[Fault]) -> AttributionState:
        if verdict is Verdict.HEALTHY:
            return AttributionState.CONTINUE
        helps = all(
            fault.suspects
            and (
                fault.kind in _RESTART_HELPS
                or (
                    fault.kind is FaultKind.P2P_UNMATCHED
                    and all(self.conditions.get(r) in _IDLE for r in fault.suspects)
                )
            )
            and not any(self.conditions.get(r) in _BY_PROGRAM for r in fault.suspects)
            for fault in faults
        )
        return AttributionState.CONTINUE if faults and helps else AttributionState.STOP

    def _detail(self, rank: int) -> Suspect:
        return self.describe.suspect(rank, self.conditions[rank])


_MANY = 3
"""At least so many idle peers for each of several ranks that wait for them."""
_NAMELESS = frozenset(
    {
        FaultKind.OPERATION_MISMATCH,
        FaultKind.SIZE_MISMATCH,
        FaultKind.DTYPE_MISMATCH,
        FaultKind.SPLIT_MISMATCH,
        FaultKind.MEMBERSHIP_MISMATCH,
        FaultKind.ORDER_DEADLOCK,
        FaultKind.NO_PROGRESS,
    }
)
"""Faults that are established even where they name nobody."""


def is_established(fault: Fault) -> bool:
    """Whether a fault is beyond doubt, so that the verdict is ``fault``."""
    return bool(fault.suspects) or fault.kind in _NAMELESS


def attribute(progress: Progress) -> Diagnosis:
    """Decide who is to blame.

    Args:
        progress: the matched trace.

    Returns:
        The diagnosis. Where the evidence does not decide, its verdict is ``undetermined``
        and its notes say what is missing.
    """
    attribution = _Attribution(progress)
    attribution.run()
    return attribution.diagnosis()
