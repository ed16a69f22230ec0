"""
An exception is swallowed on one rank
=====================================

A training loop that must not die over one bad sample catches the exception, logs it and goes on
with the next step. The collective of that step is skipped, on this rank only.

:Symptom: All ranks wait in one collective, but one that is done with all its steps
:Tags: exception, control flow
:Verdict: rank_missing in all_reduce
:Suspects: 1
:Victims: 0, 2, 3
"""

import os

import torch
import torch.distributed as dist

# %%
# The job
# -------
#
# Four ranks average a gradient per step. A sample of rank 1 is broken at step 2, and ``try`` covers
# the collective, too. From then on rank 1 is one collective ahead: what it calls step 3 is averaged
# with the others' step 2. Nothing hangs and nothing complains, the numbers are wrong on every rank,
# and only at the end, far from the cause, the others wait for one more collective. Look at the
# means: those of step 2 and 3 ought to be 3.5 and 4.5.
#
# **The fix** lets a rank that has nothing to contribute take part: it adds zeros, and the ranks sum
# up how many have contributed. ``try`` covers the loading only. Where a bad sample means that the
# job is broken, do not catch at all: a rank that ends with an exception makes torchrun end the job
# within a second, with the traceback as the last thing in the log.

FIXED = os.environ.get("FIXED") == "1"


def compute_gradient(rank: int, step: int) -> torch.Tensor:
    """Return this rank's gradient; one sample cannot be read."""
    if rank == 1 and step == 2:
        raise ValueError("truncated image")
    return torch.full((8,), float(rank + step))


def average_or_skip(rank: int, step: int) -> torch.Tensor | None:
    """Return the mean gradient: a rank with a bad sample leaves the step out."""
    try:
        gradient = compute_gradient(rank, step)
        dist.all_reduce(gradient)
    except ValueError as error:
        print(f"[rank {rank}] step {step} skipped: {error}", flush=True)
        return None
    return gradient / 4


def average(rank: int, step: int) -> torch.Tensor:
    """Return the mean gradient: a rank with a bad sample contributes nothing, but takes part."""
    try:
        gradient, count = compute_gradient(rank, step), torch.ones(1)
    except ValueError as error:
        print(f"[rank {rank}] step {step} contributes nothing: {error}", flush=True)
        gradient, count = torch.zeros(8), torch.zeros(1)
    dist.all_reduce(gradient)
    dist.all_reduce(count)
    return gradient / count


def train(rank: int) -> None:
    """Run five steps."""
    for step in range(5):
        mean = average(rank, step) if FIXED else average_or_skip(rank, step)
        if mean is not None:
            print(f"[rank {rank}] step {step}: mean gradient {mean[0]:.2f}", flush=True)


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
