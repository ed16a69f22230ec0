"""What a dump or a snapshot holds never commands the terminal that its diagnosis is shown on."""

from __future__ import annotations

from pathlib import Path

from tests.hostile.pickle_tricks import PROTO4, stack_name

from fr_analysis.trace import Frame
from plain_dumps import dump, entry, write, write_job
from support import fr_analysis

CONTROL = "\x1b]0;owned\x07\x9b31m\u202e"


def hang(folder: Path) -> Path:
    """Ranks 0 and 2 wait for rank 1, which left no dump."""
    for rank in (0, 2):
        waiting = entry(4, state="scheduled", retired=False)
        content = dump(3)
        content["entries"].append(waiting)
        write(folder / f"rank_{rank}", content)
    return folder


def shown(folder: Path, *options: str) -> str:
    """What the command prints, which must be harmless."""
    done = fr_analysis(folder, *options)
    for line in (done.stdout + done.stderr).split("\n"):
        assert line.isprintable(), line
    return done.stdout


def test_names_that_a_pickle_asks_to_import(tmp_path: Path) -> None:
    write_job(tmp_path)
    name = CONTROL * 1000
    (tmp_path / "rank_2").write_bytes(PROTO4 + stack_name(name, name) + b".")
    text = shown(tmp_path)
    assert "asks to import ?]0;owned" in text
    assert len(text) < 2000


def test_the_name_of_a_second_dump(tmp_path: Path) -> None:
    write_job(tmp_path)
    write(tmp_path / f"rank_{CONTROL}_1", dump(2))
    assert "is a second dump of rank 1" in shown(tmp_path)


def test_lines_of_a_snapshot(tmp_path: Path) -> None:
    (hang(tmp_path) / "stacks_20260101_000000.txt").write_text(
        "=== Rank 1: http://a ===\n"
        "Thread 0x00007f (most recent call first):\n"
        f'  File "/job/{CONTROL}.py", line {"9" * 5000} in step{CONTROL}\n'
    )
    text = shown(tmp_path, "--print-stack-trace")
    assert f"is at {Frame('/job/?]0;owned??31m?.py', 0, 'step?]0;owned??31m?')}" in text
