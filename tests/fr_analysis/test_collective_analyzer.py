"""NVIDIA's API, answered: configuration, table, state."""

import asyncio
from pathlib import Path

import pytest

from fr_analysis import AttributionState, CollectiveAnalyzer, FrAnalysisError
from support import ROOT

HANG = ROOT / "tests" / "data" / "gloo_hang_3ranks"
CONFIG = {"fr_path": str(HANG), "pattern": "trace_*", "verbose": False, "health_check": False}


def test_result_and_state() -> None:
    result, state = CollectiveAnalyzer(CONFIG).run_sync({})
    assert result["analysis_text"].splitlines() == [
        "PGID | Process Group Desc | Op Type | Size | Dtype | Missing Ranks",
        "0 | default_pg | gloo:all_reduce | 8 | Float | 2",
    ]
    assert result["hanging_ranks"] == "hanging ranks: [2]"
    assert state is AttributionState.CONTINUE


def test_a_call_may_override_the_configuration(tmp_path: Path) -> None:
    analyzer = CollectiveAnalyzer({"fr_path": str(tmp_path)})
    with pytest.raises(FrAnalysisError, match="no dump in this directory"):
        analyzer.run_sync({})
    result, _ = analyzer.run_sync({"fr_path": str(HANG), "verbose": True, "health_check": True})
    assert "Oldest pending" in result["analysis_text"]
    assert "No dump holds health check results" in result["analysis_text"]


def test_in_an_event_loop() -> None:
    result, _ = asyncio.run(CollectiveAnalyzer(CONFIG).run())
    assert result["hanging_ranks"] == "hanging ranks: [2]"


def test_without_a_path() -> None:
    with pytest.raises(FrAnalysisError, match="no fr_path given"):
        CollectiveAnalyzer({}).run_sync({})
