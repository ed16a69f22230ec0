"""
One rank is stuck in host code
==============================

The most common hang: a rank stops in code that has nothing to do with collectives, here in a data
loader whose storage does not answer. All others enter the next collective and wait.

:Symptom: All ranks wait in one collective, but one
:Tags: host code, data loading
:Verdict: rank_missing in all_reduce
:Suspects: 2
:Victims: 0, 1, 3
:Stuck in: read_from_storage
"""

import os
import time

import torch
import torch.distributed as dist

# %%
# The job
# -------
#
# Four ranks average a gradient per step. At step 3 the storage of rank 2 does not answer.

FIXED = os.environ.get("FIXED") == "1"


def read_from_storage(rank: int, step: int) -> torch.Tensor:
    """Return a batch, or not: this storage hangs once, and the loader has no timeout."""
    storage_hangs = rank == 2 and step == 3
    while storage_hangs and not FIXED:
        time.sleep(0.1)
    return torch.full((8,), float(rank + step))


def train(rank: int) -> None:
    """Run five steps."""
    for step in range(5):
        gradient = read_from_storage(rank, step)
        dist.all_reduce(gradient)
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
