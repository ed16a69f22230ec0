"""
One rank is late again and again
================================

Nothing hangs. The job is slow, and every rank looks equally slow, since all wait for the last
one. The recorder knows who came last.

:Symptom: The job is slow, and nothing hangs
:Tags: straggler, slow, data loading
:Verdict: straggler in all_reduce
:Suspects: 2
:Victims: 0, 1, 3
"""

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist

# %%
# The job
# -------
#
# A step is: read a batch, compute, average the gradient. The cache on the host of rank 2 is too
# small, so every third batch comes from far away and takes it 300 ms instead of 5. All ranks print
# the same time per step, because all of them wait for rank 2.
#
# In the dumps every call is complete and nothing differs but the times. For each collective the
# analyzer takes what a rank spent on its own, from the end of the call before to its joining. Who
# needs longest is late. It names a rank only if this happens again and again and costs a good part
# of the run: someone is always last.
#
# **What Gloo hides.** Its recorder does not say when a call ended, so the end is taken to be the
# moment when the last rank joined, on clocks set right by each rank's usual distance from the
# others. A rank that is late by the same amount in *every* step then looks like a host whose clock
# is ahead, and is not named. NCCL's dumps can hold the end of each call, and with them it is.
#
# **The fix** reads ahead: four threads fetch the next batches while the current one is computed, as
# ``DataLoader`` does with ``num_workers=4``. Rank 2 still reads slowly, but its batches are there
# when it needs them. A larger cache helps as well. Where the rank itself computes slowly (a GPU
# that throttles), replace the host.

FIXED = os.environ.get("FIXED") == "1"
STEPS = 18


def read_batch(rank: int, step: int) -> torch.Tensor:
    """Return a batch; rank 2 lacks every third one in its cache."""
    time.sleep(0.3 if rank == 2 and step % 3 == 0 else 0.005)
    return torch.full((8,), float(rank + step))


def batches(rank: int) -> Iterator[torch.Tensor]:
    """Read each batch when it is needed, or ahead of time."""
    if FIXED:
        with ThreadPoolExecutor(max_workers=4) as readers:
            yield from readers.map(read_batch, [rank] * STEPS, range(STEPS))
    else:
        for step in range(STEPS):
            yield read_batch(rank, step)


def compute_gradient(batch: torch.Tensor) -> torch.Tensor:
    """Stand in for forward and backward."""
    time.sleep(0.05)
    return batch / 2


def train(rank: int) -> None:
    """Run the steps and print the time that each takes."""
    dist.barrier()
    started = time.perf_counter()
    for batch in batches(rank):
        gradient = compute_gradient(batch)
        dist.all_reduce(gradient)
    each = (time.perf_counter() - started) / STEPS
    print(f"[rank {rank}] {STEPS} steps, {each * 1000:.0f} ms each", flush=True)


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
