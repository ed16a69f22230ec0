"""Scores the analyzer's answers on random jobs.

What counts, per job: the ranks that the answer names, those of them that are culprits, and the
culprits that the dumps show (``random_jobs.Made``).

- Precision: named culprits by all named ranks. A rank without a dump that may be named as well
  (``Made.lost``) counts on neither side: what is left of the job is what a dead rank leaves.
- Recall: named culprits by culprits that the dumps show, undetermined answers included.
"""

from __future__ import annotations

import math
import random
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.made_jobs.dumps import trace_of, write
from tests.made_jobs.random_jobs import FAULTS, Made, draw

from fr_analysis import Diagnosis, Verdict, analyze
from fr_analysis.attribute import attribute
from fr_analysis.match import match

RIGHT = "Right"
UNDETERMINED = "Undetermined"
INCOMPLETE = "Incomplete"
CALLED_HEALTHY = "Called healthy"
WRONG = "Wrong"
ENDINGS = (RIGHT, UNDETERMINED, INCOMPLETE, CALLED_HEALTHY, WRONG)
"""What a job counts as. ``INCOMPLETE``: a fault is told, and not every culprit that the dumps
show is named. ``CALLED_HEALTHY``: though a dump holds an operation that did not complete.
``WRONG``: a rank is named that may not be."""

HEAD = ("Fault", "Jobs", *ENDINGS, "Named", "Precision", "Shown", "Recall")


@dataclass(frozen=True)
class Outcome:
    """How one job was answered.

    Attributes:
        seed, fault: which job. told: the draw and the answer in one line.
        ending: one of ``ENDINGS``.
        named: how many ranks were named, and may not be for lost dumps only.
        true: how many of them are culprits.
        shown, found: culprits that the dumps show, and those of them that were named.
    """

    seed: int
    fault: str
    told: str
    ending: str
    named: int
    true: int
    shown: int
    found: int


def made(seed: int) -> Made:
    """The job of a seed."""
    return draw(random.Random(seed))


def diagnose(job: Made, *, through_files: bool = False) -> Diagnosis:
    """The analyzer's answer, also on the way through files."""
    dumps = job.record()
    if not through_files:
        return attribute(match(trace_of(dumps, job.world)))
    with tempfile.TemporaryDirectory() as folder:
        write(dumps, Path(folder))
        return analyze(folder, expected_world_size=job.world)


def judge(seed: int, job: Made, diagnosis: Diagnosis) -> Outcome:
    """Compare an answer with the right one."""
    suspects = set(diagnosis.suspects)
    named = suspects - job.lost
    found = suspects & job.shown
    if named - job.culprits:
        ending = WRONG
    elif diagnosis.verdict is Verdict.UNDETERMINED:
        ending = UNDETERMINED
    elif job.hangs and diagnosis.verdict is Verdict.HEALTHY:
        ending = CALLED_HEALTHY
    else:
        ending = INCOMPLETE if job.shown - suspects else RIGHT
    faults = [f"{f.kind.value} in {f.group_description}: {f.suspects}" for f in diagnosis.faults]
    return Outcome(
        seed=seed,
        fault=job.fault,
        told=f"{job.told}\n  culprits {sorted(job.culprits)}, shown {sorted(job.shown)}; "
        f"answer: {diagnosis.verdict.value}, {diagnosis.suspects}, {faults}",
        ending=ending,
        named=len(named),
        true=len(named & job.culprits),
        shown=len(job.shown),
        found=len(found),
    )


def answer(seed: int, *, through_files: bool = False) -> Outcome:
    """Draw the job of a seed, diagnose it, and judge the answer."""
    job = made(seed)
    return judge(seed, job, diagnose(job, through_files=through_files))


def rows(outcomes: Iterable[Outcome]) -> list[tuple[str, ...]]:
    """A line per fault, and one of all, as ``HEAD`` names them."""
    by_fault: dict[str, Counter[str]] = {fault: Counter() for fault in (*FAULTS, "all")}
    for outcome in outcomes:
        for fault in (outcome.fault, "all"):
            by_fault[fault] += Counter(
                {
                    "jobs": 1,
                    outcome.ending: 1,
                    "named": outcome.named,
                    "true": outcome.true,
                    "shown": outcome.shown,
                    "found": outcome.found,
                }
            )
    return [
        (
            fault,
            f"{count['jobs']:,}",
            *(f"{count[ending]:,}" for ending in ENDINGS),
            f"{count['named']:,}",
            part(count["true"], count["named"]),
            f"{count['shown']:,}",
            part(count["found"], count["shown"]),
        )
        for fault, count in by_fault.items()
        if count
    ]


def part(some: int, whole: int) -> str:
    """A share with four digits, never rounded up to one; a dash where there is nothing."""
    return f"{math.floor(some / whole * 10_000) / 10_000:.4f}" if whole else "-"
