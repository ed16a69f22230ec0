"""Programs of healthy jobs: plain data parallel, 3-D parallel, pipelines of several kinds."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from tests.made_jobs.operations import (
    Batch,
    Collective,
    Compute,
    Group,
    Program,
    Synchronize,
    Transfer,
    exchange,
)
from tests.made_jobs.simulate import Job


@dataclass(frozen=True)
class Layout:
    """TP x DP x PP ranks, tensor parallel ranks next to each other, stages outermost.

    ``ep`` neighbors of each data parallel group hold the experts of a layer between them.
    """

    tp: int
    dp: int
    pp: int
    ep: int = 1

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.tp * self.dp * self.pp

    def rank(self, tp: int, dp: int, pp: int) -> int:
        """The global rank at a coordinate."""
        return tp + self.tp * (dp + self.dp * pp)

    def coordinate(self, rank: int) -> tuple[int, int, int]:
        """The tensor, data and pipeline position of a rank."""
        return rank % self.tp, rank // self.tp % self.dp, rank // (self.tp * self.dp)

    def groups(self) -> list[Group]:
        """All groups in order of creation, named by a count as torch does."""
        found = [("default_pg", tuple(range(self.world)))]
        for d, p in product(range(self.dp), range(self.pp)):
            found.append(("tp", tuple(self.rank(t, d, p) for t in range(self.tp))))
        for t, p in product(range(self.tp), range(self.pp)):
            found.append(("dp", tuple(self.rank(t, d, p) for d in range(self.dp))))
        for t, d in product(range(self.tp), range(self.dp)):
            found.append(("pp", tuple(self.rank(t, d, p) for p in range(self.pp))))
        for t, p, first in product(range(self.tp), range(self.pp), range(0, self.dp, self.ep)):
            experts = range(first, first + self.ep)
            found.append(("ep", tuple(self.rank(t, d, p) for d in experts)))
        return [
            Group(str(at), kind, members)
            for at, (kind, members) in enumerate(found)
            if kind == "default_pg" or len(members) > 1
        ]


def groups_of(groups: list[Group], rank: int) -> dict[str, Group]:
    """A rank's groups by description."""
    return {group.description: group for group in groups if rank in group.members}


def train(
    layout: Layout,
    *,
    steps: int = 2,
    microbatches: int = 2,
    batched: bool = False,
    overlapped: bool = False,
    compute_ns: int = 1_000_000,
) -> Job:
    """A 3-D parallel training job.

    Args:
        layout: its shape.
        steps: optimizer steps.
        microbatches: forward and backward passes per step.
        batched: stages exchange by ``batch_isend_irecv``.
        overlapped: the gradients' reduction overlaps with what follows.
        compute_ns: time per microbatch and pass.
    """
    groups = layout.groups()
    programs: dict[int, Program] = {}
    for rank in range(layout.world):
        mine = groups_of(groups, rank)
        programs[rank] = []
        for _ in range(steps):
            programs[rank] += _step(
                layout, mine, rank, microbatches, batched, overlapped, compute_ns
            )
    return Job(groups, programs)


def _step(
    layout: Layout,
    mine: dict[str, Group],
    rank: int,
    microbatches: int,
    batched: bool,
    overlapped: bool,
    compute_ns: int,
) -> Program:
    stage = layout.coordinate(rank)[2]
    stride = layout.tp * layout.dp
    before = rank - stride if stage > 0 else None
    after = rank + stride if stage < layout.pp - 1 else None

    def transfer(is_send: bool, peer: int | None) -> Program:
        if peer is None:
            return []
        move = Transfer(mine["pp"], is_send, peer)
        return [Batch((move,)) if batched else move]

    def layer(width: int) -> Program:
        program: Program = [Compute(compute_ns)]
        if "tp" in mine:
            program += [
                Collective(mine["tp"], "all_reduce", ((width, 64),), ((width, 64),)),
                Collective(
                    mine["tp"],
                    "_reduce_scatter_base",
                    ((layout.tp * 8, width),),
                    ((8, width),),
                ),
            ]
        if "ep" in mine:
            program += [exchange(mine["ep"], rank), exchange(mine["ep"], rank, uneven=False)]
        return program

    program: Program = []
    for _ in range(microbatches):
        program += [*transfer(False, before), *layer(512), *transfer(True, after)]
    for _ in range(microbatches):
        program += [*transfer(False, after), *layer(256), *transfer(True, before)]
    if "dp" in mine:
        size = layout.dp * 4096
        program += [
            Collective(
                mine["dp"], "_reduce_scatter_base", ((size,),), ((4096,),), overlapped=overlapped
            ),
            Collective(mine["dp"], "_all_gather_base", ((4096,),), ((size,),)),
        ]
    if "pp" in mine:
        program.append(Collective(mine["pp"], "all_reduce", ((2048, 8),), ((2048, 8),)))
    program += [
        Collective(mine["default_pg"], "all_reduce", ((1,),), ((1,),), "Float"),
        Synchronize(),
        Collective(mine["default_pg"], "broadcast", ((3,),), ((3,),), "Long"),
    ]
    return program


def data_parallel(world: int, *, steps: int = 6, compute_ns: int = 1_000_000) -> Job:
    """One group, the steps of plain data parallel training."""
    group = Group("0", "default_pg", tuple(range(world)))
    step: Program = [
        Compute(compute_ns),
        Collective(group, "all_reduce", ((1024, 8),), ((1024, 8),)),
        Collective(group, "all_reduce", ((64,),), ((64,),), "Float"),
        Synchronize(),
    ]
    return Job([group], dict.fromkeys(range(world), step * steps))


def one_forward_one_backward(stages: int, microbatches: int = 6) -> Job:
    """A pipeline whose steady state sends and receives in one batch, as Megatron's does."""
    group = Group("0", "default_pg", tuple(range(stages)))
    programs: dict[int, Program] = {}
    for rank in range(stages):
        before = rank - 1 if rank else None
        after = rank + 1 if rank < stages - 1 else None

        def batch(*moves: tuple[bool, int | None]) -> Program:
            there = tuple(
                Transfer(group, is_send, peer) for is_send, peer in moves if peer is not None
            )
            return [Batch(there)] if there else []

        warmup = min(stages - rank - 1, microbatches)
        program: Program = []
        for _ in range(warmup):
            program += [*batch((False, before)), Compute(), *batch((True, after))]
        steady = microbatches - warmup
        if steady:
            program += batch((False, before))
        for at in range(steady):
            last = at == steady - 1
            program += [Compute(), *batch((True, after), (False, after)), Compute()]
            program += batch((True, before), *(() if last else ((False, before),)))
        for _ in range(warmup):
            program += [*batch((False, after)), Compute(), *batch((True, before))]
        # Stages issued different numbers of batches; this collective's number differs too.
        program += [Collective(group, "all_reduce", ((16,),), ((16,),)), Synchronize()]
        programs[rank] = program
    return Job([group], programs)
