"""Speed side by side: fr-analysis, torchfrtrace and the floor, as whole commands on the same files.

The floor is what reading alone takes: ``pickle.load`` (``json.load``) of every file, one after the
other, with the collector off, and the same in as many processes as there are cores. In each round
every tool runs once; a ratio is made within a round, and its median and spread over the rounds are
printed. Times in seconds are kept in the results, but say more of the machine than of the tools::

    python -m benchmarks.bench            # all sizes; see benchmarks.results for what is kept
    python -m benchmarks.bench --gate 1.2 # one size; fails where the ratio to the floor is above
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks import columns
from benchmarks.inputs import LargeJob, write_job
from benchmarks.results import as_markdown, keep, spread
from benchmarks.tables import circumstances

FOLDER = Path("_build/bench")
BIN = Path(sys.executable).parent
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
"""Tools run as they are installed: compiled."""
LIMIT_S = 300

FLOOR = """
import gc, json, pickle, sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
gc.disable()
def load(file):
    with open(file, "rb") as stream:
        (json if file.suffix == ".json" else pickle).load(stream)
files = sorted(Path(sys.argv[1]).iterdir())
workers = int(sys.argv[2])
if workers == 1:
    for file in files:
        load(file)
else:
    with ProcessPoolExecutor(workers) as pool:
        for _ in pool.map(load, files, chunksize=8):
            pass
"""


@dataclass(frozen=True)
class Tool:
    """A command to measure.

    Attributes:
        name: in the table. command: with ``DUMPS`` for the folder, ``REDUCED`` for the file that
            it is reduced to.
        answers: whether its output must name the missing rank.
        rounds: in so many rounds at most, for one that takes minutes.
    """

    name: str
    command: tuple[str, ...]
    answers: bool = False
    rounds: int = 99


FLOOR_TOOL = Tool("floor", (sys.executable, "-c", FLOOR, "DUMPS", "1"))
OURS = Tool("fr-analysis", (str(BIN / "fr-analysis"), "DUMPS"), answers=True)
CORES_FLOOR = Tool("floor, all cores", (sys.executable, "-c", FLOOR, "DUMPS", str(os.cpu_count())))
REDUCED = Tool("fr-analysis, reduced", (str(BIN / "fr-analysis"), "REDUCED"), answers=True)
TORCH = Tool("torchfrtrace", (str(BIN / "torchfrtrace"), "DUMPS", "-p", "rank_"), rounds=2)


@dataclass(frozen=True)
class Case:
    """A job to measure on, and the tools that run on it."""

    name: str
    job: LargeJob
    tools: tuple[Tool, ...]
    rounds: int = 3


ALL = (FLOOR_TOOL, OURS, CORES_FLOOR, TORCH)
ALONE = (FLOOR_TOOL, OURS, CORES_FLOOR)
CASES = (
    Case("64 ranks, healthy", LargeJob(64, 1000, missing=None), ALL, rounds=5),
    Case("512 ranks, healthy", LargeJob(512, 1339, missing=None), ALL),
    Case("512 ranks, one missing", LargeJob(512, 1339), (*ALL, REDUCED), rounds=5),
    Case("512 ranks, with transfers", LargeJob(512, 1339, transfers=True), ALL),
    Case("512 ranks, JSON", LargeJob(512, 1339, as_json=True), ALONE),
    Case("1,024 ranks, one group", LargeJob(1024, 500, missing=None, one_group=True), ALL),
    Case("2,048 ranks, one missing", LargeJob(2048, 2000), ALONE),
)
GATE = Case("512 ranks, one missing", LargeJob(512, 1339), (FLOOR_TOOL, OURS), rounds=5)


@dataclass
class Measured:
    """What one tool took, round by round."""

    seconds: list[float] = field(default_factory=list)
    peak_mb: list[float] = field(default_factory=list)
    failed: str | None = None
    is_too_slow: bool = False


def _memory(process: psutil.Process) -> float:
    """Megabytes of a process and its children; pages that they share count once."""
    total = 0
    for one in [process, *process.children(recursive=True)]:
        try:
            total += one.memory_full_info().pss
        except psutil.Error:
            continue  # it has ended meanwhile
    return total / 1e6


def run(tool: Tool, dumps: Path) -> tuple[float, float, str]:
    """Run a command on dumps; returns its seconds, its peak memory in megabytes, its output."""
    files = {"DUMPS": str(dumps), "REDUCED": str(_reduced(dumps))}
    command = [files.get(word, word) for word in tool.command]
    start = time.perf_counter()
    process = psutil.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ENVIRONMENT
    )
    peak = 0.0
    over = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not over.wait(0.1):
            try:
                peak = max(peak, _memory(process))
            except psutil.Error:
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        output, _ = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        raise TimeoutError(f"took more than {LIMIT_S} s") from None
    finally:
        seconds = time.perf_counter() - start
        over.set()
        watcher.join()
    return seconds, peak, output


def _reduced(dumps: Path) -> Path:
    return dumps.with_suffix(".parquet")


def _reduce(dumps: Path) -> None:
    """Reduce a job's dumps to one file, as the epilogue of a job does with those of a node."""
    _reduced(dumps).unlink(missing_ok=True)
    command = [str(BIN / "fr-analysis"), "reduce", str(dumps), "-o", str(_reduced(dumps))]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=ENVIRONMENT)


def measure(case: Case, dumps: Path) -> dict[str, Measured]:
    """Run all tools of a case, in turns."""
    measured = {tool.name: Measured() for tool in case.tools}
    if REDUCED in case.tools:
        _reduce(dumps)
    for turn in range(case.rounds):
        # Every other round the other way round: no tool always runs on files that are warm.
        for tool in case.tools if turn % 2 == 0 else case.tools[::-1]:
            result = measured[tool.name]
            if result.is_too_slow or len(result.seconds) == tool.rounds:
                continue
            try:
                seconds, peak, output = run(tool, dumps)
            except TimeoutError as error:
                result.failed = str(error)
                result.is_too_slow = True
                continue
            if "Traceback" in output:
                result.failed = output.strip().splitlines()[-1][:200]
            elif "Too many mismatches" in output:
                result.failed = "stops at its cap of mismatches"
            elif tool.answers and (wrong := _wrong_answer(case.job, output)):
                result.failed = f"answered {wrong}"
            result.seconds.append(seconds)
            result.peak_mb.append(peak)
            print(f"  {tool.name}: {seconds:.1f} s, {peak:.0f} MB", flush=True)
    return measured


def _wrong_answer(job: LargeJob, output: str) -> str | None:
    first = output.partition("\n")[0]
    expected = "HEALTHY" if job.missing is None else f"FAULT: suspect rank {job.missing};"
    return None if first.startswith(expected) else first


def ratios(result: Measured, base: Measured) -> list[float]:
    """How many times as long as the base, round by round."""
    return [a / b for a, b in zip(result.seconds, base.seconds, strict=False)]


def startup() -> dict[str, float]:
    """Seconds of ``fr-analysis --version``, and of an interpreter that does nothing."""
    seconds = {}
    for name, command in {
        "fr-analysis --version": [str(BIN / "fr-analysis"), "--version"],
        "python -c pass": [sys.executable, "-c", "pass"],
    }.items():
        times = []
        for _ in range(9):
            start = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True, env=ENVIRONMENT)
            times.append(time.perf_counter() - start)
        seconds[name] = median(times)
    return seconds


def measure_cases(cases: Sequence[Case]) -> dict[str, Any]:
    """Make the inputs of cases and measure them.

    Args:
        cases: what to measure.

    Returns:
        The results, with machine and versions, ready for JSON.
    """
    found = {}
    for case in cases:
        key = "_".join(str(value) for value in dataclasses.astuple(case.job))
        dumps = FOLDER / key
        if not dumps.exists():
            print(f"{case.name}: making the dumps ...", flush=True)
            partial = FOLDER / f"{key}.partial"
            write_job(case.job, partial)
            partial.rename(dumps)
        print(f"{case.name}:", flush=True)
        measured = measure(case, dumps)
        found[case.name] = {
            "ranks": case.job.ranks,
            "entries": case.job.recorded(),
            "bytes": sum(file.stat().st_size for file in dumps.iterdir()),
            "reduced_bytes": _reduced(dumps).stat().st_size if REDUCED in case.tools else None,
            "tools": {
                name: {
                    "seconds": result.seconds,
                    "peak_mb": result.peak_mb,
                    "failed": result.failed,
                    "times_floor": ratios(result, measured["floor"]),
                    "times_ours": ratios(result, measured["fr-analysis"]),
                }
                for name, result in measured.items()
            },
        }
    names = ("torch", "numpy", "fr-analysis")
    return {
        **circumstances(names),
        "startup_s": startup(),
        "columns": columns.measure(),
        "cases": found,
    }


def main() -> int:
    """Measure, print, and keep the results."""
    parser = argparse.ArgumentParser(description="measure speed side by side")
    parser.add_argument("--gate", type=float, metavar="RATIO", help="fail above this ratio")
    parser.add_argument("--rounds", type=int, metavar="N", help="so many rounds of each case")
    options = parser.parse_args()
    if options.gate is not None:
        results = measure_cases([GATE])
        times_floor = results["cases"][GATE.name]["tools"]["fr-analysis"]["times_floor"]
        failed = results["cases"][GATE.name]["tools"]["fr-analysis"]["failed"]
        print(f"fr-analysis at 512 ranks: {spread(times_floor)} times the floor")
        if failed or median(times_floor) > options.gate:
            print(f"bench: {failed or f'more than {options.gate} times the floor'}")
            return 1
        return 0
    cases = CASES
    if options.rounds is not None:
        cases = tuple(dataclasses.replace(case, rounds=options.rounds) for case in CASES)
    results = measure_cases(cases)
    keep(results)
    print(as_markdown(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
