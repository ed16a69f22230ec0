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
