"""The report as one page: the answer, the evidence, and grids to look around in.

The page is self-contained: it works offline, from a file, and asks no other host for anything.
"""

from __future__ import annotations

import json
from collections import defaultdict
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import fr_analysis
from fr_analysis.attribute.evidence import named_ranks
from fr_analysis.attribute.frames import code_line, main_thread
from fr_analysis.diagnosis import Diagnosis, Verdict
from fr_analysis.errors import FrAnalysisError, printable
from fr_analysis.match import Progress
from fr_analysis.report.html.cells import Cells
from fr_analysis.report.html.graph import draw_graph
from fr_analysis.report.json_report import within_html
from fr_analysis.report.tables import entry_table, group_table, rank_table
from fr_analysis.report.text import KINDS, alike_suspects, headline
from fr_analysis.trace import Frame, Trace

if TYPE_CHECKING:
    import jinja2

_MOST_ENTRIES = 20_000
"""With more entries than this the grid is the way to look at them: a table has no end."""


def _stacks(trace: Trace) -> list[dict[str, Any]]:
    """Ranks whose main threads have the same stack, put together; most ranks first."""
    alike: dict[tuple[Frame, ...], list[int]] = defaultdict(list)
    for rank, stacks in sorted(trace.stacks.items()):
        thread = main_thread(stacks)
        if thread is not None:
            alike[thread.frames].append(rank)
    return [
        {"ranks": named_ranks(ranks), "line": code_line(frames), "frames": frames}
        for frames, ranks in sorted(alike.items(), key=lambda item: (-len(item[1]), item[1]))
    ]


def _second_sentence(diagnosis: Diagnosis) -> str:
    """What to know beyond the headline: why, in words of the first fault's evidence."""
    if diagnosis.faults:
        evidence = [text for text in diagnosis.faults[0].evidence if not text.endswith(":")]
        text = "; ".join(evidence[:2])
    else:
        text = diagnosis.notes[0] if diagnosis.notes else ""
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _environment() -> tuple[jinja2.Environment, str]:
    """The templates, and the plotting library's script."""
    try:
        import jinja2
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise FrAnalysisError(
            f"--format html needs {error.name}, which is not installed: "
            "pip install 'fr-analysis[html]'"
        ) from None
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment, get_plotlyjs()


def _as_script(content: object) -> str:
    """JSON that may stand within a script element, whatever strings it holds."""
    return within_html(json.dumps(content, separators=(",", ":")))


def render_html(diagnosis: Diagnosis, progress: Progress) -> str:
    """Render a diagnosis as a page.

    Args:
        diagnosis: the answer.
        progress: the matched dumps it was made from.

    Returns:
        An HTML document.

    Raises:
        FrAnalysisError: a library is not installed that only this format needs.
    """
    environment, plotly_js = _environment()
    trace = progress.trace
    front = [stuck.group for stuck in diagnosis.wavefront]
    front += [fault.group for fault in diagnosis.faults]
    entries = len(progress.group)
    here = files("fr_analysis.report.html")
    return environment.from_string((here / "page.html").read_text(encoding="utf-8")).render(
        css=(here / "page.css").read_text(encoding="utf-8"),
        script=(here / "page.js").read_text(encoding="utf-8"),
        plotly_js=plotly_js,
        data=_as_script(Cells(progress, diagnosis).as_json(tuple(front))),
        version=fr_analysis.__version__,
        diagnosis=diagnosis,
        healthy=diagnosis.verdict is Verdict.HEALTHY,
        headline=headline(diagnosis),
        why=_second_sentence(diagnosis),
        suspects=[
            (named_ranks(ranks), known) for ranks, known in alike_suspects(diagnosis.details)
        ],
        kinds=KINDS,
        named_ranks=named_ranks,
        printable=printable,
        graph=draw_graph(diagnosis),
        stacks=_stacks(trace),
        silent=[
            (named_ranks([rank]), stacks.error)
            for rank, stacks in sorted(trace.stacks.items())
            if stacks.error
        ],
        rank_table=rank_table(trace),
        group_table=group_table(progress),
        entry_table=entry_table(progress) if entries <= _MOST_ENTRIES else "",
        entries=entries,
    )
