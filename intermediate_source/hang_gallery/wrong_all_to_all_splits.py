"""
All-to-all splits that do not fit
=================================

In ``all_to_all_single`` every rank says how much it sends to each peer, and how much it expects
from each. Both sides must say the same. Mixture-of-experts code that guesses the second gets it
wrong as soon as one rank's batch is short.

:Symptom: Nothing hangs, but parts of a result were never written
:Tags: arguments, all-to-all, wrong results
:Verdict: split_mismatch in all_to_all
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
# Every rank sends each of its tokens to the rank that holds the expert for it. A batch has eight
# tokens and sends two to every expert, and the code takes that for granted: it expects two tokens
# from every rank. The last batch of rank 2 has five tokens only, and one for each of its peers.
#
# Gloo takes a message that is shorter than expected and says nothing. Look at the last line of
# ranks 0, 1 and 3: the ``-1`` is what the buffer held before; with ``torch.empty`` it would be
# anything. A message that is *longer* than expected ends the receiving process with SIGABRT. NCCL,
# which did not run here, demands that both sides name the same number, and may wait for ever.
#
# The recorder notes how much each rank sent and expected in all. Rank 2 sent five and expected
# eight, the others eight and eight. The numbers do not add up, and rank 2 is the one that differs.
#
# **The fix** does not guess: the ranks first tell each other how many tokens they send, with an
# all-to-all of four numbers.

FIXED = os.environ.get("FIXED") == "1"


def route(rank: int, step: int) -> list[int]:
    """Return how many tokens of the batch go to the expert of each rank."""
    return [1, 1, 2, 1] if rank == 2 and step == 3 else [2, 2, 2, 2]


def train(rank: int) -> None:
    """Run four steps."""
    for step in range(4):
        sent = route(rank, step)
        expected = [2, 2, 2, 2]
        if FIXED:
            counts = torch.empty(4, dtype=torch.int64)
            dist.all_to_all_single(counts, torch.tensor(sent))
            expected = counts.tolist()
        tokens = torch.full((sum(sent),), float(rank))
        arrived = torch.full((sum(expected),), -1.0)
        dist.all_to_all_single(arrived, tokens, expected, sent)
        print(f"[rank {rank}] step {step}: {arrived.int().tolist()}", flush=True)


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
