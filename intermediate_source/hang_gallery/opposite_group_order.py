"""
Two groups entered in opposite order
====================================

Each rank runs the right collectives, once each, but some enter their tensor-parallel group first
and others their data-parallel group. Where that closes a circle, everyone waits for someone, and
nobody is missing.

:Symptom: Every rank waits, each for another one
:Tags: several groups, order, tensor parallel
:Verdict: order_deadlock in all_reduce
:Suspects: none
:Victims: none
"""

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

# %%
# The job
# -------
#
# A mesh of 2 by 2: the tensor-parallel groups are ranks 0 and 1, and ranks 2 and 3; the
# data-parallel groups are ranks 0 and 2, and ranks 1 and 3. In each step a rank has two reductions
# to do, an activation in its tensor-parallel group and a gradient in its data-parallel group. To
# save time, it starts with what is ready first. At step 3 that is another one on ranks 1 and 2:
#
# - rank 0 waits for rank 1 in a tensor-parallel group,
# - rank 1 waits for rank 3 in a data-parallel group,
# - rank 3 waits for rank 2 in a tensor-parallel group,
# - rank 2 waits for rank 0 in a data-parallel group.
#
# Had only one rank changed its order, the job would have gone on: its partners would have come
# round. So such a bug shows itself rarely, under load, and never in a test with two ranks of one
# group. The verdict blames no rank, because none is worse than the others: two orders met, and the
# program allows both. The log ends without a word: groups of a mesh have the default timeout of
# 30 minutes, whatever ``init_process_group`` was given.
#
# **The fix** is one order for all: the order in which collectives are called must follow from the
# program, never from what happens to be ready. Where the overlap is worth it, call them in the
# fixed order with ``async_op=True``, and wait later.

FIXED = os.environ.get("FIXED") == "1"


def seconds_until_ready(rank: int, step: int) -> dict[str, float]:
    """How long the rank computes its activation and its gradient."""
    gradient_is_early = step == 3 and rank in (1, 2)
    return {"tp": 0.02, "dp": 0.01 if gradient_is_early else 0.03}


def train(rank: int) -> None:
    """Run five steps."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    for step in range(5):
        ready_at = seconds_until_ready(rank, step)
        order = ["tp", "dp"] if FIXED else sorted(ready_at, key=ready_at.__getitem__)
        for dimension in order:
            dist.all_reduce(torch.ones(8), group=mesh.get_group(dimension))
        print(f"[rank {rank}] step {step} done: {' then '.join(order)}", flush=True)


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
