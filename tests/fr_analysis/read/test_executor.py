"""A real Dask cluster reads the files, and nothing that befalls it changes the answer."""

import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from fr_analysis import FrAnalysisError
from fr_analysis.cli import ExitStatus
from fr_analysis.read import executors, read_trace
from s3_server import S3Server, s3_server
from support import ROOT

HANG = ROOT / "tests" / "data" / "gloo_hang_3ranks"


class Cluster:
    """A scheduler and its workers, each a process of its own."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._folder = folder
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        own = {"PYTHONPATH": str(ROOT / "src"), "TMPDIR": str(self.temporary)}
        self._environment = os.environ | own | environment
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"dask://127.0.0.1:{self.port}"
        self.scheduler = self._dask("scheduler", "--host", "127.0.0.1", "--port", str(self.port))
        self.workers: list[subprocess.Popen[bytes]] = []

    def _dask(self, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "dask", *arguments, "--no-dashboard"],
            cwd=self._folder,
            env=self._environment | environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def add_workers(self, count: int, **environment: str) -> None:
        """Start workers without nannies: what is killed stays dead."""
        address = f"tcp://127.0.0.1:{self.port}"
        options = ["--no-nanny", "--nthreads", "1", "--local-directory", str(self._folder)]
        self.workers += [
            self._dask("worker", address, *options, **environment) for _ in range(count)
        ]

    def wait(self, count: int) -> None:
        """Wait until the scheduler and so many workers are there."""
        from distributed import Client

        with Client(f"tcp://127.0.0.1:{self.port}", set_as_default=False) as client:
            if count:
                client.wait_for_workers(count, timeout=30)

    def close(self) -> None:
        for process in (*self.workers, self.scheduler):
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as started:
        yield started


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, server: S3Server) -> Iterator[Cluster]:
    """A cluster of two workers, for tests that leave one of them or bring their own."""
    started = Cluster(tmp_path_factory.mktemp("cluster"), server.environment)
    started.add_workers(2)
    try:
        started.wait(2)
        yield started
    finally:
        started.close()


def run(*arguments: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fr_analysis", *arguments],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")} | environment,
    )


def test_the_answer_is_the_same(cluster: Cluster, server: S3Server, tmp_path: Path) -> None:
    near = run(str(HANG), "--format", "json")
    for path in (str(HANG), HANG.name, HANG.as_uri(), server.put("same", "job", HANG.iterdir())):
        requests = len(server.requests)
        answer = run(
            path,
            "--format",
            "json",
            "--executor",
            cluster.url,
            cwd=HANG.parent,
            **server.environment,
        )
        assert (answer.returncode, answer.stdout, answer.stderr) == (1, near.stdout, ""), path
    # Each object was fetched once: by a worker, none of it again here.
    objects = [path for _, path in server.requests[requests:] if "trace_" in path]
    assert sorted(objects) == ["/same/job/trace_0", "/same/job/trace_1"]

    # Files that the workers do not see: this path leads each process to its own directory.
    answer = run("/proc/self/cwd", "--format", "json", "--executor", cluster.url, cwd=HANG)
    assert (answer.returncode, answer.stdout) == (1, near.stdout)
    assert answer.stderr.startswith("fr-analysis: 2 of 2 files could not be read by the executor")
    assert answer.stderr.count("\n") == 1

    # A worker of another version must not read differently, one without it cannot.
    stub = tmp_path / "stub"
    stub.mkdir()
    (stub / "fr_analysis.py").write_text(
        "import os\nif 'LACKING' in os.environ: raise ImportError\n__version__ = '0.0.1'"
    )
    cluster.add_workers(1, PYTHONPATH=str(stub))
    cluster.add_workers(1, PYTHONPATH=str(stub), LACKING="1")
    cluster.wait(4)
    answer = run(str(HANG), "--executor", cluster.url)
    assert answer.returncode == ExitStatus.BAD_INPUT
    assert re.fullmatch(
        r"fr-analysis: dask://\S+: all workers need fr-analysis [\d.]+; "
        r"tcp://\S+ has (0.0.1|none), tcp://\S+ has (0.0.1|none)\n",
        answer.stderr,
    )
    assert {"has 0.0.1", "has none"} <= set(re.findall(r"has [\w.]+", answer.stderr))
    for unfit in (cluster.workers.pop(), cluster.workers.pop()):
        unfit.kill()
        unfit.wait()


@pytest.mark.parametrize("killed", ["one worker", "all workers", "all"])
def test_processes_killed_midway(cluster: Cluster, server: S3Server, killed: str) -> None:
    url = server.put(killed.replace(" ", "-"), "job", HANG.iterdir())
    near = run(url, "--format", "json", **server.environment)
    if killed == "all":
        cluster.add_workers(1)
        cluster.wait(1)
    pids = {worker.pid for worker in cluster.workers if worker.poll() is None}
    if killed == "all":
        pids.add(cluster.scheduler.pid)
    reached, over = threading.Event(), threading.Event()

    def hold(method: str, path: str) -> None:
        if path.endswith("trace_1") and not over.is_set():
            reached.set()
            over.wait(30)

    def kill() -> None:
        assert reached.wait(30)
        # The one that reads is the one with a connection to the store.
        port = int(server.url.rpartition(":")[2])
        for pid in pids:
            asks = any(
                link.raddr and link.raddr.port == port
                for link in psutil.Process(pid).net_connections()
            )
            if asks or killed != "one worker":
                os.kill(pid, signal.SIGKILL)
                done.append(pid)
        over.set()

    done: list[int] = []
    server.before = hold
    killer = threading.Thread(target=kill)
    killer.start()
    began = time.monotonic()
    answer = run(url, "--format", "json", "--executor", cluster.url, **server.environment)
    killer.join()
    assert len(done) == (1 if killed == "one worker" else len(pids))
    assert (answer.returncode, answer.stdout) == (1, near.stdout)
    assert answer.stderr == ""
    assert list(cluster.temporary.glob("fr-analysis-*")) == []
    assert time.monotonic() - began < 30


def test_threads_of_one_worker_leave_its_limits_alone(tmp_path: Path) -> None:
    """Each file is read under a limit on memory, which is the whole process's."""
    for rank in range(60):
        shutil.copy(HANG / f"trace_{rank % 2}", tmp_path / f"trace_{rank}")
    before = resource.getrlimit(resource.RLIMIT_AS)
    switching = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(8) as threads:
            read_trace(tmp_path, executor=threads)
        assert resource.getrlimit(resource.RLIMIT_AS) == before
    finally:
        sys.setswitchinterval(switching)
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize(
    "url", ["dask://127.0.0.1", "dask://:8786", "tcp://h:1", "x", "dask://h:port", "dask://h:1/x"]
)
def test_what_is_no_address(url: str) -> None:
    with (
        pytest.raises(FrAnalysisError, match="expected dask://HOST:PORT"),
        executors.open_executor(url),
    ):
        pass


def test_a_password_in_an_address_is_not_told() -> None:
    with (
        pytest.raises(FrAnalysisError, match=r"^--executor host:1: expected"),
        executors.open_executor("dask://me:secret@host:1"),
    ):
        pass


@pytest.mark.parametrize("kind", ["nothing", "silent", "no host"])
def test_no_scheduler_there(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "PATIENCE_S", 1.0)
    began = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1] if kind == "silent" else 1
        host = "no-host.invalid" if kind == "no host" else "127.0.0.1"
        with (
            pytest.raises(FrAnalysisError, match=f"^dask://{host}:{port}: no Dask scheduler"),
            executors.open_executor(f"dask://{host}:{port}"),
        ):
            pass
    assert time.monotonic() - began < 5


def test_the_command_says_so_in_one_line(tmp_path: Path) -> None:
    answer = run(str(HANG), "--executor", "tcp://127.0.0.1:1")
    assert answer.returncode == ExitStatus.BAD_INPUT
    assert answer.stderr == (
        "fr-analysis: --executor tcp://127.0.0.1:1: expected dask://HOST:PORT\n"
    )
    (tmp_path / "distributed.py").write_text("raise ImportError('not here')")
    path = os.pathsep.join([str(tmp_path), str(ROOT / "src")])
    answer = run(str(HANG), "--executor", "dask://127.0.0.1:1", PYTHONPATH=path)
    assert answer.returncode == ExitStatus.BAD_INPUT
    assert "pip install 'fr-analysis[dask]'" in answer.stderr
    assert answer.stderr.count("\n") == 1
    answer = run("--url", "http://x:1", "--executor", "dask://127.0.0.1:1")
    assert answer.returncode == ExitStatus.BAD_INPUT
    assert "--executor is about files" in answer.stderr


def test_a_cluster_without_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "PATIENCE_S", 1.0)
    empty = Cluster(tmp_path, {})
    try:
        empty.wait(0)
        with (
            pytest.raises(FrAnalysisError, match="the cluster has no workers"),
            executors.open_executor(empty.url),
        ):
            pass
    finally:
        empty.close()
