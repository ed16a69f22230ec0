"""
Tensors of different dtypes
===========================

One rank computes in another precision: its card lacks a type, a flag was set on one host only, or
a checkpoint was loaded as it was stored. Where the number of bytes is the same, nothing hangs.

:Symptom: Nothing hangs, but the loss is wrong since the first step
:Tags: arguments, configuration, wrong results
:Verdict: dtype_mismatch in all_reduce
:Suspects: 2
:Victims: none
"""

import os

import torch
import torch.distributed as dist

# %%
# The job
# -------
#
# Four ranks average a gradient in ``bfloat16``. The card of rank 2 is older and does not have it,
# so rank 2 falls back to ``float16``. Both have two bytes: the messages fit, each rank reads the
# others' bits as numbers of its own kind, and the job runs on. Look at the means: 2.5 is right.
#
# Not every pair of types gets through like this. Between ``bfloat16`` and ``float32`` the messages
# differ in length; Gloo then ends the receiving process with SIGABRT, as with different shapes.
#
# The recorder notes the dtype of every operation, so the dumps of a job that does *not* hang show
# it, too: dump when a loss is not what it should be. There are no victims, because nobody waits.
#
# **The fix** takes ``bfloat16`` only if all ranks have it: they reduce what each of them supports,
# and take the same branch. A type that is chosen by what one rank finds on its host must not reach
# a collective.

FIXED = os.environ.get("FIXED") == "1"


def supports_bfloat16(rank: int) -> bool:
    """Stand in for ``torch.cuda.is_bf16_supported()`` on the rank's host."""
    return rank != 2


def train(rank: int) -> None:
    """Run four steps."""
    supported = torch.tensor(int(supports_bfloat16(rank)))
    if FIXED:
        dist.all_reduce(supported, op=dist.ReduceOp.MIN)
    dtype = torch.bfloat16 if supported else torch.float16
    for step in range(4):
        gradient = torch.full((8,), 1.0 + rank, dtype=dtype)
        dist.all_reduce(gradient)
        mean = gradient[0].item() / 4
        print(f"[rank {rank}] step {step}: {dtype}, mean gradient {mean:.2f}", flush=True)


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
