"""Faults for real ranks: what a rank does to itself, and what is done to its disk, port or network.

A rank stops, dies or keeps the interpreter where its script calls :func:`stop`, :func:`kill` or
:func:`hold_interpreter`: at the collective that the script has come to. The context managers are
for whoever runs the ranks. Each undoes its fault at its end, so that a process which the fault
holds in the kernel can be ended; what needs root raises :class:`NotPossibleError` without.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

_CLONE_NEWUTS, _CLONE_NEWNET = 0x04000000, 0x40000000  # sched.h
_COMMAND_S = 20.0
_LINK = "lab0"


class NotPossibleError(Exception):
    """This machine does not allow the fault; the message is what it said."""


# -- in a rank --------------------------------------------------------------------------------


def stop() -> None:
    """Stop this process as SIGSTOP does: it neither runs nor ends."""
    os.kill(os.getpid(), signal.SIGSTOP)


def kill() -> None:
    """End this process at once, as the kernel does where memory is short."""
    os.kill(os.getpid(), signal.SIGKILL)


def hold_interpreter(seconds: int) -> None:
    """Stay in native code and keep the interpreter's lock: no other Python thread runs."""
    ctypes.PyDLL(None).sleep(seconds)


def in_a_child(work: Callable[[], None], is_over: Callable[[], bool], grace_s: float = 3.0) -> None:
    """Run a rank in a child of the process that torchrun has started.

    torchrun ends all ranks as soon as one of its processes has ended; so a rank can die alone.

    Args:
        work: the rank.
        is_over: whether the job has ended; until then this waits, also without a child.
        grace_s: seconds after that in which the rank may end by itself.
    """
    child = os.fork()
    if not child:
        try:
            work()
        finally:
            sys.stdout.flush()
            os._exit(0)
    alive = True
    while not is_over():
        alive = alive and os.waitpid(child, os.WNOHANG)[0] == 0
        time.sleep(0.05)
    give_up_at = time.monotonic() + grace_s
    while alive and time.monotonic() < give_up_at:
        alive = os.waitpid(child, os.WNOHANG)[0] == 0
        time.sleep(0.05)
    if alive:
        os.kill(child, signal.SIGKILL)


# -- from outside -----------------------------------------------------------------------------


def _run(*command: str) -> None:
    """Run one of the system's commands."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_COMMAND_S, check=False
        )
    except OSError as error:
        raise NotPossibleError(f"{command[0]}: {error.strerror}") from None
    if done.returncode:
        raise NotPossibleError(done.stderr.partition("\n")[0])


@contextlib.contextmanager
def full_disk(folder: Path, kibibytes: int) -> Iterator[None]:
    """Make a folder, empty or new, a disk that has room for so many KiB."""
    folder.mkdir(parents=True, exist_ok=True)
    _run("mount", "-t", "tmpfs", "-o", f"size={kibibytes}k", "tmpfs", str(folder))
    try:
        yield
    finally:
        # Lazily: whoever still has a file open there does not keep it mounted.
        _run("umount", "--lazy", str(folder))


@contextlib.contextmanager
def blocked_disk(folder: Path) -> Iterator[None]:
    """Make a folder, empty or new, a disk on which every write waits until the end of this.

    Who writes sleeps in the kernel, where no signal reaches it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    image = folder.with_suffix(".image")
    with image.open("wb") as file:
        file.truncate(4 << 20)
    with contextlib.ExitStack() as undo:
        undo.callback(image.unlink)
        _run("mkfs.ext4", "-q", str(image))
        _run("mount", "-o", "loop", str(image), str(folder))
        undo.callback(_run, "umount", "--lazy", str(folder))
        _run("fsfreeze", "--freeze", str(folder))
        undo.callback(_run, "fsfreeze", "--unfreeze", str(folder))
        yield


@contextlib.contextmanager
def taken_port(port: int = 0) -> Iterator[int]:
    """Listen on a port, any one by default, take connections and never answer; yields the port."""
    with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as listener:
        listener.bind(("::", port))
        listener.listen(64)
        yield listener.getsockname()[1]


@dataclass(frozen=True)
class Host:
    """A host with a network of its own: a process that keeps it, and the address in it."""

    pid: int
    address: str

    def enter(self) -> None:
        """Move this process there, which has one thread: its sockets, and its host's name."""
        libc = ctypes.CDLL(None, use_errno=True)
        keeper = os.pidfd_open(self.pid)
        if libc.setns(keeper, _CLONE_NEWNET) or libc.unshare(_CLONE_NEWUTS):
            raise NotPossibleError(os.strerror(ctypes.get_errno()))
        os.close(keeper)
        socket.sethostname(self.address)  # no name service needed

    def command(self, *command: str) -> list[str]:
        """A command line that runs a command there."""
        return ["nsenter", f"--net=/proc/{self.pid}/ns/net", *command]

    def cut_off(self) -> None:
        """Take this host's end of the cable down."""
        _run(*self.command("ip", "link", "set", _LINK, "down"))


def _has_own_network(pid: int) -> bool:
    """Whether a process has moved to a network of its own; it may have ended instead."""
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net")
    return False


@contextlib.contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Two hosts with a cable between them; both vanish with the processes that keep them."""
    keep = ["unshare", "--net", "sleep", "600"]
    keepers = [subprocess.Popen(keep, stderr=subprocess.DEVNULL) for _ in range(2)]
    try:
        give_up_at = time.monotonic() + _COMMAND_S
        for keeper in keepers:
            while not _has_own_network(keeper.pid):
                if keeper.poll() is not None or time.monotonic() > give_up_at:
                    raise NotPossibleError("unshare --net: not permitted")
                time.sleep(0.02)
        hosts = tuple(
            Host(keeper.pid, f"10.77.0.{at}") for at, keeper in enumerate(keepers, start=1)
        )
        peer = ("peer", "name", _LINK, "netns", str(hosts[1].pid))
        _run(*hosts[0].command("ip", "link", "add", "name", _LINK, "type", "veth", *peer))
        for host in hosts:
            for link in "lo", _LINK:
                _run(*host.command("ip", "link", "set", link, "up"))
            _run(*host.command("ip", "address", "add", f"{host.address}/24", "dev", _LINK))
        yield hosts[0], hosts[1]
    finally:
        for keeper in keepers:
            keeper.kill()
            keeper.wait()
