"""One question to one HTTP server, answered or given up within a set time.

Speaks HTTP/1.0 (RFC 1945) over plain TCP, which both servers of ``torch.distributed.debug``
understand: no proxy that the environment names, no redirect, no answer in chunks. The time
covers the whole exchange, not a single read, so that a server which sends one byte now and
then cannot hold anybody up.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import socket
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, TypeVar

MAX_ANSWER = 64 << 20
"""Bytes: a recorder of 2000 entries answers 0.7 MB (torch 2.13)."""
MAX_HEAD = 64 << 10

Result = TypeVar("Result")

_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})[ \r]")
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,15})[ \t]*\r\n", re.IGNORECASE)


class Contact(Enum):
    """How far a question came."""

    ANSWERED = auto()
    SILENT = auto()
    """The connection was taken, and no whole answer came in time."""
    NO_CONNECTION = auto()
    """Nothing took a connection in time, nor refused it: a firewall, a cut link, a host that is
    down, or a stopped process, which takes a few connections and none when it has these."""
    GONE = auto()
    """The host refused or broke the connection: nobody listens there."""
    UNREACHABLE = auto()
    """There is no way from here to there: no such name, no route."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where an HTTP server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a question.

    Attributes:
        contact: how far it came.
        status: the HTTP status, 0 where there was no answer.
        body: what was answered, whatever the status.
        error: why there is no answer, in one phrase; empty where there is one.
    """

    contact: Contact
    status: int = 0
    body: bytes = b""
    error: str = ""

    @property
    def is_good(self) -> bool:
        """Whether the question was answered, and not by an error."""
        return self.status == 200


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end, in a thread of its own: the caller's may have a loop.

    Args:
        work: the coroutine.

    Returns:
        What it returns; what it raises is raised. Ctrl-C ends the waiting at once.
    """
    outcome: Future[Result] = Future()

    def body() -> None:
        try:
            outcome.set_result(asyncio.run(work))
        except BaseException as error:  # to be raised where the result is awaited
            outcome.set_exception(error)

    threading.Thread(target=body, daemon=True).start()
    return outcome.result()


async def _talk(
    address: Address, method: str, path: str, limit: int, connected: list[bool]
) -> Answer:
    reader, writer = await asyncio.open_connection(address.host, address.port, limit=MAX_HEAD)
    connected.append(True)
    try:
        request = f"{method} {path} HTTP/1.0\r\nHost: {address}\r\nContent-Length: 0\r\n\r\n"
        writer.write(request.encode("ascii"))
        await writer.drain()
        head = await reader.readuntil(b"\r\n\r\n")
        found = _STATUS.match(head)
        if not found:
            return Answer(Contact.ANSWERED, error="what it answered is no HTTP")
        length = _LENGTH.search(head)
        body = await _read_body(reader, int(length[1]) if length else None, limit)
        if body is None:
            return Answer(Contact.ANSWERED, error=f"its answer is larger than {limit >> 20} MiB")
        if length and len(body) < int(length[1]):
            return Answer(Contact.GONE, error="it broke the connection within its answer")
        return Answer(Contact.ANSWERED, int(found[1]), body)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _read_body(reader: asyncio.StreamReader, length: int | None, limit: int) -> bytes | None:
    """What follows the head; None where that is more than is read of any answer."""
    pieces = bytearray()
    if (length or 0) > limit:
        return None
    while length is None or len(pieces) < length:
        piece = await reader.read(1 << 20)
        if not piece:
            break
        pieces += piece
        if len(pieces) > limit:
            return None
    return bytes(pieces[:length])


async def ask(
    address: Address, method: str, path: str, *, timeout_s: float, limit: int = MAX_ANSWER
) -> Answer:
    """Ask an HTTP server one question.

    Args:
        address: where it listens.
        method: ``GET`` or ``POST``, with no body.
        path: what is asked for, in ASCII.
        timeout_s: seconds for all of it, from looking up the name to the answer's last byte.
        limit: most bytes read of the answer's body.

    Returns:
        The answer, or why there is none; never raises for what the other side does.
    """
    connected: list[bool] = []
    try:
        async with asyncio.timeout(timeout_s):
            return await _talk(address, method, path, limit, connected)
    except TimeoutError:
        if connected:
            return Answer(Contact.SILENT, error=f"no answer within {timeout_s:g} s")
        return Answer(Contact.NO_CONNECTION, error=f"no connection within {timeout_s:g} s")
    except asyncio.IncompleteReadError:
        return Answer(Contact.GONE, error="it closed the connection without an answer")
    except asyncio.LimitOverrunError:
        return Answer(Contact.ANSWERED, error="what it answered is no HTTP")
    except socket.gaierror:
        return Answer(Contact.UNREACHABLE, error="its name does not resolve")
    except UnicodeError:
        return Answer(Contact.UNREACHABLE, error="its name is no host name")
    except OverflowError:
        return Answer(Contact.UNREACHABLE, error="its port is above 65535")
    except OSError as error:
        number = _error_number(error)
        reason = os.strerror(number).lower() if number else "cannot be reached"
        return Answer(Contact.GONE if number in _NOBODY else Contact.UNREACHABLE, error=reason)


_NOBODY = frozenset({errno.ECONNREFUSED, errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED})
"""What a host answers where no process of it takes the connection, or no longer."""


def _error_number(error: OSError) -> int:
    """The system's number of an error; 0 where it has none.

    Where a name has several addresses, asyncio joins their errors into one text.
    """
    found = re.search(r"\[Errno (\d+)\]", str(error))
    return error.errno or (int(found[1]) if found else 0)
