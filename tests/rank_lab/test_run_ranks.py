"""run_ranks on real processes: what it collects, and that nothing outlives it."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from rank_lab import RankLabError, RunRecord, WarmLauncher, run_ranks

SLEEPER = "import time; time.sleep(600)"


@pytest.fixture(scope="module", params=["new processes", "warm"])
def run(request: pytest.FixtureRequest) -> Iterator[Callable[..., RunRecord]]:
    """run_ranks in both ways to start: what it promises does not depend on that."""
    if request.param == "warm":
        with WarmLauncher() as launcher:
            yield partial(run_ranks, launcher=launcher)
    else:
        yield run_ranks


def script(folder: Path, text: str) -> Path:
    """Write a script for the ranks."""
    path = folder / "script.py"
    path.write_text(f"import os, subprocess, sys, time\nrank = int(os.environ['RANK'])\n{text}")
    return path


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def pid_from(record: RunRecord, name: str) -> int:
    """Read a process id that a rank has left in its working directory."""
    return int((record.run_dir / name).read_text())


def test_keeps_the_output_of_each_rank_apart(run: Callable[..., RunRecord], tmp_path: Path) -> None:
    lines = "for i in range(200): print(rank, i, flush=True)\nprint('bad', rank, file=sys.stderr)"
    record = run(script(tmp_path, lines), nproc=2, run_dir=tmp_path / "run", deadline_s=60)
    for rank in range(2):
        output = record.ranks[rank]
        assert output.rank == rank
        assert output.stdout.splitlines() == [f"{rank} {i}" for i in range(200)]
        assert output.stderr == f"bad {rank}\n"
    assert record.text == "".join(rank.stdout + rank.stderr for rank in record.ranks)
    assert record.exit_status == 0
    assert not record.timed_out
    assert not record.survivors
    assert record.launcher_output == ""


def test_gives_the_script_its_arguments_environment_and_a_clean_place(
    run: Callable[..., RunRecord], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "MASTER_PORT", "FR_DUMP_INTERVAL", "PYTHONUNBUFFERED", "LOCAL_RANK"):
        monkeypatch.setenv(name, "77")
    text = (
        "names = 'FR_DUMP_INTERVAL', 'PYTHONUNBUFFERED', 'HANGING_RANK', 'FR_DUMP_DIR'\n"
        "print(sys.argv[1:], os.getcwd(), [os.environ.get(name) for name in names])\n"
        "print(os.environ['LOCAL_RANK'], os.environ['MASTER_PORT'])"
    )
    run_dir = tmp_path / "run"
    record = run(
        script(tmp_path, text),
        nproc=1,
        run_dir=run_dir,
        deadline_s=60,
        env={"HANGING_RANK": "0"},
        args=["--flag", "a b"],
    )
    first, second = record.ranks[0].stdout.splitlines()
    assert first == f"['--flag', 'a b'] {run_dir} [None, None, '0', '{run_dir / 'dumps'}']"
    assert second.startswith("0 ")
    assert second != "0 77"


def test_collects_dumps_by_rank_and_stacks(tmp_path: Path) -> None:
    text = (
        "from pathlib import Path\n"
        "dumps = Path(os.environ['FR_DUMP_DIR'], 'per_rank'); dumps.mkdir(exist_ok=True)\n"
        "for i in 10, 9: (dumps / f'rank_{i}').touch()\n"
        "for name in 'stacks_20260101_000000.txt', 'fr_trace_20260101_000000.txt':\n"
        "    (dumps.parent / name).touch()"
    )
    record = run_ranks(script(tmp_path, text), nproc=1, run_dir=tmp_path / "run", deadline_s=60)
    assert [path.name for path in record.dump_files] == ["rank_9", "rank_10"]
    assert [path.name for path in record.stacks_files] == ["stacks_20260101_000000.txt"]


def test_reports_a_failing_rank(run: Callable[..., RunRecord], tmp_path: Path) -> None:
    record = run(
        script(tmp_path, "sys.exit(3 if rank == 1 else 0)"),
        nproc=2,
        run_dir=tmp_path / "run",
        deadline_s=60,
    )
    assert record.exit_status == 1
    assert not record.timed_out
    assert "exitcode  : 3" in record.launcher_output


def test_the_deadline_ends_ranks_and_orphans_in_other_sessions(
    run: Callable[..., RunRecord], tmp_path: Path
) -> None:
    # The child ignores SIGTERM, has a session of its own, and its parent does not wait for it.
    child = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEPER}"
    text = (
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}], start_new_session=True)\n"
        "open(f'child_{rank}', 'w').write(str(child.pid))\n"
        "open(f'rank_{rank}', 'w').write(str(os.getpid()))\n"
        "print('sleeping', flush=True)\n"
        "time.sleep(600)"
    )
    # On a busy machine torchrun takes many seconds to start its ranks: the deadline is for after.
    start = time.monotonic()
    record = run(script(tmp_path, text), nproc=2, run_dir=tmp_path / "run", deadline_s=25)
    assert time.monotonic() - start < 60
    assert record.timed_out
    assert record.exit_status is None
    assert [rank.stdout for rank in record.ranks] == ["sleeping\n", "sleeping\n"]
    for rank in range(2):
        assert not is_alive(pid_from(record, f"rank_{rank}"))
        child_pid = pid_from(record, f"child_{rank}")
        assert not is_alive(child_pid)
        assert any(line.startswith(f"{child_pid} ") for line in record.survivors)


def test_names_and_ends_what_a_successful_run_leaves_behind(
    run: Callable[..., RunRecord], tmp_path: Path
) -> None:
    text = (
        f"child = subprocess.Popen([sys.executable, '-c', {SLEEPER!r}], start_new_session=True)\n"
        "open('child', 'w').write(str(child.pid))"
    )
    record = run(script(tmp_path, text), nproc=1, run_dir=tmp_path / "run", deadline_s=60)
    assert record.exit_status == 0
    assert len(record.survivors) == 1
    assert "time.sleep(600)" in record.survivors[0]
    assert not is_alive(pid_from(record, "child"))


def test_two_runs_side_by_side_share_no_port(tmp_path: Path) -> None:
    text = (
        "import pathlib, torch.distributed as dist\n"
        "dist.init_process_group('gloo'); dist.barrier()\n"
        "print(os.environ['DEBUG_PORT'], os.environ['MASTER_PORT'])\n"
        # Each run holds its ports until all ranks of both have met.
        f"meeting = pathlib.Path({str(tmp_path / 'meeting')!r})\n"
        "(meeting / str(os.getpid())).touch()\n"
        "while len(list(meeting.iterdir())) < 4: time.sleep(0.05)\n"
        "dist.destroy_process_group()"
    )
    (tmp_path / "meeting").mkdir()
    path = script(tmp_path, text)
    records: dict[str, RunRecord] = {}

    def run(name: str) -> None:
        records[name] = run_ranks(path, nproc=2, run_dir=tmp_path / name, deadline_s=100)

    threads = [threading.Thread(target=run, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [records[name].exit_status for name in ("a", "b")] == [0, 0]
    ports = [records[name].ranks[0].stdout.split() for name in ("a", "b")]
    assert len(set(ports[0] + ports[1])) == 4


def test_an_interrupt_ends_the_run(tmp_path: Path) -> None:
    path = script(tmp_path, "open('rank', 'w').write(str(os.getpid())); time.sleep(600)")
    caller = (
        "from pathlib import Path\n"
        "from rank_lab import run_ranks\n"
        f"run_ranks(Path({str(path)!r}), nproc=1, run_dir=Path({str(tmp_path / 'run')!r}),"
        " deadline_s=600)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    process = subprocess.Popen(
        [sys.executable, "-c", caller], env=environment, stderr=subprocess.PIPE, text=True
    )
    pid_file = tmp_path / "run" / "rank"
    give_up_at = time.monotonic() + 60
    while not (pid_file.exists() and pid_file.read_text()) and time.monotonic() < give_up_at:
        time.sleep(0.1)
    rank_pid = int(pid_file.read_text())
    assert is_alive(rank_pid)
    process.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in process.communicate(timeout=60)[1]
    assert not is_alive(rank_pid)


def test_a_warm_launcher_serves_run_after_run_and_leaves_nothing(tmp_path: Path) -> None:
    text = "assert __name__ == '__main__'; sys.exit(rank)"
    path = script(tmp_path, text)
    children = psutil.Process().children()
    with WarmLauncher() as launcher:
        for name in "first", "second":
            record = run_ranks(
                path, nproc=2, run_dir=tmp_path / name, deadline_s=60, launcher=launcher
            )
            assert record.exit_status == 1
            assert "exitcode  : 1" in record.launcher_output
    assert psutil.Process().children() == children


def test_a_warm_launcher_that_was_killed_is_named(tmp_path: Path) -> None:
    path = script(tmp_path, "pass")
    others = psutil.Process().children()
    with WarmLauncher() as launcher:
        run_ranks(path, nproc=1, run_dir=tmp_path / "run", deadline_s=60, launcher=launcher)
        (server,) = set(psutil.Process().children()) - set(others)
        server.kill()
        server.wait()
        with pytest.raises(RankLabError, match=r"warm_process\.py (has )?ended"):
            run_ranks(path, nproc=1, run_dir=tmp_path / "again", deadline_s=60, launcher=launcher)


def test_refuses_a_missing_script(tmp_path: Path) -> None:
    with pytest.raises(RankLabError, match="no such script"):
        run_ranks(tmp_path / "none.py", nproc=1, run_dir=tmp_path / "run", deadline_s=1)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("nproc", "deadline_s"), [(0, 1.0), (-1, 1.0), (1, 0.0)])
def test_refuses_numbers_that_cannot_work(tmp_path: Path, nproc: int, deadline_s: float) -> None:
    with pytest.raises(RankLabError, match="expected"):
        run_ranks(
            script(tmp_path, ""), nproc=nproc, run_dir=tmp_path / "run", deadline_s=deadline_s
        )


def test_refuses_a_directory_with_something_in_it(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "precious").touch()
    with pytest.raises(RankLabError, match="not an empty directory"):
        run_ranks(script(tmp_path, ""), nproc=1, run_dir=tmp_path / "run", deadline_s=1)
