"""Builds the site from nothing, again and again, and side by side while the processors are busy.

``python -m benchmarks.reliability.builds`` keeps what it has counted. Each build is of a fresh
clone of what is committed here, with the packages of this interpreter, and must end as `make html`
must: every demo run, every claim borne out, no warning. The analyzer's answers must be those of the
first build.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.reliability.kept import Table, keep

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 1800
"""A build that takes longer has failed."""
LAST_LINES = 30
"""Of a failed build's output, shown."""

_CONCLUSION = re.compile(r"^(?:\S|  rank \d+: |  victims: ).*", re.MULTILINE)
"""Lines of an answer but for its evidence: measured times, and the line that a rank was just at."""

Answers = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Build:
    """One build: how it ended, what it took, and what the analyzer said in it."""

    failed: bool
    seconds: float
    answers: Answers


@dataclass(frozen=True)
class Series:
    """Builds under the same circumstances."""

    how: str
    builds: list[Build]

    def row(self, first: Build) -> tuple[str, ...]:
        """What the table says of them; their answers are compared with that build's."""
        ended = [build for build in self.builds if not build.failed]
        others = [build for build in ended if build.answers != first.answers]
        for build in others:
            for name in sorted({*build.answers, *first.answers}):
                if build.answers.get(name) != first.answers.get(name):
                    print(f"{name}: {build.answers.get(name)} after {first.answers.get(name)}")
        seconds = [build.seconds for build in ended]
        return (
            self.how,
            str(len(self.builds)),
            str(len(self.builds) - len(ended)),
            str(len(others)),
            f"{median(seconds):.0f} s" if seconds else "-",
            f"{max(seconds):.0f} s" if seconds else "-",
        )


def read_answers(captures: Path) -> Answers:
    """What the analyzer concluded from every run of a build, by the file that holds it."""
    said = {}
    for file in captures.rglob("fr_analysis*.txt"):
        said[file] = file.read_text("utf-8")
    for file in captures.rglob("shown.json"):
        shown = json.loads(file.read_text("utf-8"))
        said[file] = f"{shown['verdict']}\n{shown['fixed_verdict']}"
    return {
        str(file.relative_to(captures)): _CONCLUSION.findall(text) for file, text in said.items()
    }


def build_once(root: Path, deadline_s: float = DEADLINE_S) -> Build:
    """Clone a repository, and build the site that it holds.

    Args:
        root: the repository. deadline_s: seconds after which the build is given up.

    Returns:
        What came of it. A build that fails shows its last lines.
    """
    with tempfile.TemporaryDirectory(prefix="build-") as folder:
        clone = Path(folder, "clone")
        subprocess.run(["git", "clone", "--quiet", root, clone], check=True)
        command = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-n"]
        start = time.perf_counter()
        with Path(folder, "log").open("w+", encoding="utf-8") as log:
            process = subprocess.Popen(
                [*command, "-d", "_build/doctrees", ".", "_build/html"],
                cwd=clone,
                env=os.environ | {"PYTHONPATH": str(clone / "src")},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                failed = process.wait(deadline_s) != 0
            except subprocess.TimeoutExpired:
                failed = True
            finally:
                # Also where whoever waits is interrupted.
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            seconds = time.perf_counter() - start
            if failed:
                log.seek(0)
                print(*log.readlines()[-LAST_LINES:], sep="", flush=True)
        return Build(failed, seconds, read_answers(clone / "_build" / "captures"))


def _burn() -> None:
    while True:
        pass


@contextmanager
def busy_processors() -> Iterator[int]:
    """Keep every processor busy; gives the number of processes that do so."""
    burners = [
        multiprocessing.get_context("spawn").Process(target=_burn, daemon=True)
        for _ in range(os.cpu_count() or 1)
    ]
    for burner in burners:
        burner.start()
    try:
        yield len(burners)
    finally:
        for burner in burners:
            burner.kill()
            burner.join()


def build_in_a_row(root: Path, number: int) -> Series:
    """Build one after the other."""
    builds = []
    for nth in range(1, number + 1):
        build = build_once(root)
        builds.append(build)
        print(
            f"build {nth} of {number}: {'failed' if build.failed else 'ended'} "
            f"after {build.seconds:.0f} s",
            flush=True,
        )
    return Series("one after the other", builds)


def build_side_by_side(root: Path, number: int) -> Series:
    """Build all at once, while as many processes as there are processors do nothing but compute."""
    with busy_processors() as burners, ThreadPoolExecutor(number) as pool:
        builds = list(pool.map(build_once, [root] * number))
    return Series(f"{number} side by side, beside {burners} processes that only compute", builds)


def as_table(series: list[Series]) -> Table:
    """What was counted; answers are compared with those of the first build that ended."""
    every = [build for one in series for build in one.builds]
    first = next((build for build in every if not build.failed), every[0])
    return Table(
        "The site, built from nothing",
        ("How", "Builds", "Failed", "With other answers than the first", "Median", "Longest"),
        [one.row(first) for one in series],
    )


def main() -> int:
    """Count, and keep what was counted.

    Returns:
        1 where a build failed or gave another answer, else 0.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--builds", type=int, default=20, help="in a row (20); 0 for none")
    parser.add_argument("--side-by-side", type=int, default=3, help="at once (3); 0 for none")
    options = parser.parse_args()
    if not options.builds and not options.side_by_side:
        parser.error("nothing to build")
    command = f"python -m benchmarks.reliability.builds --builds {options.builds}"
    command += f" --side-by-side {options.side_by_side}"
    series: list[Series] = []
    for build, number in (
        (build_in_a_row, options.builds),
        (build_side_by_side, options.side_by_side),
    ):
        if number:
            series.append(build(ROOT, number))
            table = as_table(series)
            # What takes so long is kept as soon as it is known.
            keep("builds", command, [table], ["torch", "sphinx", "sphinx-gallery"])
    return int(any(row[2:4] != ("0", "0") for row in table.rows))


if __name__ == "__main__":
    sys.exit(main())
