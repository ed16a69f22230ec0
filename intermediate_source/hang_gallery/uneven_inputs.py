"""
One rank has fewer batches
==========================

The samples do not divide by the number of ranks, or files differ in length, and one rank comes to
the end of its data a step before its peers. They enter one more collective and wait.

:Symptom: All ranks wait in one collective at the end of an epoch, but one that is done
:Tags: data loading, end of epoch
:Verdict: rank_missing in all_reduce
:Suspects: 3
:Victims: 0, 1, 2
"""

import os

import torch
import torch.distributed as dist

# %%
# The job
# -------
#
# 19 samples are dealt out to four ranks: five each, but four to rank 3. Rank 3 ends its epoch while
# the others average the gradient of their fifth sample. In the verdict rank 3 is alive and in no
# collective: ``meet`` is where a rank waits that has finished its part. Compare where it is with
# what it recorded last: the same operation as the others, one step earlier.
#
# **The fix** agrees on the number of batches before the first step: the smallest number that a rank
# has. It costs one collective per epoch and leaves out three samples. Other good answers are
# ``DistributedSampler``, which fills up to the same length (or cuts, with ``drop_last=True``), and
# ``torch.distributed.algorithms.Join``, which lets the ranks that are done take part with zeros.

FIXED = os.environ.get("FIXED") == "1"
SAMPLES = 19


def train(rank: int) -> None:
    """Run one epoch, one sample a batch."""
    batches = torch.tensor(len(range(rank, SAMPLES, 4)))
    if FIXED:
        dist.all_reduce(batches, op=dist.ReduceOp.MIN)
    for step in range(int(batches)):
        gradient = torch.full((8,), float(rank + step))
        dist.all_reduce(gradient)
        print(f"[rank {rank}] step {step} done", flush=True)
    print(f"[rank {rank}] epoch done after {int(batches)} batches", flush=True)


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
