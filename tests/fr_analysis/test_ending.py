"""A snapshot taken while an operation ends is no fault."""

import pickle
from pathlib import Path

import pytest

from fr_analysis import FaultKind, Verdict, analyze
from support import ROOT

HANG = ROOT / "tests" / "data" / "gloo_hang_3ranks"


def write(folder: Path, retired: dict[int, bool], backend: str) -> Path:
    """Dumps of two ranks that both joined the newest operation."""
    for rank, is_retired in retired.items():
        dump = pickle.loads((HANG / f"trace_{rank}").read_bytes())  # noqa: S301 (our own file)
        dump["pg_config"][""]["ranks"] = "[0, 1]"
        dump["entries"][-1]["retired"] = is_retired
        for entry in dump["entries"]:
            entry["profiling_name"] = f"{backend}:all_reduce"
        (folder / f"trace_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    return folder


def test_gloo_operation_that_a_peer_has_behind_it(tmp_path: Path) -> None:
    diagnosis = analyze(write(tmp_path, {0: True, 1: False}, "gloo"))
    assert diagnosis.verdict is Verdict.HEALTHY


@pytest.mark.parametrize(
    ("retired", "backend"),
    [({0: False, 1: False}, "gloo"), ({0: False, 1: False}, "nccl")],
)
def test_nobody_has_it_behind(tmp_path: Path, retired: dict[int, bool], backend: str) -> None:
    diagnosis = analyze(write(tmp_path, retired, backend))
    assert [fault.kind for fault in diagnosis.faults] == [FaultKind.NO_PROGRESS]
