"""Copies in JSON (``--debug``) of pickles that JSON cannot say, and in places that take none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.hostile.bombs import dumped

from plain_dumps import dump, write, write_job
from support import fr_analysis


def _endless() -> list[Any]:
    endless: list[Any] = []
    endless.append(endless)
    return endless


def _doubled(times: int) -> list[Any]:
    doubled: list[Any] = ["x" * 100]
    for _ in range(times):
        doubled = [doubled, doubled]
    return doubled


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (_endless, "cannot be said in JSON (Circular reference detected)"),
        (lambda: _doubled(40), "would be far larger as JSON than a dump of its size is"),
        (lambda: 1 << 20_000, "cannot be said in JSON (Exceeds the limit (4300 digits)"),
    ],
    ids=["endless", "doubled", "huge number"],
)
def test_what_json_cannot_say_is_told_and_the_rest_is_copied(
    made: Any, told: str, tmp_path: Path
) -> None:
    write_job(tmp_path)
    write(tmp_path / "rank_0", dump(2, more=made()))
    done = fr_analysis(tmp_path, "--debug")
    assert (done.returncode, done.stdout[:7]) == (0, "HEALTHY")
    assert f"rank_0: not copied, it {told}" in done.stderr
    assert not (tmp_path / "rank_0.json").exists()
    assert json.loads((tmp_path / "rank_1.json").read_text())["version"] == "2.10"


def test_lists_in_lists_are_told(tmp_path: Path) -> None:
    (tmp_path / "rank_0").write_bytes(dumped(more=b"]" * 5000 + b"a" * 4999))
    told = fr_analysis(tmp_path, "--debug").stderr
    assert told.endswith("rank_0: not copied, it is nested too deeply for JSON\n")
    assert not (tmp_path / "rank_0.json").exists()


def test_a_file_is_no_directory_for_copies(tmp_path: Path) -> None:
    write_job(tmp_path / "dumps")
    taken = tmp_path / "taken"
    taken.write_text("mine")
    done = fr_analysis(tmp_path / "dumps", "--debug", "-o", taken)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "taken: is no directory" in done.stderr
    assert taken.read_text() == "mine"


def test_half_a_copy_is_not_left(tmp_path: Path) -> None:
    write_job(tmp_path)
    write(tmp_path / "rank_0", dump(2, entries=500))
    command = f"ulimit -f 100; {sys.executable} -m fr_analysis {tmp_path} --debug"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "rank_0.json: cannot be written (File too large)" in done.stderr
    assert not (tmp_path / "rank_0.json").exists()
