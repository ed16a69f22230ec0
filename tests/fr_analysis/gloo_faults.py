"""Faults on real Gloo ranks, each recorded while it lasts: ``torchrun gloo_faults.py FAULT...``.

Every rank loads torch once and forks a process per fault, so that a fault may kill its
process and costs no second start. What a rank recorded goes to
``$FR_DUMP_DIR/<fault>/<when>/rank_<rank>`` as torch's native recorder hands it out.
``during`` is as soon as the rank is in the call that ends its part, ``after`` is when
all ranks are and what then fails at once has failed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

# A process's first dump with stacks loads it, which takes seconds. Loaded before the fork,
# it is there in every process of a fault.
import torch._inductor.codecache
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace, _dump_fr_trace_json

DEADLINE_S = 40
PATIENCE = timedelta(seconds=DEADLINE_S)


class Job:
    """One rank's part in one fault."""

    def __init__(self, fault: str, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.store = self._connect(fault)
        # A store's client serves one thread at a time, and waits are long.
        self._watch_store = self._connect(fault)
        self._folder = Path(os.environ["FR_DUMP_DIR"], fault)
        self._ends = threading.Event()
        self._entries_at_end = 0
        self._waits = False
        dist.init_process_group(
            "gloo",
            store=dist.PrefixStore("group", self.store),
            rank=rank,
            world_size=size,
            timeout=PATIENCE,
        )
        threading.Thread(target=self._watch, daemon=True).start()

    @staticmethod
    def _connect(fault: str) -> dist.Store:
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        return dist.PrefixStore(fault, dist.TCPStore(*address, timeout=PATIENCE))

    # -- what a fault's script calls ---------------------------------------------------

    def enters(self, *, fails: bool = False) -> None:
        """The next call is a collective that ends this rank's part: it waits, or fails at once."""
        self._entries_at_end = self._count() + 1
        self._waits = not fails
        self._ends.set()

    def blocks(self) -> None:
        """The next call leaves no entry, and ends this rank's part."""
        self._ends.set()

    def idles(self) -> None:
        """Stay in host code, in no collective, until the run is over."""
        self._entries_at_end = 0
        self._ends.set()
        threading.Event().wait()

    def wait_until_in(self, *ranks: int) -> None:
        """Wait until others are in the call that ends their part."""
        self.store.wait([f"in/{rank}" for rank in ranks], PATIENCE)

    def steps(self, count: int, numel: int = 8) -> None:
        """Train: one ``all_reduce`` a step."""
        for _ in range(count):
            dist.all_reduce(torch.ones(numel))

    # -- the thread that writes the dumps ----------------------------------------------

    def _entries(self) -> list[dict[str, Any]]:
        """What the ring buffer holds, without stacks."""
        entries: list[dict[str, Any]] = json.loads(_dump_fr_trace_json(True, False)).get(
            "entries", []
        )
        return entries

    def _count(self) -> int:
        """How many operations were recorded in all."""
        return 1 + max((entry["record_id"] for entry in self._entries()), default=-1)

    def _watch(self) -> None:
        self._ends.wait()
        while self._count() < self._entries_at_end:
            time.sleep(0.005)
        self._dump("during")
        self._meet("in")
        # A call that has ended, or that a peer's end has broken, is marked so a little later.
        while not self._waits and not all(entry["retired"] for entry in self._entries()):
            time.sleep(0.005)
        self._dump("after")
        self._meet("out")
        os._exit(0)

    def _dump(self, when: str) -> None:
        folder = self._folder / when
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"rank_{self.rank}").write_bytes(_dump_fr_trace(True, True, False))

    def _meet(self, where: str) -> None:
        """Wait for every rank that is going to come."""
        self._watch_store.set(f"{where}/{self.rank}", "")
        for rank in range(self.size):
            while not self._watch_store.check([f"{where}/{rank}"]):
                if self._watch_store.check([f"gone/{rank}"]):
                    break
                time.sleep(0.01)


Fault = Callable[[Job], None]
FAULTS: dict[str, tuple[int, int, Fault]] = {}
"""By name: number of ranks, entries that the ring buffer holds, and what a rank runs."""


def fault(size: int = 4, buffer: int = 2000) -> Callable[[Fault], Fault]:
    """Register a fault."""

    def register(run: Fault) -> Fault:
        FAULTS[run.__name__] = size, buffer, run
        return run

    return register


@fault()
def healthy(job: Job) -> None:
    job.steps(3)
    dist.broadcast(torch.ones(4), 0)
    dist.barrier()
    job.idles()


@fault()
def asleep(job: Job, sleeper: int = 2) -> None:
    job.steps(3)
    if job.rank == sleeper:
        job.idles()
    job.enters()
    dist.all_reduce(torch.ones(8))


@fault()
def asleep_rank_0(job: Job) -> None:
    asleep(job, sleeper=0)


@fault(buffer=8)
def asleep_after_the_ring_wrapped(job: Job) -> None:
    job.steps(50)
    asleep(job)


@fault(buffer=8)
def asleep_while_the_others_ran_on(job: Job) -> None:
    """The ring of the waiting ranks has turned in a group of theirs: it begins later."""
    others = dist.new_group([0, 1, 3])
    job.steps(5)
    if job.rank == 2:
        job.idles()
    for _ in range(20):
        dist.all_reduce(torch.ones(8), group=others)
    job.enters()
    dist.all_reduce(torch.ones(8))


@fault(size=3)
def killed(job: Job) -> None:
    """``during``, the peers wait; ``after``, Gloo has failed the call and calls it complete."""
    job.steps(3)
    if job.rank == 1:
        job.wait_until_in(0, 2)
        os.kill(os.getpid(), signal.SIGKILL)
    job.enters(fails=True)
    dist.all_reduce(torch.ones(8))


@fault()
def asleep_until_the_peers_timed_out(job: Job) -> None:
    """``during``, too, is after the timeout."""
    job.steps(3)
    if job.rank != 2:
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=1))
        with contextlib.suppress(RuntimeError):
            dist.all_reduce(torch.ones(8))
    job.idles()


@fault()
def exception_swallowed(job: Job) -> None:
    """A rank loses one step of eight to an exception that is logged and passed over."""
    for step in range(8):
        with contextlib.suppress(ValueError):
            if job.rank == 1 and step == 4:
                raise ValueError("bad sample")
            if job.rank != 1 and step == 7:
                job.enters()
            dist.all_reduce(torch.ones(8))
    job.idles()


@fault()
def skip_that_depends_on_data(job: Job) -> None:
    """A rank whose batch has no masked token leaves out the loss that the others sum."""
    job.steps(3)
    if job.rank == 3:
        job.wait_until_in(0, 1, 2)
    else:
        job.enters()
        dist.all_reduce(torch.ones(1))
    job.enters()
    dist.all_gather([torch.empty(4) for _ in range(job.size)], torch.ones(4))


@fault()
def one_rank_has_fewer_inputs(job: Job) -> None:
    job.steps(5)
    if job.rank == 3:
        job.idles()
    job.enters()
    job.steps(1)


@fault()
def one_rank_has_more_inputs(job: Job) -> None:
    job.steps(5)
    if job.rank != 3:
        job.idles()
    job.enters()
    job.steps(1)


@fault()
def other_order(job: Job) -> None:
    job.steps(3)
    if job.rank == 1:
        job.wait_until_in(0, 2, 3)
        job.enters()
        dist.broadcast(torch.ones(8), 1)
        dist.all_reduce(torch.ones(8))
    else:
        job.enters()
        dist.all_reduce(torch.ones(8))
        dist.broadcast(torch.ones(8), 1)


@fault(size=2)
def other_operation_one_against_one(job: Job) -> None:
    job.steps(3)
    job.enters()
    if job.rank == 1:
        dist.barrier()
    dist.all_reduce(torch.ones(8))


@fault()
def other_size(job: Job) -> None:
    """Gloo aborts the process that receives more than it expects, here rank 3; its peers see it."""
    job.steps(3)
    if job.rank == 0:
        job.wait_until_in(1, 2, 3)
    job.enters(fails=job.rank in (0, 2))
    dist.all_reduce(torch.ones(8 if job.rank else 16))


@fault()
def other_dtype(job: Job) -> None:
    """It completes: to Gloo, this is as many bytes."""
    job.steps(3)
    dist.all_reduce(torch.ones(8, dtype=torch.int32 if job.rank == 1 else torch.float32))


@fault()
def wrong_splits(job: Job) -> None:
    """It completes: Gloo takes fewer bytes than it expects."""
    job.steps(3)
    sent = [1, 1, 1, 1]
    received = [1, 1, 1, 3] if job.rank == 2 else [1, 1, 1, 1]
    dist.all_to_all_single(torch.empty(sum(received)), torch.ones(4), received, sent)


@fault()
def group_that_a_member_did_not_create(job: Job) -> None:
    """Gloo connects the members inside ``new_group``, which leaves no entry."""
    job.steps(3)
    if job.rank == 2:
        job.idles()
    if job.rank != 3:
        job.blocks()
    group = dist.new_group([0, 1, 2])
    job.blocks()
    dist.all_reduce(torch.ones(8), group=group)


@fault()
def groups_created_in_another_order(job: Job) -> None:
    """Names count creations: to rank 3, group 1 is of another kind than to the others."""
    job.steps(3)
    wanted = ["model", "data"]
    groups = {
        kind: dist.new_group(range(4), group_desc=kind)
        for kind in (wanted if job.rank != 3 else reversed(wanted))
    }
    job.enters()
    dist.all_reduce(torch.ones(8), group=groups["model"])


@fault(size=2)
def groups_entered_in_opposite_order(job: Job, *, used_before: bool = True) -> None:
    first, second = (dist.new_group([0, 1], group_desc=name) for name in ("model", "data"))
    job.steps(3)
    if used_before:
        for group in first, second:
            dist.all_reduce(torch.ones(8), group=group)
    order = [first, second] if job.rank == 0 else [second, first]
    job.enters()
    for group in order:
        dist.all_reduce(torch.ones(8), group=group)


@fault(size=2)
def groups_first_used_in_opposite_order(job: Job) -> None:
    groups_entered_in_opposite_order(job, used_before=False)


def mesh(job: Job) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """Two by two: tensor parallel pairs (0, 1), (2, 3), data parallel pairs (0, 2), (1, 3)."""
    grid = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    return grid.get_group("tp"), grid.get_group("dp")


@fault()
def mesh_with_a_rank_asleep(job: Job) -> None:
    tp, dp = mesh(job)
    for _ in range(3):
        dist.all_reduce(torch.ones(8), group=tp)
        dist.all_reduce(torch.ones(8), group=dp)
    if job.rank == 3:
        job.idles()
    if job.rank == 2:
        job.enters()
    dist.all_reduce(torch.ones(8), group=tp)
    job.enters()
    dist.all_reduce(torch.ones(8), group=dp)


@fault()
def mesh_with_two_ranks_asleep(job: Job) -> None:
    tp, _ = mesh(job)
    dist.all_reduce(torch.ones(8), group=tp)
    if job.rank in (1, 3):
        job.idles()
    job.enters()
    dist.all_reduce(torch.ones(8), group=tp)


@fault(size=2)
def receive_that_nobody_sends(job: Job) -> None:
    job.steps(3)
    if job.rank == 0:
        job.idles()
    job.blocks()
    dist.recv(torch.empty(8), src=0)


def take_part(name: str, rank: int) -> None:
    """Run one fault in this process."""
    size, buffer, run = FAULTS[name]
    if rank >= size:
        return
    signal.alarm(DEADLINE_S)
    os.environ["TORCH_FR_BUFFER_SIZE"] = str(buffer)
    job = Job(name, rank, size)
    try:
        run(job)
    except RuntimeError as error:
        print(f"{name}: {error}", flush=True)
    job.idles()


def main() -> None:
    """Run the faults named on the command line, one after the other."""
    rank = int(os.environ["RANK"])
    for name in sys.argv[1:]:
        child = os.fork()
        if not child:
            # Whatever happens, the child must not go on with the loop.
            try:
                take_part(name, rank)
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        print(f"{name}: exit {os.waitstatus_to_exitcode(status)}", flush=True)
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        dist.PrefixStore(name, dist.TCPStore(*address)).set(f"gone/{rank}", "")


if __name__ == "__main__":
    main()
