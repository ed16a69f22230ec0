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
    """Stand in for a host that swaps, so that no thread gets on with its work, and then kills."""
    sys.setswitchinterval(60)
    ctypes.PyDLL(None).sleep(3)  # called through PyDLL, it keeps other Python threads out
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
# rank and its stack after two seconds, and ends the job when the others have timed out.

# --- recorded job: the same in every script of the gallery ---
import faulthandler
import pathlib
import pickle
import threading
from datetime import timedelta

import torch._inductor.codecache  # else a process's first dump loads it, which takes seconds


def run_recorded(job, dump_after=2.0, timeout=4.0, end_after=7.0):
    """Run ``job(rank)`` on this rank, and leave a dump and a stack in FR_DUMP_DIR."""
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    folder = pathlib.Path(os.environ.get("FR_DUMP_DIR", "fr_dumps"))
    folder.mkdir(parents=True, exist_ok=True)
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout))
    store = dist.distributed_c10d._get_default_store()
    members = dist.distributed_c10d._world.pg_group_ranks
    finished = threading.Event()

    def meet(place):
        store.set(f"{place}/{rank}", "here")
        store.wait([f"{place}/{peer}" for peer in range(size)], timedelta(seconds=60))

    def dump():
        recorder = pickle.loads(torch._C._distributed_c10d._dump_fr_trace())
        recorder["pg_config"] = {  # Gloo's recorder leaves out who is in which group
            name: {"name": name, "desc": group.group_desc, "ranks": str(sorted(members[group]))}
            for group, name in dist.distributed_c10d._world.pg_names.items()
        }
        (folder / f"rank_{rank}").write_bytes(pickle.dumps(recorder, protocol=2))

    def watch():
        if not finished.wait(dump_after):
            dump()
            with open(folder / f"stacks_rank_{rank}.txt", "w") as stacks:
                faulthandler.dump_traceback(stacks, all_threads=True)
        if not finished.wait(end_after - dump_after):
            os._exit(0)

    meet("start")
    threading.Thread(target=watch, daemon=True).start()
    try:
        job(rank)
        meet("done")
        finished.set()
        dump()
    except RuntimeError as error:
        print(f"[rank {rank}] RuntimeError: {str(error).split('] ')[-1]}", flush=True)
        finished.wait(60)  # ended by watch()
    meet("end")
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:
        run_recorded(train)
    else:
        print("start it with: torchrun --nproc_per_node=4 FILE.py")
