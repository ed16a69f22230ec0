"""Files are read in several processes where that pays, and none of these is missed or left."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from fr_analysis import analyze
from fr_analysis.read import parallel, read_trace
from fr_analysis.read.parallel import Files, read_all
from support import ROOT

HERE = os.getpid()
Result = TypeVar("Result")


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """A hundred files, large enough to be worth several processes."""
    found = []
    for rank in range(100):
        path = tmp_path / f"rank_{rank}"
        path.touch()
        os.truncate(path, 1 << 20)
        found.append((rank, path))
    return found


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests may have left a thread, such as a browser's, which does nothing now."""
    monkeypatch.setattr(parallel, "_is_alone", lambda: True)


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As many processes on every machine; and none of them is left."""
    monkeypatch.setattr(parallel, "cores", lambda: 2)
    before = set(psutil.Process().children())
    yield
    left = set(psutil.Process().children()) - before
    # Python's own helper of its executors stays.
    assert [child for child in left if "resource_tracker" not in " ".join(child.cmdline())] == []


def each(read: Callable[[int, Path], Result]) -> Callable[[Files], list[Result]]:
    """Reads some files, one by one."""
    return lambda files: [read(rank, path) for rank, path in files]


def tell(rank: int, path: Path) -> tuple[int, str, int]:
    """Instead of reading."""
    return rank, path.name, os.getpid()


@pytest.mark.usefixtures("alone")
def test_several_processes_read_and_the_order_stays(files: Files) -> None:
    results = list(read_all(each(tell), files, iter))
    assert [(rank, name) for rank, name, _ in results] == [(r, path.name) for r, path in files]
    assert HERE not in {pid for _, _, pid in results}
    assert 1 <= len({pid for _, _, pid in results}) <= 2


def test_a_few_small_files_are_read_here(tmp_path: Path) -> None:
    (tmp_path / "rank_0").write_text("x")
    assert [pid for *_, pid in read_all(each(tell), [(0, tmp_path / "rank_0")], iter)] == [HERE]


def test_among_threads_nothing_is_forked(files: Files) -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        assert {pid for *_, pid in read_all(each(tell), files, iter)} == {HERE}
    finally:
        done.set()
        thread.join()


def die_at_50(rank: int, path: Path) -> int:
    """The system kills the process that reads this one, as it does for want of memory."""
    if rank == 50 and os.getpid() != HERE:
        os.kill(os.getpid(), signal.SIGKILL)
    return rank


@pytest.mark.usefixtures("alone")
def test_what_a_killed_process_was_to_read_is_read_here(files: Files) -> None:
    assert list(read_all(each(die_at_50), files, iter)) == list(range(100))


def long_answer(rank: int, path: Path) -> bytes:
    """More than a pipe holds, and death in the middle of handing it over."""
    if os.getpid() != HERE and rank == 7:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGKILL)).start()
    return bytes(300_000)


@pytest.mark.usefixtures("alone")
def test_a_process_killed_while_it_hands_over_holds_nobody_up(files: Files) -> None:
    slow = (result for result in read_all(each(long_answer), files, iter))
    first = next(slow)
    threading.Event().wait(0.6)
    assert [first, *slow] == [bytes(300_000)] * 100


@pytest.mark.usefixtures("alone")
def test_an_interrupt_ends_all(files: Files) -> None:
    results = read_all(each(tell), files, iter)
    next(results)
    with pytest.raises(KeyboardInterrupt):
        results.throw(KeyboardInterrupt)  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_any_executor_gives_the_same_answer(kind: str) -> None:
    folder = ROOT / "tests" / "data" / "gloo_hang_3ranks"
    with (
        ThreadPoolExecutor(2)
        if kind == "threads"
        else ProcessPoolExecutor(2, multiprocessing.get_context("spawn"))
    ) as executor:
        trace = read_trace(folder, executor=executor)
    assert list(trace.dumps) == [0, 1]
    assert analyze(folder).suspects == (2,)
