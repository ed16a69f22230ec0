"""Exercise 2: each rank trains on its own shard of the data. The job hangs near the end."""

import os

import torch
import torch.distributed as dist

SAMPLES = 130
BATCH = 8


def shard(rank: int, size: int) -> range:
    """Return the samples of a rank: every size-th one."""
    return range(rank, SAMPLES, size)


def train(rank: int) -> None:
    """Run one epoch."""
    samples = shard(rank, dist.get_world_size())
    batches = [samples[at : at + BATCH] for at in range(0, len(samples), BATCH)]
    for step, batch in enumerate(batches):
        gradient = torch.full((4,), float(sum(batch)))
        dist.all_reduce(gradient)
        print(f"[rank {rank}] step {step} of {len(batches)}", flush=True)


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
