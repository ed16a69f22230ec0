"""A job of four ranks with torch's debug server, in which a fault is injected at one collective.

Started by :mod:`benchmarks.reliability.injected_faults`, which names the fault in ``FAULT``. Every
step is one ``all_reduce`` on Gloo; at step 5 the rank in ``FAULTY_RANK`` does what ``FAULT`` says,
one of :data:`FAULTS`. In the working directory ``faulty`` then appears; the ranks write what they
have recorded into ``FR_DUMP_DIR`` when there is a file ``dump``, and end when there is ``end``.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import socket
import threading
import time
from datetime import timedelta
from pathlib import Path

from rank_lab import inject

HERE = Path()
RANK = int(os.environ["RANK"])
FAULTY_RANK = int(os.environ["FAULTY_RANK"])
AT_STEP = 5
DEADLINE_S = 150


def is_there(name: str) -> bool:
    """Whether a file has been made that tells the job what to do."""
    return (HERE / name).exists()


def stuck_in_host_code() -> None:
    """Wait for what does not come."""
    while not is_there("end"):
        time.sleep(0.05)


def save_checkpoint() -> None:
    """Write to the disk in ``DISK``."""
    Path(os.environ["DISK"], "checkpoint").write_bytes(b"0" * 4096)
    stuck_in_host_code()


FAULTS = {
    "stopped": inject.stop,
    "killed": inject.kill,
    "holds the interpreter": lambda: inject.hold_interpreter(600),
    "saves a checkpoint": save_checkpoint,
    "is stuck": stuck_in_host_code,
    "goes on": lambda: None,
}
"""What the faulty rank does before its next collective."""


def move_to_host() -> None:
    """Where ``HOSTS`` names two, put half of the ranks on each."""
    if "HOSTS" not in os.environ:
        return
    hosts = [host.split("/") for host in os.environ["HOSTS"].split()]
    pid, address = hosts[RANK * 2 // int(os.environ["WORLD_SIZE"])]
    inject.Host(int(pid), address).enter()
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = hosts[0][1], "29500"
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"  # rank 0 keeps the store


def answer_nothing() -> None:
    """Name an address to the debug server at which connections are taken and nothing is said."""
    from torch.distributed.debug._store import tcpstore_client

    listener = socket.create_server(("", 0))
    listener.listen(64)
    address = f"http://{socket.gethostname()}:{listener.getsockname()[1]}"
    tcpstore_client().set(f"rank{RANK}", address)
    _KEPT.append(listener)


_KEPT: list[socket.socket] = []


def wait_for_front() -> None:
    """Begin only when the debug server takes connections: its process takes seconds to start."""
    while RANK == 0 and not is_there("front"):
        with contextlib.suppress(OSError):
            socket.create_connection(("localhost", int(os.environ["DEBUG_PORT"]))).close()
            (HERE / "front").touch()
        time.sleep(0.05)
    while not is_there("front"):
        time.sleep(0.05)


def write_when_told() -> None:
    """Write what this rank has recorded, and its stacks, when somebody wants to know."""
    from torch._C._distributed_c10d import _dump_fr_trace

    while not is_there("dump"):
        time.sleep(0.05)
    folder = Path(os.environ["FR_DUMP_DIR"])
    with contextlib.suppress(OSError):
        (folder / f"rank_{RANK}").write_bytes(_dump_fr_trace())
        with open(folder / f"stacks_rank_{RANK}.txt", "w", encoding="utf-8") as stacks:
            faulthandler.dump_traceback(stacks, all_threads=True)
    (HERE / f"dumped_{RANK}").touch()


def train() -> None:
    """Steps until the end."""
    import torch
    import torch.distributed as dist

    step = 0
    while not is_there("end"):
        if step == AT_STEP and FAULTY_RANK == RANK:
            (HERE / "faulty").touch()
            FAULTS[os.environ["FAULT"]]()
        dist.all_reduce(torch.ones(8))
        time.sleep(0.1)
        step += 1


def take_part() -> None:
    """Run one rank in this process."""
    import torch.distributed as dist
    from torch.distributed.debug import _debug_handlers as stock
    from torch.distributed.debug import start_debug_server, stop_debug_server

    from fr_analysis.debug_server import AnalysisHandler

    os.environ["TORCH_FR_BUFFER_SIZE"] = "2000"
    dist.init_process_group("gloo", timeout=timedelta(seconds=DEADLINE_S))
    start_debug_server(
        port=int(os.environ["DEBUG_PORT"]),
        start_method="spawn",
        handlers=[*stock.default_handlers(), AnalysisHandler()],
        fetch_timeout=2.0,
    )
    if str(RANK) == os.environ.get("MUTE_RANK"):
        answer_nothing()
    (HERE / f"pid_{RANK}").write_text(str(os.getpid()))
    threading.Thread(target=write_when_told, daemon=True).start()
    wait_for_front()
    # Another rank's death fails the collective.
    with contextlib.suppress(RuntimeError):
        train()
    stuck_in_host_code()
    if RANK == 0:
        stop_debug_server()


if __name__ == "__main__":
    move_to_host()
    # A process's first dump with stacks loads it, which takes seconds: loaded before the fork.
    import torch._inductor.codecache  # noqa: F401

    inject.in_a_child(take_part, lambda: is_there("end"))
