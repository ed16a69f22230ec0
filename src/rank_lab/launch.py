"""Starts a script under torchrun, and sees to it that it ends."""

import os
import random
import re
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from rank_lab import processes
from rank_lab.record import RankLabError, RankOutput, RunRecord
from rank_lab.warm import WarmLauncher

# What another launcher, or a shell, may have left and would reach the ranks: their place in another
# job, settings of the recorder, and what changes how output is written.
_FOREIGN = re.compile(
    r"(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|LOCAL_WORLD_SIZE|ROLE_NAME|MASTER_\w+|TORCHELASTIC_\w+"
    r"|TORCH_FR_\w+|TORCHCOMM_\w+|FR_\w+|DEBUG_PORT|PYTHONUNBUFFERED|OMP_NUM_THREADS"
)

# A process that has done its work may take this long to be gone, on a busy machine.
_GRACE_S = 3.0


class _Launched(Protocol):
    """What is used of a torchrun that was started: as :class:`subprocess.Popen` has it."""

    returncode: int | None

    def wait(self, timeout: float | None = None) -> int: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


def run_ranks(
    script: Path,
    *,
    nproc: int,
    run_dir: Path,
    deadline_s: float,
    env: Mapping[str, str] | None = None,
    args: Sequence[str] = (),
    launcher: WarmLauncher | None = None,
    meanwhile: Callable[[int, threading.Event], object] | None = None,
    dump_dir: Path | None = None,
) -> RunRecord:
    """Run a script on ``nproc`` ranks of this machine, and return what came of it.

    ``run_dir`` must be empty or not exist; it becomes the working directory of the ranks, and
    holds their output and, in ``dumps`` or else in ``dump_dir``, what they write to
    ``FR_DUMP_DIR``. ``env`` is added to this process's environment, cleared of what belongs to
    other jobs. A run that is not over after
    ``deadline_s`` seconds is ended. ``launcher`` saves the time to start torchrun and the ranks
    as new processes. ``meanwhile`` is called in a thread of its own while the ranks run, with the
    port of the debug server that they are told to start and an event that is set when the ranks
    have ended; the call waits for it. When the call returns or raises, nothing of the run is alive.
    Raises :class:`RankLabError` for a run that cannot start.
    """
    script, run_dir = script.resolve(), run_dir.resolve()
    dump_dir, log_dir = (dump_dir or run_dir / "dumps").resolve(), run_dir / "logs"
    _check(script, nproc, run_dir, deadline_s)
    log_dir.mkdir(parents=True)
    dump_dir.mkdir(parents=True, exist_ok=True)
    arguments = ["--standalone", f"--nproc-per-node={nproc}", f"--log-dir={log_dir}"]
    arguments += ["--redirects=3", str(script), *args]

    run_id = uuid.uuid4().hex
    launcher_log = log_dir / "launcher.log"
    launcher_log.touch()
    timed_out = False
    with _claimed_port() as port:
        environment = _environment(run_id, dump_dir, _debug_port(port), env or {})
        start = time.monotonic()
        torchrun: _Launched
        if launcher:
            torchrun = launcher.start(
                arguments, nproc=nproc, cwd=run_dir, env=environment, log=launcher_log
            )
        else:
            torchrun = _start_torchrun(arguments, run_dir, environment, launcher_log)
        over = threading.Event()
        observer = threading.Thread(target=meanwhile, args=(_debug_port(port), over), daemon=True)
        try:
            if meanwhile:
                observer.start()
            try:
                torchrun.wait(deadline_s)
            except subprocess.TimeoutExpired:
                timed_out = True
                _end_torchrun(torchrun)
            duration_s = time.monotonic() - start
            survivors = tuple(
                processes.describe(process)
                for process in processes.wait_until_gone(run_id, _GRACE_S)
            )
        finally:
            processes.end_all(run_id)
            torchrun.wait()
            over.set()
            if meanwhile:
                observer.join(deadline_s)

    return RunRecord(
        script=script,
        run_id=run_id,
        nproc=nproc,
        exit_status=None if timed_out else torchrun.returncode,
        timed_out=timed_out,
        duration_s=duration_s,
        launcher_output=_read(launcher_log),
        ranks=tuple(_rank_output(log_dir, rank) for rank in range(nproc)),
        run_dir=run_dir,
        dump_dir=dump_dir,
        dump_files=_dump_files(dump_dir),
        stacks_files=tuple(sorted(dump_dir.glob("stacks_*.txt"))),
        survivors=survivors,
    )


def _check(script: Path, nproc: int, run_dir: Path, deadline_s: float) -> None:
    """Refuse a run that cannot work."""
    if not script.is_file():
        raise RankLabError(f"no such script: {script}")
    if nproc < 1:
        raise RankLabError(f"nproc={nproc}: expected at least one rank")
    if not deadline_s > 0:
        raise RankLabError(f"deadline_s={deadline_s}: expected a positive number of seconds")
    if run_dir.exists() and not (run_dir.is_dir() and not any(run_dir.iterdir())):
        raise RankLabError(f"run_dir is not an empty directory: {run_dir}")


def _claimed_port() -> socket.socket:
    """Return a socket on a UDP port, held for a run so that no other run is given the same.

    Below 32768: Linux does not serve those ports to programs that ask for any.
    """
    for port in random.sample(range(20000, 32000, 2), 200):
        claim = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            claim.bind(("127.0.0.1", port))
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("", _debug_port(claim)))
        except OSError:
            claim.close()
            continue
        return claim
    raise RankLabError("found no free port from 20000 to 32000")


def _debug_port(claim: socket.socket) -> int:
    """Return the port of the debug server that goes with a claim: the next, which is odd.

    Claims are even, so that holding one never takes a port that a debug server uses.
    """
    port: int = claim.getsockname()[1]
    return port + 1


def _environment(
    run_id: str, dump_dir: Path, debug_port: int, extra: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of a run: ours, without what belongs to other jobs."""
    kept = {name: value for name, value in os.environ.items() if not _FOREIGN.fullmatch(name)}
    return {
        **kept,
        "OMP_NUM_THREADS": "1",  # torchrun would choose the same, and print a banner about it
        "DEBUG_PORT": str(debug_port),
        **extra,
        "FR_DUMP_DIR": str(dump_dir),
        processes.RUN_ID: run_id,
    }


def _start_torchrun(
    arguments: Sequence[str], cwd: Path, env: Mapping[str, str], log: Path
) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *arguments],
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a Ctrl-C reaches only us, and we end the run in order
        )


def _end_torchrun(torchrun: _Launched) -> None:
    """Ask torchrun to end its ranks and itself; kill it if that takes long."""
    torchrun.terminate()
    try:
        torchrun.wait(5)
    except subprocess.TimeoutExpired:
        torchrun.kill()
        torchrun.wait()


def _rank_output(log_dir: Path, rank: int) -> RankOutput:
    """Collect what a rank wrote; torchrun's folders are ``<job>/attempt_0/<rank>``."""
    stdout, stderr = (
        "".join(_read(path) for path in sorted(log_dir.glob(f"*/attempt_*/{rank}/{name}.log")))
        for name in ("stdout", "stderr")
    )
    return RankOutput(rank, stdout, stderr)


def _dump_files(dump_dir: Path) -> tuple[Path, ...]:
    """Find the dumps of single ranks: files whose name ends in the rank, perhaps with .json."""
    found = []
    for path in dump_dir.rglob("*"):
        match = re.fullmatch(r".*?(\d+)(\.json)?", path.name)
        if match and path.is_file():
            found.append((int(match[1]), path))
    return tuple(path for _, path in sorted(found))


def _read(path: Path) -> str:
    """Read what a process wrote, even if it was cut off inside a character."""
    return path.read_text(encoding="utf-8", errors="replace")
