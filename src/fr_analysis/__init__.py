"""fr-analysis: reads PyTorch Flight Recorder dumps and names the ranks to blame for a hang.

    >>> from fr_analysis import analyze
    >>> diagnosis = analyze("fr_dumps")  # doctest: +SKIP
    >>> diagnosis.suspects  # doctest: +SKIP
    (1,)

Needs no torch.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from fr_analysis.attribute import attribute
from fr_analysis.collective_analyzer import CollectiveAnalyzer
from fr_analysis.diagnosis import (
    AttributionState,
    Call,
    Condition,
    Diagnosis,
    Edge,
    Fault,
    FaultKind,
    StuckGroup,
    Suspect,
    Verdict,
)
from fr_analysis.errors import FrAnalysisError
from fr_analysis.match import match
from fr_analysis.read import read_trace
from fr_analysis.report import diagnosis_as_dict, render_json, render_text, schema
from fr_analysis.trace import Frame, Source, Unread

__all__ = [
    "AttributionState",
    "Call",
    "CollectiveAnalyzer",
    "Condition",
    "Diagnosis",
    "Edge",
    "Fault",
    "FaultKind",
    "FrAnalysisError",
    "Frame",
    "Source",
    "StuckGroup",
    "Suspect",
    "Unread",
    "Verdict",
    "analyze",
    "diagnosis_as_dict",
    "render_json",
    "render_text",
    "schema",
]

__version__ = "0.1.0"


def analyze(
    path: str | os.PathLike[str],
    *,
    pattern: str | None = None,
    stacks: Sequence[str | os.PathLike[str]] = (),
    expected_world_size: int | None = None,
) -> Diagnosis:
    """Read the dumps that a path means and say who is to blame.

    Args:
        path: a directory, one file, a glob, or a prefix of file names; or a URL that fsspec
            knows, of the same kinds.
        pattern: in a directory, take only file names that match this glob.
        stacks: stacks snapshots, files or URLs, to use instead of those found beside the dumps.
        expected_world_size: how many ranks the job has, where the dumps do not tell.

    Returns:
        The diagnosis.

    Raises:
        FrAnalysisError: there is nothing to read, or nothing of it could be read.
    """
    trace = read_trace(
        path, pattern=pattern, stacks=stacks, expected_world_size=expected_world_size
    )
    return attribute(match(trace))
