"""The answer inside a job: a page and a periodic dump of torch's own debug server.

::

    from torch.distributed.debug import start_debug_server
    from torch.distributed.debug._debug_handlers import default_handlers

    from fr_analysis.debug_server import AnalysisHandler

    start_debug_server(handlers=[*default_handlers(), AnalysisHandler()])

This is the one module of ``fr_analysis`` that needs torch, and it extends private modules of it,
``torch.distributed.debug._frontend`` and ``_store``: they may change with any release.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from fr_analysis.diagnosis import Diagnosis
from fr_analysis.live.collect import Snapshot, collect_ranks
from fr_analysis.live.fetch import Address, Answer
from fr_analysis.live.judge import Reading, examine
from fr_analysis.live.page import REFRESH_S, render_page
from fr_analysis.report import render_json, render_text
from fr_analysis.report.json_report import within_html

TESTED_WITH = "2.13"
MOST_TIMEOUT_S = 10.0
"""Seconds that a rank has to answer, where the server's own ``fetch_timeout`` is longer."""
SAME_ANSWER_S = 1.0
"""Requests that come within so many seconds of an answer get that one."""

try:
    from torch.distributed.debug import _frontend, _store

    _BASE: Any = _frontend.DebugHandler
    _route, _nav_link = _frontend.Route, _frontend.NavLink
    _route("/", lambda request: b"")
    _nav_link("/", "")
    _store_client, _world_size = _store.tcpstore_client, _store.get_world_size
    _NEEDED = ("routes", "nav_links", "templates", "dump", "dump_filename", "fetch_timeout")
    if not all(hasattr(_BASE, name) for name in _NEEDED):
        raise AttributeError(f"DebugHandler lacks one of {', '.join(_NEEDED)}")
except (ImportError, AttributeError, TypeError) as error:
    _torch = sys.modules.get("torch")
    raise ImportError(
        "fr_analysis.debug_server extends torch.distributed.debug (_frontend.DebugHandler, Route, "
        f"NavLink; _store.tcpstore_client, get_world_size) as torch {TESTED_WITH} has it; in torch "
        f"{getattr(_torch, '__version__', 'none')}: {error}. Without it, fr-analysis --url still "
        "asks the job from outside"
    ) from None

_COLLECTING = threading.Lock()


def _addresses() -> dict[int, Address | None]:
    """Where each rank's worker listens, by the job's store."""
    found: dict[int, Address | None] = {}
    store = _store_client()
    for rank in range(_world_size()):
        key = f"rank{rank}"
        # get() would wait for a rank that has not come yet.
        value = store.get(key).decode() if store.check([key]) else ""
        told = re.fullmatch(r"http://(.+):(\d{1,5})", value)
        found[rank] = Address(told[1], int(told[2])) if told else None
    return found


class AnalysisHandler(_BASE):  # type: ignore[misc]
    """Pages ``/fr_analysis`` and ``/fr_analysis.json``, and a dump ``fr_analysis_<time>.txt``.

    Pass it to ``start_debug_server(handlers=[*default_handlers(), AnalysisHandler()])``; for the
    periodic dump name ``"fr_analysis"`` in ``enabled_dumps``. It asks all ranks at once, and gives
    each ``fetch_timeout`` seconds, but no more than 10.
    """

    def __init__(self) -> None:
        self._answer: tuple[float, Reading, Diagnosis] | None = None

    def routes(self) -> list[Any]:
        """What it answers to."""
        return [
            _route("/fr_analysis", self._handle_page),
            _route("/fr_analysis.json", self._handle_json),
        ]

    def nav_links(self) -> list[Any]:
        """Its link on the server's other pages."""
        return [_nav_link("/fr_analysis", "Analysis")]

    def dump(self) -> str | None:
        """The answer as text, for the periodic dump; None where no rank answered."""
        reading, diagnosis = self._examine()
        return None if reading.snapshot.alone else render_text(diagnosis)

    def dump_filename(self) -> str:
        """The beginning of the dump's name."""
        return "fr_analysis"

    def _examine(self) -> tuple[Reading, Diagnosis]:
        """Ask the job; those who come while it is being asked get the same answer."""
        with _COLLECTING:
            if self._answer and time.monotonic() - self._answer[0] < SAME_ANSWER_S:
                return self._answer[1:]
            timeout_s = min(float(self.fetch_timeout), MOST_TIMEOUT_S)
            addresses = _addresses()

            def take(silent: Mapping[int, Answer]) -> Snapshot:
                return collect_ranks(addresses, timeout_s, silent)

            reading, diagnosis = examine(take)
            self._answer = time.monotonic(), reading, diagnosis
            return reading, diagnosis

    def _handle_page(self, request: Any) -> bytes:
        asked = request.get_query().get("refresh", [""])[0]
        refresh_s = int(asked) if re.fullmatch(r"[0-9]{1,4}", asked) else 0
        return render_page(*self._examine(), refresh_s if refresh_s in REFRESH_S else None).encode()

    def _handle_json(self, request: Any) -> bytes:
        # The server calls everything text/html: nothing in it may look like a tag.
        return within_html(render_json(self._examine()[1])).encode()
