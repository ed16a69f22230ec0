"""Right and wrong answers of fr-analysis and torchfrtrace on the same made dumps.

Every case is a simulated job with a fault whose ranks are known. An answer is

- right: it names exactly the ranks at fault; none, where the fault is no rank's own
  (an operation that everyone joined, equal sides) or where nothing is wrong;
- too many: all ranks at fault, and others;
- undetermined: fr-analysis says that the dumps do not decide, and names nobody;
- wrong: anything else, also an answer without any rank where one is at fault;
- crash: a traceback, a failure exit status, or more than ``LIMIT_S`` seconds.

For torchfrtrace a rank is named by ``missing ranks: {...}`` or ``Culprit rank N``. It is
told to allow incomplete ranks where dumps are missing, as its own message advises; where
it names no rank else, those without a dump count as named.
"""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.made_jobs import faults
from tests.made_jobs.dumps import Dumps, Recorder, nccl, torchcomms, write
from tests.made_jobs.operations import Batch, Collective, Compute, Group, Synchronize, Transfer
from tests.made_jobs.programs import Layout, data_parallel, one_forward_one_backward, train
from tests.made_jobs.simulate import Job

from fr_analysis import Verdict, analyze

TABLE = Path("_build/compare/table.csv")
LIMIT_S = 10
ALL_CASES_LIMIT_S = 170

_PEER = """
import json, os, signal, sys, traceback
from torch.distributed.flight_recorder import fr_trace
for case in json.load(sys.stdin):
    child = os.fork()
    if not child:
        signal.alarm(case["limit_s"])
        output = os.open(case["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1); os.dup2(output, 2)
        status = 0
        try:
            fr_trace.main(case["arguments"])
        except BaseException as error:
            traceback.print_exc()
            status = error.code or 0 if isinstance(error, SystemExit) else 1
        sys.stdout.flush(); sys.stderr.flush()
        os._exit(status if isinstance(status, int) else 1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Runs torchfrtrace's ``main`` once per case, each in a process of its own; torch takes
seconds to import, so it is imported once and the process forked."""


@dataclass(frozen=True)
class Case:
    """A made job: the kind of fault, its dumps, and the ranks at fault."""

    fault: str
    dumps: Dumps
    at_fault: frozenset[int]


def cases() -> Iterator[Case]:
    """A selection of faults, groups and ranks small enough to run in a minute."""
    small, large = Layout(2, 2, 2), Layout(4, 4, 1)
    for name, inject in (
        ("rank asleep", faults.asleep),
        ("rank dead", faults.dead),
        ("operation mismatch", faults.other_operation),
        ("size mismatch", faults.other_size),
        ("dtype mismatch", faults.other_dtype),
        ("one collective too many", faults.extra),
        ("one collective skipped", faults.skipped),
    ):
        for layout, rank, group in (
            (large, 0, "default_pg"),
            (large, 0, "tp"),
            (large, 6, "tp"),
            (large, 15, "dp"),
            (small, 0, "tp"),
            (small, 5, "dp"),
        ):
            job = inject(train(layout, steps=2, microbatches=1), [rank], group, 1)
            yield Case(name, nccl(job), frozenset({rank}))
    for rank in (0, 6, 15):
        job = faults.asleep(train(large, microbatches=1), [rank], "tp", 3)
        yield Case("rank asleep, rings wrapped", nccl(job, Recorder(ring=9)), frozenset({rank}))
        job = faults.asleep(train(large, microbatches=1), [rank], "dp", 1)
        lost = Recorder(missing=frozenset({9}))
        yield Case("rank asleep, another dump lost", nccl(job, lost), frozenset({rank}))
        job = faults.device_stuck(train(large, microbatches=1), [rank], "tp", 1)
        yield Case("device stuck, timing off", nccl(job), frozenset())
        timing = Recorder(timing=True)
        yield Case("device stuck, timing on", nccl(job, timing), frozenset({rank}))
        job = faults.all_to_all(large, train(large, steps=1), "tp")
        job = faults.other_splits(job, [rank], "tp")
        yield Case("all-to-all splits", nccl(job), frozenset({rank}))
        pair = frozenset({rank, (rank + 5) % 16})
        job = faults.asleep(train(large, microbatches=1), pair, "dp", 1)
        yield Case("two ranks asleep", nccl(job), pair)
        yield Case("membership mismatch", without_group(large, rank), frozenset({rank}))
        yield Case("order deadlock", order_deadlock(16, rank), frozenset({rank}))
        job = faults.asleep(train(large, microbatches=1), [rank], "dp", 2)
        yield Case("rank asleep, TorchComms", torchcomms(job), frozenset({rank}))
        yield Case("straggler", straggler(rank), frozenset({rank}))
    for batched in (False, True):
        for rank in (0, 3, 7):
            kind: type = Batch if batched else Transfer
            job = faults.asleep(train(small, batched=batched), [rank], "pp", 1, kind)
            name = f"stage asleep, {'batched' if batched else 'lone'} P2P"
            yield Case(name, nccl(job), frozenset({rank}))
    for size in (2, 3, 4):
        yield Case("P2P cycle", p2p_cycle(size), frozenset(range(size)))
    for pair in (frozenset({0, 1}), frozenset({1, 3})):
        job = faults.other_size(data_parallel(4), pair, "default_pg", 4)
        yield Case("two against two", nccl(job), frozenset())
    healthy: tuple[tuple[str, Dumps], ...] = (
        ("healthy", nccl(data_parallel(8))),
        ("healthy", nccl(train(large))),
        ("healthy, rings wrapped", nccl(train(large), Recorder(ring=9))),
        ("healthy, lone P2P", nccl(train(small))),
        ("healthy, batched P2P", nccl(train(small, batched=True))),
        ("healthy, batched P2P", nccl(one_forward_one_backward(4))),
        ("healthy, TorchComms", torchcomms(train(large))),
        ("healthy, uneven all-to-all", nccl(faults.all_to_all(large, train(large), "tp"))),
    )
    for name, dumps in healthy:
        yield Case(name, dumps, frozenset())


def without_group(layout: Layout, rank: int) -> Dumps:
    """A rank never created its data parallel group."""
    job = train(layout, microbatches=1)
    name = next(g.name for g in job.groups if g.description == "dp" and rank in g.members)
    job.programs[rank] = [
        step
        for step in job.programs[rank]
        if not isinstance(step, Collective) or step.group.name != name
    ]
    dumps = nccl(job)
    del dumps[rank]["pg_config"][name]
    return dumps


def order_deadlock(world: int, odd: int) -> Dumps:
    """One rank enters two groups of all ranks in the opposite order."""
    members = tuple(range(world))
    first, second = Group("0", "default_pg", members), Group("1", "metrics", members)
    path = [Collective(first, "all_reduce"), Collective(second, "all_reduce")]
    job = Job([first, second], {rank: [*path, Synchronize()] for rank in members})
    job.programs[odd] = [*path[::-1], Synchronize()]
    return nccl(job)


def p2p_cycle(size: int) -> Dumps:
    """Ranks in a ring that all send before they receive."""
    group = Group("0", "default_pg", tuple(range(4)))
    job = Job([group], {rank: [Collective(group, "all_reduce")] for rank in group.members})
    for rank in range(size):
        job.programs[rank] += [
            Transfer(group, True, (rank + 1) % size),
            Transfer(group, False, (rank - 1) % size),
            Synchronize(),
        ]
    return nccl(job)


def straggler(rank: int) -> Dumps:
    """A rank that needs longer for each of its steps."""
    job = data_parallel(16)
    job.programs[rank] = [
        Compute(80_000_000) if isinstance(step, Compute) else step for step in job.programs[rank]
    ]
    return nccl(job, Recorder(timing=True))


def run_peer(folders: list[tuple[Path, bool]]) -> list[frozenset[int] | None]:
    """The ranks that torchfrtrace names per folder of dumps; None where it crashed."""
    plan = [
        {
            "arguments": [
                str(folder),
                "-p",
                "_dump_",
                *(() if complete else ("--allow-incomplete-ranks",)),
            ],
            "output": str(folder.with_suffix(".txt")),
            "limit_s": LIMIT_S,
        }
        for folder, complete in folders
    ]
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _PEER],
        input=json.dumps(plan),
        capture_output=True,
        text=True,
        timeout=ALL_CASES_LIMIT_S,
        check=True,
    )
    answers: list[frozenset[int] | None] = []
    for status, case in zip(ran.stdout.split(), plan, strict=True):
        text = Path(str(case["output"])).read_text(errors="replace")
        crashed = int(status) != 0 or "Traceback" in text
        answers.append(None if crashed else named_by_peer(text))
    return answers


def named_by_peer(text: str) -> frozenset[int]:
    """The ranks that torchfrtrace's output names as missing or as culprits."""
    ranks = {int(rank) for rank in re.findall(r"Culprit rank (\d+)", text)}
    for listed in re.findall(r"missing ranks: \{([\d, ]*)\}", text):
        ranks.update(map(int, re.findall(r"\d+", listed)))
    if not ranks:
        for listed in re.findall(r"missed FR dumps from ranks \(\{([\d, ]*)\}\)", text):
            ranks.update(map(int, re.findall(r"\d+", listed)))
    return frozenset(ranks)


def judge(named: frozenset[int], at_fault: frozenset[int]) -> str:
    """Right, too many or wrong."""
    if named == at_fault:
        return "right"
    return "too many" if at_fault < named and at_fault else "wrong"


def main() -> int:
    """Run all cases, print the table and write it to ``TABLE``."""
    ours: dict[str, Counter[str]] = {}
    theirs: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        made = list(cases())
        folders = []
        for at, case in enumerate(made):
            folder = write(case.dumps, Path(scratch, f"case_{at:03d}"))
            folders.append((folder, _is_complete(case.dumps)))
            diagnosis = analyze(folder)
            answer = judge(frozenset(diagnosis.suspects), case.at_fault)
            undetermined = diagnosis.verdict is Verdict.UNDETERMINED
            if undetermined or (answer == "wrong" and not diagnosis.suspects):
                answer = "undetermined"
            if not case.at_fault and "healthy" in case.fault:
                answer = "right" if diagnosis.verdict is Verdict.HEALTHY else "wrong"
            ours.setdefault(case.fault, Counter())[answer] += 1
        for case, named in zip(made, run_peer(folders), strict=True):
            answer = "crash" if named is None else judge(named, case.at_fault)
            theirs.setdefault(case.fault, Counter())[answer] += 1
    rows = [
        {
            "fault": fault,
            "cases": sum(ours[fault].values()),
            "fr-analysis right": ours[fault]["right"],
            "fr-analysis undetermined": ours[fault]["undetermined"],
            "fr-analysis wrong": ours[fault]["wrong"] + ours[fault]["too many"],
            "torchfrtrace right": theirs[fault]["right"],
            "torchfrtrace too many": theirs[fault]["too many"],
            "torchfrtrace wrong": theirs[fault]["wrong"],
            "torchfrtrace crash": theirs[fault]["crash"],
        }
        for fault in ours
    ]
    total: dict[str, object] = {
        key: sum(int(row[key]) for row in rows) if key != "fault" else "all" for key in rows[0]
    }
    TABLE.parent.mkdir(parents=True, exist_ok=True)
    with TABLE.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows([*rows, total])
    widths = [max(len(str(row[key])) for row in [*rows, total]) for key in rows[0]]
    widths = [max(width, len(key)) for width, key in zip(widths, rows[0], strict=True)]
    for line in ({key: key for key in rows[0]}, *rows, total):
        cells = zip(line.values(), widths, strict=True)
        print("  ".join(str(value).ljust(width) for value, width in cells).rstrip())
    print(f"Written to {TABLE}")
    return 0


def _is_complete(dumps: Dumps) -> bool:
    """Whether every rank that is a member of a group left a dump."""
    members = {
        int(rank)
        for dump in dumps.values()
        for config in dump["pg_config"].values()
        for rank in re.findall(r"\d+", config["ranks"])
    }
    return members <= dumps.keys()


if __name__ == "__main__":
    sys.exit(main())
