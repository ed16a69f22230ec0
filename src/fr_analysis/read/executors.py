"""Reading on a cluster of machines: what ``--executor`` names."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import Executor
from typing import Any
from urllib.parse import urlsplit

import fr_analysis
from fr_analysis.errors import FrAnalysisError, printable

PATIENCE_S = 5.0
"""How long a cluster may take to answer, and to have a worker."""

_IMPORT_S = 20.0
"""How long its workers may take to import this package."""

_SCHEME = "dask"


def _address(url: str) -> str:
    """Dask's own address of a scheduler.

    Raises:
        FrAnalysisError: it is not ``dask://HOST:PORT``.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        parts, host, port = None, None, None
    plain = f"{_SCHEME}://{parts.netloc}" if parts is not None else None
    if parts is None or not host or not port or url.rstrip("/") != plain or "@" in url:
        shown = printable(url.rpartition("@")[2])
        raise FrAnalysisError(f"--executor {shown}: expected {_SCHEME}://HOST:PORT")
    return f"tcp://{parts.netloc}"


def _check_workers(client: Any, shown: str) -> None:
    """Refuse a cluster whose workers would not read as this process does."""
    try:
        client.wait_for_workers(1, timeout=PATIENCE_S)
    except TimeoutError:
        raise FrAnalysisError(f"{shown}: the cluster has no workers") from None

    async def ask() -> dict[str, Any]:
        # A function of ours would be of no use where fr-analysis is lacking.
        expression = "__import__('fr_analysis').__version__"
        told: dict[str, Any] = await client.run(eval, expression, on_error="return")
        return told

    try:
        workers = client.sync(ask, callback_timeout=_IMPORT_S)
    except TimeoutError:
        raise FrAnalysisError(
            f"{shown}: workers of the cluster did not answer within {_IMPORT_S:g} seconds"
        ) from None
    own = fr_analysis.__version__
    unfit = [
        f"{address} {f'has {told}' if isinstance(told, str) else 'has none'}"
        for address, told in sorted(workers.items())
        if told != own
    ]
    if unfit:
        more = f", and {len(unfit) - 3} more" if len(unfit) > 3 else ""
        raise FrAnalysisError(
            f"{shown}: all workers need fr-analysis {own}; {', '.join(unfit[:3])}{more}"
        )


def _give_up_alone(client: Any, over: threading.Event) -> None:
    """End a connection to a cluster that has lost all its workers: Dask waits for new ones."""
    lacking = 0
    while not over.wait(1):
        try:
            lacking = 0 if client.nthreads() else lacking + 1
        except Exception:  # the scheduler is lost, too: the client ends by itself
            return
        if lacking >= PATIENCE_S:
            client.close(timeout=PATIENCE_S)
            return


async def _knock(address: str) -> None:
    """Learn whether a scheduler is there: Dask's client never gives up on another server."""
    from distributed.comm import connect

    comm = await asyncio.wait_for(connect(address, timeout=PATIENCE_S), PATIENCE_S)
    comm.abort()


@contextlib.contextmanager
def open_executor(url: str) -> Iterator[Executor]:
    """Connect to a cluster that is there already, for as long as the context lasts.

    Args:
        url: ``dask://HOST:PORT`` of a Dask scheduler.

    Returns:
        What runs functions on its workers.

    Raises:
        FrAnalysisError: there is no such cluster, it does not answer within seconds, or its
            workers do not have this version of fr-analysis.
    """
    address = _address(url)
    shown = printable(url)
    try:
        from distributed import Client
    except ImportError:
        raise FrAnalysisError(
            f"{shown}: Dask is not installed; pip install 'fr-analysis[dask]'"
        ) from None
    # It logs its own account of what we say in one line, or make up for.
    for name in ("distributed", "distributed.client"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        asyncio.run(_knock(address))
        client = Client(address, timeout=PATIENCE_S, set_as_default=False)
    except (OSError, TimeoutError, ValueError, RuntimeError):
        raise FrAnalysisError(
            f"{shown}: no Dask scheduler answers there within {PATIENCE_S:g} seconds"
        ) from None
    over = threading.Event()
    try:
        _check_workers(client, shown)
        watcher = threading.Thread(target=_give_up_alone, args=(client, over), daemon=True)
        watcher.start()
        # The same files may hold something else the next time.
        yield client.get_executor(pure=False)
    finally:
        over.set()
        with contextlib.suppress(Exception):
            client.close(timeout=PATIENCE_S)
