"""Makes the dumps of large jobs: NCCL's format, 3-D parallel groups, one rank that stops.

The bytes are as torch's own pickler writes them, see ``torch_pickler``. Usage::

    python -m benchmarks.inputs FOLDER --ranks 512 --entries 1000
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import torch_pickler

BEGIN_NS = 1_780_000_000_000_000_000
STEP_NS = 2_000_000


@dataclass(frozen=True)
class LargeJob:
    """A job of TP x PP x DP ranks that hangs at its last collective.

    Attributes:
        ranks: how many; a multiple of tp * pp.
        entries: how many each rank recorded before the hang.
        tp, pp: sizes of the tensor- and pipeline-parallel groups.
        missing: the rank that never joins the last collective; None for a healthy job.
        ring: how many entries a rank keeps.
        one_group: all collectives are of the default group.
        transfers: pipeline stages send to one another, which adds entries to those in ``entries``.
        as_json: the dumps are JSON, as torch's debug server hands them out.
    """

    ranks: int
    entries: int
    tp: int = 8
    pp: int = 4
    missing: int | None = 5
    ring: int = 2000
    one_group: bool = False
    transfers: bool = False
    as_json: bool = False

    def recorded(self) -> int:
        """How many entries the dumps of this job hold."""
        return sum(min(sum(1 for _ in _calls(self, rank)), self.ring) for rank in range(self.ranks))

    def groups_of(self, rank: int) -> list[tuple[str, str, list[int]]]:
        """Name, description and members of a rank's groups, the default group first."""
        tp, pp, dp = rank % self.tp, rank // self.tp % self.pp, rank // (self.tp * self.pp)
        stride = self.tp * self.pp
        first_tp = 1
        first_dp = first_tp + self.ranks // self.tp
        return [
            ("0", "default_pg", list(range(self.ranks))),
            (
                str(first_tp + rank // self.tp),
                "tp",
                [dp * stride + pp * self.tp + t for t in range(self.tp)],
            ),
            (
                str(first_dp + pp * self.tp + tp),
                "dp",
                [d * stride + pp * self.tp + tp for d in range(self.ranks // stride)],
            ),
            (
                str(first_dp + stride + dp * self.tp + tp),
                "pp",
                [dp * stride + p * self.tp + tp for p in range(self.pp)],
            ),
        ]


FRAMES = [
    [
        {"name": name, "filename": f"/opt/venv/lib/torch/distributed/{name}.py", "line": 100 + at}
        for at, name in enumerate(["distributed_c10d", "c10d_logger", "hooks", "reducer", "engine"])
    ]
    + [{"name": caller, "filename": "/home/you/train.py", "line": line}]
    for caller, line in (("forward", 31), ("backward", 47), ("step", 60))
]
_ONE, _ALL = 0, 1
"""How many times its size a tensor has: once, or once for each rank of the group."""
_CALLS = (
    (1, "nccl:all_reduce", [4096, 1024], _ONE, _ONE, 0),
    (1, "nccl:_all_gather_base", [512, 1024], _ONE, _ALL, 0),
    (1, "nccl:all_reduce", [4096, 1024], _ONE, _ONE, 1),
    (2, "nccl:_reduce_scatter_base", [65536], _ALL, _ONE, 1),
    (2, "nccl:_all_gather_base", [131072], _ONE, _ALL, 2),
)
"""Group, operation, size of a part, of the input, of the output, and stack."""


@dataclass(frozen=True)
class _Call:
    """What a rank calls; ``which`` of its groups, and of the stacks."""

    which: int
    name: str
    input_size: list[int]
    output_size: list[int]
    frames: int
    is_p2p: bool = False


def _transfers(job: LargeJob, rank: int) -> Iterator[str]:
    """What a pipeline stage receives from the one before, and sends to the next, in each step."""
    stage = rank // job.tp % job.pp
    if stage > 0:
        yield f"nccl:recv {stage}<-{stage - 1}"
    if stage + 1 < job.pp:
        yield f"nccl:send {stage}->{stage + 1}"


def _calls(job: LargeJob, rank: int) -> Iterator[_Call]:
    """What a rank calls, one after the other."""
    sizes = [len(members) for _, _, members in job.groups_of(rank)]
    steps = []
    for which, name, size, of_input, of_output, frames in _CALLS:
        where = 0 if job.one_group else which
        input_size, output_size = (
            [size[0] * (sizes[where] if of is _ALL else 1), *size[1:]]
            for of in (of_input, of_output)
        )
        steps.append(_Call(where, name, input_size, output_size, frames))
    transfers = [
        _Call(3, name, [4096, 1024], [4096, 1024], 0, True) for name in _transfers(job, rank)
    ]
    for at in range(job.entries):
        yield steps[at % 5]
        if job.transfers and at % 5 == 0:
            yield from transfers
    if job.missing is None or rank != job.missing:
        yield _Call(0, "nccl:all_reduce", [1], [1], 2)


def _entries(job: LargeJob, rank: int) -> Iterator[dict[str, Any]]:
    groups = job.groups_of(rank)
    collectives, transfers = [0] * len(groups), [0] * len(groups)
    calls = list(_calls(job, rank))
    for record, call in enumerate(calls):
        hangs = job.missing not in (None, rank) and record + 1 == len(calls)
        which = call.which
        counts = transfers if call.is_p2p else collectives
        counts[which] += 1
        created = BEGIN_NS + record * STEP_NS + rank % 97 * 1000
        yield {
            "frames": list(FRAMES[call.frames]),
            "record_id": record,
            "pg_id": which,
            "process_group": (groups[which][0], groups[which][1]),
            "collective_seq_id": collectives[which],
            "p2p_seq_id": transfers[which],
            "op_id": collectives[which] + transfers[which],
            "profiling_name": call.name,
            "time_created_ns": created,
            "duration_ms": None if hangs else 0.8,
            # As torch writes them: lists of their own, strings and frames shared.
            "input_sizes": [list(call.input_size)],
            "input_dtypes": ["BFloat16"],
            "output_sizes": [list(call.output_size)],
            "output_dtypes": ["BFloat16"],
            "state": "started" if hangs else "completed",
            "time_discovered_started_ns": created + 100_000,
            "time_discovered_completed_ns": None if hangs else created + 900_000,
            "retired": not hangs,
            "timeout_ms": 600_000,
            "is_p2p": call.is_p2p,
        }


def dump_of(job: LargeJob, rank: int) -> dict[str, Any]:
    """What one rank's dump holds."""
    entries = list(_entries(job, rank))[-job.ring :]
    last = {str(local): {"last_enqueued_collective": -1} for local in range(4)}
    for entry in entries:
        if entry["is_p2p"]:
            continue
        number = entry["collective_seq_id"]
        completed = number if entry["retired"] else number - 1
        last[str(entry["pg_id"])] = {
            "last_enqueued_collective": number,
            "last_started_collective": number,
            "last_completed_collective": completed,
        }
    return {
        "version": "2.10",
        "pg_config": {
            name: {"name": name, "desc": description, "ranks": str(members)}
            for name, description, members in job.groups_of(rank)
        },
        "pg_status": last,
        "nccl_version": "2.27.5",
        "entries": entries,
    }


def _as_json(dump: dict[str, Any]) -> dict[str, Any]:
    """As torch writes it: without frames, times that are not there as 0, counters as texts."""
    for entry in dump["entries"]:
        del entry["frames"]
        entry["time_discovered_completed_ns"] = entry["time_discovered_completed_ns"] or 0
    for counters in dump["pg_status"].values():
        counters |= {name: str(value) for name, value in counters.items()}
    return dump


def write_dump(job: LargeJob, folder: Path, rank: int) -> None:
    """Write one rank's dump."""
    if job.as_json:
        (folder / f"rank_{rank}.json").write_text(json.dumps(_as_json(dump_of(job, rank))))
        return
    frames = [frame for stack in FRAMES for frame in stack]
    (folder / f"rank_{rank}").write_bytes(torch_pickler.dumps(dump_of(job, rank), frames))


def write_job(job: LargeJob, folder: Path) -> Path:
    """Write the dumps of all ranks.

    Args:
        job: the job.
        folder: where to; made if it is not there.

    Returns:
        The folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor() as pool:
        for _ in pool.map(partial(write_dump, job, folder), range(job.ranks), chunksize=8):
            pass
    return folder


def main() -> None:
    """Write the dumps of a job."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=512)
    parser.add_argument("--entries", type=int, default=1000)
    options = parser.parse_args()
    write_job(LargeJob(options.ranks, options.entries), options.folder)


if __name__ == "__main__":
    main()
