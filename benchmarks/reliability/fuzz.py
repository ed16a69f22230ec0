"""A coverage-guided fuzzer on what reads untrusted bytes.

Each target is one of ``tests.hostile.properties``, run in a process of its own, by atheris, which
is the extra ``fuzz``. The package is instrumented, so that inputs which reach new code are kept.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.hostile import mutations
from tests.hostile.bombs import BOUND_OF_A_READ_S

SAMPLES = mutations.ROOT / "tests" / "fr_analysis" / "read" / "stacks"
MOST_BYTES = 1 << 16


def _dumps() -> list[bytes]:
    files = [file for job in mutations.real_jobs() for file in job.files]
    return [file.read_bytes() for file in files if file.stat().st_size <= MOST_BYTES]


def _regular_dumps() -> list[bytes]:
    """Dumps that are long enough to be shortened."""
    from benchmarks.inputs import LargeJob, dump_of
    from benchmarks.torch_pickler import dumps

    made = [dump_of(LargeJob(ranks=32, entries=entries), 3) for entries in (90, 150)]
    frames = [[frame for entry in one["entries"] for frame in entry["frames"]] for one in made]
    return [dumps(one, [*some, one]) for one, some in zip(made, frames, strict=True)]


def _snapshots() -> list[bytes]:
    return [file.read_bytes() for file in sorted(SAMPLES.iterdir())]


@dataclass(frozen=True)
class Target:
    """What is fuzzed: a property, by name, and the inputs that are begun with."""

    name: str
    holds: str
    begun_with: Callable[[], list[bytes]]


TARGETS = (
    Target("any file, read", "file_is_read_or_refused", _dumps),
    Target("any pickle, both ways", "both_ways_read_the_same", _regular_dumps),
    Target("any file in a job, to the verdict", "file_in_a_job_has_an_answer", _dumps),
    Target("any stacks snapshot", "text_is_stacks_or_refused", _snapshots),
)


@dataclass(frozen=True)
class Found:
    """What a run of the fuzzer told."""

    executions: int
    seconds: int
    edges: int
    inputs: int
    findings: list[str]


def fuzz(target: Target, seconds: int) -> Found:
    """Fuzz one target for so long.

    Raises:
        RuntimeError: the fuzzer has not told how it ended.
    """
    with tempfile.TemporaryDirectory() as name:
        corpus = Path(name) / "corpus"
        corpus.mkdir()
        for at, content in enumerate(target.begun_with()):
            (corpus / f"real_{at}").write_bytes(content)
        options = [
            f"-max_total_time={seconds}",
            f"-max_len={MOST_BYTES}",
            f"-timeout={BOUND_OF_A_READ_S}",
            "-rss_limit_mb=4096",
            "-print_final_stats=1",
            f"-artifact_prefix={name}/",
        ]
        command = [sys.executable, "-m", "benchmarks.reliability.fuzz_target", target.holds]
        done = subprocess.run(
            [*command, *options, str(corpus)],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds + 300,
            check=False,
        )
        told = done.stdout + done.stderr
        progress = re.findall(r"#(\d+)\s.*cov: (\d+).*corp: (\d+)/", told)
        ran = re.search(r"number_of_executed_units:\s*(\d+)", told)
        if not progress or not ran:
            raise RuntimeError(told[-2000:])
        findings = [
            f"{file.read_bytes()!r}: {told[-1500:]}"
            for file in Path(name).iterdir()
            if file.is_file()
        ]
        _, edges, inputs = map(int, progress[-1])
        return Found(int(ran[1]), seconds, edges, inputs, findings)
