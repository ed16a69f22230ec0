"""What ranks in the same role did: a vote where two sides of a fault are equally strong.

Distributed programs are mostly one program: the members of a data or tensor parallel
group issue the same operations in the same order. Where one rank waits in a group and
another elsewhere, and nothing tells which of them left the common path, the ranks in
their role do: the one whose recorded order of operations departs from theirs is at fault.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, pairwise

import numpy as np

from fr_analysis.attribute.disagreements import Disagreement
from fr_analysis.diagnosis import FaultKind
from fr_analysis.match.groups import ProcessGroup, group_kind
from fr_analysis.match.progress import NEVER, Progress, recorded_and_counted
from fr_analysis.match.semantics import (
    Agreement,
    agreement,
    is_batch_end,
    operation_name,
    point_to_point,
)
from fr_analysis.trace import UNKNOWN, Completion, IntColumn, distinct

Token = tuple[str, str, int | None]
"""Kind of group, operation, and for a transfer how far away its peer is in the group."""

_SAME_ROLE = 1 / 3
"""Ranks have the same role if they went the same way for at least this part of the record."""


@dataclass(frozen=True, slots=True)
class Place:
    """How far a rank has come on its way.

    Attributes:
        called: how many collectives it called in each kind of group.
        newest: the kind of its newest one; None where no entry tells.
    """

    called: Mapping[str, int]
    newest: str | None

    def may_be_before(self, other: Place) -> bool:
        """Whether a rank that goes one way with another may be behind it, or level with it."""
        kinds = self.called.keys() & other.called.keys()
        if any(self.called[kind] > other.called[kind] for kind in kinds):
            return False
        if all(self.called[kind] == other.called[kind] for kind in kinds):
            return self.newest == other.newest or None in (self.newest, other.newest)
        # What the one before has yet to call includes the newest of the other.
        return other.newest not in kinds or self.called[other.newest] < other.called[other.newest]

    def is_off(self, other: Place) -> bool:
        """Whether two ranks cannot have gone one way."""
        return not (self.may_be_before(other) or other.may_be_before(self))


@dataclass(frozen=True, slots=True)
class Way:
    """What a rank called, in order.

    Attributes:
        rows: of its operations. codes: what each is, an index of ``Siblings.tokens``.
    """

    rows: IntColumn
    codes: IntColumn


class Siblings:
    """Compares ranks by what they recorded, in order."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.tokens: list[Token] = []
        """What the codes in ways stand for."""
        self._codes: dict[Token, int] = {}
        self._ways: dict[int, Way] = {}
        self._records: dict[int, list[tuple[int, Token]]] = {}
        self._against_all: dict[tuple[int, frozenset[int]], bool] = {}
        self._stages: dict[int, frozenset[tuple[str, int]]] = {}
        self._within: dict[str, tuple[set[int], set[int]]] = {}
        self._rows_of: dict[int, dict[int, dict[int, int]]] = {}
        # Where nothing but the order tells numbers, and rings have wrapped, another group's numbers
        # begin elsewhere.
        self._counted_from_rings = any(
            dump.numbers_per_recorder and len(dump.operations) and dump.operations.record[0] > 0
            for dump in progress.trace.dumps.values()
        )
        self._all_listed = all(group.declared for group in progress.groups.groups)

    def odd_ones(self, disputed: Iterable[int]) -> tuple[int, ...]:
        """Of ranks that block each other, those that left the path of ranks in their role.

        Args:
            disputed: the ranks.

        Returns:
            The odd ones; empty where the others' record does not tell, or tells it of most.
        """
        disputed = tuple(disputed)
        known = [rank for rank in disputed if rank in self._progress.trace.dumps]
        judge = self._is_odd if all(map(self._has_history, known)) else self._counts_oddly
        odd = tuple(rank for rank in known if judge(rank, set(disputed)))
        return odd if 2 * len(odd) <= len(disputed) else ()

    def _begins(self, rank: int) -> bool:
        """Whether the rank's first operation is still held."""
        records = self._progress.trace.dumps[rank].operations.record
        return not len(records) or int(records.min()) <= 0

    def may_have(self, rank: int, kind: str) -> bool:
        """Whether a rank has a group of a kind, or may: some recorders tell only those used."""
        groups = self._progress.groups
        return not self._all_listed or any(
            _kind(groups.groups[index]) == kind for index in groups.of_rank[rank]
        )

    def _has_history(self, rank: int) -> bool:
        """Whether complete operations were dumped too, not only active ones."""
        completion = self._progress.trace.dumps[rank].operations.completion
        return bool((completion > Completion.PENDING).any())

    def _counts_oddly(self, rank: int, disputed: set[int]) -> bool:
        """Whether a rank issued another number of collectives than all ranks in its role.

        All that dumps of active entries tell of the past.
        """
        mine, stage = self._counts(rank), self.stage(rank)
        found = False
        for index in set(self._progress.groups.of_rank[rank]):
            peers = [
                member
                for member in self._progress.groups.groups[index].members
                if member in self._progress.trace.dumps and self.stage(member) == stage
            ]
            voters = list(islice((peer for peer in peers if peer not in disputed), _MOST_VOTERS))
            counts = [self._counts(voter) for voter in voters]
            if not counts or any(count != counts[0] for count in counts):
                continue
            if mine == counts[0]:
                return False
            # Where it has kinds of groups that they do not, what it recorded there is its own.
            alike_in_kinds = mine.keys() == counts[0].keys()
            out_of_step = alike_in_kinds and self._is_out_of_step(rank, voters)
            if not (out_of_step or self._is_off(rank, voters[0])):
                return False  # of two that go one way, one may be behind
            alike = (peer for peer in peers if peer in disputed and self._counts(peer) == mine)
            # Who has come less far than one that a fault has let pass counts otherwise, too.
            found = found or sum(1 for _ in islice(alike, len(counts) + 1)) <= len(counts)
        return found

    def _is_out_of_step(self, rank: int, voters: Iterable[int]) -> bool:
        """Whether a rank came to a shared collective after more or fewer operations than voters.

        The newest that it and each voter hold; recorders number all of a rank's operations.
        """
        found = False
        for voter in voters:
            steps = self._steps_to_the_newest_shared(rank, voter)
            if steps is None:
                continue
            if steps[0] == steps[1]:
                return False
            found = True
        return found

    def _steps_to_the_newest_shared(self, rank: int, other: int) -> tuple[int, int] | None:
        """How many operations two ranks called before the newest collective that both hold."""
        dumps = self._progress.trace.dumps
        groups = self._progress.groups
        newest = None
        for index in set(groups.of_rank[rank]) & set(groups.of_rank[other]):
            rows = self._rows(index)
            mine, its = rows.get(rank, {}), rows.get(other, {})
            for number in mine.keys() & its.keys():
                newest = max(newest or (-1, -1), (mine[number], its[number]))
        if newest is None:
            return None
        return (
            int(dumps[rank].operations.record[newest[0]]),
            int(dumps[other].operations.record[newest[1]]),
        )

    def _is_off(self, rank: int, voter: int) -> bool:
        """Whether a rank has left the way of another, which is not disputed."""
        mine, its = self.place(rank), self.place(voter)
        return mine is None or its is None or mine.is_off(its)

    def is_disputed(self, rank: int) -> bool:
        """Whether a rank in the same role went another way, whoever of the two is right.

        Told of collectives only, in transfers peers may differ; and of dumps that hold complete
        operations, since of active ones alone those between are missing.
        """
        dumps = self._progress.trace.dumps
        for index in set(self._progress.groups.of_rank[rank]) if self._has_history(rank) else ():
            group = self._progress.groups.groups[index]
            others = [
                member
                for member in group.members[:_MOST_COMPARED]
                if member != rank and member in dumps and self._has_history(member)
            ]
            for peer in self._same_role(rank, others, group):
                ways = (
                    [token for token in way if token[2] is None]
                    for way in self._from_anchor(rank, peer, group)
                )
                if any(mine != its for mine, its in zip(*ways, strict=False)):
                    return True
        return False

    def order_differs(self, group: ProcessGroup) -> bool:
        """Whether neighbours in a group called the groups that they share in different order.

        In those all members call the same, whatever their roles, from the oldest collective of the
        group on that both hold. Where numbers may count transfers too, they are not compared.
        """
        groups = self._progress.groups
        if _kind(group) in self._transfer_kinds:
            return False
        rows = self._rows(group.index)
        for a, b in pairwise(rank for rank in group.members if rank in rows):
            both = rows[a].keys() & rows[b].keys()
            shared = {
                index: _kind(groups.groups[index]) not in self._transfer_kinds
                for index in set(groups.of_rank[a]) & set(groups.of_rank[b])
            }
            if not both or len(shared) < 2:
                continue
            mine, its = (
                sorted(
                    (row, index, number if is_exact else NEVER)
                    for index, is_exact in shared.items()
                    for number, row in self._rows(index).get(rank, {}).items()
                    if row >= rows[rank][min(both)]
                )
                for rank in (a, b)
            )
            if any(one[1:] != other[1:] for one, other in zip(mine, its, strict=False)):
                return True
        return False

    def same_counts(self, rank: int, other: int) -> bool:
        """Whether two ranks called equally many collectives in each kind of group."""
        return self._counts(rank) == self._counts(other)

    def called_less(self, rank: int, others: Iterable[int]) -> bool:
        """Whether a rank called fewer collectives of some kind than others have finished.

        Args:
            rank: who. others: ranks that wait in the same collective as it.

        Returns:
            Whether its own counters say so against some others in its pipeline stage, at least two.
        """
        mine = self._counters(rank)
        stage = self.stage(rank)
        same_stage = (other for other in others if self.stage(other) == stage)
        peers = [self._counters(other) for other in islice(same_stage, _MOST_VOTERS)]
        return len(peers) > 1 and any(
            all(kind in peer and called < peer[kind][1] for peer in peers)
            for kind, (called, _) in mine.items()
        )

    def place(self, rank: int) -> Place | None:
        """How far a rank has come on its way, by its own counters.

        Kinds of groups in which transfers are sent are left out, since they may be counted too.

        Returns:
            The place; None where it has no counters, or several groups of a kind.
        """
        groups = self._progress.groups
        kinds = [_kind(groups.groups[index]) for index in groups.of_rank[rank]]
        statuses = self._progress.trace.dumps[rank].statuses
        if len(set(kinds)) < len(kinds) or not any(statuses):
            return None
        called = {
            kind: max(status.last_enqueued, 0)
            for kind, status in zip(kinds, statuses, strict=True)
            if status is not None and kind not in self._uncounted_kinds
        }
        newest = (kind for _, (kind, _, to) in reversed(self.record(rank)) if to is None)
        held = next((kind for kind in newest if kind in called), None)
        return Place(called, held if self._holds_the_newest(rank) else None)

    def _holds_the_newest(self, rank: int) -> bool:
        """Whether a rank's newest operation is in its dump, by its record: the active may be older.

        Where active operations are all that a dump holds, its counters tell how many were called.
        """
        if self._has_history(rank):
            return True
        recorded, counted = recorded_and_counted(self._progress.trace.dumps[rank])
        return recorded == counted

    def stage_by_kind(self, rank: int) -> frozenset[tuple[str, int]]:
        """The rank's places in groups of the kinds in which any rank sends or receives.

        Unlike ``stage`` it does not need the rank's own transfers, which a ring may have lost.
        """
        groups = self._progress.groups
        return frozenset(
            (_kind(group), group.members.index(rank))
            for group in (groups.groups[index] for index in groups.of_rank[rank])
            if _kind(group) in self._transfer_kinds and rank in group.members
        )

    @cached_property
    def _transfer_kinds(self) -> frozenset[str]:
        """The kinds of groups in which any rank sends or receives."""
        return frozenset(
            kind for rank in self._progress.trace.dumps for kind, _ in self.stage(rank)
        )

    @cached_property
    def _uncounted_kinds(self) -> frozenset[str]:
        """The kinds of groups whose counters count more than collectives, or may.

        Those with transfers; and those where a member has finished more than another has called,
        which no collective allows. torch's Gloo says so of what timed out, and counts no transfers.
        """
        called: dict[int, int] = {}
        finished: dict[int, int] = defaultdict(lambda: UNKNOWN)
        for rank, dump in self._progress.trace.dumps.items():
            retires = bool((dump.operations.completion == Completion.RETIRED).any())
            for index, status in zip(
                self._progress.groups.of_rank[rank], dump.statuses, strict=True
            ):
                if status is not None:
                    called[index] = min(called.get(index, _ENDLESS), status.last_enqueued)
                    if not retires:
                        finished[index] = max(finished[index], status.last_completed)
        return self._transfer_kinds | {
            _kind(self._progress.groups.groups[index])
            for index in called
            if finished[index] > called[index]
        }

    def _counters(self, rank: int) -> dict[str, tuple[int, int]]:
        """How many collectives it called and finished per kind of group, by its own counters."""
        groups = self._progress.groups
        statuses = zip(groups.of_rank[rank], self._progress.trace.dumps[rank].statuses, strict=True)
        return {
            # Counted from 1; -1 where there is none.
            _kind(groups.groups[index]): (status.last_enqueued, status.last_completed)
            for index, status in statuses
            if status is not None
        }

    def _counts(self, rank: int) -> dict[str, int]:
        """How many collectives it called per kind of group, by its own counters where it has them.

        Those also count batches of transfers, of which ranks in one role issue equally many.
        """
        groups = self._progress.groups
        counts = {}
        for local, index in enumerate(groups.of_rank[rank]):
            status = self._progress.trace.dumps[rank].statuses[local]
            advance = self._progress.advances[index].get(rank)
            if status and status.last_enqueued != UNKNOWN:
                counts[_kind(groups.groups[index])] = status.last_enqueued
            elif advance is not None:
                counts[_kind(groups.groups[index])] = advance.last_joined
        return counts

    def _is_odd(self, rank: int, disputed: set[int]) -> bool:
        found = False
        for index in set(self._progress.groups.of_rank[rank]):
            group = self._progress.groups.groups[index]
            vote = self._vote(rank, group, disputed)
            if vote is False:
                return False
            found = found or (vote is True and not self._is_against_all(group, disputed))
        return found

    def _is_against_all(self, group: ProcessGroup, disputed: set[int]) -> bool:
        """Whether a group stands against all its disputed members: which is odd, it cannot tell."""
        place = group.index, frozenset(disputed)
        if place not in self._against_all:
            known = [r for r in group.members if r in disputed and r in self._progress.trace.dumps]
            self._against_all[place] = len(known) > 1 and all(
                self._vote(rank, group, disputed) for rank in known
            )
        return self._against_all[place]

    def _vote(self, rank: int, group: ProcessGroup, disputed: set[int]) -> bool | None:
        """Whether the members of one group stand against a rank; None where they are no peers."""
        dumps = self._progress.trace.dumps
        others = [member for member in group.members if member != rank and member in dumps]
        trusted = [member for member in others if member not in disputed]
        voters = self._same_role(rank, trusted, group)
        if not voters:
            voters = self._same_role(rank, others, group)
            if len(voters) < 2:
                return None
        agreed = [
            sum(self._compatible(voter, other, group) for other in voters) for voter in voters
        ]
        if max(agreed) <= len(voters) / 2:
            return None
        leader = voters[agreed.index(max(agreed))]
        camp = [voter for voter in voters if self._compatible(leader, voter, group)]
        return sum(self._compatible(rank, voter, group) for voter in camp) <= len(camp) / 2

    def _same_role(self, rank: int, others: list[int], group: ProcessGroup) -> list[int]:
        """Those that went the same way as a rank for long; another pipeline stage did not."""
        stage = self.stage(rank)
        others = [other for other in others if self.stage(other) == stage]
        if self._is_homogeneous(_kind(group), group.index):
            return others[:_MOST_VOTERS]
        found = []
        for other in others[:_MOST_COMPARED]:
            mine, its = self._from_anchor(rank, other, group)
            if _shared_but_for_one(mine, its) >= max(_SAME_ROLE * min(len(mine), len(its)), 1):
                found.append(other)
        return found[:_MOST_VOTERS]

    def stage(self, rank: int) -> frozenset[tuple[str, int]]:
        """The rank's places in the groups in which it sends or receives, by kind of group."""
        if rank not in self._stages:
            dump = self._progress.trace.dumps[rank]
            transfers = np.array(
                [point_to_point(signature.operation) is not None for signature in dump.signatures]
            )
            groups = self._progress.groups
            found = set()
            if transfers.any():
                rows = transfers[dump.operations.signature]
                for local in distinct(dump.operations.group[rows]).tolist():
                    group = groups.groups[groups.of_rank[rank][local]]
                    if rank in group.members:
                        found.add((_kind(group), group.members.index(rank)))
            self._stages[rank] = frozenset(found)
        return self._stages[rank]

    def _is_homogeneous(self, kind: str, but: int) -> bool:
        """Whether the members of all other groups of a kind do the same in the same order."""
        if kind not in self._within:
            self._within[kind] = self._differing_and_alike(kind)
        differing, alike = self._within[kind]
        return not differing - {but} and bool(alike - {but})

    def _differing_and_alike(self, kind: str) -> tuple[set[int], set[int]]:
        """The groups of a kind whose members do not do the same, and those of which they do."""
        dumps = self._progress.trace.dumps
        differing, alike = set(), set()
        for group in self._progress.groups.groups:
            members = [member for member in group.members if member in dumps][:_MOST_VOTERS]
            if _kind(group) != kind or len(members) < 2:
                continue
            if not all(self._compatible(members[0], other, group) for other in members[1:]):
                differing.add(group.index)
            elif min(len(self.record(member)) for member in members) > 0:
                alike.add(group.index)
        return differing, alike

    def _compatible(self, a: int, b: int, group: ProcessGroup) -> bool:
        shared, first, second = self._common(a, b, group)
        return shared >= min(first, second)

    def _common(self, a: int, b: int, group: ProcessGroup) -> tuple[int, int, int]:
        """How long two ranks went the same way, and how much of each is compared."""
        first, second = self._from_anchor(a, b, group)
        return _shared(first, second), len(first), len(second)

    def _from_anchor(self, a: int, b: int, group: ProcessGroup) -> tuple[list[Token], list[Token]]:
        """The two records from the same point on: their beginning, or a shared collective."""
        first, second = self.record(a), self.record(b)
        if self._begins(a) and self._begins(b):
            return [token for _, token in first], [token for _, token in second]
        rows = self._rows(group.index)
        held = rows.get(a, {}), rows.get(b, {})
        both = held[0].keys() & held[1].keys()
        if not both:
            return [], []
        start = min(both)
        return (
            [token for row, token in first if row >= held[0][start]],
            [token for row, token in second if row >= held[1][start]],
        )

    def _rows(self, group: int) -> dict[int, dict[int, int]]:
        """Per rank the row of each of a group's collectives that it holds, by number."""
        if group not in self._rows_of:
            progress = self._progress
            first, last = np.searchsorted(progress.group, [group, group + 1])
            found: dict[int, dict[int, int]] = defaultdict(dict)
            for rank, number, row in zip(
                progress.rank[first:last].tolist(),
                progress.number[first:last].tolist(),
                progress.row[first:last].tolist(),
                strict=True,
            ):
                found[rank][number] = row
            self._rows_of[group] = found
        return self._rows_of[group]

    def way(self, rank: int) -> Way:
        """The rank's operations in the order of their rows; a batch's end is none."""
        if rank not in self._ways:
            operations = self._progress.trace.dumps[rank].operations
            signatures = len(self._progress.trace.dumps[rank].signatures)
            # Few of a rank's operations differ, so each kind of them is named once.
            kinds, kind_of = np.unique(
                operations.group * signatures + operations.signature, return_inverse=True
            )
            codes_of = [self._code(rank, *divmod(kind, signatures)) for kind in kinds.tolist()]
            codes = np.array(codes_of, dtype=np.int64)[kind_of.reshape(-1)]
            rows = np.flatnonzero(codes != _NO_CALL)
            self._ways[rank] = Way(rows, codes[rows])
        return self._ways[rank]

    def _code(self, rank: int, local: int, signature: int) -> int:
        """The code of a rank's operation of a group and signature."""
        operation = self._progress.trace.dumps[rank].signatures[signature].operation
        if is_batch_end(operation):
            return _NO_CALL
        group = self._progress.groups.groups[self._progress.groups.of_rank[rank][local]]
        transfer = point_to_point(operation)
        token: Token = _kind(group), operation_name(operation), None
        if transfer is not None:
            distance = None
            if transfer.me is not None and transfer.peer is not None:
                distance = (transfer.peer - transfer.me) % max(len(group.members), 1)
            token = _kind(group), "send" if transfer.is_send else "recv", distance
        if token not in self._codes:
            self._codes[token] = len(self._codes)
            self.tokens.append(token)
        return self._codes[token]

    def record(self, rank: int) -> list[tuple[int, Token]]:
        """The rank's operations in the order of their rows, each with its row."""
        if rank not in self._records:
            way = self.way(rank)
            tokens = map(self.tokens.__getitem__, way.codes.tolist())
            self._records[rank] = list(zip(way.rows.tolist(), tokens, strict=True))
        return self._records[rank]

    def settle(self, found: Disagreement) -> tuple[int, ...]:
        """The odd side of a disagreement without a majority, by what groups of its kind did.

        Args:
            found: a disagreement of equal sides.

        Returns:
            The ranks that differ from what most ranks in groups of the same kind and size called
            at this number; empty where no call has a majority there.
        """
        if found.number is None or found.kind is FaultKind.SPLIT_MISMATCH:
            return ()
        right = self._called_elsewhere(found.group, found.number, _MOST, more_than=1)
        called = self._called(found.group, found.number)
        odd = tuple(rank for rank, value in sorted(called.items()) if value != right)
        return odd if right is not None and 0 < len(odd) < len(called) else ()

    def stands_alone(self, rank: int, group: int, number: int) -> bool:
        """Whether nobody else is known to have called what a rank waits in.

        Neither in its own group, nor in most of the groups of the same kind and size, if there are
        any: it may be a call too many. Not where most ranks in those have come as far, and their
        dumps do not hold what they called.
        """
        called = self._called(group, number)
        if len(called) > 1 or rank not in called or not self._kin(group):
            return False
        if self._called_elsewhere(group, number, _MOST) == called[rank]:
            return False
        passed, known = self._passed_elsewhere(group, number)
        return 2 * passed <= known

    def _passed_elsewhere(self, group: int, number: int) -> tuple[int, int]:
        """Ranks in groups of a kind and size that called a number which their dumps do not hold.

        Returns:
            How many, and of how many it is known how far they have come.
        """
        passed = known = 0
        for other in self._kin(group):
            advances = self._progress.advances[other.index]
            held = self._called(other.index, number)
            known += len(advances)
            passed += sum(
                advance.exact and advance.last_joined >= number and rank not in held
                for rank, advance in advances.items()
            )
        return passed, known

    def _kin(self, group: int) -> list[ProcessGroup]:
        """The other groups of the same kind and size."""
        groups = self._progress.groups.groups
        kind, size = _kind(groups[group]), len(groups[group].members)
        return [
            other
            for other in groups
            if other.index != group and len(other.members) == size and _kind(other) == kind
        ]

    def odd_alone(self, group: int, number: int, odd: Collection[int]) -> Disagreement | None:
        """A disagreement with groups of the same kind, where the own peers left no dump.

        Args:
            group, number: a collective of which not all members are known.
            odd: ranks known to differ elsewhere, which do not count.

        Returns:
            The disagreement, whose odd side are all ranks known to have joined; None where
            they called what other groups did, or where that does not tell.
        """
        called = self._called(group, number)
        right = self._called_elsewhere(group, number, _ALL, odd, more_than=len(called))
        if right is None or len(right) != 1 or len(called) == 0 or right in called.values():
            return None
        (mine,), (theirs,) = next(iter(called.values())), right
        if mine.operation != theirs.operation:
            kind = FaultKind.OPERATION_MISMATCH
        elif mine.elements != theirs.elements:
            kind = FaultKind.SIZE_MISMATCH
        else:
            kind = FaultKind.DTYPE_MISMATCH
        odd = tuple(sorted(called))
        rest = tuple(m for m in self._progress.groups.groups[group].members if m not in called)
        return Disagreement(kind, group, number, odd, (rest, odd), settled=True)

    def _called_elsewhere(
        self,
        group: int,
        number: int,
        share: float,
        odd: Collection[int] = (),
        more_than: int = 0,
    ) -> tuple[Agreement, ...] | None:
        """What more than a share, and a number, of ranks in groups of a kind and size called."""
        if self._counted_from_rings:
            return None
        elsewhere: Counter[tuple[Agreement, ...]] = Counter()
        for other in self._kin(group):
            called = self._called(other.index, number)
            elsewhere.update(call for rank, call in called.items() if rank not in odd)
        for call, votes in elsewhere.most_common(1):
            if votes > max(share * elsewhere.total(), more_than):
                return call
        return None

    def _called(self, group: int, number: int) -> dict[int, tuple[Agreement, ...]]:
        called: dict[int, tuple[Agreement, ...]] = {}
        for join in self._progress.joins(group, number):
            called[join.rank] = (*called.get(join.rank, ()), agreement(join.signature))
        return called


def _shared(first: Iterable[Token], second: Iterable[Token]) -> int:
    """How many calls two ways have in common from their beginning on."""
    count = 0
    for mine, its in zip(first, second, strict=False):
        if mine != its:
            break
        count += 1
    return count


def _shared_but_for_one(first: list[Token], second: list[Token]) -> int:
    """How many calls two ways have in common where one of them has a call too many, or too few."""
    apart = _shared(first, second)
    after = (
        _shared(islice(first, apart + one, None), islice(second, apart + other, None))
        for one, other in ((0, 1), (1, 0))
    )
    return apart + max(after)


def _kind(group: ProcessGroup) -> str:
    return group_kind(group.name, len(group.members))


_ENDLESS = np.iinfo(np.int64).max
_NO_CALL = -1
_MOST = 1 / 2
_ALL = 0.999_999
"""Where nobody in the group itself stands for it, nobody elsewhere may stand against it."""
_MOST_VOTERS = 8
_MOST_COMPARED = 64
"""More members of a group say nothing new."""
