"""Two real jobs side by side, one of which hangs: their dumps must not be taken for one job's."""

from __future__ import annotations

import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fr_analysis import Verdict, analyze
from fr_analysis.cli import ExitStatus, main
from rank_lab import WarmLauncher, run_ranks

SCRIPT = Path(__file__).with_name("job_of_two.py")
# What hangs records nothing while the other one runs.
JOBS = {"job_a": {"HANGS": "1"}, "job_b": {"AFTER": "job_a_runs"}}


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that has the folders of both jobs' dumps."""
    folder = tmp_path_factory.mktemp("jobs") / "dumps"
    runs = tmp_path_factory.mktemp("runs")

    def run(name: str) -> None:
        with WarmLauncher() as launcher:
            record = run_ranks(
                SCRIPT,
                nproc=2,
                run_dir=runs / name,
                dump_dir=folder / name,
                env=JOBS[name],
                deadline_s=60,
                launcher=launcher,
            )
        assert len(record.dump_files) == 2, record.launcher_output + record.text

    with ThreadPoolExecutor(len(JOBS)) as pool:
        running = [pool.submit(run, name) for name in JOBS]
        while not all((folder / f"{name}_runs").exists() for name in JOBS):
            if any(future.done() for future in running):
                break
            time.sleep(0.02)
        time.sleep(0.2)  # the healthy one goes on
        (folder / "end").touch()
        for future in running:
            future.result()
    return folder


def test_each_alone_is_answered(parent: Path) -> None:
    hung, healthy = analyze(parent / "job_a"), analyze(parent / "job_b")
    assert (hung.verdict, hung.suspects) == (Verdict.FAULT, (1,))
    assert (healthy.verdict, healthy.unread) == (Verdict.HEALTHY, ())


def test_of_both_it_says_that_there_are_two(
    parent: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(parent)]) == ExitStatus.BAD_INPUT
    assert capsys.readouterr().err == (
        f"fr-analysis: {parent}/job_a and {parent}/job_b hold dumps of the same ranks, of two "
        "jobs: name one of them; if they are one job's, name each file after its rank in the "
        "whole job\n"
    )


def test_in_one_folder_their_names_tell_them_apart(
    parent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in JOBS:
        for rank in range(2):
            shutil.copy2(parent / name / f"rank_{rank}", tmp_path / f"{name}_rank_{rank}")
    assert main([str(tmp_path)]) == ExitStatus.BAD_INPUT
    said = capsys.readouterr().err
    named = f"{tmp_path}/job_a_rank_"
    assert f"{named} and {tmp_path}/job_b_rank_ hold dumps of the same ranks, of two jobs: " in said
    assert analyze(named).suspects == (1,)
