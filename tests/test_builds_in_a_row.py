"""Builds that fail, hang or tell something else are counted as such."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from benchmarks.reliability.builds import (
    Build,
    Series,
    as_table,
    build_in_a_row,
    build_once,
    build_side_by_side,
)

ANSWERS = """
import pathlib

folder = pathlib.Path("_build/captures/page")
folder.mkdir(parents=True)
"""


def commit(folder: Path, conf: str, page: str = "Page\n====\n") -> Path:
    """Make a repository with a site of one page, whose `conf.py` begins like this."""
    (folder / "conf.py").write_text(f"{ANSWERS}{conf}\nhtml_theme = 'basic'\n")
    (folder / "index.rst").write_text(page)
    git = ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@localhost"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "A site"]):
        subprocess.run([*git, *arguments], check=True)
    return folder


def test_each_build_begins_from_nothing_and_its_answers_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tries = tmp_path / "tries"
    (tmp_path / "site").mkdir()
    site = commit(
        tmp_path / "site",
        f"tries = pathlib.Path({str(tries)!r})\n"
        "seen = tries.read_text() if tries.exists() else ''\n"
        "tries.write_text(seen + 'x')\n"
        "suspect = 3 if seen == 'xx' else 2\n"
        "evidence = f'    the others waited 1.{len(seen)} s for it'\n"
        "text = f'FAULT: suspect rank {suspect}.\\n{evidence}\\n'\n"
        "(folder / 'fr_analysis.txt').write_text(text)\n",
    )
    series = build_in_a_row(site, 3)
    assert tries.read_text() == "xxx"
    (row,) = as_table([series]).rows
    assert row[:4] == ("one after the other", "3", "0", "1")
    out = capsys.readouterr().out
    assert (
        "page/fr_analysis.txt: ['FAULT: suspect rank 3.'] after ['FAULT: suspect rank 2.']" in out
    )


def test_a_warning_fails_a_build_also_beside_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = commit(tmp_path, "", "Page\n====\n\n:ref:`nowhere`\n")
    series = build_side_by_side(site, 2)
    (row,) = as_table([series]).rows
    assert row[1:] == ("2", "2", "0", "-", "-")
    assert capsys.readouterr().out.count("undefined label") == 2


def test_a_build_that_hangs_has_failed(tmp_path: Path) -> None:
    site = commit(tmp_path, "import signal\nsignal.pause()\n")
    assert build_once(site, deadline_s=3).failed


def test_answers_are_compared_with_the_first_build_that_ended() -> None:
    failed, yes = Build(True, 1.0, {}), Build(False, 2.0, {"page": ["yes"]})
    (row,) = as_table([Series("so", [failed, yes, yes])]).rows
    assert row[1:] == ("3", "1", "0", "2 s", "2 s")
