"""A real job with torch's debug server, told by files what to do: ``torchrun live_job.py``.

Every step is one ``all_reduce`` on Gloo, for which one rank is late by ``LATE_S`` seconds. In
``FR_DUMP_DIR`` the ranks write ``pid_<rank>`` and ``port``, and ``ready`` appears when the job is
under way. As long as a file ``hang`` is there, the late rank stays in ``stuck_in_data_loader``;
the job ends when there is a file ``end``. torchrun does not end it when a rank is killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from datetime import timedelta
from pathlib import Path

import torch

# A process's first dump with stacks loads it, which takes seconds: loaded before the fork.
import torch._inductor.codecache
import torch.distributed as dist
from torch.distributed.debug import _debug_handlers as stock
from torch.distributed.debug import start_debug_server, stop_debug_server

from fr_analysis.debug_server import AnalysisHandler
from rank_lab import inject

FOLDER = Path(os.environ["FR_DUMP_DIR"])
DEADLINE_S = 150
LATE_RANK = 2
LATE_S = 1.0


def is_there(name: str) -> bool:
    """Whether a file has been made that tells the job what to do."""
    return (FOLDER / name).exists()


def stuck_in_data_loader() -> None:
    """What the late rank is in while the job hangs."""
    while is_there("hang") and not is_there("end"):
        time.sleep(0.05)


def train(rank: int) -> None:
    """Steps until the end."""
    while not is_there("end"):
        if rank == LATE_RANK:
            time.sleep(LATE_S)
            stuck_in_data_loader()
        dist.all_reduce(torch.ones(8))
        if rank == 0:
            (FOLDER / "ready").touch()


def take_part(rank: int) -> None:
    """Run one rank in this process."""
    signal.alarm(DEADLINE_S)
    os.environ["TORCH_FR_BUFFER_SIZE"] = "4"
    dist.init_process_group("gloo", timeout=timedelta(seconds=DEADLINE_S))
    start_debug_server(
        port=int(os.environ["DEBUG_PORT"]),
        start_method="spawn",
        dump_dir=str(FOLDER),
        dump_interval=2.0,
        enabled_dumps={"fr_analysis", "fr_trace"},
        handlers=[*stock.default_handlers(), AnalysisHandler()],
        fetch_timeout=2.0,
    )
    FOLDER.joinpath(f"pid_{rank}").write_text(str(os.getpid()))
    FOLDER.joinpath("port").write_text(os.environ["DEBUG_PORT"])
    # Another rank's death fails the collective.
    with contextlib.suppress(RuntimeError):
        train(rank)
    while not is_there("end"):
        time.sleep(0.05)
    if rank == 0:
        stop_debug_server()


if __name__ == "__main__":
    inject.in_a_child(
        lambda: take_part(int(os.environ["RANK"])), lambda: is_there("end"), DEADLINE_S
    )
