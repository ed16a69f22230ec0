"""Puts findings into words and data: who joined with what, from which line, and when."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from fr_analysis.attribute.disagreements import Disagreement
from fr_analysis.attribute.frames import code_line, main_thread
from fr_analysis.attribute.group_creation import NEW_GROUP, GroupCreation
from fr_analysis.attribute.stragglers import Lateness
from fr_analysis.attribute.waits import FRESH_NS, Wait, completed_late
from fr_analysis.diagnosis import Call, Condition, Fault, FaultKind, StuckGroup, Suspect
from fr_analysis.match.progress import Join, Progress
from fr_analysis.match.semantics import is_batch_end, operation_name
from fr_analysis.trace import UNKNOWN, Completion


def ranks_text(ranks: Iterable[int]) -> str:
    """``0-3, 6``: ranks with spans folded."""
    spans: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ", ".join(
        str(a) if a == b else f"{a}, {b}" if b == a + 1 else f"{a}-{b}" for a, b in spans
    )


def named_ranks(ranks: Sequence[int]) -> str:
    """``rank 3`` or ``ranks 0-2``; ``no rank`` where there is none."""
    if not ranks:
        return "no rank"
    return f"rank{'s' if len(ranks) != 1 else ''} {ranks_text(ranks)}"


def _verb(ranks: Sequence[int], one: str, many: str) -> str:
    return one if len(ranks) == 1 else many


class Describer:
    """Turns what the attribution found into faults and suspects with evidence."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._trace = progress.trace
        self._is_live = progress.trace.silences is not None

    # -- looking things up ----------------------------------------------------------

    def entered_ns(self, wait: Wait) -> int:
        """When the rank entered what it waits in; very late where the dump does not say."""
        at = int(self._trace.dumps[wait.rank].operations.created_ns[wait.row])
        return at if at != UNKNOWN else np.iinfo(np.int64).max

    def _call_of(self, rank: int, row: int, ranks: tuple[int, ...]) -> Call:
        dump = self._trace.dumps[rank]
        signature = dump.signatures[dump.operations.signature[row]]
        stack = int(dump.operations.stack[row])
        frames = dump.stacks[stack] if stack != UNKNOWN else ()
        return Call(
            operation=operation_name(signature.operation),
            recorded_name=signature.operation,
            input_sizes=signature.input_sizes,
            output_sizes=signature.output_sizes,
            dtypes=signature.input_dtypes or signature.output_dtypes,
            ranks=ranks,
            code=code_line(frames),
            stack=frames,
        )

    def _calls(self, joins: Sequence[Join]) -> tuple[Call, ...]:
        """Joins with ranks that called alike put together, the largest side first."""
        alike: dict[object, list[Join]] = defaultdict(list)
        for join in joins:
            s = join.signature
            key = (operation_name(s.operation), s.input_sizes, s.output_sizes, s.input_dtypes)
            alike[key].append(join)
        sides = sorted(alike.values(), key=lambda side: (-len(side), side[0].rank))
        return tuple(
            self._call_of(side[0].rank, side[0].row, tuple(dict.fromkeys(j.rank for j in side)))
            for side in sides
        )

    def _recorded(self, joins: Sequence[Join]) -> int | None:
        """The number that the ranks recorded, where all recorded the same."""
        numbers = {join.recorded_number for join in joins}
        return numbers.pop() if len(numbers) == 1 and UNKNOWN not in numbers else None

    def _first_seen(self, created: Iterable[int]) -> int | None:
        return min((at for at in created if at != UNKNOWN), default=None)

    def _joins(self, group: int, number: int | None, waiting: Sequence[int]) -> list[Join]:
        if number is not None:
            return self._progress.joins(group, number)
        joins = []
        for rank in waiting:
            dump = self._trace.dumps[rank]
            pending = np.flatnonzero(dump.operations.completion == Completion.PENDING)
            for row in map(int, pending):
                if self._progress.groups.of_rank[rank][dump.operations.group[row]] == group:
                    signature = dump.signatures[dump.operations.signature[row]]
                    if is_batch_end(signature.operation):
                        continue
                    joins.append(
                        Join(
                            rank,
                            row,
                            signature,
                            Completion.PENDING,
                            bool(dump.operations.started[row]),
                            int(dump.operations.created_ns[row]),
                            int(dump.operations.number[row]),
                        )
                    )
                    break
        return joins

    def _fault(
        self,
        kind: FaultKind,
        group: int,
        joins: Sequence[Join],
        suspects: tuple[int, ...],
        victims: tuple[int, ...],
        evidence: list[str],
    ) -> Fault:
        process_group = self._progress.groups.groups[group]
        calls = self._calls(joins)
        return Fault(
            kind=kind,
            group=process_group.name.name,
            group_description=process_group.name.description,
            group_members=process_group.members,
            collective=calls[0].operation if calls else "",
            collective_seq_id=self._recorded(joins),
            suspects=suspects,
            victims=victims,
            calls=calls,
            evidence=tuple(evidence),
            first_seen_ns=self._first_seen(join.created_ns for join in joins),
        )

    def _place(self, group: int, joins: Sequence[Join]) -> str:
        """``all_reduce #4 of group main_comm``."""
        name = self._progress.groups.groups[group].name
        number = self._recorded(joins)
        operation = operation_name(joins[0].signature.operation) if joins else "operation"
        return f"{operation}{f' #{number}' if number is not None else ''} of group {name}"

    def is_fresh(self, wait: Wait) -> bool:
        """Whether a dump was written so soon after the operation began that it may be moving."""
        entered = self.entered_ns(wait)
        written = self._trace.dumps[wait.rank].written_ns
        return written != UNKNOWN and 0 <= written - entered < FRESH_NS

    def fresh(self, group: int, number: int | None, waits: Sequence[Wait]) -> str:
        """A note on an operation that one snapshot cannot tell from one that moves."""
        stuck = tuple(wait.rank for wait in waits)
        place = self._place(group, self._joins(group, number, stuck))
        return (
            f"{named_ranks(stuck)} {_verb(stuck, 'is', 'are')} in {place}, which every member "
            "joined less than a second before the dumps were written: it may be moving; take "
            "dumps again, and if the number is still the same, the job hangs there"
        )

    def outdated(self, older: Mapping[int, Collection[int]]) -> str:
        """A note on dumps that were not taken at one moment."""
        ranks = tuple(sorted({rank for members in older.values() for rank in members}))
        return (
            f"the {_verb(ranks, 'dump', 'dumps')} of {named_ranks(ranks)} "
            f"{_verb(ranks, 'is', 'are')} older than the others, which have finished "
            "collectives since that need every member; take all dumps at one moment"
        )

    # -- faults ---------------------------------------------------------------------

    def disagreement(self, found: Disagreement, victims: tuple[int, ...]) -> Fault:
        """A fault from a disagreement."""
        process_group = self._progress.groups.groups[found.group]
        evidence = []
        joins: list[Join] = []
        if found.number is None:
            for text, ranks in process_group.versions:
                evidence.append(f"{named_ranks(ranks)}: group {process_group.name.name} is {text}")
            if not process_group.versions:
                evidence.append(
                    f"{named_ranks(found.odd)} {_verb(found.odd, 'has', 'have')} no group "
                    f"{process_group.name}, although the others count "
                    f"{_verb(found.odd, 'it', 'them')} among its members"
                )
        else:
            joins = self._progress.joins(found.group, found.number)
            evidence.append(f"at {self._place(found.group, joins)} the members disagree:")
            for call in self._calls(joins):
                at = f" at {call.code}" if call.code else ""
                evidence.append(
                    f"{named_ranks(call.ranks)} "
                    f"{_verb(call.ranks, 'calls', 'call')} {call.describe()}{at}"
                )
        if found.settled:
            evidence.append(
                f"every other group of this kind calls it otherwise than {named_ranks(found.odd)}"
            )
        elif found.odd:
            majority = len(found.sides[0])
            evidence.append(
                f"{named_ranks(found.odd)} {_verb(found.odd, 'stands', 'stand')} "
                f"against {majority} that agree"
            )
        else:
            evidence.append("no side has a clear majority, so no rank is blamed")
        return self._fault(found.kind, found.group, joins, found.odd, victims, evidence)

    def absence(
        self,
        group: int,
        number: int | None,
        *,
        kind: FaultKind,
        missing: tuple[int, ...],
        waiting: tuple[int, ...],
        suspects: tuple[int, ...],
        victims: tuple[int, ...],
        ahead: bool,
        conditions: dict[int, Condition],
        unseen: tuple[int, ...],
    ) -> Fault:
        """A fault from ranks that never joined, or from the one that joined alone.

        ``unseen`` are ranks that may wait themselves, though their dumps do not show it.
        """
        joins = self._joins(group, number, waiting)
        place = self._place(group, joins)
        evidence = [f"{named_ranks(waiting)} {_verb(waiting, 'waits', 'wait')} in {place}"]
        if number is None:
            # Each waits in a transfer of its own.
            evidence = [
                f"rank {join.rank} waits in {self._place(group, [join])}" for join in joins
            ] or evidence
        code = self._calls(joins)[0].code if joins else None
        if code:
            evidence[0] += f", called at {code}"
        unreached = self._trace.unreached(missing)
        if ahead:
            evidence.append(
                f"none of the other {len(missing)} members called it and none of them waits: "
                f"{named_ranks(suspects)} ran ahead or called one collective too many"
            )
        elif not suspects and Condition.UNREADABLE in conditions.values():
            evidence.append(
                f"whether {named_ranks(missing)} joined is not known, since dumps could not be "
                "read: some of them may wait like the others"
            )
        elif not suspects and unreached == missing:
            evidence.append(self._unreached(unreached))
        elif not suspects and unseen:
            evidence.append(
                f"{named_ranks(missing)} never joined, but may wait too: what "
                f"{named_ranks(unseen)} last {_verb(unseen, 'does', 'do')}, the dumps do not tell"
            )
        elif not suspects and not self._trace.dumps.keys() & set(missing):
            evidence.append(
                f"{named_ranks(missing)} never joined and left no dump: dead, or kept waiting by "
                "ranks that went another way than the rest"
            )
        elif not suspects:
            evidence.append(
                f"{named_ranks(missing)} never joined: either they are stuck in host code, or "
                "those that wait called one collective too many"
            )
        else:
            evidence.extend(
                f"rank {rank} never joined: {self._why(rank, conditions[rank])}"
                for rank in missing
                if rank not in unreached
            )
            if unreached:
                evidence.append(self._unreached(unreached))
        wait = next((self_wait for self_wait in joins if self_wait.rank in waiting), None)
        if wait is not None and wait.completion is not Completion.PENDING:
            told = any(rank in self._trace.dumps for rank in missing)
            evidence.append(
                "who waits there has it marked complete, as torch's Gloo does after a timeout"
                + (": it cannot be, since a member never joined" if told else "")
            )
        return self._fault(kind, group, joins, suspects, victims, evidence)

    def _why(self, rank: int, condition: Condition) -> str:
        """What makes a rank that is missing look as it does."""
        silence = (self._trace.silences or {}).get(rank)
        if silence is not None and condition is Condition.SILENT:
            return f"it did not answer ({silence.reason})"
        return _WHY[condition]

    def _unreached(self, ranks: tuple[int, ...]) -> str:
        """What is known of ranks that could not be asked."""
        silences = self._trace.silences or {}
        reasons = ", ".join(dict.fromkeys(silences[rank].reason for rank in ranks))
        return (
            f"whether {named_ranks(ranks)} joined is not known: {_verb(ranks, 'it', 'they')} "
            f"could not be reached ({reasons})"
        )

    def group_creation(
        self, found: GroupCreation, waits: Sequence[Wait], victims: tuple[int, ...]
    ) -> Fault:
        """A fault from ranks that are in ``new_group`` while others are not."""
        at = f", called at {found.code}" if found.code else ""
        evidence = [
            f"by their stacks {named_ranks(found.creating)} {_verb(found.creating, 'is', 'are')} "
            f"in new_group{at}: it leaves no entry, and ends when every member has called it"
        ]
        joins: list[Join] = []
        if found.idle:
            evidence.append(
                f"{named_ranks(found.idle)} {_verb(found.idle, 'is', 'are')} neither there nor "
                "in any collective"
            )
        else:
            first = min(waits, key=self.entered_ns)
            joins = self._joins(first.group, first.number, [first.rank])
            for wait in waits:
                call = self._call_of(wait.rank, wait.row, (wait.rank,))
                there = self._joins(wait.group, wait.number, [wait.rank])
                at = f" at {call.code}" if call.code else ""
                evidence.append(
                    f"rank {wait.rank} waits in {self._place(wait.group, there)}{at} instead"
                )
            evidence.append(
                f"{named_ranks(found.odd)} {_verb(found.odd, 'stands', 'stand')} against "
                f"{len(self._progress.groups.world) - len(found.odd)} that agree"
                if found.odd
                else "no side has a clear majority, so no rank is blamed"
            )
        world = self._progress.groups.world
        index = next((g.index for g in self._progress.groups.groups if g.members == world), None)
        name = self._progress.groups.groups[index].name if index is not None else None
        created = Call(NEW_GROUP, NEW_GROUP, None, None, None, found.creating, found.code)
        return Fault(
            kind=FaultKind.RANK_MISSING if found.idle else FaultKind.OPERATION_MISMATCH,
            group=name.name if name else "",
            group_description=name.description if name else "",
            group_members=world,
            collective=NEW_GROUP if found.idle else operation_name(joins[0].signature.operation),
            collective_seq_id=self._recorded(joins) if joins else None,
            suspects=found.odd,
            victims=victims,
            calls=(created, *self._calls(joins)),
            evidence=tuple(evidence),
            first_seen_ns=self._first_seen(join.created_ns for join in joins),
        )

    def cycle(
        self,
        kind: FaultKind,
        inside: list[Wait],
        suspects: tuple[int, ...],
        victims: tuple[int, ...],
    ) -> Fault:
        """A fault from ranks that wait for each other."""
        evidence = []
        members = {wait.rank for wait in inside}
        for wait in inside:
            joins = self._joins(wait.group, wait.number, [wait.rank])
            awaited = tuple(sorted(set(wait.targets) & members))
            call = self._call_of(wait.rank, wait.row, (wait.rank,))
            at = f" at {call.code}" if call.code else ""
            evidence.append(
                f"rank {wait.rank} waits in {self._place(wait.group, joins)}{at} "
                f"for {named_ranks(awaited)}"
            )
        first = min(inside, key=self.entered_ns)
        joins = self._joins(first.group, first.number, [first.rank])
        return self._fault(kind, first.group, joins, suspects, victims, evidence)

    def no_progress(
        self,
        group: int,
        number: int | None,
        waits: list[Wait],
        suspects: tuple[int, ...],
        victims: tuple[int, ...],
    ) -> Fault:
        """A fault from an operation that everyone has joined."""
        stuck = tuple(wait.rank for wait in waits)
        joins = self._joins(group, number, stuck)
        place = self._place(group, joins)
        evidence = [f"every member joined {place}, and it does not complete"]
        for wait in waits:
            if wait.finished:
                evidence.append(
                    f"{named_ranks(wait.finished)} finished it, but it is still pending on "
                    f"rank {wait.rank}: its device or its driver is stuck"
                )
            elif wait.not_begun:
                evidence.append(
                    f"the device of rank {wait.rank} has not begun it although others' have"
                )
        if not suspects:
            evidence.append(
                "no rank's program is to blame: look at the network, the hardware, or a kernel "
                "that runs before it on one of the devices"
            )
        return self._fault(FaultKind.NO_PROGRESS, group, joins, suspects, victims, evidence)

    def straggler(self, lateness: Lateness) -> Fault:
        """A fault from a rank that joins late."""
        group, rank = lateness.group, lateness.rank
        joins = self._progress.joins(group, lateness.number)
        others = tuple(m for m in self._progress.groups.groups[group].members if m != rank)
        evidence = [
            f"rank {rank} joined {lateness.times} of {lateness.of} collectives of group "
            f"{self._progress.groups.groups[group].name} later than every other member, by "
            f"{lateness.typical_ns / 1e6:.0f} ms in the median: the others waited "
            f"{lateness.total_ns / 1e9:.2f} s for it",
            f"the time is its own, before it joined {self._place(group, joins)} and later ones; "
            "clocks of hosts are not compared",
        ]
        return self._fault(FaultKind.STRAGGLER, group, joins, (rank,), others, evidence)

    def unknown_members(self, group: int, number: int | None, waits: list[Wait]) -> str:
        """A note on an operation of which nobody can say who lacks in it."""
        stuck = tuple(sorted(wait.rank for wait in waits))
        return (
            f"{named_ranks(stuck)} {_verb(stuck, 'waits', 'wait')} in "
            f"{self._place(group, self._joins(group, number, stuck))}; no dump tells the members "
            "of this group and none of its operations is complete, so who is missing is not "
            "known; stacks of all ranks (the debug server's /stacks page, or py-spy dump) show it"
        )

    def overwritten(self, group: int, number: int | None, waits: list[Wait]) -> str:
        """A note on ranks whose rings have lost what they wait in."""
        stuck = tuple(sorted(wait.rank for wait in waits))
        return (
            f"the oldest that {named_ranks(stuck)} still {_verb(stuck, 'holds', 'hold')} is "
            f"{self._place(group, self._joins(group, number, stuck))}, but older ones were pending "
            "and are overwritten, so what holds it up is not known; a larger ring buffer shows it"
        )

    def ended_late(self, ranks: Sequence[int]) -> str:
        """A note on ranks whose last operations took so long that an abort may have ended them."""
        operations = self._trace.dumps[ranks[0]].operations
        # The oldest of those that ended last: what the abort ended, it ended at once.
        row = int(np.where(completed_late(operations), operations.completed_ns, UNKNOWN).argmax())
        took_s = int(operations.completed_ns[row] - operations.created_ns[row]) / 1e9
        group = self._progress.groups.of_rank[ranks[0]][operations.group[row]]
        call = self._call_of(ranks[0], row, tuple(ranks))
        return (
            f"{named_ranks(ranks)} called nothing after operations that were marked as complete "
            f"only late, such as {call.operation} of group "
            f"{self._progress.group_named(group).name} after {took_s:.0f} s: an abort after a "
            "timeout marks what hangs like that, so whether they were done is not known; look for "
            "a timeout in the logs"
        )

    def ended_unseen(self, ranks: Sequence[int]) -> str:
        """A note on ranks whose newest operations were marked as complete, done or not."""
        operations = self._trace.dumps[ranks[0]].operations
        group = self._progress.groups.of_rank[ranks[0]][operations.group[-1]]
        call = self._call_of(ranks[0], len(operations) - 1, ())
        return (
            f"{named_ranks(ranks)} called nothing after {call.operation} of group "
            f"{self._progress.group_named(group).name}, and not every member is known to "
            "have called it: torch's Gloo marks what timed out like what was done, so whether the "
            "job hangs is not known; look for a timeout in the logs, or take stacks of all ranks"
        )

    # -- the rest -------------------------------------------------------------------

    def stuck_group(
        self, group: int, number: int | None, waiting: tuple[int, ...], missing: tuple[int, ...]
    ) -> StuckGroup:
        """A group at the front."""
        process_group = self._progress.groups.groups[group]
        joins = self._joins(group, number, waiting)
        return StuckGroup(
            process_group.name.name,
            process_group.name.description,
            operation_name(joins[0].signature.operation) if joins else "",
            self._recorded(joins),
            waiting,
            missing,
        )

    def suspect(self, rank: int, condition: Condition) -> Suspect:
        """All that is known of one suspect."""
        stacks = self._trace.stacks.get(rank)
        thread = main_thread(stacks) if stacks else None
        frames = thread.frames if thread else ()
        dump = self._trace.dumps.get(rank)
        last_call, last_group, last_number = None, "", None
        if dump is not None and len(dump.operations):
            row = len(dump.operations) - 1
            last_call = self._call_of(rank, row, (rank,))
            last_group = str(dump.groups[dump.operations.group[row]])
            number = int(dump.operations.number[row])
            last_number = number if number != UNKNOWN else None
        return Suspect(
            rank=rank,
            condition=condition,
            stack=frames,
            location=code_line(frames),
            last_call=last_call,
            last_group=last_group,
            last_seq_id=last_number,
        )

    def notes(
        self, faults: Sequence[Fault], missing: tuple[int, ...], waits: dict[int, Wait]
    ) -> list[str]:
        """What limits the answer, and how to get more."""
        notes = []
        suspects = {rank for fault in faults for rank in fault.suspects}
        unreached = self._trace.unreached(missing)
        told = suspects.union(unreached)
        bystanders = tuple(rank for rank in missing if rank not in told)
        if bystanders:
            more = "collect their dumps and run again"
            if self._is_live:
                more = "ask again, or look at their hosts"
            notes.append(
                f"no usable dump of {named_ranks(bystanders)}: what happened there is not known; "
                f"{more}"
            )
        blameless = faults and not any(fault.suspects for fault in faults)
        if blameless and not unreached:
            notes.append(
                "no rank could be singled out; stacks of all ranks (the debug server's /stacks "
                "page, or py-spy dump) show where each of them is"
            )
        if not faults and not waits and self._recorded_by_gloo():
            notes.append(
                "torch's Gloo process group records no send, recv, monitored_barrier or "
                "new_group: a rank that hangs in one of them looks idle here; stacks of all "
                "ranks (the debug server's /stacks page, or py-spy dump) would show it"
            )
        alive = [rank for rank in suspects if rank in self._trace.dumps]
        if alive and not self._trace.stacks and not self._is_live:
            notes.append(
                "no stacks snapshot beside the dumps: with one (--stacks FILE) the line where a "
                "suspect is stuck can be shown"
            )
        stuck = tuple(rank for rank in sorted(suspects) if rank in waits and waits[rank].finished)
        if len(stuck) > 1:
            notes.append(
                f"{named_ranks(stuck)} are stuck on their devices; which failed first, and whether "
                "one took the other along, the dumps do not tell: look at the hosts' driver logs"
            )
        silent = [rank for rank in sorted(suspects) if rank not in self._trace.dumps]
        # How a rank fails to answer tells one that is stopped from one that has ended.
        if silent and not self._is_live:
            notes.append(
                f"{named_ranks(silent)} left no usable dump, so dead, killed and unable to answer "
                f"cannot be told apart here; look at {_verb(silent, 'its log', 'their logs')} and "
                f"{_verb(silent, 'its host', 'their hosts')}, and if a dump of "
                f"{_verb(silent, 'it', 'them')} was only not collected, run again with it"
            )
        expected = self._trace.expected_world_size
        if expected is not None and expected < len(self._progress.groups.world):
            notes.append(
                f"a job of {expected} ranks was expected; the dumps tell of "
                f"{len(self._progress.groups.world)}"
            )
        return notes

    def _recorded_by_gloo(self) -> bool:
        return any(
            signature.operation.startswith("gloo:") and not dump.numbers_per_recorder
            for dump in self._trace.dumps.values()
            for signature in dump.signatures
        )


_WHY = {
    Condition.ALIVE: "it is alive, but not in any collective",
    Condition.SILENT: "it left no dump",
    Condition.UNREADABLE: "its dump could not be read",
    Condition.DEVICE: "on its device an older operation is pending that its peers finished",
    Condition.DISAGREES: "the last that it called is not what most ranks of the job called there",
}
