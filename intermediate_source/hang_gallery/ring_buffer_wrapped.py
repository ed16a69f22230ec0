"""
The ring buffer has wrapped
===========================

The recorder keeps the last ``TORCH_FR_BUFFER_SIZE`` operations of each rank and forgets the older
ones. A job hangs in its newest operation, so little is lost, as long as the buffer holds it.

:Symptom: The dumps begin in the middle of the run
:Tags: ring buffer, control flow
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
# The buffer holds 8 operations here; 2000 is a common setting, and large jobs fill that within a
# minute. Each rank stops as soon as its loss is small enough. The shard of rank 1 is the easiest,
# and so it stops after step 40, while the others wait for it in step 41.
#
# **What can still be said.** Sequence numbers go on when the buffer wraps, so the dumps can be laid
# side by side by number, and the place where rank 1 is missing shows as clearly as in a full
# record.
#
# **What is lost.** Whatever was forgotten on some rank can no longer be compared: in the picture
# the first columns are those that the dumps still hold. A wrong size early in the run, or a step
# that one rank left out long ago, leaves no trace. And if some group is much busier than the one
# that hangs (a heartbeat in a thread, say), its operations push the pending one out: the one entry
# that counts. Make the buffer large enough for some minutes of the busiest rank.
#
# **The fix** lets all ranks decide from the same number: they stop by the mean loss, which comes
# out of a collective and is the same on each of them.

FIXED = os.environ.get("FIXED") == "1"
os.environ["TORCH_FR_BUFFER_SIZE"] = "8"


def local_loss(rank: int, step: int) -> float:
    """Return the loss on this rank's own shard, which falls faster on rank 1."""
    return 1 / (step + 1) if rank == 1 else 1.2 / (step + 1)


def train(rank: int) -> None:
    """Train until the loss is below the target."""
    for step in range(1000):
        loss = torch.tensor([local_loss(rank, step)])
        mean_loss = loss.clone()
        dist.all_reduce(mean_loss)
        mean_loss /= 4
        decisive = mean_loss if FIXED else loss
        if decisive.item() < 1 / 40.5:
            print(f"[rank {rank}] target reached at step {step}", flush=True)
            break


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
