"""The script for jobs that were not prepared, on ranks that really hang."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fr_analysis import analyze
from support import ROOT

PAGES = ROOT / "intermediate_source"
VARIABLE = "FR_TEST_OF_COLLECT_STACKS_RANK"
"""In the place of RANK, which other jobs on this machine have too."""

SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
MAY_TRACE = os.geteuid() == 0 or not SCOPE.exists() or SCOPE.read_text().strip() == "0"
pytestmark = pytest.mark.skipif(not MAY_TRACE, reason="only root may trace processes here")

JOB = """
import os, pathlib, pickle, subprocess, sys, threading, time
from datetime import timedelta
import torch, torch.distributed as dist

def read_from_storage():
    time.sleep(600)

def dump():
    # In the place of NCCL's watchdog, which writes one when a collective is overdue.
    entered = 1 if rank == 1 else 2
    while True:
        content = pickle.loads(torch._C._distributed_c10d._dump_fr_trace())
        if len(content["entries"]) == entered:
            break
        time.sleep(0.05)
    content["pg_config"] = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    pathlib.Path(f".rank_{rank}").write_bytes(pickle.dumps(content, protocol=2))
    os.rename(f".rank_{rank}", f"rank_{rank}")

rank = int(sys.argv[1])
store = f"file://{os.getcwd()}/.store"
patience = timedelta(seconds=300)
dist.init_process_group("gloo", store, rank=rank, world_size=2, timeout=patience)
# As a worker that loads data: it has the environment of its rank.
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
dist.all_reduce(torch.ones(1))
threading.Thread(target=dump, daemon=True).start()
if rank == 1:
    read_from_storage()
dist.all_reduce(torch.ones(1))
"""


@pytest.fixture(scope="module")
def hung(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of two ranks that hang, with their dumps but no stacks."""
    folder = tmp_path_factory.mktemp("hung")
    (folder / "train.py").write_text(JOB)
    set_up = {"TORCH_FR_BUFFER_SIZE": "100", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "train.py", str(rank)],
            cwd=folder,
            env=os.environ | set_up | {VARIABLE: str(rank)},
            start_new_session=True,
        )
        for rank in range(2)
    ]
    try:
        end = time.monotonic() + 60
        while not all((folder / f"rank_{rank}").exists() for rank in range(2)):
            assert time.monotonic() < end, "the ranks wrote no dumps"
            time.sleep(0.1)
        yield folder
    finally:
        for rank in ranks:  # with its helper
            os.killpg(rank.pid, signal.SIGKILL)
            rank.wait()


def collect(*arguments: str | Path, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the script, with py-spy on the path unless there is another."""
    first = path or Path(sys.executable).parent
    return subprocess.run(
        ["sh", PAGES / "collect_stacks.sh", *arguments],
        env=os.environ | {"PATH": f"{first}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def collected(hung: Path) -> subprocess.CompletedProcess[str]:
    """The script's run beside the dumps."""
    return collect(hung, VARIABLE)


def test_one_file_for_each_rank_and_none_for_helpers(
    hung: Path, collected: subprocess.CompletedProcess[str]
) -> None:
    assert collected.returncode == 0, collected.stderr
    assert collected.stdout == f"{os.uname().nodename}: stacks of 2 ranks in {hung}\n"
    assert collected.stderr == ""
    assert sorted(file.name for file in hung.glob("pyspy*")) == ["pyspy_0.txt", "pyspy_1.txt"]
    assert "read_from_storage" in (hung / "pyspy_1.txt").read_text()


@pytest.mark.usefixtures("collected")
def test_the_analyzer_reads_them_beside_the_dumps(hung: Path) -> None:
    diagnosis = analyze(hung)
    assert diagnosis.suspects == (1,)
    (suspect,) = diagnosis.details
    assert suspect.location is not None
    assert suspect.location.name == "read_from_storage"


@pytest.mark.usefixtures("collected")
def test_the_page_s_grep_names_the_rank_without_any_dump(hung: Path, tmp_path: Path) -> None:
    page = (PAGES / "collect_dumps_of_an_unprepared_job.rst").read_text(encoding="utf-8")
    (command,) = re.findall(r"^ +(grep -L .*)$", page, flags=re.MULTILINE)
    shutil.copytree(hung, tmp_path / "hang", ignore=shutil.ignore_patterns("rank_*"))
    named = subprocess.run(
        command, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert named.stdout == "hang/pyspy_1.txt\n"


def test_where_there_is_no_rank_it_fails(tmp_path: Path) -> None:
    done = collect(tmp_path / "out", "FR_TEST_NO_SUCH_VARIABLE")
    assert done.returncode == 1
    assert "stacks of 0 ranks" in done.stdout


@pytest.mark.usefixtures("hung")
def test_a_rank_whose_stack_cannot_be_taken_is_told(tmp_path: Path) -> None:
    refusing = tmp_path / "bin" / "py-spy"
    refusing.parent.mkdir()
    refusing.write_text("#!/bin/sh\necho 'Error: refused' >&2\nexit 1\n")
    refusing.chmod(0o755)
    done = collect(tmp_path / "out", VARIABLE, path=refusing.parent)
    assert done.returncode == 1
    assert re.search(r"^rank 0, process \d+: Error: refused$", done.stderr, flags=re.MULTILINE)
    assert not list((tmp_path / "out").iterdir())
