"""Writes what each rank's recorder would hold: NCCL, torch's Gloo, and TorchComms style."""

from __future__ import annotations

import pickle
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.made_jobs.operations import Collective, Group, Shape, Transfer
from tests.made_jobs.simulate import Job, Task, simulate

from fr_analysis.read.dump import build_dump
from fr_analysis.trace import Trace

Dump = dict[str, Any]
Dumps = dict[int, Dump]

TIMEOUT_MS = 600_000
_FRAMES = {
    name: (
        {"name": name, "filename": "/opt/venv/site-packages/torch/distributed/c10d.py", "line": 80},
        {"name": f"train_{name}", "filename": "/job/train.py", "line": 100 + at},
    )
    for at, name in enumerate(("collective", "transfer", "batch"))
}


@dataclass(frozen=True)
class Recorder:
    """How the job was recorded.

    Attributes:
        ring: entries per rank; older ones are lost.
        only_active: entries known to be complete are left out.
        timing: the device's start of an operation is recorded (TORCH_NCCL_ENABLE_TIMING).
        skew_ns: per rank, how much its host's clock is ahead.
        aborted: the abort after the timeout marked what hung as complete.
        until_ns: when the dumps were taken, for a job that still runs; None at the end.
        missing: ranks that left no dump.
        version: of the format.
    """

    ring: int = 2000
    only_active: bool = False
    timing: bool = False
    skew_ns: Mapping[int, int] = field(default_factory=dict)
    aborted: bool = False
    until_ns: int | None = None
    missing: frozenset[int] = frozenset()
    version: str = "2.10"


def _sizes(shapes: tuple[Shape, ...]) -> list[list[int]]:
    return [list(shape) for shape in shapes]


class _Clock:
    """When a rank's recorder saw the things that happened to one task."""

    def __init__(self, task: Task, recorder: Recorder, aborted_ns: int) -> None:
        skew = recorder.skew_ns.get(task.rank, 0)
        until = recorder.until_ns if recorder.until_ns is not None else sys.maxsize
        self.created_ns = task.created_ns + skew
        begun, done = task.begun_ns, task.done_ns
        self.begun_ns = begun + skew if begun is not None and begun <= until else None
        self.done_ns = done + skew if done is not None and done <= until else None
        if self.done_ns is None and recorder.aborted:
            self.done_ns = aborted_ns + skew


def _kept(tasks: list[Task], recorder: Recorder) -> list[Task]:
    until = recorder.until_ns
    return tasks if until is None else [task for task in tasks if task.created_ns <= until]


def _end_ns(tasks: dict[int, list[Task]]) -> int:
    """When the watchdog gives up: a timeout after the last thing that happened."""
    last = max(task.done_ns or task.created_ns for mine in tasks.values() for task in mine)
    return last + TIMEOUT_MS * 1_000_000


def _local_ids(groups: list[Group], rank: int) -> dict[str, int]:
    mine = [group for group in groups if rank in group.members]
    return {group.name: at for at, group in enumerate(mine)}


def nccl(job: Job, recorder: Recorder | None = None) -> Dumps:
    """Run a job on NCCL and dump it."""
    recorder = recorder or Recorder()
    ran = simulate(job)
    aborted_ns = _end_ns(ran)
    dumps = {}
    for rank in sorted(set(ran) - job.dead - recorder.missing):
        dumps[rank] = _nccl_dump(rank, _kept(ran[rank], recorder), job, recorder, aborted_ns)
    return dumps


def _nccl_dump(rank: int, tasks: list[Task], job: Job, recorder: Recorder, aborted_ns: int) -> Dump:
    ids = _local_ids(job.groups, rank)
    numbers: dict[str, int] = defaultdict(int)
    transfers: dict[str, int] = defaultdict(int)
    operations: dict[str, int] = defaultdict(int)
    status = {
        str(local): {
            "last_enqueued_collective": -1,
            "last_started_collective": -1,
            "last_completed_collective": -1,
        }
        for local in ids.values()
    }
    entries: list[Dump] = []

    def record(
        task: Task,
        name: str,
        inputs: tuple[Shape, ...],
        outputs: tuple[Shape, ...],
        dtype: str,
        clock: _Clock | None,
        frames: str,
        splits: Collective | None = None,
    ) -> None:
        group = task.operation.group
        operations[group.name] += 1
        begun = clock.begun_ns if clock else None
        done = clock.done_ns if clock else None
        started = recorder.timing and begun is not None
        entry = {
            "frames": list(_FRAMES[frames]),
            "record_id": len(entries),
            "pg_id": ids[group.name],
            "process_group": (group.name, group.description),
            "collective_seq_id": numbers[group.name],
            "p2p_seq_id": transfers[group.name],
            "op_id": operations[group.name],
            "profiling_name": f"nccl:{name}",
            "time_created_ns": _Clock(task, recorder, aborted_ns).created_ns,
            "input_sizes": _sizes(inputs),
            "input_dtypes": [dtype] * len(inputs),
            "output_sizes": _sizes(outputs),
            "output_dtypes": [dtype] * len(outputs),
            "state": "completed" if done else "started" if started else "scheduled",
            "time_discovered_started_ns": begun if started else None,
            "time_discovered_completed_ns": done,
            "retired": done is not None,
            "timeout_ms": TIMEOUT_MS,
            "is_p2p": frames != "collective",
        }
        if recorder.timing and done and begun:
            entry["duration_ms"] = (done - begun) / 1e6
        if splits is not None and splits.input_splits is not None:
            entry["input_split_sizes"] = list(splits.input_splits)
            entry["output_split_sizes"] = list(splits.output_splits or ())
        entries.append(entry)
        if frames == "collective":
            counters = status[str(ids[group.name])]
            counters["last_enqueued_collective"] = numbers[group.name]
            if started:
                counters["last_started_collective"] = numbers[group.name]
            if done:
                counters["last_completed_collective"] = numbers[group.name]

    for task in tasks:
        clock = _Clock(task, recorder, aborted_ns)
        operation = task.operation
        if isinstance(operation, Collective):
            numbers[operation.group.name] += 1
            record(
                task,
                operation.operation,
                operation.inputs,
                operation.outputs,
                operation.dtype,
                clock,
                "collective",
                operation,
            )
        elif isinstance(operation, Transfer):
            transfers[operation.group.name] += 1
            _record_transfer(record, task, operation, clock, "transfer")
        else:
            # Starting a batch counts as a collective, whatever the batch then holds; its
            # inner operations are never updated (pytorch#137969).
            numbers[operation.group.name] += 1
            for transfer in operation.transfers:
                _record_transfer(record, task, transfer, None, "batch")
            record(task, "coalesced", (), (), "Float", clock, "batch")
    kept = entries[-recorder.ring :]
    if recorder.only_active:
        kept = [entry for entry in kept if entry["time_discovered_completed_ns"] is None]
    return {
        "version": recorder.version,
        "pg_config": {
            group.name: {
                "name": group.name,
                "desc": group.description,
                "ranks": str(list(group.members)),
            }
            for group in job.groups
            if rank in group.members
        },
        "pg_status": status,
        "nccl_version": "2.27.5",
        "entries": kept,
    }


def _record_transfer(
    record: Any, task: Task, transfer: Transfer, clock: _Clock | None, frames: str
) -> None:
    members = sorted(transfer.group.members)
    me, peer = members.index(task.rank), members.index(transfer.peer)
    name = f"send {me}->{peer}" if transfer.is_send else f"recv {me}<-{peer}"
    shape = (transfer.shape,)
    inputs, outputs = (shape, ()) if transfer.is_send else ((), shape)
    record(task, name, inputs, outputs, "BFloat16", clock, frames)


def gloo(job: Job, recorder: Recorder | None = None) -> Dumps:
    """Run a job on torch's Gloo process group and dump it.

    Sends and receives leave no entry, groups are not declared, and the operation that
    timed out is marked as complete where ``aborted``.
    """
    recorder = recorder or Recorder()
    job.host_waits = True
    ran = simulate(job)
    aborted_ns = _end_ns(ran)
    dumps = {}
    for rank in sorted(set(ran) - job.dead - recorder.missing):
        ids = _local_ids(job.groups, rank)
        counts: dict[str, int] = defaultdict(int)
        completed: dict[str, int] = defaultdict(int)
        entries: list[Dump] = []
        for task in _kept(ran[rank], recorder):
            operation = task.operation
            if not isinstance(operation, Collective):
                continue
            group = operation.group
            counts[group.name] += 1
            clock = _Clock(task, recorder, aborted_ns)
            if clock.done_ns:
                completed[group.name] = counts[group.name]
            entries.append(
                _cpu_entry(operation, clock, len(entries), counts[group.name], ids[group.name])
            )
        dumps[rank] = {
            "version": recorder.version,
            "comm_lib_version": "",
            "pg_config": {
                "": {"name": "", "desc": "", "ranks": str(sorted(job.programs))},
            },
            "pg_status": {
                str(local): {
                    "last_enqueued_collective": counts[name] or -1,
                    "last_started_collective": -1,
                    "last_completed_collective": completed[name] or -1,
                }
                for name, local in ids.items()
            },
            "entries": entries[-recorder.ring :],
        }
    return dumps


def torchcomms(job: Job, recorder: Recorder | None = None) -> Dumps:
    """Run a job on TorchComms over Gloo and dump it: numbers count per recorder, from 0."""
    recorder = recorder or Recorder()
    job.host_waits = True
    ran = simulate(job)
    aborted_ns = _end_ns(ran)
    dumps = {}
    for rank in sorted(set(ran) - job.dead - recorder.missing):
        ids = _local_ids(job.groups, rank)
        entries: list[Dump] = []
        for task in _kept(ran[rank], recorder):
            if isinstance(task.operation, Collective):
                clock = _Clock(task, recorder, aborted_ns)
                at = len(entries)
                entry = _cpu_entry(task.operation, clock, at, at, ids[task.operation.group.name])
                group = task.operation.group
                entry["process_group"] = (_comm_name(group), "gloo")
                if clock.done_ns:
                    entry["duration_ms"] = (clock.done_ns - clock.created_ns) / 1e6
                entries.append(entry)
        dumps[rank] = {
            "version": recorder.version,
            "comm_lib_version": "",
            "pg_config": {
                _comm_name(group): {
                    "name": _comm_name(group),
                    "desc": "gloo",
                    "ranks": str(list(group.members)).replace(" ", ""),
                }
                for group in job.groups
                if rank in group.members
            },
            "pg_status": {},
            "entries": entries[-recorder.ring :],
        }
    return dumps


def _comm_name(group: Group) -> str:
    return "world" if group.description == "default_pg" else f"{group.description}_{group.name}"


def _cpu_entry(operation: Collective, clock: _Clock, record: int, number: int, local: int) -> Dump:
    return {
        "frames": list(_FRAMES["collective"]),
        "record_id": record,
        "pg_id": local,
        "process_group": (operation.group.name, operation.group.description),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": f"gloo:{operation.operation}",
        "time_created_ns": clock.created_ns,
        "input_sizes": _sizes(operation.inputs),
        "input_dtypes": [operation.dtype] * len(operation.inputs),
        "output_sizes": _sizes(operation.outputs),
        "output_dtypes": [operation.dtype] * len(operation.outputs),
        "state": "scheduled",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": clock.done_ns is not None,
        "timeout_ms": TIMEOUT_MS,
        "is_p2p": False,
    }


def trace_of(dumps: Dumps, expected_world_size: int | None = None) -> Trace:
    """The dumps as the analyzer reads them, without the way through files."""
    return Trace(
        dumps={
            rank: build_dump(content, rank, Path(f"made_{rank}"))
            for rank, content in sorted(dumps.items())
        },
        expected_world_size=expected_world_size,
    )


def write(dumps: Dumps, folder: Path, prefix: str = "_dump_") -> Path:
    """Write one pickle per rank, protocol 2 as torch does; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, content in dumps.items():
        (folder / f"{prefix}{rank}").write_bytes(pickle.dumps(content, protocol=2))
    return folder
