"""A downloaded script works alone: plain torchrun, an empty folder, and what its page says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from fr_analysis import analyze
from rank_lab.claims import differences
from site_build.gallery import load_scenario
from support import ROOT, run_as_a_reader

SOURCES = ROOT / "intermediate_source"
SCRIPTS = sorted((SOURCES / "hang_gallery").glob("*.py"))


@dataclass(frozen=True)
class Run:
    """What came of a script."""

    folder: Path
    exit_status: int
    output: str


def run_alone(script: Path, folder: Path) -> Run:
    """As the page's reader: the file alone, the command of its page, no settings."""
    folder.mkdir()
    shutil.copy(script, folder)
    done = run_as_a_reader(["torchrun", "--nproc_per_node=4", script.name], folder)
    return Run(folder, done.returncode, done.stdout)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Path], Run]]:
    """Every script's run; ranks mostly wait, so two jobs at a time."""
    folder = tmp_path_factory.mktemp("downloads")
    with ThreadPoolExecutor(max_workers=2) as jobs:
        runs: dict[str, Future[Run]] = {
            script.name: jobs.submit(run_alone, script, folder / script.stem) for script in SCRIPTS
        }
        yield lambda script: runs[script.name].result()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_hangs_and_ends_as_its_page_says(ran: Callable[[Path], Run], script: Path) -> None:
    scenario = load_scenario(script)
    run = ran(script)
    assert run.exit_status == scenario.exit_status, run.output
    assert differences(scenario.claims, analyze(run.folder / "fr_dumps")) == ()


def run_exercises(folder: str, place: Path) -> str:
    """What pytest says of the exercises, or of their solutions, as a reader starts it."""
    exercises = shutil.copytree(SOURCES / "exercises", place)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--tb=line", "test_exercises.py"],
        cwd=exercises,
        env=os.environ | {"EXERCISES": folder},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    return done.stdout


def test_exercises_fail_until_they_are_solved(tmp_path: Path) -> None:
    with ThreadPoolExecutor(max_workers=2) as jobs:
        solved = jobs.submit(run_exercises, "solutions", tmp_path / "solved")
        unsolved = jobs.submit(run_exercises, ".", tmp_path / "unsolved")
    assert solved.result().splitlines()[-1].startswith("3 passed"), solved.result()
    assert unsolved.result().splitlines()[-1].startswith("3 failed"), unsolved.result()
    assert "still hangs" in unsolved.result()
