"""Faults in real ranks, the quick ones; ``make reliability`` injects them all, several times."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from benchmarks.reliability.injected_faults import FAULTS, RIGHT, UNDETERMINED, inject_into_job

from rank_lab import WarmLauncher, inject


def test_a_cut_link_is_told_and_nobody_behind_it_blamed_and_nothing_is_left(
    tmp_path: Path,
) -> None:
    (fault,) = (fault for fault in FAULTS if "link" in fault.name)
    try:
        with WarmLauncher() as launcher:
            ran = inject_into_job(fault, tmp_path, launcher)
    except inject.NotPossibleError as error:
        pytest.skip(str(error))
    assert [(answer.asked, answer.outcome) for answer in ran.answers] == [
        ("``--url``", UNDETERMINED),
        ("dumps", RIGHT),
    ], [answer.said for answer in ran.answers]
    live = ran.answers[0].said
    assert re.search(r"ranks 2, 3 could not be reached \([^)]+\), nor could .* 10\.77\.0\.2:", live)
    assert ran.left == []


def test_a_full_disk_is_full_and_gone_afterwards(tmp_path: Path) -> None:
    try:
        with inject.full_disk(tmp_path / "disk", 4):
            with pytest.raises(OSError, match="No space left"):
                (tmp_path / "disk" / "file").write_bytes(b"0" * 8192)
            assert os.path.ismount(tmp_path / "disk")
    except inject.NotPossibleError as error:
        pytest.skip(str(error))
    assert not os.path.ismount(tmp_path / "disk")


def test_who_writes_to_a_blocked_disk_waits_until_its_end(tmp_path: Path) -> None:
    write = f"open({str(tmp_path / 'disk' / 'file')!r}, 'w').write('late')"
    try:
        with inject.blocked_disk(tmp_path / "disk"):
            writer = subprocess.Popen([sys.executable, "-c", write])
            time.sleep(0.5)
            writer.kill()
            with pytest.raises(subprocess.TimeoutExpired):
                writer.wait(1)
    except inject.NotPossibleError as error:
        pytest.skip(str(error))
    assert writer.wait(10) < 0
    assert not os.path.ismount(tmp_path / "disk")
    assert not list(tmp_path.glob("*.image"))


def test_a_taken_port_cannot_be_had() -> None:
    with (
        inject.taken_port() as port,
        socket.socket(socket.AF_INET6) as other,
        pytest.raises(OSError, match="in use"),
    ):
        other.bind(("::", port))
