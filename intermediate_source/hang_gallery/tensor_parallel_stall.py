"""
A hang in one tensor-parallel group stalls the data-parallel groups
===================================================================

In a job with several kinds of groups, most ranks wait in a group in which nobody is at fault: a
peer of theirs waits in another group, for another rank. Many groups are stuck, one rank is to
blame.

:Symptom: Ranks wait in several groups at once
:Tags: tensor parallel, several groups, host code
:Verdict: rank_missing in all_reduce
:Suspects: 3
:Victims: 0, 1, 2
:Stuck in: report_metrics
"""

import os
import socket

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

# %%
# The job
# -------
#
# A mesh of 2 by 2: ranks 0 and 1 split one copy of the model among them (a tensor-parallel group),
# ranks 2 and 3 the other copy. Ranks 0 and 2 hold the same part, so they average its gradient (a
# data-parallel group), and so do ranks 1 and 3. In each step the partial outputs are summed in the
# tensor-parallel group, then the gradients in the data-parallel group.
#
# After step 2 rank 3 sends its metrics to a server that takes the connection and never answers.
# The stall goes from group to group:
#
# - rank 2 waits for rank 3 in their tensor-parallel group,
# - rank 1 is through with its tensor-parallel group and waits for rank 3 in the data-parallel one,
# - rank 0 waits for rank 2, and shares no group with rank 3 but the default one.
#
# Looked at alone, the group of ranks 0 and 2 says that rank 2 is missing. It is not to blame: it
# waits itself. Follow each missing rank to what it waits for, until one waits for nobody. In the
# verdict this is the *wavefront*: the groups in which the rank to blame is missing itself.
#
# The log below ends without a word. Groups of a mesh do not take over the timeout that
# ``init_process_group`` was given: theirs is the default, 30 minutes with Gloo. Only the demo's own
# limit ends this run.
#
# **The fix** gives the call a timeout. A metric is not worth a job: when the server does not
# answer, the rank says so and goes on. A thread of its own would take even that wait out of the
# loop.

FIXED = os.environ.get("FIXED") == "1"


def report_metrics(server: socket.socket, step: int) -> None:
    """Send the step's metrics and wait for the answer."""
    timeout = 0.2 if FIXED else None
    with socket.create_connection(server.getsockname(), timeout=timeout) as connection:
        connection.sendall(f"step {step}".encode())
        try:
            connection.recv(2)
        except TimeoutError:
            print(f"[rank 3] the metrics server does not answer (step {step})", flush=True)


def train(rank: int) -> None:
    """Run five steps."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    silent_server = socket.create_server(("127.0.0.1", 0))
    for step in range(5):
        output = torch.full((8,), float(rank))
        dist.all_reduce(output, group=mesh.get_group("tp"))
        gradient = torch.full((8,), float(step))
        dist.all_reduce(gradient, group=mesh.get_group("dp"))
        print(f"[rank {rank}] step {step} done", flush=True)
        if rank == 3 and step == 2:
            report_metrics(silent_server, step)


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
