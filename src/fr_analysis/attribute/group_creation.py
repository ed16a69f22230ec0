"""Ranks that are in ``new_group``, which no recorder notes and which waits for all members.

Only a stacks snapshot shows them: by its dump alone such a rank is idle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fr_analysis.attribute.disagreements import split_sides
from fr_analysis.attribute.frames import code_line, is_torch, main_thread
from fr_analysis.attribute.waits import Wait
from fr_analysis.match import Progress
from fr_analysis.trace import Frame, RankStacks

NEW_GROUP = "new_group"


@dataclass(frozen=True, slots=True)
class GroupCreation:
    """Some ranks make a process group, and others do not.

    Attributes:
        creating: ranks in ``new_group``. code: the line of the program that called it.
        idle: ranks that are neither there nor in a collective.
        odd: the ranks to blame: idle ones, or all others, where they are the minority.
    """

    creating: tuple[int, ...]
    code: Frame | None
    idle: tuple[int, ...]
    odd: tuple[int, ...]


def _program_line(stacks: RankStacks | None) -> tuple[bool, Frame | None]:
    """Whether the program is in ``new_group``, and the line of it that called."""
    thread = main_thread(stacks) if stacks else None
    frames = thread.frames if thread else ()
    inside = any(frame.name == NEW_GROUP and is_torch(frame) for frame in frames)
    return inside, code_line(frames) if inside else None


def find_group_creation(
    progress: Progress, waits: Mapping[int, Wait], edges: Mapping[int, tuple[int, ...]]
) -> GroupCreation | None:
    """Find a process group that not every rank creates.

    Args:
        progress: the matched trace.
        waits: what each rank waits in by its dump. edges: for whom.

    Returns:
        Who creates it and who does not; None where nobody or everybody does, or where those
        that do not wait for somebody else.
    """
    lines = {rank: _program_line(stacks) for rank, stacks in progress.trace.stacks.items()}
    creating = tuple(
        rank
        for rank in progress.groups.world
        if lines.get(rank, (False, None))[0] and rank not in waits
    )
    others = [rank for rank in progress.groups.world if rank not in creating]
    if not creating or not others:
        return None
    idle = tuple(rank for rank in others if rank not in waits)
    elsewhere = {target for rank in others for target in edges.get(rank, ())} - set(creating)
    if not idle and elsewhere - set(others):
        return None
    side_of = {rank: rank in creating for rank in progress.groups.world}
    odd, _ = split_sides(side_of)
    if idle:
        odd = tuple(rank for rank in odd if rank in idle)
    return GroupCreation(creating, lines[creating[0]][1], idle, odd)
