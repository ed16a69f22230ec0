"""The API of NVIDIA's ``CollectiveAnalyzer``, answered by this package.

For programs that call it in a pipeline of attribution modules: same configuration keys,
same result, same table. Two things differ on purpose: the ranks named are the suspects,
never their victims, and the state can be STOP.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from fr_analysis.attribute import attribute
from fr_analysis.diagnosis import AttributionState, Diagnosis, Fault
from fr_analysis.errors import FrAnalysisError
from fr_analysis.match import match
from fr_analysis.read import read_trace
from fr_analysis.report.tables import health_table, rank_table

HEADER = "PGID | Process Group Desc | Op Type | Size | Dtype | Missing Ranks"


class CollectiveResult(TypedDict):
    """What ``run_sync`` returns first."""

    analysis_text: str
    hanging_ranks: str


def _row(fault: Fault) -> str:
    call = fault.calls[0] if fault.calls else None
    sizes = (call.input_sizes or call.output_sizes or ()) if call else ()
    cells = (
        fault.group,
        fault.group_description,
        call.recorded_name if call else "",
        ", ".join("x".join(map(str, size)) for size in sizes),
        "/".join(dict.fromkeys(call.dtypes or ())) if call else "",
        ",".join(map(str, fault.suspects)),
    )
    return " | ".join(cells)


def analysis_table(diagnosis: Diagnosis) -> str:
    """The faults as NVIDIA's table; empty for a job without any.

    Args:
        diagnosis: the answer.

    Returns:
        The header and a row per fault, joined by newlines.
    """
    rows = [_row(fault) for fault in diagnosis.faults]
    return "\n".join([HEADER, *rows]) if rows else ""


class CollectiveAnalyzer:
    """Analyzes the dumps of one job, as NVIDIA's class of this name does.

    Args:
        config: ``fr_path`` (directory, file or path prefix; needed here or in the call),
            ``pattern`` (file names in a directory, ``*`` if absent), ``verbose`` (add a
            line per rank), ``health_check`` (add the nodes' health).
    """

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        self._config = dict(config or {})

    def run_sync(
        self, input_data: Mapping[str, Any] | None = None
    ) -> tuple[CollectiveResult, AttributionState]:
        """Analyze, and return the result with the attribution state.

        Args:
            input_data: keys of the configuration that differ for this call.

        Returns:
            The table and ``hanging ranks: [...]``, and whether a restart without these
            ranks can help: see ``AttributionState``.

        Raises:
            FrAnalysisError: no ``fr_path``, or nothing under it could be read.
        """
        config = self._config | dict(input_data or {})
        path = config.get("fr_path")
        if not path:
            raise FrAnalysisError("no fr_path given: name the directory that holds the dumps")
        trace = read_trace(path, pattern=config.get("pattern"))
        diagnosis = attribute(match(trace))
        parts = [analysis_table(diagnosis)]
        if config.get("verbose"):
            parts.append(rank_table(trace))
        if config.get("health_check"):
            parts.append(health_table(trace))
        return (
            CollectiveResult(
                analysis_text="\n".join(part for part in parts if part),
                hanging_ranks=f"hanging ranks: {sorted(diagnosis.suspects)}",
            ),
            diagnosis.attribution_state,
        )

    async def run(
        self, input_data: Mapping[str, Any] | None = None
    ) -> tuple[CollectiveResult, AttributionState]:
        """The same, in a thread, for callers with an event loop."""
        import asyncio  # takes longer to load than the rest of this module

        return await asyncio.to_thread(self.run_sync, input_data)
