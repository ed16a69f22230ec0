"""
A rank is killed
================

One process is gone: most often the kernel killed it for want of memory, else its host went down.
It writes no dump any more, and so the only trace of it is that the others wait for it.

:Symptom: All ranks wait in one collective, but one that left no dump
:Tags: dead process, memory
:Verdict: rank_missing in all_reduce
:Suspects: 2
:Victims: 0, 1, 3
:Exit status: 1
"""

import ctypes
import os
import signal
import sys

import torch
import torch.distributed as dist

# %%
# The job
# -------
#
# Four ranks average a gradient per step, and keep every batch for a plot at the end. The host of
# rank 2 has memory for three batches: with the fourth it swaps for a while, and then the kernel
# kills the process that holds most. **The fix** keeps what the plot needs, one number per batch,
# so that memory no longer grows with the number of steps.
#
# The others wait in step 3. They dump their recorders while rank 2 still lives, but is too busy to
# write its own. That is the only moment for it: as soon as one rank has died torchrun ends all
# others of its host, before they can dump, and leaves with exit status 1. A job that should leave
# dumps when a process dies must write them while it waits, as the debug server does with its
# ``dump_interval``. Of torchrun's own output the page shows the report at the end only.
#
# Gloo sees the connection break at once, and then marks the operation as done. NCCL, which did not
# run here, waits for its timeout.

FIXED = os.environ.get("FIXED") == "1"
BATCHES_IN_MEMORY = {2: 3}  # by rank; the others have plenty


def run_out_of_memory() -> None:
    """Stand in for a host that swaps, so that no thread gets on with its work, and then kills.

    It kills as soon as the other ranks have dumped.
    """
    sys.setswitchinterval(600)
    system = ctypes.PyDLL(None)  # calls through PyDLL keep other Python threads out
    folder = os.environ.get("FR_DUMP_DIR", "fr_dumps")
    dumps = [os.fsencode(f"{folder}/rank_{rank}") for rank in (0, 1, 3)]
    while any(system.access(dump, os.F_OK) for dump in dumps):
        system.usleep(100_000)
    os.kill(os.getpid(), signal.SIGKILL)


def train(rank: int) -> None:
    """Run five steps."""
    kept = []
    for step in range(5):
        batch = torch.full((8,), float(rank + step))
        if FIXED:
            print(f"[rank {rank}] mean of the batch: {batch.mean():.0f}", flush=True)
        else:
            kept.append(batch)
        if len(kept) > BATCHES_IN_MEMORY.get(rank, 1000):
            run_out_of_memory()
        dist.all_reduce(batch)
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
