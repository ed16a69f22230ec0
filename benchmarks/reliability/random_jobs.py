"""Random jobs with a known culprit, by the thousand: who is blamed, and who should be.

    python -m benchmarks.reliability.random_jobs --jobs 10000 --seed 1000000
    python -m benchmarks.reliability.random_jobs --replay SEED

The jobs are drawn by ``tests.made_jobs.random_jobs`` and scored by ``tests.made_jobs.score``, which
say what counts. Every fiftieth job takes the way through files.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

from tests.made_jobs import score
from tqdm import tqdm

from benchmarks.reliability.kept import Table, keep
from fr_analysis import render_text

PART = "random_jobs"
_THROUGH_FILES = 50
_AT_ONCE = 20


def _answer(seed: int) -> score.Outcome:
    return score.answer(seed, through_files=seed % _THROUGH_FILES == 0)


def _answers(first: int, jobs: int) -> Iterator[score.Outcome]:
    """Every job's outcome, in order of seed, from as many processes as there are cores."""
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        try:
            yield from pool.map(_answer, range(first, first + jobs), chunksize=_AT_ONCE)
        finally:
            pool.shutdown(cancel_futures=True)


def replay(seed: int) -> None:
    """Print the job of a seed, the right answer, and the diagnosis."""
    job = score.made(seed)
    diagnosis = score.diagnose(job)
    print(score.judge(seed, job, diagnosis).told)
    print(render_text(diagnosis))


def main() -> None:
    """Diagnose the jobs, print those that were answered wrongly, and keep the table.

    Where it is interrupted, it keeps the table of the jobs that were answered until then.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1_000_000, help="of the first job")
    parser.add_argument("--replay", type=int, metavar="SEED", help="show one job and its diagnosis")
    options = parser.parse_args()
    if options.replay is not None:
        replay(options.replay)
        return
    answers = tqdm(_answers(options.seed, options.jobs), total=options.jobs, mininterval=10)
    outcomes = []
    try:
        for outcome in answers:
            outcomes.append(outcome)
            if outcome.ending in (score.WRONG, score.CALLED_HEALTHY):
                tqdm.write(f"{outcome.ending}: --replay {outcome.seed}: {outcome.told}")
    except KeyboardInterrupt:
        print(f"interrupted; kept is what was answered: {len(outcomes)} jobs")
    title = f"{len(outcomes):,} random jobs with a known culprit"
    table = Table(title, score.HEAD, score.rows(outcomes))
    for row in (table.head, *table.rows):
        print("  ".join(cell.rjust(14) for cell in row))
    command = (
        f"python -m benchmarks.reliability.{PART} --jobs {len(outcomes)} --seed {options.seed}"
    )
    keep(PART, command, [table], ["numpy"])


if __name__ == "__main__":
    main()
