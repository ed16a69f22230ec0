"""The demo on real ranks: how it ends, and that what it leaves is the truth about the hang."""

import ast
import os
import pickle
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rank_lab import RunRecord, run_ranks

DEMO = Path(__file__).parents[1] / "intermediate_source" / "verify_flight_recorder.py"
SHORT = {"FR_COMMUNICATOR": "torch", "COMM_TIMEOUT": "5", "FR_DUMP_INTERVAL": "1"}

# (number of ranks, the rank that hangs)
RUNS = [(2, 1), (2, 0), (3, 1), (8, 5)]


@pytest.fixture(scope="module", params=RUNS, ids=[f"{n}-ranks-rank-{h}-hangs" for n, h in RUNS])
def run(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[RunRecord, int]:
    """Run the demo; return what came of it and the rank that was to hang."""
    nproc, hanging_rank = request.param
    for timeout in SHORT["COMM_TIMEOUT"], "40":
        record = run_ranks(
            DEMO,
            nproc=nproc,
            run_dir=tmp_path_factory.mktemp("demo") / "run",
            deadline_s=180,
            env={**SHORT, "HANGING_RANK": str(hanging_rank), "COMM_TIMEOUT": timeout},
        )
        # What the demo itself advises on a busy machine.
        if "try a longer COMM_TIMEOUT" not in record.text:
            break
    assert record.exit_status == 0, record.launcher_output + record.text
    return record, hanging_rank


def dumps_of(record: RunRecord) -> list[dict[str, Any]]:
    """Read the dumps that the demo's ranks have just written, by rank."""
    return [pickle.loads(path.read_bytes()) for path in record.dump_files]  # noqa: S301


def fr_trace(record: RunRecord, *options: str) -> str:
    """Run PyTorch's own analyzer on the dumps."""
    command = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace"]
    command += [str(record.dump_dir / "per_rank"), "-p", "rank_", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout + done.stderr


def test_ends_in_order_and_leaves_nothing_running(run: tuple[RunRecord, int]) -> None:
    record, _ = run
    assert not record.timed_out
    assert record.survivors == ()
    assert record.launcher_output == ""
    assert [rank.stderr for rank in record.ranks] == [""] * record.nproc
    assert not list(record.dump_dir.rglob(".*")), "a half-written dump is left"


def test_says_what_happens_on_each_rank(run: tuple[RunRecord, int]) -> None:
    record, hanging_rank = run
    for output in record.ranks:
        lines = output.stdout.splitlines()
        assert all(line.startswith(f"[rank {output.rank}] ") for line in lines)
        assert "phase 1: 3 all_reduce and 1 broadcast" in output.stdout
        hangs = output.rank == hanging_rank
        assert ("stuck in stuck_in_data_loader()" in output.stdout) is hangs
        assert ("all_reduce failed after" in output.stdout) is not hangs
    assert f"fr-analysis {record.dump_dir}\n" in record.ranks[0].stdout
    assert record.stacks_files[-1].name in record.ranks[0].stdout


def test_every_rank_has_a_dump_taken_during_the_hang(run: tuple[RunRecord, int]) -> None:
    record, hanging_rank = run
    assert [path.name for path in record.dump_files] == [f"rank_{r}" for r in range(record.nproc)]
    for rank, dump in enumerate(dumps_of(record)):
        entries = dump["entries"]
        names = [entry["profiling_name"] for entry in entries]
        healthy = ["gloo:all_reduce"] * 3 + ["gloo:broadcast"]
        waits = rank != hanging_rank
        assert names == healthy + ["gloo:all_reduce"] * waits
        assert [entry["retired"] for entry in entries] == [True] * 4 + [False] * waits
        assert all(entry["frames"] for entry in entries)
        if waits:
            frames = [frame["name"] for frame in entries[-1]["frames"]]
            assert "wait_for_stuck_rank" in frames
        (group,) = dump["pg_config"].values()
        assert {entry["process_group"] for entry in entries} == {(group["name"], group["desc"])}
        assert ast.literal_eval(group["ranks"]) == list(range(record.nproc))


def test_the_dumps_are_pickles_of_protocol_2(run: tuple[RunRecord, int]) -> None:
    record, _ = run
    assert all(path.read_bytes()[:2] == b"\x80\x02" for path in record.dump_files)


def test_snapshots_show_who_is_missing_and_where_it_sleeps(run: tuple[RunRecord, int]) -> None:
    record, hanging_rank = run
    texts = sorted(record.dump_dir.glob("fr_trace_*.txt"))
    assert texts
    assert record.stacks_files
    for path in texts:
        pending = [line for line in path.read_text().splitlines() if "gloo:all_reduce" in line][3]
        assert f"{{{hanging_rank}}}" in pending
    for path in record.stacks_files:
        _, *ranks = re.split(r"^=== Rank \d+: .*$", path.read_text(), flags=re.MULTILINE)
        assert len(ranks) == record.nproc
        for rank, stack in enumerate(ranks):
            assert ("in stuck_in_data_loader" in stack) is (rank == hanging_rank)
            assert ("in wait_for_stuck_rank" in stack) is (rank != hanging_rank)


def test_pytorchs_own_analyzer_reads_the_dumps(run: tuple[RunRecord, int]) -> None:
    record, hanging_rank = run
    assert f"missing ranks: {{{hanging_rank}}}" in fr_trace(record)
    if record.nproc == 3:  # the other views, once
        assert "missing ranks: {1}" in fr_trace(record, "--allow-incomplete-ranks")
        table = fr_trace(record, "-j")
        assert table.count("all_reduce") == 4 + 3 + 4
        assert table.count("broadcast") == 3


def test_a_taken_port_is_no_obstacle(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as other:
        other.bind(("::", 0))
        other.listen()
        port = other.getsockname()[1]
        record = run_ranks(
            DEMO,
            nproc=2,
            run_dir=tmp_path / "run",
            deadline_s=180,
            env={**SHORT, "DEBUG_PORT": str(port)},
        )
    assert record.exit_status == 0, record.text
    (line,) = [line for line in record.text.splitlines() if "is taken" in line]
    match = re.fullmatch(rf"\[rank 0\] port {port} is taken: the debug server uses (\d+)", line)
    assert match
    assert f"http://localhost:{match[1]} " in record.text
    assert record.stacks_files


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"HANGING_RANK": "2"}, "HANGING_RANK=2: expected 0 to 1"),
        ({"HANGING_RANK": "one"}, "HANGING_RANK=one: expected 0 to 1"),
        ({"FR_DUMP_INTERVAL": "8"}, "FR_DUMP_INTERVAL=8: expected seconds, from 0.1 to 7.5"),
        ({"FR_COMMUNICATOR": "mpi"}, "FR_COMMUNICATOR=mpi: expected auto or torchcomms or torch"),
        ({"WORLD_SIZE": "1"}, "--nproc_per_node=2 or more"),
        ({"TORCHELASTIC_RUN_ID": None}, "start it with torchrun"),
        ({"PYTHONPATH": "{without_tabulate}"}, "tabulate"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_setting_that_cannot_work_is_refused_in_one_line(
    variables: dict[str, str | None], said: str, tmp_path: Path
) -> None:
    (tmp_path / "tabulate.py").write_text("raise ImportError('No module named tabulate')")
    # As torchrun would set it, without the seconds that torchrun takes.
    environment: dict[str, str | None] = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("FR_", "TEST_"))},
        "RANK": "0",
        "WORLD_SIZE": "2",
        "TORCHELASTIC_RUN_ID": "x",
        **variables,
    }
    done = subprocess.run(
        [sys.executable, str(DEMO)],
        env={k: v.format(without_tabulate=tmp_path) for k, v in environment.items() if v},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert re.fullmatch(r"verify_flight_recorder: [^\n]+\n", done.stderr), done.stderr
    assert re.search(said, done.stderr), done.stderr


def test_dumps_of_another_run_are_neither_lost_nor_mixed(tmp_path: Path) -> None:
    earlier = tmp_path / "fr_dumps" / "stacks_20260101_000000.txt"
    earlier.parent.mkdir()
    earlier.write_text("precious")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, str(DEMO)],
        env={**os.environ, **SHORT, "FR_DUMP_DIR": "fr_dumps", "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if line.startswith("verify_flight_recorder")]
    assert lines == [
        "verify_flight_recorder: fr_dumps holds the dumps of another run: "
        "remove it, or set FR_DUMP_DIR"
    ]
    assert earlier.read_text() == "precious"
    assert [path for path in earlier.parent.rglob("*") if path.is_file()] == [earlier]
