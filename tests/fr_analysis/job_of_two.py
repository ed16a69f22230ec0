"""A job of two Gloo ranks, told by files in the folder above its dumps: ``torchrun job_of_two.py``.

Every step is one ``all_reduce``. With ``HANGS=1`` rank 1 stays in host code after three of them. A
job makes the file ``<its folder's name>_runs`` when it has come so far, and ends with its dumps in
``FR_DUMP_DIR`` when there is a file ``end``. It begins when there is the file that ``AFTER`` names.
"""

from __future__ import annotations

import os
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace

RANK = int(os.environ["RANK"])
FOLDER = Path(os.environ["FR_DUMP_DIR"])
DEADLINE_S = 60


def is_over() -> bool:
    """Whether the job has been told to end."""
    return (FOLDER.parent / "end").exists()


def dump_and_end() -> None:
    """Write what this rank has recorded, and be gone, wherever the program is."""
    (FOLDER / f"rank_{RANK}").write_bytes(_dump_fr_trace(True, False, False))
    os._exit(0)


def dump_at_the_end() -> None:
    """Wait for the end beside a program that hangs."""
    (FOLDER.parent / f"{FOLDER.name}_runs").touch()
    while not is_over():
        time.sleep(0.02)
    dump_and_end()


def train() -> None:
    """Steps until all ranks know of the end."""
    steps = 0
    while True:
        sees_end = torch.tensor([float(is_over())])
        dist.all_reduce(sees_end)
        steps += 1
        if sees_end.item():
            dump_and_end()
        if steps == 3 and "HANGS" in os.environ:
            threading.Thread(target=dump_at_the_end).start()
            if RANK == 1:
                time.sleep(DEADLINE_S)
        elif steps == 3:
            (FOLDER.parent / f"{FOLDER.name}_runs").touch()
        time.sleep(0.02)


if __name__ == "__main__":
    os.environ["TORCH_FR_BUFFER_SIZE"] = "2000"
    while "AFTER" in os.environ and not (FOLDER.parent / os.environ["AFTER"]).exists():
        time.sleep(0.02)
    dist.init_process_group("gloo", timeout=timedelta(seconds=DEADLINE_S))
    train()
