"""Where set-up cannot work, make says what to do; where it takes long, that it is at work."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from site_build.browser import find_chromium
from support import ROOT

FIRST_OUTPUT_S = 5


def copy_checkout(folder: Path) -> None:
    """Copy just what set-up reads, and no .venv."""
    for name in ("Makefile", "requirements.lock", "requirements.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / ".ci", folder / ".ci")


def lend_packages(checkout: Path) -> None:
    """Have a checkout without .venv use what is installed for these tests."""
    (checkout / ".venv").mkdir()
    for name in ("bin", "lib", "pyvenv.cfg"):
        (checkout / ".venv" / name).symlink_to(Path(sys.prefix) / name)
    (checkout / ".venv" / ".installed").touch()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout in which nothing is installed."""
    copy_checkout(tmp_path)
    return tmp_path


ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")
}
"""As typed by a user, also where the tests are run by make, which would say where it is."""


def make(checkout: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run make there."""
    return subprocess.run(
        ["make", *arguments],
        cwd=checkout,
        capture_output=True,
        text=True,
        timeout=200,
        env=ENVIRONMENT | env,
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


@contextmanager
def lines_of_make(checkout: Path, *arguments: str) -> Iterator[Iterator[tuple[float, str]]]:
    """The lines that make prints, and after how many seconds; ends it with all that it started."""
    start = time.monotonic()
    with subprocess.Popen(
        ["make", *arguments],
        cwd=checkout,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env=ENVIRONMENT,
    ) as process:
        assert process.stdout
        try:
            yield ((time.monotonic() - start, line) for line in process.stdout)
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_a_first_build_says_at_once_what_it_does_and_then_that_it_goes_on(checkout: Path) -> None:
    slow = interpreter(
        checkout,
        'case "$*" in\n'
        '"-m venv .venv") mkdir -p .venv/bin; cp "$0" .venv/bin/python; exit;;\n'
        '"-m pip install "*) echo Collecting torch; sleep 12; exit 1;;\n'
        "esac",
    )
    with lines_of_make(checkout, "html", f"PYTHON={slow}") as lines:
        first, second = next(lines), next(lines)
    assert first[0] < FIRST_OUTPUT_S
    assert first[1].startswith("Installing into .venv")
    assert second[0] < 10 + FIRST_OUTPUT_S
    assert re.fullmatch(r"  1\d s: Collecting torch\n", second[1])


@pytest.mark.skipif(find_chromium() is None, reason="make would install it first")
def test_a_build_with_everything_installed_has_output_at_once(checkout: Path) -> None:
    for name in ("src", "intermediate_source", "_static"):
        shutil.copytree(ROOT / name, checkout / name)
    for name in ("conf.py", "index.rst", "distributed.rst"):
        shutil.copy(ROOT / name, checkout)
    (checkout / ".venv" / "bin").mkdir(parents=True)
    shutil.move(interpreter(checkout, ""), checkout / ".venv" / "bin" / "python")
    (checkout / ".venv" / ".installed").touch()
    with lines_of_make(checkout, "html") as lines:
        seconds, line = next(lines)
    assert line.startswith("Running Sphinx")
    assert seconds < FIRST_OUTPUT_S


def test_help_lists_every_target(checkout: Path) -> None:
    done = make(checkout, "help")
    for target in (
        "html",
        "test",
        "lint",
        "linkcheck",
        "urls",
        "serve",
        "lock",
        "audit",
        "sbom",
        "clean",
    ):
        assert f"make {target} " in done.stdout
