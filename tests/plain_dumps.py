"""Dumps as torch writes them, for tests to change and to damage."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

Dump = dict[str, Any]

NANOSECONDS = 1_800_000_000_000_000_000


def entry(number: int, *, group: tuple[str, str] = ("0", "default_pg"), **other: Any) -> Dump:
    """One collective, completed, as NCCL's recorder of dump version 2.10 writes it."""
    return {
        "record_id": number - 1,
        "pg_id": 0,
        "process_group": group,
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": NANOSECONDS + number,
        "input_sizes": [[4, 8]],
        "input_dtypes": ["Float"],
        "output_sizes": [[4, 8]],
        "output_dtypes": ["Float"],
        "state": "completed",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": True,
        "timeout_ms": 600_000,
        "is_p2p": False,
        "thread_id": "1",
        "thread_name": "python",
        "frames": [
            {"filename": "/site-packages/torch/distributed/c10d.py", "line": 9, "name": "f"},
            {"filename": "/job/train.py", "line": 42, "name": "step"},
        ],
        **other,
    }


def dump(world: int = 2, entries: int = 3, **other: Any) -> Dump:
    """A healthy rank's dump of one group of all ranks."""
    return {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(world)))}},
        "pg_status": {
            "0": {
                "last_enqueued_collective": entries,
                "last_started_collective": -1,
                "last_completed_collective": entries,
            }
        },
        "entries": [entry(number) for number in range(1, entries + 1)],
        **other,
    }


def write(path: Path, content: object) -> Path:
    """Write a pickle of protocol 2, as torch does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol=2))
    return path


def write_job(folder: Path, world: int = 2, name: str = "rank_{}") -> list[Path]:
    """Write the dumps of a healthy job."""
    return [write(folder / name.format(rank), dump(world)) for rank in range(world)]
