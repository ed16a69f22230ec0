"""No pickle imports, calls or builds anything, however it goes about it."""

from __future__ import annotations

import copyreg
import json
import pickletools
import subprocess
import sys
from pathlib import Path

import pytest
from tests.hostile.pickle_tricks import ARE_DUMPS, LEAVE_NO_MARK, MARK, OPCODES, TRICKS

from fr_analysis.errors import UnreadableDump
from fr_analysis.read import read_dump
from fr_analysis.read.decode import decode
from fr_analysis.trace import RankDump, Unread

BITE = f"""
import json, os, pickle, sys
bitten = []
for path in sys.argv[1:]:
    try:
        with open(path, "rb") as stream:
            pickle.load(stream)
    except Exception:
        pass
    if os.path.exists({MARK!r}):
        os.remove({MARK!r})
        bitten.append(os.path.basename(path))
print(json.dumps(bitten), file=sys.stderr)
"""


@pytest.mark.parametrize("trick", TRICKS)
def test_a_trick_leaves_no_mark(
    trick: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    copyreg.add_extension("builtins", "exec", 0xF1)
    modules = set(sys.modules)
    path = tmp_path / "rank_0"
    path.write_bytes(TRICKS[trick])
    try:
        result = read_dump(0, path)
    finally:
        copyreg.remove_extension("builtins", "exec", 0xF1)
    # numpy loads some of itself when a dump is read.
    assert all(module.startswith("numpy.") for module in set(sys.modules) - modules)
    assert [file.name for file in tmp_path.iterdir()] == ["rank_0"]
    if trick in ARE_DUMPS:
        assert isinstance(result, RankDump)
    else:
        assert isinstance(result, Unread)
        assert result.reason


def test_the_tricks_do_bite(tmp_path: Path) -> None:
    """Where there is no care, so that none of the above passes for want of teeth."""
    for at, content in enumerate(TRICKS.values()):
        (tmp_path / str(at)).write_bytes(content)
    files = sorted(tmp_path.iterdir())
    done = subprocess.run(
        [sys.executable, "-c", BITE, *files],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    bitten = {list(TRICKS)[int(name)] for name in json.loads(done.stderr.splitlines()[-1])}
    assert bitten == TRICKS.keys() - LEAVE_NO_MARK


PLAIN = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE"),
    *("BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8", "READONLY_BUFFER"),
    *("NONE", "NEWTRUE", "NEWFALSE", "EMPTY_LIST", "APPEND", "APPENDS", "LIST"),
    *("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_DICT", "DICT", "SETITEM"),
    *("SETITEMS", "EMPTY_SET", "ADDITEMS", "FROZENSET", "POP", "DUP", "MARK", "POP_MARK"),
    *("GET", "BINGET", "LONG_BINGET", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"),
    *("PROTO", "FRAME", "STOP"),
}
"""Opcodes that make plain data and nothing else."""


def test_every_opcode_is_plain_or_refused() -> None:
    """Those that a later Python brings are in neither set."""
    known = {opcode.name for opcode in pickletools.opcodes}
    assert known == PLAIN | OPCODES.keys()
    assert not PLAIN & OPCODES.keys()


VALUES = [b"}", b"]", b"N", b"X\x01\x00\x00\x00a", b")", b"\x8f", b"K\x01"]
ACTS = [b")R", b")\x81", b")}\x92", b"}b", b")b", b"N}\x86b", b"}}\x86b"]


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("act", ACTS)
def test_nothing_that_a_file_can_make_is_called_or_built(
    value: bytes, act: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "rank_0"
    path.write_bytes(b"\x80\x04" + value + act + b".")
    with pytest.raises(UnreadableDump, match="refused: the pickle asks to make or to change"):
        decode(path)
