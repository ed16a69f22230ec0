"""Finds and ends every process of a run, wherever it went.

torchrun starts each rank in a session of its own, and a rank may do so with its children: neither
a process group nor a tree of children holds them all. Each run therefore has an identifier in its
environment, which every descendant inherits and the system lets us read.
"""

import time

import psutil

RUN_ID = "RANK_LAB_RUN_ID"
"""The environment variable that marks the processes of a run."""


def find(run_id: str) -> list[psutil.Process]:
    """Return the living processes of a run, orphans included."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(RUN_ID) == run_id:
                found.append(process)
        except psutil.Error:
            # It ended meanwhile, is a zombie, or belongs to somebody else: not ours to end.
            continue
    return found


def describe(process: psutil.Process) -> str:
    """Name a process in one line."""
    try:
        return f"{process.pid} {' '.join(process.cmdline()) or process.name()}"
    except psutil.Error:
        return f"{process.pid} (ended meanwhile)"


def wait_until_gone(run_id: str, timeout_s: float) -> list[psutil.Process]:
    """Wait for the processes of a run to end by themselves; return those that have not."""
    give_up_at = time.monotonic() + timeout_s
    while (alive := find(run_id)) and time.monotonic() < give_up_at:
        time.sleep(0.05)
    return alive


def end_all(run_id: str, patience_s: float = 2.0) -> None:
    """End the processes of a run: ask, wait, then kill until none is left."""
    seen = find(run_id)
    for process in seen:
        _signal(process, kill=False)
    give_up_at = time.monotonic() + 30
    alive = wait_until_gone(run_id, patience_s)
    while alive and time.monotonic() < give_up_at:
        # Again and again: a process may have started another between the look and the kill.
        for process in alive:
            _signal(process, kill=True)
        seen.extend(alive)
        alive = wait_until_gone(run_id, 0.2)
    # A process that is being killed loses its environment first and its ports later.
    while any(map(_is_alive, seen)) and time.monotonic() < give_up_at:
        time.sleep(0.01)


def _is_alive(process: psutil.Process) -> bool:
    """Whether a process still holds anything; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _signal(process: psutil.Process, *, kill: bool) -> None:
    """Send SIGKILL or SIGTERM, to a process that may be gone."""
    try:
        if kill:
            process.kill()
        else:
            process.terminate()
    except psutil.Error:
        return
