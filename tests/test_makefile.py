"""Where set-up cannot work, make says in one line what to do."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support import ROOT


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with just what set-up reads, and no .venv."""
    for name in ("Makefile", "requirements.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def make(checkout: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run make there."""
    return subprocess.run(
        ["make", *arguments],
        cwd=checkout,
        capture_output=True,
        text=True,
        timeout=200,
        env=os.environ | env,
        check=False,
    )


def interpreter(checkout: Path, script: str) -> str:
    """An interpreter that behaves as a broken one does."""
    path = checkout / "python"
    path.write_text(f'#!/bin/sh\n{script}\nexec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return str(path)


def complaint(done: subprocess.CompletedProcess[str]) -> str:
    """The one line that make prints for the user, before its own."""
    assert done.returncode != 0
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("make: ")]
    return line


def test_no_such_interpreter(checkout: Path) -> None:
    line = complaint(make(checkout, "setup", "PYTHON=python-that-is-not-there"))
    assert "no 'python-that-is-not-there' here; install Python 3.11" in line


def test_interpreter_too_old(checkout: Path) -> None:
    old = interpreter(
        checkout,
        'case "$*" in *version_info*) exit 1;; --version) echo Python 3.9.2; exit;; esac',
    )
    line = complaint(make(checkout, "setup", f"PYTHON={old}"))
    assert "Python 3.9.2 is too old; install Python 3.11 or newer" in line


def test_no_venv_module(checkout: Path) -> None:
    bare = interpreter(checkout, 'case "$*" in *ensurepip*) exit 1;; esac')
    line = complaint(make(checkout, "setup", f"PYTHON={bare}"))
    assert "has no venv module; on Debian or Ubuntu: apt-get install python3-venv" in line


def test_no_network(checkout: Path) -> None:
    # An index on a closed port of this host: what a machine without a network gets.
    done = make(
        checkout,
        "setup",
        f"PYTHON={sys.executable}",
        PIP_INDEX_URL="http://127.0.0.1:9/simple",
        PIP_EXTRA_INDEX_URL="",
        PIP_FIND_LINKS="",
        PIP_CONFIG_FILE=os.devnull,
        PIP_RETRIES="0",
        PIP_NO_CACHE_DIR="1",
    )
    assert "check the network or the package index, then run make again" in complaint(done)
    assert not (checkout / ".venv" / ".installed").exists()


def test_help_lists_every_target(checkout: Path) -> None:
    done = make(checkout, "help")
    for target in ("html", "test", "lint", "linkcheck", "urls", "serve", "clean"):
        assert f"make {target} " in done.stdout
