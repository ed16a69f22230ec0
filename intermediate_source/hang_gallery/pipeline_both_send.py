"""
Pipeline stages that both send first
====================================

Two neighbours of a pipeline swap tensors, and each sends before it receives. A send returns when
the other side receives, so neither returns.

:Symptom: Two neighbours are in send, all others wait in one collective
:Tags: pipeline, send and receive, order
:Verdict: rank_missing in all_reduce
:Suspects: 1, 2
:Victims: 0, 3
:Stuck in: exchange
"""

import os

import torch
import torch.distributed as dist

# %%
# The job
# -------
#
# Each step begins with an ``all_reduce``; then the stages on ranks 1 and 2 swap tensors: one sends
# activations, the other a gradient. Both call ``send`` first. Ranks 0 and 3 go on to the next step
# and wait there.
#
# **What Gloo hides.** Its recorder keeps no ``send`` and no ``recv``, so the dumps do not show that
# ranks 1 and 2 wait for each other, only that both are missing from the ``all_reduce``. That is
# what the verdict says: the right ranks, and the line from the stacks, but not the circle. See in
# the stacks that both are in ``send``. NCCL and TorchComms do record transfers; from such dumps the
# analyzer tells a ``p2p_cycle``.
#
# With NCCL a small send may return at once, since it fits a buffer, and the same program hangs only
# when the tensors grow.
#
# **The fix** is an order in which each send meets a receive: the lower rank sends first, the higher
# one receives first. ``dist.batch_isend_irecv`` starts both at once, and no order is needed.

FIXED = os.environ.get("FIXED") == "1"


def exchange(rank: int, peer: int, outgoing: torch.Tensor) -> torch.Tensor:
    """Swap tensors with the peer."""
    incoming = torch.empty_like(outgoing)
    if FIXED and rank > peer:
        dist.recv(incoming, src=peer)
        dist.send(outgoing, dst=peer)
    else:
        dist.send(outgoing, dst=peer)
        dist.recv(incoming, src=peer)
    return incoming


def train(rank: int) -> None:
    """Run three steps."""
    for step in range(3):
        dist.all_reduce(torch.ones(4))
        if rank in (1, 2):
            exchange(rank, 3 - rank, torch.full((1024,), float(step)))
        print(f"[rank {rank}] step {step} done", flush=True)


# %%
# The rest is the same in every script of this gallery: it runs the job, dumps the recorder of each
# rank and its stack once no rank has come further for 1.5 seconds, and ends the job when the others
# have timed out.

# --- recorded job: the same in every script of the gallery ---
import faulthandler
import pathlib
import pickle
import threading
from datetime import timedelta

import torch._inductor.codecache  # else a process's first dump loads it, which takes seconds
from torch.distributed.rendezvous import rendezvous


def run_recorded(job, timeout=5.0):
    """Run ``job(rank)`` on this rank, and leave a dump and a stack in FR_DUMP_DIR."""
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")
    store, rank, size = next(rendezvous("env://"))
    watch_store = store.clone()  # a store serves one thread at a time
    folder = pathlib.Path(os.environ.get("FR_DUMP_DIR", "fr_dumps"))
    folder.mkdir(parents=True, exist_ok=True)
    dump_file, stacks_file = folder / f"rank_{rank}", folder / f"stacks_rank_{rank}.txt"
    for old in (dump_file, stacks_file):
        old.unlink(missing_ok=True)
    finished, over = threading.Event(), threading.Event()

    def meet(place, store=store):
        store.set(f"{place}/{rank}", "here")
        store.wait([f"{place}/{peer}" for peer in range(size)], timedelta(seconds=100))

    def record(stacks):
        return torch._C._distributed_c10d._dump_fr_trace(True, stacks, False)

    def dump():
        recorder = pickle.loads(record(stacks=True))
        members = dist.distributed_c10d._world.pg_group_ranks
        recorder["pg_config"] = {  # Gloo's recorder leaves out who is in which group
            name: {"name": name, "desc": group.group_desc, "ranks": str(sorted(members[group]))}
            for group, name in dist.distributed_c10d._world.pg_names.items()
        }
        unfinished = folder / f".rank_{rank}"
        unfinished.write_bytes(pickle.dumps(recorder, protocol=2))
        unfinished.replace(dump_file)  # no reader sees half a dump

    def watch():
        recorded, moves, still = b"", 0, 0
        while still < 15:  # looks, one each tenth of a second, since any rank came further
            if finished.wait(0.1):
                return
            before, recorded = recorded, record(stacks=False)
            seen, moves = moves, watch_store.add("moves", recorded != before)
            still = 0 if moves > seen else still + 1
        with open(stacks_file, "w") as stacks:
            faulthandler.dump_traceback(stacks, all_threads=True)
        dump()
        over.wait(timeout + 1)  # until this rank has timed out, or would have
        if not finished.is_set():
            over.set()
            try:
                meet("over", watch_store)
            finally:
                os._exit(0)

    meet("start")  # ranks start seconds apart, which must not count as waiting
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout)
    )
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        job(rank)
        meet("done")
        finished.set()
        over.set()
        watcher.join()  # one dump at a time
        dump()
    except RuntimeError as error:
        if not over.is_set():  # else it is because the others have ended
            print(f"[rank {rank}] RuntimeError: {str(error).split('] ')[-1]}", flush=True)
        over.set()
        finished.wait(120)  # ended by watch()
    meet("end")
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:
        run_recorded(train)
    else:
        print("start it with: torchrun --nproc_per_node=4 FILE.py")
