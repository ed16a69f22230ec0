"""The process behind :class:`rank_lab.warm.WarmLauncher`: imports torch once, then forks.

It reads one request per line from standard input and answers on standard output, both JSON. For
each it forks a launcher, which is torchrun itself, and that forks the ranks before it begins. A
rank waits until torchrun would start its process, takes on the environment and the files that
torchrun gives it, and runs the script. Whoever is forked returns to the last lines of this file,
so that the stacks of launcher and ranks hold nothing else of it.
"""

import ctypes
import gc
import json
import os
import random
import subprocess
import sys
import time
import types
from typing import Any

# What launcher and ranks need. The first is loaded at a process's first dump of the recorder.
import torch._inductor.codecache
import torch.distributed.debug
import torch.distributed.run
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

from rank_lab.processes import RUN_ID

Orders = dict[str, Any]


class ForkedRank:
    """A rank that was forked ahead; torchrun starts, awaits and ends it like a process of its own.

    It has what torchrun uses of :class:`subprocess.Popen`.
    """

    def __init__(self) -> None:
        self.returncode: int | None = None
        read_end, self._orders = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._orders)
            self._received = os.fdopen(read_end)
        else:
            os.close(read_end)

    def begin(self, orders: Orders) -> None:
        """In the launcher: let the rank run."""
        with os.fdopen(self._orders, "w") as pipe:
            json.dump(orders, pipe)

    def forget(self) -> None:
        """In a rank forked later: do not keep this one's orders open."""
        os.close(self._orders)

    def receive(self) -> Orders:
        """In the rank: wait for the orders; end where the launcher is gone."""
        with self._received as pipe:
            text = pipe.read()
        if not text:
            os._exit(0)
        orders: Orders = json.loads(text)
        return orders

    def poll(self) -> int | None:
        """Return the exit status, or None while the rank runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Wait so many seconds for the exit status; raises :class:`subprocess.TimeoutExpired`."""
        give_up_at = time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > give_up_at:
                raise subprocess.TimeoutExpired("rank", timeout)
            time.sleep(0.02)
        return status


def serve() -> tuple[str, list[str]]:
    """Fork a launcher per request; in whoever is forked, return its part and its arguments."""
    # Without this the collector visits, and so copies, every object of torch in every process:
    # the end of a rank would take seconds.
    gc.freeze()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            return become_launcher(request)
        print(json.dumps({"pid": pid}), flush=True)
        _, status = os.waitpid(pid, 0)
        print(json.dumps({"exit_status": os.waitstatus_to_exitcode(status)}), flush=True)
    os._exit(0)


def become_launcher(request: Orders) -> tuple[str, list[str]]:
    """Take on what a process started by the caller would have, and fork the ranks."""
    os.setsid()
    os.chdir(request["cwd"])
    redirect(0, os.devnull, os.O_RDONLY)
    redirect(1, request["log"], os.O_WRONLY)
    os.dup2(1, 2)
    mark(request["env"][RUN_ID])
    os.environ.clear()
    os.environ.update(request["env"])

    ranks: list[ForkedRank] = []
    for _ in range(request["nproc"]):
        rank = ForkedRank()
        if rank.pid == 0:
            for earlier in ranks:
                earlier.forget()
            return become_rank(rank.receive())
        ranks.append(rank)

    def start(handler: SubprocessHandler, args: tuple[Any, ...], env: dict[str, str]) -> ForkedRank:
        rank = ranks[handler.local_rank_id]
        paths = [file.name for file in (handler._stdout, handler._stderr) if file]
        rank.begin({"args": args, "env": env, "paths": paths})
        return rank

    SubprocessHandler._popen = start  # type: ignore[method-assign, assignment]
    return "launcher", request["arguments"]


def become_rank(orders: Orders) -> tuple[str, list[str]]:
    """Take on what torchrun gives to a rank's process."""
    os.setsid()
    for descriptor, path in enumerate(orders["paths"], 1):
        redirect(descriptor, path, os.O_WRONLY)
    os.environ.clear()
    os.environ.update(orders["env"])
    # A process that was started has random numbers of its own.
    random.seed()
    torch.seed()
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    # torchrun's command is the interpreter, -u, and the script with its arguments.
    return "rank", orders["args"][2:]


def redirect(descriptor: int, path: str, flags: int) -> None:
    """Open a file under a descriptor that is in use."""
    opened = os.open(path, flags | os.O_APPEND)
    os.dup2(opened, descriptor)
    os.close(opened)


def mark(run_id: str) -> None:
    """Write a run's identifier over the one of this process, where the system shows it to others.

    The system shows the strings that a process was started with, whatever is set later; forked
    processes share them. Both identifiers are of one length.
    """
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_void_p
    place = getenv(RUN_ID.encode())
    assert len(run_id) == len(os.environ[RUN_ID])
    ctypes.memmove(place, run_id.encode(), len(run_id))


if __name__ == "__main__":
    part, arguments = serve()
    if part == "launcher":
        torch.distributed.run.main(arguments)
    else:
        script = arguments[0]
        sys.argv = arguments
        sys.path[0] = os.path.dirname(script)
        # As torchrun's -u would have it, for as long as the rank lives.
        sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
        sys.modules["__main__"] = module = types.ModuleType("__main__")
        module.__file__ = script
        with open(script, "rb") as file:
            code = compile(file.read(), script, "exec")
        try:
            exec(code, module.__dict__)
        except Exception as error:
            # Shown as usual, without the frame of this file.
            sys.excepthook(type(error), error, error.__traceback__ and error.__traceback__.tb_next)
            sys.exit(1)
