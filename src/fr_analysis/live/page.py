"""The page ``/fr_analysis`` of a debug server: one answer, as HTML that asks nobody else."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from html import escape

from fr_analysis.attribute.evidence import named_ranks
from fr_analysis.diagnosis import Diagnosis, Suspect, Verdict
from fr_analysis.live.judge import Reading, waited_s
from fr_analysis.match import Groups, ProcessGroup, Progress
from fr_analysis.report.grid import draw_grid
from fr_analysis.report.text import headline, render_text

MOST_GROUPS = 4
MOST_MEMBERS = 32
"""Of a group in the picture: suspects first, then who waits, then the others."""
REFRESH_S = range(2, 3601)
"""Seconds between two loads that a page may be asked for."""

_STYLE = """
:root { color-scheme: light dark; --ink: #1b2430; --ground: #ffffff; --line: #c5ced8;
  --link: #0b57a4; --panel: #f3f6f9; --bad: #a3200d; --good: #1a6631; --open: #7a4d00 }
@media (prefers-color-scheme: dark) { :root { --ink: #e3e9ef; --ground: #12181f; --line: #3b4754;
  --link: #8cc4ff; --panel: #1b242e; --bad: #ff9d8c; --good: #86d99b; --open: #f2c069 } }
body { margin: 0; font: 1rem/1.5 system-ui, sans-serif; color: var(--ink);
  background: var(--ground) }
main, nav, footer { max-width: 75rem; margin: 0 auto; padding: .75rem 1rem }
a { color: var(--link) } nav a { margin-right: 1rem }
h1 { font-size: 1.4rem; line-height: 1.25; overflow-wrap: anywhere }
h2 { font-size: 1.1rem; margin: 1.5rem 0 .5rem }
.fault { color: var(--bad) } .healthy { color: var(--good) } .undetermined { color: var(--open) }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: var(--panel); padding: .75rem;
  border: 1px solid var(--line); border-radius: 6px; font-size: .85rem }
code { overflow-wrap: anywhere } .picture { overflow-x: auto }
footer { border-top: 1px solid var(--line); font-size: .85rem }
"""


def _members(group: ProcessGroup, first: Iterable[int]) -> tuple[int, ...]:
    """So many members of a group as a picture can show, those that matter first."""
    chosen = dict.fromkeys(rank for rank in first if rank in group.members)
    chosen |= dict.fromkeys(group.members)
    return tuple(sorted(list(chosen)[:MOST_MEMBERS]))


def narrow(progress: Progress, diagnosis: Diagnosis) -> Progress:
    """Leave in a match what a picture of it should show: the stuck groups, without the crowd.

    Args:
        progress: the matched dumps.
        diagnosis: the answer.

    Returns:
        The match with a few groups, each of a few members; all groups count where none is stuck.
    """
    stuck = [group.group for group in diagnosis.wavefront]
    stuck += [fault.group for fault in diagnosis.faults]
    groups = [g for g in progress.groups.groups if not stuck or g.name.name in stuck]
    first = (*diagnosis.suspects, *diagnosis.victims)
    shown = tuple(replace(group, members=_members(group, first)) for group in groups[:MOST_GROUPS])
    return replace(progress, groups=Groups(shown, progress.groups.of_rank, progress.groups.world))


def _left_out(progress: Progress, shown: Progress) -> str:
    """What the picture does not show, as a sentence; empty where it shows all."""
    members = max((len(group.members) for group in progress.groups.groups), default=0)
    if len(shown.groups.groups) == len(progress.groups.groups) and members <= MOST_MEMBERS:
        return ""
    return (
        f"<p>Shown: {len(shown.groups.groups)} of {len(progress.groups.groups)} process groups, "
        f"at most {MOST_MEMBERS} ranks of each.</p>"
    )


def _suspect(suspect: Suspect) -> str:
    text = f"rank {suspect.rank}, {suspect.condition}"
    code = suspect.location or (suspect.stack[0] if suspect.stack else None)
    if code:
        return f"<li>{escape(text)}, is at <code>{escape(str(code))}</code></li>"
    return f"<li>{escape(text)}</li>"


def _waits(reading: Reading, diagnosis: Diagnosis) -> list[str]:
    items = []
    for fault in diagnosis.faults:
        waited = waited_s(reading, fault)
        if waited is not None and fault.victims:
            verb = "waits" if len(fault.victims) == 1 else "wait"
            items.append(
                f"<li>{named_ranks(fault.victims)} {verb} in {escape(fault.collective)} of group "
                f"{escape(fault.group)}, for {waited:.0f} s so far</li>"
            )
    return items


def render_page(reading: Reading, diagnosis: Diagnosis, refresh_s: int | None = None) -> str:
    """Render the page.

    Args:
        reading: what was read of the job.
        diagnosis: the answer.
        refresh_s: seconds until the page loads again by itself; None for never.

    Returns:
        An HTML document. All of it that comes from the ranks is escaped.
    """
    at = datetime.fromtimestamp(reading.snapshot.taken_ns / 1e9, UTC)
    shown = narrow(reading.progress, diagnosis)
    lists = []
    if diagnosis.details:
        some = "".join(map(_suspect, diagnosis.details[:MOST_MEMBERS]))
        lists.append(f"<h2>Suspects</h2><ul>{some}</ul>")
    waits = _waits(reading, diagnosis)
    if waits:
        lists.append(f"<h2>Waiting</h2><ul>{''.join(waits)}</ul>")
    # What the verdict does not say of a job that moves.
    told = ""
    if diagnosis.verdict is not Verdict.FAULT and diagnosis.notes:
        told = f"<p>{escape(diagnosis.notes[0])}</p>"
    again = "" if refresh_s is None else f"setTimeout(() => location.reload(), {refresh_s * 1000});"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(headline(diagnosis))} - fr-analysis</title>
<link rel="icon" href="data:,">
<style>{_STYLE}</style>
</head>
<body>
<nav aria-label="Debug server"><a href="/">Debug server</a> <a href="/fr_analysis">Ask again</a>
<a href="/fr_analysis?refresh=10">Every 10 s</a> <a href="/fr_analysis.json">JSON</a></nav>
<main>
<h1 class="{diagnosis.verdict}">{escape(headline(diagnosis))}</h1>
{told}
<p>Asked at {at:%Y-%m-%d %H:%M:%S} UTC.</p>
{"".join(lists)}
<h2>Report</h2>
<pre>{escape(render_text(diagnosis))}</pre>
<h2>Ranks by sequence number</h2>
{_left_out(reading.progress, shown)}
<div class="picture" role="region" aria-label="Ranks by sequence number" tabindex="0">
{draw_grid(shown, diagnosis)}</div>
</main>
<footer>The debug server listens on all interfaces and asks nobody for a password: use it in
trusted networks only.</footer>
{f"<script>{again}</script>" if again else ""}
</body>
</html>
"""
