"""Which process group of one rank is which group of another, and who belongs to it.

A group's name may be a count, a hash or a word, may be shared by groups of other ranks
(every pipeline stage has its ``tp``), and its members may be declared by some ranks
only, by none (torch's Gloo process group), or differently by different ranks.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

from fr_analysis.trace import DEFAULT_GROUP, GroupName, RankDump, Trace


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """One process group of the job.

    Attributes:
        index: its place in ``Groups.groups``.
        name: as the ranks name it.
        members: its global ranks, ascending.
        declared: whether a dump tells the members; else they are those that recorded in it.
        versions: where ranks differ on what the group is, each version and who holds it.
    """

    index: int
    name: GroupName
    members: tuple[int, ...]
    declared: bool
    versions: tuple[tuple[str, tuple[int, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class Groups:
    """All groups of the job, and for each rank's local group index the group's index."""

    groups: tuple[ProcessGroup, ...]
    of_rank: dict[int, tuple[int, ...]]
    world: tuple[int, ...]


def _clusters(
    declarations: dict[int, tuple[int, ...] | None],
) -> list[tuple[frozenset[int], set[int]]]:
    """Split the ranks that use one name into the groups that they mean by it.

    Args:
        declarations: rank to the members it declares under the name, or None.

    Returns:
        Pairs of members and ranks using the group. Declarations that share a member are
        one group, whatever they disagree on: a name cannot mean two groups on one rank.
    """
    # Ranks that agree are put together first: comparing each with all takes the square of them.
    agreed: dict[tuple[int, ...], set[int]] = {}
    for rank, told in sorted(declarations.items()):
        if told is not None:
            agreed.setdefault(told, set()).add(rank)
    found: list[tuple[set[int], set[int]]] = []
    for members, ranks in agreed.items():
        merged: tuple[set[int], set[int]] = (set(members), ranks)
        rest = []
        for cluster in found:
            if cluster[0] & merged[0]:
                merged = (cluster[0] | merged[0], cluster[1] | merged[1])
            else:
                rest.append(cluster)
        found = [*rest, merged]
    undeclared = set()
    for rank, told in declarations.items():
        if told is not None:
            continue
        home = next((cluster for cluster in found if rank in cluster[0]), None)
        if home is not None:
            home[1].add(rank)
        else:
            undeclared.add(rank)
    result = [(frozenset(members), users) for members, users in found]
    if undeclared:
        result.append((frozenset(undeclared), undeclared))
    return result


def _world(trace: Trace) -> tuple[int, ...]:
    """Every rank that anything speaks of."""
    ranks = set(trace.dumps) | set(range(trace.expected_world_size or 0))
    # Ranks of one group hold the same tuple, see ``read``: it is looked at once.
    told = {
        id(members): members for dump in trace.dumps.values() for members in dump.declared_members
    }
    for members in told.values():
        ranks.update(members or ())
    return tuple(sorted(ranks))


def _versions(
    dumps: dict[int, RankDump], locals_: dict[int, int], users: set[int]
) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """What each rank takes one group to be, where they differ.

    Ranks that created groups in different number or order hold different members, or
    different descriptions, under one name.
    """
    by_claim: dict[tuple[str, tuple[int, ...] | None], list[int]] = defaultdict(list)
    for rank in sorted(users):
        description = dumps[rank].groups[locals_[rank]].description
        by_claim[description, dumps[rank].declared_members[locals_[rank]]].append(rank)
    holders: dict[str, list[int]] = {}
    for (description, members), ranks in by_claim.items():
        # Of one that is no member, the list may be of anything.
        own = ranks if members is None else sorted({*members}.intersection(ranks))
        if own:
            text = f"{description or 'no description'}, ranks {list(members or ())}"
            holders[text] = sorted([*holders.get(text, []), *own])
    # In the order of the first rank of each.
    holders = dict(sorted(holders.items(), key=lambda held: held[1][0]))
    told = {text: ranks for text, ranks in holders.items() if not text.endswith("ranks []")}
    if not told:
        told = holders
    if len(told) < 2:
        return ()
    return tuple((text.removesuffix(", ranks []"), tuple(ranks)) for text, ranks in told.items())


def group_kind(name: GroupName, size: int) -> str:
    """What groups of one purpose share: their description, or their name without its count.

    TorchComms describes every group by its backend and names it ``tp_2``.
    """
    if name.description and name.description not in _NO_PURPOSE:
        return name.description
    return name.name.rstrip("0123456789").rstrip("_") or f"{size} ranks"


_NO_PURPOSE = frozenset({"undefined", "gloo", "nccl", "ncclx", "xccl", "rccl", "hccl", "mccl"})


def _with_left_out(groups: list[ProcessGroup], world: tuple[int, ...]) -> list[ProcessGroup]:
    """Add to undeclared groups the members that recorded nothing in them.

    torch's Gloo process group declares no members. Where the groups of a kind share out
    all ranks evenly but for one group, the ranks that are in none of them belong there.
    """
    by_kind: dict[str, list[ProcessGroup]] = defaultdict(list)
    for group in groups:
        if not group.declared:
            by_kind[group_kind(group.name, len(group.members))].append(group)
    result = list(groups)
    for kin in by_kind.values():
        sizes = sorted(len(group.members) for group in kin)
        placed = [rank for group in kin for rank in group.members]
        left_out = set(world) - set(placed)
        smallest = min(kin, key=lambda group: len(group.members))
        even = len(kin) > 1 and len(set(sizes[1:])) == 1 and len(placed) == len(set(placed))
        if left_out and even and sizes[0] + len(left_out) == sizes[-1]:
            members = tuple(sorted({*smallest.members, *left_out}))
            result[smallest.index] = replace(smallest, members=members, declared=True)
    return result


def resolve_groups(trace: Trace) -> Groups:
    """Join every rank's process groups into the groups of the job.

    Args:
        trace: the dumps.

    Returns:
        The groups, in order of name, with members as far as the dumps tell.
    """
    world = _world(trace)
    by_name: dict[str, dict[int, int]] = defaultdict(dict)
    for rank, dump in trace.dumps.items():
        for local, group in enumerate(dump.groups):
            by_name[group.name].setdefault(rank, local)

    groups: list[ProcessGroup] = []
    index_of: dict[tuple[int, str], int] = {}
    for name in sorted(by_name, key=lambda text: (not text.isdigit(), len(text), text)):
        locals_ = by_name[name]
        declarations = {
            rank: trace.dumps[rank].declared_members[local] for rank, local in locals_.items()
        }
        for members, users in _clusters(declarations):
            some_rank = min(users)
            named = trace.dumps[some_rank].groups[locals_[some_rank]]
            declared = any(declarations[rank] is not None for rank in users)
            if named.description == DEFAULT_GROUP and (
                not declared or trace.expected_world_size is not None
            ):
                members, declared = frozenset(world), True
            index = len(groups)
            groups.append(
                ProcessGroup(
                    index,
                    named,
                    tuple(sorted(members)),
                    declared,
                    _versions(trace.dumps, locals_, users),
                )
            )
            for rank in users:
                index_of[rank, name] = index
    groups = _with_left_out(groups, world)
    of_rank = {
        rank: tuple(index_of[rank, group.name] for group in dump.groups)
        for rank, dump in trace.dumps.items()
    }
    return Groups(tuple(groups), of_rank, world)
