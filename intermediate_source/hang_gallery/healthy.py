"""
A healthy job
=============

What dumps look like when nothing is wrong. Take them from your own job while it runs well: on the
day it hangs you will know what is normal.

:Symptom: Nothing: every rank makes progress
:Tags: healthy
:Verdict: healthy
:Fix: none
"""

import os

import torch
import torch.distributed as dist

# %%
# The job
# -------
#
# Four ranks start from the weights of rank 0, average a gradient per step, and collect a metric at
# the end. In the dumps every rank holds the same calls, in the same order, and none of them is
# pending. In the picture no column has a gap.
#
# **What not to be alarmed by.** torch's Gloo leaves the ``state`` of every entry at ``scheduled``
# for ever, also of those that are long complete: ``retired`` is the sign of completion. In a dump
# of a running job the ranks may be a call or two apart, and the newest call may be pending: it is a
# snapshot. Where you are in doubt, take a second one half a minute later. Whatever is pending in
# both, with the same sequence number, is stuck.
#
# **What it does not say.** A healthy verdict covers what was recorded: torch's Gloo records no
# ``send``, ``recv`` and ``new_group``, and no recorder sees a rank that has not yet come to its
# next collective when all others have not either.


def train(rank: int) -> None:
    """Run five steps, then collect the losses."""
    weights = torch.full((16,), float(rank))
    dist.broadcast(weights, src=0)
    loss = torch.zeros(1)
    for step in range(5):
        gradient = torch.full((16,), float(rank + step))
        dist.all_reduce(gradient)
        weights -= 0.01 * gradient / 4
        loss = weights.square().mean().reshape(1)
        print(f"[rank {rank}] step {step}: loss {loss.item():.4f}", flush=True)
    losses = [torch.zeros(1) for _ in range(4)]
    dist.all_gather(losses, loss)


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
