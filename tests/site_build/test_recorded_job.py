"""The section that records a job waits for the hang, however long the job takes to come to it."""

from __future__ import annotations

from pathlib import Path

from fr_analysis.read import read_trace
from fr_analysis.trace import Completion
from rank_lab import WarmLauncher, run_ranks
from site_build.recorded_job import CANONICAL, split

SLOW_THEN_STUCK = """
import os
import time

import torch
import torch.distributed as dist


def train(rank):
    for _ in range(4):
        time.sleep(0.8 if rank == 1 else 0)
        dist.all_reduce(torch.ones(8))
    if rank == 1:
        threading.Event().wait()
    dist.all_reduce(torch.ones(8))


"""


def test_dumps_are_taken_of_the_hang_and_not_of_a_slow_job(tmp_path: Path) -> None:
    script = tmp_path / "slow_then_stuck.py"
    script.write_text(SLOW_THEN_STUCK + split(CANONICAL.read_text(encoding="utf-8"))[1])
    with WarmLauncher() as launcher:
        record = run_ranks(
            script, nproc=3, run_dir=tmp_path / "run", deadline_s=120, launcher=launcher
        )
    assert record.exit_status == 0, record.launcher_output + record.text
    dumps = read_trace(record.dump_dir).dumps
    assert [len(dumps[rank].operations) for rank in range(3)] == [5, 4, 5]
    for waiting in 0, 2:
        # After the timeout Gloo marks the operation as done.
        assert dumps[waiting].operations.completion[-1] == Completion.PENDING
        assert "RuntimeError" in record.ranks[waiting].stdout
    assert record.ranks[1].stdout == ""
