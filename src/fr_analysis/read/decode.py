"""From a file's bytes to plain Python data, trusting nothing in the file.

What a file is gets decided by its first bytes, never by its name: gzip (RFC 1952),
zstd (RFC 8878), a pickle of protocol 2 or later (the PROTO opcode 0x80 comes first),
or JSON. A dump comes from a machine in trouble, perhaps from a stranger: a pickle may
hold dicts, lists, strings and numbers, and anything that asks for an import or a call
is refused before it happens.
"""

from __future__ import annotations

import codecs
import contextlib
import copyreg
import gzip
import importlib
import io
import json
import pickle
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, ClassVar

from fr_analysis.errors import NotADump, UnreadableDump, printable
from fr_analysis.read.repeats import LARGEST_BYTES, SMALLEST_BYTES, shortened
from fr_analysis.read.shortened import Repeats, Shortened
from fr_analysis.read.tuples import has_flat_tuples

MAX_FILE_BYTES = 4 << 30
"""Largest file, and largest content of a compressed file, that is read."""

MEMORY_PER_BYTE = 64
"""Memory allowed while decoding, per byte of the file: real dumps need less than 20."""

COMPRESSION = 200
"""Most that compression is taken to shrink a real dump by; a bomb shrinks by 1000."""

CONTENT_FLOOR = 64 << 20
"""Content of a compressed file that is always read, in bytes."""

MEMORY_FLOOR = 512 << 20
"""Memory always allowed while decoding, in bytes."""

_LONGEST_NAME = 200
"""Characters shown of a name that a pickle asks to import, which may be of any."""

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_PICKLE = b"\x80"
_PACKED = {
    b"PK\x03\x04": "is a zip archive",
    b"BZh": "is packed with bzip2",
    b"\xfd7zXZ\0": "is packed with xz",
    b"\x04\x22\x4d\x18": "is packed with lz4",
}
"""First bytes of what is not unpacked here."""
_TAR, _TAR_AT = b"ustar", 257
"""What stands where in a tar archive (POSIX.1-1988)."""


class _Refuses:
    """Builds plain data only: every route to a class or function ends in an error.

    GLOBAL, STACK_GLOBAL, INST and the EXT opcodes resolve names through ``find_class``. REDUCE,
    OBJ, NEWOBJ and BUILD are opcodes that dumps lack, so that they meet the careful one below.
    """

    def find_class(self, module_name: str, global_name: str) -> Any:
        name = printable(f"{module_name}.{global_name}"[:_LONGEST_NAME])
        raise UnreadableDump(
            f"refused: the pickle asks to import {name}; "
            "a Flight Recorder dump holds plain data only, so treat this file as hostile"
        )

    def persistent_load(self, pid: Any) -> Any:
        raise UnreadableDump("refused: the pickle refers to objects outside itself")


class _PlainUnpickler(_Refuses, pickle.Unpickler):
    """The fast one, in C."""


def _is_plain(key: object) -> bool:
    # The hash of a huge number is computed anew each time, too.
    return type(key) is str or (isinstance(key, int) and key.bit_length() <= 64)


def _with_plain_keys(load: Callable[[Any], None], keys: slice) -> Callable[[Any], None]:
    """A step of the unpickler in Python that first looks at the keys on its stack."""

    def checked(unpickler: Any) -> None:
        if not all(map(_is_plain, unpickler.stack[keys])):
            raise UnreadableDump("refused: a key that is neither a text nor a number")
        load(unpickler)

    return checked


def _refuse_to_act(_: Any) -> None:
    raise UnreadableDump(
        "refused: the pickle asks to make or to change an object; "
        "a Flight Recorder dump holds plain data only, so treat this file as hostile"
    )


class _CarefulUnpickler(_Refuses, pickle._Unpickler):
    """The one in Python, for a pickle with opcodes or tuples that dumps lack, see ``tuples``.

    Keys of dumps are texts and numbers; others are refused before they are hashed.
    """

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **pickle._Unpickler.dispatch,
        **{
            opcode[0]: _with_plain_keys(pickle._Unpickler.dispatch[opcode[0]], keys)
            for opcode, keys in (
                (pickle.SETITEM, slice(-2, -1)),
                (pickle.SETITEMS, slice(None, None, 2)),
                (pickle.DICT, slice(None, None, 2)),
                (pickle.ADDITEMS, slice(None)),
                (pickle.FROZENSET, slice(None)),
            )
        },
        **{
            opcode[0]: _refuse_to_act
            for opcode in (
                pickle.REDUCE,
                pickle.BUILD,
                pickle.OBJ,
                pickle.NEWOBJ,
                pickle.NEWOBJ_EX,
            )
        },
    }


class _NoShortReads:
    """A stream for the unpickler in Python, which takes what it gets for what it asked for."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.readline = stream.readline

    def read(self, size: int) -> bytes:
        found = self._stream.read(size)
        if len(found) < size:
            raise EOFError
        return found


@contextlib.contextmanager
def _bounded_memory(file_bytes: int) -> Iterator[None]:
    """Turn a memory bomb into MemoryError: a pickle of 10 bytes may ask for gigabytes.

    Lowers the soft limit of the address space while a file is decoded. Where the
    platform has no such limit (Windows, and macOS, which ignores it) this does nothing.
    """
    if not sys.platform.startswith("linux"):
        yield
        return
    import resource

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    in_use = pages * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = in_use + max(MEMORY_FLOOR, MEMORY_PER_BYTE * file_bytes)
    if soft != resource.RLIM_INFINITY:
        wanted = min(wanted, soft)
    resource.setrlimit(resource.RLIMIT_AS, (wanted, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _open_zstd(path: Path) -> Any:
    """Open a zstd file with the standard library (3.14 on) or the ``zstandard`` package."""
    for name in ("compression.zstd", "zstandard"):
        with contextlib.suppress(ImportError):
            return importlib.import_module(name).open(path, "rb")
    raise UnreadableDump(
        "is compressed with zstd; pip install 'fr-analysis[zstd]', or decompress it first"
    )


def _read_bounded(stream: IO[bytes], limit: int) -> bytes:
    """Read all; piece by piece, since what is asked for at once is allocated at once."""
    pieces: list[bytes] = []
    while piece := stream.read(1 << 20):
        pieces.append(piece)
        limit -= len(piece)
        if limit < 0:
            raise UnreadableDump("unpacks to far more than a dump of its size holds")
    return b"".join(pieces)


def _has_flat_tuples(stream: io.BufferedReader[Any]) -> bool:
    start = stream.tell()
    content = stream.read(LARGEST_BYTES + 1)
    stream.seek(start)
    return len(content) <= LARGEST_BYTES and has_flat_tuples(content)


def _load_pickle(stream: io.BufferedReader[Any], *, is_flat: bool = False) -> object:
    # What this process has once unpickled by a registered number is handed out unasked.
    copyreg.clear_extension_cache()
    try:
        is_flat = is_flat or _has_flat_tuples(stream)
        if is_flat:
            return _PlainUnpickler(stream).load()
        return _CarefulUnpickler(_NoShortReads(stream)).load()
    except UnreadableDump:
        raise
    except (EOFError, pickle.UnpicklingError) as error:
        if isinstance(error, EOFError) or "truncated" in str(error):
            raise UnreadableDump(
                "is cut short: the pickle ends before its data does; "
                "the rank was probably killed while it wrote it"
            ) from None
        raise UnreadableDump(f"is a damaged pickle ({error})") from None
    except MemoryError:
        raise UnreadableDump("asks for far more memory than a dump of its size needs") from None
    except Exception as error:  # hostile bytes can raise anything from the C unpickler
        raise UnreadableDump(f"is a damaged pickle ({type(error).__name__}: {error})") from None


def load_json(content: bytes) -> object:
    """Read one JSON document, or JSON lines of which the last complete one is the newest dump.

    Args:
        content: UTF-8, with or without a byte order mark.

    Returns:
        Plain data.

    Raises:
        UnreadableDump: it is no JSON, or nested too deeply.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise NotADump("is neither a pickle nor JSON; expected a Flight Recorder dump") from None
    try:
        return json.loads(text)
    except RecursionError:
        raise UnreadableDump("is JSON nested too deeply for a dump") from None
    except (ValueError, MemoryError) as error:
        for line in reversed(text.splitlines()):
            with contextlib.suppress(ValueError, RecursionError):
                document = json.loads(line)
                if isinstance(document, dict) and "version" in document:
                    return document
        raise UnreadableDump(f"is cut short or damaged JSON ({error})") from None


def _decode_stream(stream: io.BufferedReader[Any]) -> object:
    head = stream.peek(_TAR_AT + len(_TAR))
    if head[:1] == _PICKLE:
        return _load_pickle(stream)
    if head[:64].removeprefix(codecs.BOM_UTF8).lstrip()[:1] in (b"{", b"["):
        return load_json(_read_bounded(stream, MAX_FILE_BYTES))
    packed = next((what for magic, what in _PACKED.items() if head.startswith(magic)), None)
    if packed is None and head[_TAR_AT:].startswith(_TAR):
        packed = "is a tar archive"
    if packed is not None:
        raise UnreadableDump(f"{packed}; unpack it, and name the directory of the dumps")
    raise NotADump("is neither a pickle nor JSON; expected a Flight Recorder dump")


def _load_shortened(short: Shortened) -> tuple[object, Repeats] | None:
    """A pickle without the entries that are like others; None where it must be read whole."""
    try:
        # It was walked through: nothing in it asks for more memory than its bytes.
        with io.BufferedReader(io.BytesIO(short.content)) as content:
            plain = _load_pickle(content, is_flat=True)
    except (UnreadableDump, MemoryError):
        return None  # what is wrong shows, and is told, when it is read whole
    return (plain, short.repeats) if short.holds(plain) else None


def shorten(paths: Sequence[Path]) -> list[Shortened | None]:
    """Leave out the repeats of some files, at once, see ``repeats``.

    Args:
        paths: the files, whatever they hold.

    Returns:
        For each what ``decode_distinct`` takes; None where a file is no pickle, or not regular.
    """
    contents: list[bytes] = []
    left = LARGEST_BYTES
    for path in paths:
        content = b""
        with contextlib.suppress(OSError):
            status = path.stat()
            if stat.S_ISREG(status.st_mode) and SMALLEST_BYTES <= status.st_size <= left:
                with path.open("rb", buffering=0) as stream:
                    if stream.read(1) == _PICKLE:
                        content = _PICKLE + (stream.read(status.st_size - 1) or b"")
        left -= len(content)
        contents.append(content)
    with contextlib.suppress(MemoryError):
        return shortened(contents)
    return [None] * len(paths)


def decode(path: Path) -> object:
    """Read one file into dicts, lists, strings and numbers.

    Args:
        path: a dump as written by torch, torchcomms or a tool of NVIDIA's: pickle of
            protocol 2 or later, or JSON; plain, gzip or zstd.

    Returns:
        What the file holds, not yet checked to be a dump.

    Raises:
        UnreadableDump: with the reason and what to do, whatever the file holds.
    """
    return _decode(path, distinct=False)[0]


def decode_distinct(path: Path, short: Shortened | None) -> tuple[object, Repeats | None]:
    """Read one file as ``decode`` does, but of entries that are alike only the first.

    Args:
        path: as for ``decode``.
        short: what ``shorten`` has made of the file.

    Returns:
        What the file holds, and what was left out of it; None where nothing was.

    Raises:
        UnreadableDump: as ``decode`` does.
    """
    return (_load_shortened(short) if short else None) or _decode(path, distinct=True)


def _decode(path: Path, distinct: bool) -> tuple[object, Repeats | None]:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise UnreadableDump("is not a regular file")
        if status.st_size == 0:
            raise UnreadableDump("is empty; the rank was probably killed before it wrote its dump")
        if status.st_size > MAX_FILE_BYTES:
            raise UnreadableDump(f"is larger than {MAX_FILE_BYTES >> 30} GiB; is it a dump?")
        with path.open("rb") as stream:
            magic = stream.peek(4)[:4]
            if magic.startswith(_GZIP):
                open_packed: Callable[[Path], Any] = gzip.open
            elif magic == _ZSTD:
                open_packed = _open_zstd
            else:
                # Straight from the buffered file: through BytesIO it takes three times as long.
                with _bounded_memory(status.st_size):
                    return _decode_stream(stream), None
        limit = min(MAX_FILE_BYTES, max(CONTENT_FLOOR, status.st_size * COMPRESSION))
        with open_packed(path) as unpacked:
            content = _read_bounded(unpacked, limit)
        if distinct and content[:1] == _PICKLE:
            (short,) = shortened([content])
            found = _load_shortened(short) if short else None
            if found:
                return found
        with _bounded_memory(len(content)), io.BufferedReader(io.BytesIO(content)) as stream:
            return _decode_stream(stream), None
    except UnreadableDump:
        raise
    except MemoryError:
        raise UnreadableDump("asks for far more memory than a dump of its size needs") from None
    except (OSError, EOFError) as error:
        raise UnreadableDump(
            f"cannot be read ({getattr(error, 'strerror', None) or error})"
        ) from None
    except Exception as error:  # zlib.error, zstd errors: damaged compression
        raise UnreadableDump(f"is damaged ({type(error).__name__}: {error})") from None
