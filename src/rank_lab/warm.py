"""A torchrun that starts at once: forked from a process that has imported torch already."""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rank_lab import processes
from rank_lab.record import RankLabError

_SERVER = Path(__file__).with_name("warm_process.py")


class WarmLauncher:
    """Runs torchrun again and again without the seconds that each process takes to import torch.

    For :func:`rank_lab.run_ranks`, one run at a time. Launcher and ranks are torch's own, with
    one difference: ranks are forked, not started, so what they import first is there already. A
    context manager; otherwise the process behind it ends with ours.
    """

    def __init__(self) -> None:
        self._server: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "WarmLauncher":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._server:
            self._server.communicate()
            self._server = None

    def start(
        self, arguments: Sequence[str], *, nproc: int, cwd: Path, env: Mapping[str, str], log: Path
    ) -> "WarmRun":
        """Start torchrun with these arguments; ``log`` gets its output.

        Raises :class:`RankLabError` where the process behind this cannot start or has ended.
        """
        if self._server is None:
            self._server = self._start_server(env)
        request = {
            "arguments": list(arguments),
            "nproc": nproc,
            "cwd": str(cwd),
            "env": dict(env),
            "log": str(log),
        }
        assert self._server.stdin
        try:
            self._server.stdin.write(json.dumps(request).encode() + b"\n")
            self._server.stdin.flush()
        except BrokenPipeError:
            raise RankLabError(f"{_SERVER.name} has ended") from None
        return WarmRun(self._server, _answer(self._server, None)["pid"])

    @staticmethod
    def _start_server(env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        own = {
            **env,
            "PYTHONPATH": os.pathsep.join(
                [str(_SERVER.parents[1]), os.environ.get("PYTHONPATH", "")]
            ),
            processes.RUN_ID: "0" * len(env[processes.RUN_ID]),
        }
        server = subprocess.Popen(
            [sys.executable, str(_SERVER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=own,
            start_new_session=True,
        )
        _answer(server, None)
        return server


class WarmRun:
    """One run of torchrun; it has what :func:`rank_lab.run_ranks` uses of a process."""

    def __init__(self, server: subprocess.Popen[bytes], pid: int) -> None:
        self._server, self.pid = server, pid
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit status; raises :class:`subprocess.TimeoutExpired`."""
        if self.returncode is None:
            self.returncode = _answer(self._server, timeout)["exit_status"]
        return self.returncode

    def terminate(self) -> None:
        """Ask torchrun to end its ranks and itself."""
        os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """End torchrun at once."""
        os.kill(self.pid, signal.SIGKILL)


def _answer(server: subprocess.Popen[bytes], timeout: float | None) -> dict[str, Any]:
    assert server.stdout
    ready, _, _ = select.select([server.stdout], [], [], timeout)
    if not ready:
        assert timeout is not None
        raise subprocess.TimeoutExpired("torchrun", timeout)
    line = server.stdout.readline()
    if not line:
        raise RankLabError(f"{_SERVER.name} ended with status {server.wait()}")
    answer: dict[str, Any] = json.loads(line)
    return answer
