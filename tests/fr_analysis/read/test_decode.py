"""From bytes to plain data: what is read, and that nothing in a file gets a hold on us."""

from __future__ import annotations

import bz2
import copyreg
import gzip
import io
import json
import lzma
import os
import pickle
import resource
import struct
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
import zstandard

from fr_analysis.errors import FrAnalysisError, UnreadableDump
from fr_analysis.read import read_dump
from fr_analysis.read.decode import decode
from fr_analysis.trace import RankDump, Unread
from plain_dumps import dump, write

PROTO = b"\x80\x02"


def file_of(folder: Path, content: bytes) -> Path:
    """A file named as a dump."""
    path = folder / "rank_0"
    path.write_bytes(content)
    return path


def reason(folder: Path, content: bytes) -> str:
    """Why a file cannot be read."""
    result = read_dump(0, file_of(folder, content))
    assert isinstance(result, Unread)
    assert "\n" not in result.reason
    return result.reason


# -- formats ---------------------------------------------------------------------------


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.compress])
@pytest.mark.parametrize("encode", [lambda d: pickle.dumps(d, 2), lambda d: json.dumps(d).encode()])
def test_tells_formats_apart_by_content_not_by_name(
    tmp_path: Path, pack: Callable[[bytes], bytes], encode: Callable[[object], bytes]
) -> None:
    expected = json.loads(json.dumps(dump()))
    path = tmp_path / "rank_0.json.zst.pkl.gz"
    path.write_bytes(pack(encode(dump())))
    assert json.loads(json.dumps(decode(path))) == expected


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_reads_pickles_of_every_protocol_that_says_so(tmp_path: Path, protocol: int) -> None:
    assert decode(file_of(tmp_path, pickle.dumps(dump(), protocol))) == dump()


def test_takes_the_newest_whole_line_of_json_lines(tmp_path: Path) -> None:
    lines = [json.dumps(dump(entries=count)) for count in (1, 2, 3)]
    path = file_of(tmp_path, "\n".join(lines).encode())
    assert decode(path) == json.loads(lines[2])
    path = file_of(tmp_path, "\n".join(lines).encode()[:-10])
    assert decode(path) == json.loads(lines[1])


def test_reads_json_with_a_byte_order_mark_and_with_indentation(tmp_path: Path) -> None:
    text = b"\xef\xbb\xbf\n" + json.dumps(dump(), indent=1).encode()
    assert decode(file_of(tmp_path, text)) == json.loads(json.dumps(dump()))


def test_does_not_take_a_part_of_damaged_json_for_the_dump(tmp_path: Path) -> None:
    text = json.dumps({**dump(), "pg_status": {}}, indent=1).encode()
    assert "cut short" in reason(tmp_path, text.replace(b'"pg_status": {}', b"\n{}\n"))


# -- damage ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "whole",
    [
        pickle.dumps(dump(entries=1), 2),
        pickle.dumps(dump(entries=1), 5),
        json.dumps(dump(entries=1)).encode(),
        gzip.compress(pickle.dumps(dump(entries=1), 2)),
        zstandard.compress(pickle.dumps(dump(entries=1), 2)),
    ],
    ids=["pickle-2", "pickle-5", "json", "gzip", "zstd"],
)
def test_a_file_cut_anywhere_gives_a_reason(tmp_path: Path, whole: bytes) -> None:
    assert isinstance(read_dump(0, file_of(tmp_path, whole)), RankDump)
    for length in range(len(whole)):
        text = reason(tmp_path, whole[:length])
        assert text, length


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_pickle_that_is_cut_anywhere_says_so(tmp_path: Path, protocol: int) -> None:
    whole = pickle.dumps(dump(entries=1), protocol)
    for length in range(2, len(whole)):
        assert "is cut short" in reason(tmp_path, whole[:length]), length


def test_a_pickle_with_any_byte_changed_is_read_or_gives_a_reason(tmp_path: Path) -> None:
    whole = pickle.dumps(dump(entries=1), 2)
    for at in range(len(whole)):
        for value in (0x28, 0x52, 0xFF):
            damaged = whole[:at] + bytes([value]) + whole[at + 1 :]
            assert isinstance(read_dump(0, file_of(tmp_path, damaged)), RankDump | Unread)


def archive(kind: Literal["w:", "w:gz", "zip"]) -> bytes:
    """An archive that holds a dump."""
    content = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(content, "w") as packed:
            packed.writestr("rank_0", pickle.dumps(dump()))
    else:
        with tarfile.open(mode=kind, fileobj=content) as packed_up:
            packed_up.addfile(tarfile.TarInfo("rank_0"))
    return content.getvalue()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "empty"),
        (b"\x00" * 87, "neither a pickle nor JSON"),
        (b"rank 3 says hello\n", "neither a pickle nor JSON"),
        (b"(lp0\nI1\na.", "neither a pickle nor JSON"),
        (pickle.dumps([1, 2]), "holds a list"),
        (pickle.dumps({"weights": 1}), "none of the keys"),
        (b'{"weights": 1}', "none of the keys"),
        (b"[1, 2]", "holds a list"),
        (pickle.dumps({**dump(), "entries": "none"}), "entries that are not a list"),
        (pickle.dumps({**dump(), "version": "3.0"}), "newer fr-analysis"),
        (gzip.compress(b"no dump"), "neither a pickle nor JSON"),
        (gzip.compress(b"x" * 99)[:-8] + b"\x00" * 8, "CRC check failed"),
        (bz2.compress(b"x"), "is packed with bzip2; unpack it"),
        (lzma.compress(b"x"), "is packed with xz; unpack it"),
        (b"\x04\x22\x4d\x18" + bytes(16), "is packed with lz4; unpack it"),
        (archive("w:"), "is a tar archive; unpack it, and name the directory of the dumps"),
        (archive("w:gz"), "is a tar archive; unpack it"),
        (archive("zip"), "is a zip archive; unpack it"),
        (b'{"version": "\xff"}', "neither a pickle nor JSON"),
    ],
)
def test_says_what_a_file_is_instead(tmp_path: Path, content: bytes, expected: str) -> None:
    assert expected in reason(tmp_path, content)


# -- hostile pickles -------------------------------------------------------------------

CANARY = "import os; os.environ['FR_CANARY'] = 'dead'"
MODULE = "this"  # of the standard library, and nothing imports it


def short(text: str) -> bytes:
    """Opcode for a text of up to 255 bytes."""
    return b"\x8c" + bytes([len(text)]) + text.encode()


def big(text: str) -> bytes:
    """Opcode of protocol 1 for a text."""
    return b"X" + struct.pack("<I", len(text)) + text.encode()


HOSTILE = {
    "GLOBAL and REDUCE": PROTO + b"cbuiltins\nexec\n" + big(CANARY) + b"\x85R.",
    "STACK_GLOBAL": b"\x80\x04"
    + short("builtins")
    + short("exec")
    + b"\x93"
    + big(CANARY)
    + b"\x85R.",
    "INST": PROTO + b"(" + big(CANARY) + b"ibuiltins\nexec\n.",
    "OBJ": PROTO + b"(cbuiltins\nexec\n" + big(CANARY) + b"o.",
    "NEWOBJ": PROTO + b"csubprocess\nPopen\n" + big("true") + b"\x85\x81.",
    "NEWOBJ_EX": b"\x80\x04csubprocess\nPopen\n" + big("true") + b"\x85}\x92.",
    "BUILD on an instance": PROTO + b"cbuiltins\nobject\n)\x81}b.",
    "BUILD on a dict": PROTO + b"}}(" + big("__class__") + b"K\x01ub.",
    "BUILD on a list": PROTO + b"]" + big("x") + b"b.",
    "REDUCE of a text": PROTO + big("exec") + big(CANARY) + b"\x85R.",
    "OBJ of a text": PROTO + b"(" + big("exec") + big(CANARY) + b"o.",
    "NEWOBJ of a text": PROTO + big("exec") + big(CANARY) + b"\x85\x81.",
    "EXT1": PROTO + b"\x82\xf0" + big(CANARY) + b"\x85R.",
    "EXT2": PROTO + b"\x83\xf0\x00" + big(CANARY) + b"\x85R.",
    "EXT4": PROTO + b"\x84\xf0\x00\x00\x00" + big(CANARY) + b"\x85R.",
    "PERSID": PROTO + b"Pbuiltins.exec\n.",
    "BINPERSID": PROTO + big("builtins.exec") + b"Q.",
    "only an import": PROTO + f"c{MODULE}\nc\n.".encode(),
    "import in the middle": pickle.dumps(dump(), 2)[:-1] + f"0c{MODULE}\nc\n.".encode(),
    "dotted name": b"\x80\x04" + short("builtins") + short("dict.get") + b"\x93.",
    "unknown extension": PROTO + b"\x82\xf1.",
    "NEXT_BUFFER": b"\x80\x05\x97.",
    "READONLY_BUFFER of a text": b"\x80\x05" + short("x") + b"\x98.",
    "two pickles": PROTO + b"}." + PROTO + b"cbuiltins\nexec\n" + big(CANARY) + b"\x85R.",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_pickle_runs_and_imports_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.delenv("FR_CANARY", raising=False)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    copyreg.add_extension("builtins", "exec", 0xF0)
    try:
        # Once used, an extension is handed out from a cache, without asking for its name.
        assert pickle.loads(b"\x80\x02\x82\xf0.") is exec  # noqa: S301 (made here)
        modules = set(sys.modules)
        assert reason(tmp_path, HOSTILE[name])
        assert set(sys.modules) == modules
        assert "FR_CANARY" not in os.environ
    finally:
        copyreg.remove_extension("builtins", "exec", 0xF0)
        copyreg.clear_extension_cache()


def test_the_hostile_pickles_would_bite(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GLOBAL and REDUCE", "STACK_GLOBAL", "INST", "OBJ"):
        monkeypatch.delenv("FR_CANARY", raising=False)
        pickle.loads(HOSTILE[name])  # noqa: S301 (made here)
        assert os.environ["FR_CANARY"] == "dead", name


def test_says_what_a_hostile_pickle_asks_for(tmp_path: Path) -> None:
    assert "import builtins.exec" in reason(tmp_path, HOSTILE["GLOBAL and REDUCE"])
    assert "outside itself" in reason(tmp_path, HOSTILE["BINPERSID"])


# -- bombs -----------------------------------------------------------------------------


def nested_json(depth: int) -> bytes:
    """Lists in lists."""
    return b'{"entries": ' + b"[" * depth + b"]" * depth + b"}"


BOMBS: dict[str, bytes] = {
    "memo index": PROTO + b"]r\xff\xff\xff\xff.",
    "smaller memo index": PROTO + b"]r\xff\xff\xff\x0f.",
    "huge bytes": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 62) + b"x.",
    "large bytes": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b"x.",
    "huge bytearray": b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b"x.",
    "huge text": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 40) + b"x.",
    "huge long": PROTO + b"\x8b" + struct.pack("<i", (1 << 31) - 1) + b"x.",
    "negative long": PROTO + b"\x8b" + struct.pack("<i", -1) + b"x.",
    "long in decimal": PROTO + b"L" + b"9" * 1_000_000 + b"L\n.",
    "huge frame": b"\x80\x04\x95" + struct.pack("<Q", 1 << 62) + b"}.",
    "gzip of a gigabyte of JSON": gzip.compress(b'{"entries": [' + b"0," * (1 << 29)),
    "gzip of a gigabyte of pickle": gzip.compress(PROTO + b"]" + b"(" * (1 << 30)),
    "zstd of a gigabyte": zstandard.compress(b'{"entries": [' + b"0," * (1 << 29)),
    "nested lists": PROTO + b"]" * 1_000_000 + b"a" * 999_999 + b".",
    "nested tuples": PROTO + b")" + b"\x85" * 1_000_000 + b".",
    "nested tuples as a key": PROTO + b"})" + b"\x85" * 1_000_000 + b"K\x01s.",
    "nested tuples as a key among others": PROTO + b"}()" + b"\x85" * 1_000_000 + b"K\x01u.",
    "nested tuples as a key of a dict": PROTO + b"()" + b"\x85" * 1_000_000 + b"K\x01d.",
    "nested tuples in a set": b"\x80\x04\x8f()" + b"\x85" * 1_000_000 + b"\x90.",
    "nested tuples in a frozenset": b"\x80\x04()" + b"\x85" * 1_000_000 + b"\x91.",
    "deep JSON": nested_json(100_000),
    "deep JSON cut": nested_json(100_000)[:50_000],
    "giant number in JSON": b'{"version": ' + b"9" * 1_000_000 + b"}",
    "long JSON of marks": b"{" * 1_000_000,
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_in_bounded_time_and_memory(tmp_path: Path, name: str) -> None:
    path = file_of(tmp_path, BOMBS[name])
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    limits = resource.getrlimit(resource.RLIMIT_AS)
    start = time.monotonic()
    assert isinstance(read_dump(0, path), Unread)
    assert time.monotonic() - start < 20
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
    assert grown < 1_200 << 10, f"{grown >> 10} MiB"
    assert resource.getrlimit(resource.RLIMIT_AS) == limits


def test_what_no_dump_has_but_does_no_harm_is_read_all_the_same(tmp_path: Path) -> None:
    """Values that are put away again: too odd for the fast way."""
    content = dump(entries=10)
    path = write(tmp_path / "rank_0", content)
    path.write_bytes(path.read_bytes()[:-1] + b"(" + b")\x85" * 20_000 + b"1.")
    assert decode(path) == content


# -- files that are none ---------------------------------------------------------------


def test_a_pipe_does_not_block(tmp_path: Path) -> None:
    path = tmp_path / "rank_0"
    os.mkfifo(path)
    results: list[object] = []
    reader = threading.Thread(target=lambda: results.append(read_dump(0, path)), daemon=True)
    reader.start()
    reader.join(10)
    assert results == [Unread(path, "is not a regular file", 0)]


def test_says_why_a_file_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> io.BufferedReader:
        raise PermissionError(13, "Permission denied")

    path = write(tmp_path / "rank_0", dump())
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(UnreadableDump, match="Permission denied"):
        decode(path)


def test_every_refusal_is_an_error_of_ours() -> None:
    assert issubclass(UnreadableDump, FrAnalysisError)
