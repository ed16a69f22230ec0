"""
A process group that not every rank created
===========================================

A group is made when all of its members call ``new_group``. Where one of them takes another path,
the others wait in a call that no recorder notes.

:Symptom: One rank waits in a collective, its peers are in none
:Tags: process groups, start-up, control flow
:Verdict: operation_mismatch in all_reduce
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
# Each rank makes a process group for its metrics when it has the first ones to send. Rank 3 has
# none in the first step. Its peers call ``new_group`` and wait in it for rank 3, which is one call
# further, in the reduction of the gradient.
#
# ``new_group`` leaves no entry in the recorder. By the dumps alone rank 3 is the only one that does
# anything, and its peers are idle. The stacks beside the dumps show the rest: three ranks are in
# ``new_group``. That is why a stacks snapshot belongs to every set of dumps. The log is quiet, too:
# a new group has the default timeout of 30 minutes, whatever ``init_process_group`` was given.
#
# **The fix** takes the condition away: all ranks make all groups, at the start and in the same
# order, also groups that they are no members of. Groups are named by counting: a rank that leaves
# one out knows all later ones under other names than its peers.

FIXED = os.environ.get("FIXED") == "1"


def metrics_of(rank: int, step: int) -> list[float]:
    """Return what a rank has to report: often nothing."""
    return [] if rank == 3 and step == 0 else [float(rank + step)]


def train(rank: int) -> None:
    """Run three steps."""
    metrics_group = dist.new_group(group_desc="metrics") if FIXED else None
    for step in range(3):
        metrics = metrics_of(rank, step)
        if metrics and metrics_group is None:
            metrics_group = dist.new_group(group_desc="metrics")
        dist.all_reduce(torch.ones(8))
        if metrics_group:
            dist.all_reduce(torch.tensor([float(sum(metrics))]), group=metrics_group)
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
