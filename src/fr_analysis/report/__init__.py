"""``report``: from a ``Diagnosis`` to what a person or a program reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fr_analysis.diagnosis import Diagnosis
from fr_analysis.match import Progress
from fr_analysis.report.json_report import diagnosis_as_dict, render_json, schema
from fr_analysis.report.text import headline, render_text

__all__ = ["FORMATS", "diagnosis_as_dict", "headline", "render_json", "render_text", "schema"]


def _render_html(diagnosis: Diagnosis, progress: Progress) -> str:
    # Templates and plots take their time to load: only for those who want them.
    from fr_analysis.report.html import render_html

    return render_html(diagnosis, progress)


def _render_perfetto(diagnosis: Diagnosis, progress: Progress) -> str:
    from fr_analysis.report.timeline import render_perfetto

    return render_perfetto(diagnosis, progress)


FORMATS: Mapping[str, Callable[[Diagnosis, Progress], str]] = {
    "text": lambda diagnosis, _: render_text(diagnosis),
    "json": lambda diagnosis, _: render_json(diagnosis),
    "html": _render_html,
    "perfetto": _render_perfetto,
}
"""What ``--format`` offers: a name, and what renders a diagnosis and the matched dumps so."""
