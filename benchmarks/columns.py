"""Ways from a dump to columns, side by side, each as a multiple of unpickling the dump.

``python -m benchmarks.columns`` measures on one dump of a made job, in one process, in turns.
"""

from __future__ import annotations

import gc
import pickle
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.inputs import LargeJob, write_dump
from benchmarks.results import WAYS, spread
from fr_analysis.read.alike import patterns
from fr_analysis.read.decode import decode_distinct, shorten
from fr_analysis.read.dump import build_dump

ROUNDS = 15
RANK = 7

UNPICKLE = "pickle.load"


def _arrow_fields(entries: list[dict[str, Any]]) -> Callable[[], object]:
    import pyarrow

    kinds = pyarrow.infer_type(
        [{k: list(v) if k == "process_group" else v for k, v in entries[0].items()}]
    )
    wanted = pyarrow.struct([field for field in kinds if field.name != "frames"])
    return lambda: pyarrow.array(entries, type=wanted)


def measure() -> dict[str, list[float]]:
    """Measure all ways.

    Returns:
        By way, in each round, how many times as long as ``pickle.load`` it took.
    """
    with tempfile.TemporaryDirectory() as folder:
        write_dump(LargeJob(512, 1339), Path(folder), RANK)
        file = Path(folder) / f"rank_{RANK}"
        content = pickle.loads(file.read_bytes())  # noqa: S301 (made here)

        def unpickle() -> object:
            with file.open("rb") as stream:
                return pickle.load(stream)  # noqa: S301 (made here)

        def know_again() -> object:
            (short,) = shorten([file])
            plain, repeats = decode_distinct(file, short)
            return build_dump(plain, RANK, file, repeats=repeats)

        def leave_out() -> object:
            patterns.forget()
            return know_again()

        ways: dict[str, Callable[[], object]] = {
            UNPICKLE: unpickle,
            "numpy": lambda: build_dump(content, RANK, file),
            "pyarrow": _arrow_fields(content["entries"]),
            "repeats": leave_out,
            # After the one before.
            "alike": know_again,
        }
        found: dict[str, list[float]] = {name: [] for name in WAYS}
        gc.disable()
        for _ in range(ROUNDS):
            seconds = {}
            for name, way in ways.items():
                start = time.perf_counter()
                way()
                seconds[name] = time.perf_counter() - start
            for name, ratios in found.items():
                ratios.append(seconds[name] / seconds[UNPICKLE])
        gc.enable()
    return found


if __name__ == "__main__":
    for way, ratios in measure().items():
        print(f"{WAYS[way]}: {spread(ratios)} times as long as {UNPICKLE}")
