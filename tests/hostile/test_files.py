"""Files and folders as nobody means them: names, links, pipes, and a folder that is being changed.

What ``tests/fr_analysis/read/test_files.py`` says of one kind at a time is put together here, and
asked of the command.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fr_analysis import FrAnalysisError, Verdict, analyze, render_json
from fr_analysis.read import read_trace
from plain_dumps import dump, write, write_job
from support import fr_analysis

NAMES = [
    "rank_-1",
    "rank_٣",  # a digit, but not of ours
    "rank_0x1",
    "rank_1e3",
    "rank_ 2",
    "rank_$(touch mark)_2",
    "rank_;touch mark;_3",
    "rank_%s%n_4",
    "rank_\n_5",
    "rank_\x1b[31m_6",
    "rank_<script>alert(1)<_7",
    "-rank_8",
    "--pattern=_9",
    "rank_[0-9]_10",
    "rank_*_11",
    "rank_\u202e_12",
    "rank_" + "9" * 200,
    "rank_" + "x" * 240 + "_13",
    "rank_14.json.gz.zst",
    "file:_rank_15",
    "~rank_16",
]


def test_odd_names_are_read_or_told_and_run_nothing(tmp_path: Path) -> None:
    for name in NAMES:
        write(tmp_path / name, dump(20))
    done = fr_analysis(tmp_path, "--format", "json", cwd=tmp_path)
    assert done.returncode in (0, 3), done.stderr
    answer = json.loads(done.stdout)
    told = {one["path"] for one in answer["unread"]}
    assert len(answer["ranks"]) + len(told) == len(NAMES)
    assert not (tmp_path / "mark").exists()
    shown = fr_analysis(tmp_path, cwd=tmp_path)
    assert all(line.isprintable() for line in shown.stdout.splitlines())


@pytest.mark.parametrize("name", NAMES)
def test_an_odd_name_can_be_given(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / name, dump(20))
    try:
        trace = read_trace(path)
    except FrAnalysisError as reason:
        told = str(reason)
        if "its name tells no rank" not in told or not told.isprintable():
            raise
    else:
        assert len(trace.dumps) == 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_what_is_no_file_is_told_and_the_rest_is_read(tmp_path: Path) -> None:
    write_job(tmp_path, world=3)
    os.mkfifo(tmp_path / "rank_3")
    (tmp_path / "rank_4").symlink_to("/dev/zero")
    (tmp_path / "rank_5").symlink_to("rank_6")
    (tmp_path / "rank_6").symlink_to("rank_5")
    (tmp_path / "rank_7").symlink_to("/proc/self/mem")
    (tmp_path / "rank_8").symlink_to(tmp_path)
    (tmp_path / "rank_9").symlink_to("rank_0")
    (tmp_path / "loop").symlink_to("..")
    os.mkfifo(tmp_path / "stacks_20260101_000000.txt")
    done = fr_analysis(tmp_path, "--format", "json")
    assert done.returncode in (0, 3), done.stderr
    answer = json.loads(done.stdout)
    assert set(answer["ranks"]) == {0, 1, 2}
    # Of rank 9 is told that this is another rank's dump.
    assert {one["rank"] for one in answer["unread"]} == {3, 4, 5, 6, 7, 9}
    assert all(one["reason"] for one in answer["unread"])


def test_a_link_out_of_the_folder_shows_nothing_of_what_it_leads_to(tmp_path: Path) -> None:
    """What stands in a file that is none of a job's is in no message."""
    secret = tmp_path / "secret"
    secret.write_text("root:hunter2:0")
    folder = tmp_path / "dumps"
    write_job(folder)
    (folder / "rank_2").symlink_to(secret)
    (folder / "stacks_20260101_000000.txt").symlink_to(secret)
    for form in ("text", "json", "html"):
        done = fr_analysis(folder, "--format", form)
        assert "hunter2" not in done.stdout + done.stderr


def _as_nobody(folder: Path) -> str:
    """What is told of files in a folder by a process that may read nothing of root's."""
    analyze(folder)  # so that nothing is left to be imported
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            told = render_json(analyze(folder))
        except BaseException as error:
            told = repr(error)
        os.write(writer, told.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        told = stream.read()
    os.waitpid(child, 0)
    return told


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody who may not read")
def test_files_that_may_not_be_read_are_told() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        write_job(folder, world=3)
        (folder / "rank_1").chmod(0)
        (unread,) = json.loads(_as_nobody(folder))["unread"]
        assert (unread["rank"], unread["reason"]) == (1, "cannot be read (Permission denied)")


@contextmanager
def changing(folder: Path) -> Iterator[None]:
    """Dumps come, go, shrink and grow, and are links and folders for a moment."""
    over = threading.Event()
    whole = (folder / "rank_0").read_bytes()

    def change() -> None:
        turn = 0
        while not over.is_set():
            turn += 1
            path = folder / f"rank_{1 + turn % 5}"
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            path.unlink(missing_ok=True)
            match turn % 6:
                case 0:
                    path.write_bytes(whole[: turn * 37 % len(whole)])
                case 1:
                    path.write_bytes(whole)
                case 2:
                    path.symlink_to("nowhere")
                case 3:
                    path.mkdir()
                case 4:
                    path.write_bytes(whole)
                    os.truncate(path, turn * 91 % len(whole))
            moved = folder / "node0"
            shutil.rmtree(moved, ignore_errors=True)
            moved.mkdir()

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_folder_that_changes_while_it_is_read(tmp_path: Path) -> None:
    content = dump(6, entries=200)
    write(tmp_path / "rank_0", content)
    verdicts = set()
    with changing(tmp_path):
        for _ in range(40):
            diagnosis = analyze(tmp_path, expected_world_size=6)
            verdicts.add(diagnosis.verdict)
            assert 0 in diagnosis.ranks
            assert all(unread.reason for unread in diagnosis.unread)
            # A rank that is not there is told, whatever became of its file.
            assert set(diagnosis.ranks) | set(diagnosis.missing_dumps) == set(range(6))
    assert Verdict.FAULT not in verdicts
