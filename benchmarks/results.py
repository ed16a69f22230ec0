"""Keeps what ``make bench`` has measured, and shows it in the README and on the site.

``python -m benchmarks.results`` renders again what is kept; a test compares.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.tables import Rows, list_table, measured_on

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results.json"
PAGE = ROOT / "benchmarks" / "results.rst"
README = ROOT / "README.md"

_BEGIN, _END = "<!-- `make bench` begins -->", "<!-- `make bench` ends -->"
_SMALLER, _LARGER = "512 ranks, one missing", "2,048 ranks, one missing"
RANKS, ENTRIES = 100_000, 2_000
"""The job that is too large to be measured."""

WAYS = {
    "numpy": "NumPy, from the dictionaries: all that the analysis needs, checked",
    "pyarrow": "pyarrow, from the dictionaries: the same fields but for frames, unchecked",
    "repeats": "repeats left out before unpickling, then NumPy: all that it needs, checked",
    "alike": "the same, of a dump that is like an earlier one in all but numbers and times",
}
"""From a dump to columns, see ``benchmarks.columns``; the first two without the unpickling."""

_HEAD = (
    "Job",
    "Entries",
    "fr-analysis / plain reading",
    "plain reading in 2 processes / in 1",
    "torchfrtrace / fr-analysis",
    "Peak memory",
)


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Median and range of ratios."""
    if not values:
        return "-"
    return f"{median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def _compared(tool: dict[str, Any] | None) -> str:
    if tool is None:
        return "not run"
    note = f", {tool['failed']}" if tool["failed"] else ""
    return spread(tool["times_ours"], 1) + note


def _rows(results: dict[str, Any]) -> Rows:
    rows = []
    for name, case in results["cases"].items():
        tools = case["tools"]
        ours = tools["fr-analysis"]
        rows.append(
            (
                name,
                f"{case['entries']:,}",
                ours["failed"] or spread(ours["times_floor"]),
                spread(tools["floor, all cores"]["times_floor"]),
                _compared(tools.get("torchfrtrace")),
                f"{max(ours['peak_mb']):.0f} MB",
            )
        )
    return rows


def _start(results: dict[str, Any]) -> str:
    start = results["startup_s"]
    ours, nothing = start["fr-analysis --version"], start["python -c pass"]
    return (
        f"``fr-analysis --version`` took {ours:.2f} s, of which an interpreter that does nothing "
        f"takes {nothing:.2f} s."
    )


NVIDIA = (
    "NVIDIA's CollectiveAnalyzer was not measured: no release of its package on the index that "
    "Python 3.11 can install has it."
)


def as_markdown(results: dict[str, Any]) -> str:
    """The results as a table in Markdown, with the machine below it."""
    lines = ["| " + " | ".join(_HEAD) + " |", "|" + " --- |" * len(_HEAD)]
    lines += ["| " + " | ".join(row) + " |" for row in _rows(results)]
    start = _start(results).replace("``", "`")
    return "\n".join([*lines, "", measured_on(results), start, NVIDIA]) + "\n"


def _slope(results: dict[str, Any], of: Any) -> tuple[float, float]:
    """What a measure is with no entries, and what each entry adds."""
    small, large = results["cases"][_SMALLER], results["cases"][_LARGER]
    entries = large["entries"] - small["entries"]
    each = (of(large) - of(small)) / entries
    return of(small) - each * small["entries"], each


def _projection(results: dict[str, Any]) -> Rows:
    entries = RANKS * ENTRIES
    start_s, entry_s = _slope(results, lambda case: median(case["tools"]["fr-analysis"]["seconds"]))
    base_mb, entry_mb = _slope(results, lambda case: max(case["tools"]["fr-analysis"]["peak_mb"]))
    small = results["cases"][_SMALLER]
    members = sum(len(str(rank)) + 2 for rank in range(RANKS))
    small_members = small["ranks"] * sum(len(str(rank)) + 2 for rank in range(small["ranks"]))
    entry_bytes = (small["bytes"] - small_members) / small["entries"]
    reduced = small["reduced_bytes"] / small["entries"]
    return [
        (
            "Time on this machine",
            f"{1e6 * entry_s:.2f} µs per entry",
            f"{(start_s + entries * entry_s) / 60:.0f} min",
        ),
        (
            "Memory of the analysis",
            f"{1e6 * entry_mb:.0f} bytes per entry",
            f"{(base_mb + entries * entry_mb) / 1e3:.0f} GB",
        ),
        (
            "Dumps, their entries",
            f"{entry_bytes:.0f} bytes per entry",
            f"{entries * entry_bytes / 1e9:.0f} GB",
        ),
        (
            "Dumps, the members of the default group",
            f"{members / 1e3:.0f} kB in each dump",
            f"{members * RANKS / 1e9:.0f} GB",
        ),
        (
            "The same, reduced (regular made job; real times are noisier)",
            f"{reduced:.2f} bytes per entry",
            f"{entries * reduced / 1e6:.0f} MB",
        ),
    ]


def as_page(results: dict[str, Any]) -> str:
    """The results in reStructuredText, for the site to include."""
    reduced = results["cases"][_SMALLER]["tools"]["fr-analysis, reduced"]
    small = results["cases"][_SMALLER]
    return "\n".join(
        [
            list_table(
                "Ratios within one run: median, and range over the rounds", _HEAD, _rows(results)
            ),
            measured_on(results),
            _start(results),
            NVIDIA,
            "",
            ".. columns begin",
            "",
            _columns(results),
            ".. columns end",
            "",
            ".. measured-reduced begin",
            "",
            f"{small['ranks']} ranks with {small['entries']:,} entries together, "
            f"{small['bytes'] / 1e6:.0f} MB of dumps, were reduced to "
            f"{small['reduced_bytes'] / 1e6:.2f} MB. Their analysis took "
            f"{spread([1 / ratio for ratio in reduced['times_ours']])} times shorter than that of "
            "the dumps.",
            "",
            ".. measured-reduced end",
            "",
            ".. projection begin",
            "",
            list_table(
                f"{RANKS:,} ranks with {ENTRIES:,} entries each, from the slope of two sizes",
                ("What", "Measured", "Together"),
                _projection(results),
            ),
            ".. projection end",
            "",
        ]
    )


def _columns(results: dict[str, Any]) -> str:
    rows = [(WAYS[way], spread(ratios)) for way, ratios in results["columns"].items()]
    return list_table(
        "One dump in one process, beside pickle.load of the same dump",
        ("From the dump to columns", "Times as long as pickle.load"),
        rows,
    )


def with_table(readme: str, table: str) -> str:
    """The README with the table between its marks replaced."""
    return re.sub(
        f"(?<={re.escape(_BEGIN)}\n).*?(?={re.escape(_END)})",
        lambda _: table,
        readme,
        count=1,
        flags=re.DOTALL,
    )


def show(results: dict[str, Any]) -> None:
    """Put results into the README and the site's sources."""
    PAGE.write_text(as_page(results), encoding="utf-8")
    readme = README.read_text(encoding="utf-8")
    README.write_text(with_table(readme, as_markdown(results)), encoding="utf-8")


def keep(results: dict[str, Any]) -> None:
    """Store results, and show them."""
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    show(results)


if __name__ == "__main__":
    show(json.loads(RESULTS.read_text(encoding="utf-8")))
