"""
A checkpoint that outlasts the timeout
======================================

Rank 0 writes a checkpoint while the others wait in the next collective. Writing takes longer than
the timeout, and the job is ended in the middle of work that would have succeeded: slow, not stuck.

:Symptom: All ranks wait in one collective, but rank 0, and it ends at a checkpoint
:Tags: checkpoint, slow, host code, timeout
:Verdict: rank_missing in all_reduce
:Suspects: 0
:Victims: 1, 2, 3
:Stuck in: write_shard
"""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist

# %%
# The job
# -------
#
# After step 2 rank 0 writes twelve shards, and the disk takes half a second for each: six seconds
# in all. The others wait in step 3, and the timeout is five.
#
# The dumps alone look like a rank that is stuck in host code, and the verdict is the same: rank 0
# is missing. Two things tell slow from stuck: the line where rank 0 is (``write_shard``), and a
# second snapshot some seconds later, which would show another shard. The log below tells the rest:
# rank 0 finishes its checkpoint after the others have given up.
#
# **The fix** here is an asynchronous checkpoint: rank 0 copies the weights, which takes little, and
# a thread writes the copy while training goes on. Wait for the thread before the next checkpoint
# and before the job ends. ``torch.distributed.checkpoint.async_save`` does this for real jobs.
#
# The other way is a longer timeout, for this phase only: let the others wait in a group of their
# own, ``dist.new_group(timeout=timedelta(minutes=30))``, with a ``dist.barrier`` after the
# checkpoint. A longer timeout for everything would make each real hang as much more expensive.

FIXED = os.environ.get("FIXED") == "1"


def write_shard(shard: int, weights: torch.Tensor) -> None:
    """Stand in for a slow disk."""
    time.sleep(0.5)
    print(f"[rank 0] shard {shard} of 12 written ({weights.nbytes} bytes)", flush=True)


def write_checkpoint(weights: torch.Tensor) -> None:
    """Write all shards, one by one."""
    for shard in range(1, 13):
        write_shard(shard, weights)


def train(rank: int) -> None:
    """Run five steps, with a checkpoint after step 2."""
    weights = torch.zeros(8)
    writer = ThreadPoolExecutor(max_workers=1)
    for step in range(5):
        gradient = torch.full((8,), float(rank + step))
        dist.all_reduce(gradient)
        weights -= 0.01 * gradient
        print(f"[rank {rank}] step {step} done", flush=True)
        if rank == 0 and step == 2:
            if FIXED:
                writer.submit(write_checkpoint, weights.clone())
            else:
                write_checkpoint(weights)
    writer.shutdown()  # waits until the checkpoint is written


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
