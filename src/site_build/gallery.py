"""The hang gallery: runs a page's job on real ranks, checks its verdict, and shows what it left.

A page is one script for torchrun, made a page by sphinx-gallery. Its docstring ends in a
field list that says, for the reader and for the build alike, what to expect::

    :Symptom: All ranks wait in one collective, but one
    :Tags: host code, data loading
    :Verdict: rank_missing in all_reduce
    :Suspects: 2
    :Victims: 0, 1, 3
    :Stuck in: read_from_storage

Further fields: ``Exit status``, where torchrun's is not 0, and ``Fix: none``.

sphinx-gallery calls ``show_run`` after every code block. After the last one it runs the
script under torchrun, alone in a folder, as it is and with ``FIXED=1``, compares the
analyzer's diagnosis with the fields, and returns the rest of the page. A difference stops
the build.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx_gallery.scrapers import figure_rst

from fr_analysis import Diagnosis, FrAnalysisError, render_text
from fr_analysis.attribute import attribute
from fr_analysis.match import Progress, match
from fr_analysis.read import read_trace
from fr_analysis.report.grid import describe_grid, draw_grid
from fr_analysis.report.tables import entry_table
from rank_lab import RankLabError, RunRecord, WarmLauncher, run_ranks
from rank_lab.claims import Claims, differences
from site_build.captures import DUMPS_NAME, SOURCE, CaptureError, check_run, fingerprint_of
from site_build.stable import stabilize

NPROC = 4
DEADLINE_S = 120.0
HEALTHY = "healthy"

# What sphinx-gallery adds below a page: what a script prints outside torchrun, and an archive that
# holds nothing but the script.
_ADDED = re.compile(
    r"^\.\. rst-class:: sphx-glr-script-out\n\n(?: .*\n|\n)+"
    r"|^ +\.\. container:: sphx-glr-download sphx-glr-download-zip\n\n +:download:.*\n",
    re.MULTILINE,
)
_SYMPTOM = re.compile(r"^:Symptom: (.*)$", re.MULTILINE)
_FIELD = re.compile(r"^:(?P<name>[A-Z][a-z ]+): (?P<value>.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Scenario:
    """What a page says of itself.

    Attributes:
        name: the file's name without ending. title: the page's title.
        symptom: what the operator sees, as one phrase. tags: for the filter.
        claims: the outcome. fixed: the outcome with ``FIXED=1``; None where nothing is to fix.
        exit_status: torchrun's, when the job runs as it is.
    """

    name: str
    source: Path
    title: str
    symptom: str
    tags: tuple[str, ...]
    claims: Claims
    fixed: Claims | None
    exit_status: int


def _ranks(text: str) -> tuple[int, ...]:
    return tuple(int(rank) for rank in text.split(",")) if text.strip() != "none" else ()


def load_scenario(source: Path) -> Scenario:
    """Read what a gallery script says of itself.

    Args:
        source: the script.

    Returns:
        Its scenario.

    Raises:
        CaptureError: a field is missing or not understood; the message names the file.
    """
    text = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
    lines = [line for line in text.splitlines() if line and not line.startswith("..")]
    fields = {match["name"]: match["value"].strip() for match in _FIELD.finditer(text)}
    try:
        verdict = fields["Verdict"]
        claims: dict[str, Any] = {}
        found = re.fullmatch(r"(\w+)(?: in (\w+))?", verdict)
        if not found:
            raise ValueError(f"Verdict {verdict!r}: expected a kind, or a kind in an operation")
        if found[1] in (HEALTHY, "undetermined"):
            claims["verdict"] = found[1]
        else:
            claims |= {"verdict": "fault", "kind": found[1], "collective": found[2]}
        claims["suspects"] = _ranks(fields.get("Suspects", "none"))
        claims["victims"] = _ranks(fields.get("Victims", "none"))
        if "Stuck in" in fields:
            claims["stuck_in"] = fields["Stuck in"]
        nothing_to_fix = fields.get("Fix") == "none"
        return Scenario(
            name=source.stem,
            source=source,
            title=lines[0],
            symptom=fields["Symptom"],
            tags=tuple(tag.strip() for tag in fields["Tags"].split(",")),
            claims=Claims(**claims),
            fixed=None if nothing_to_fix else Claims(verdict=HEALTHY, suspects=(), victims=()),
            exit_status=int(fields.get("Exit status", "0")),
        )
    except (KeyError, ValueError, IndexError) as error:
        raise CaptureError(f"{source}: {error} (fields of the docstring)") from None


@dataclass(frozen=True, slots=True)
class Shown:
    """The texts of a page's run, as they are shown."""

    operator: str
    entries: str
    verdict: str
    fixed_operator: str
    fixed_verdict: str
    picture: str
    picture_alt: str


@cache
def _launcher() -> WarmLauncher:
    """One for all pages that this process builds."""
    return WarmLauncher()


def _run(
    scenario: Scenario, folder: Path, claims: Claims, env: dict[str, str]
) -> tuple[RunRecord, Progress, Diagnosis]:
    # Alone in a folder, as a reader has it who has downloaded it.
    folder.mkdir()
    script = Path(shutil.copy(scenario.source, folder))
    record = run_ranks(
        script,
        nproc=NPROC,
        run_dir=folder / "run",
        deadline_s=DEADLINE_S,
        env=env,
        launcher=_launcher(),
    )
    check_run(record, 0 if env else scenario.exit_status)
    progress = match(read_trace(record.dump_dir))
    diagnosis = attribute(progress)
    if wrong := differences(claims, diagnosis):
        variant = " with FIXED=1" if env else ""
        raise CaptureError(
            f"{scenario.name}{variant}: the run is not what the page claims: {'; '.join(wrong)}"
        )
    return record, progress, diagnosis


def _texts(scenario: Scenario, record: RunRecord, diagnosis: Diagnosis) -> tuple[str, str]:
    places = [(record.dump_dir, DUMPS_NAME), (record.script.parent, "/home/you")]
    # Where a rank died torchrun reports it, below warnings and its own traceback.
    _, rule, report = record.launcher_output.partition("\n=====")
    operator = stabilize(record.text + rule + report, places)
    return operator, stabilize(render_text(diagnosis), places)


def run_scenario(scenario: Scenario, captures: Path) -> Shown:
    """Run a page's job, or take what an unchanged page's run left.

    Args:
        scenario: the page.
        captures: folder for the outputs of all pages.

    Returns:
        What the page shows.

    Raises:
        CaptureError: the job did something else than the page claims.
    """
    kept = captures / "hang_gallery" / scenario.name / "shown.json"
    key = fingerprint_of([scenario.source])
    if kept.exists():
        content = json.loads(kept.read_text(encoding="utf-8"))
        if content.pop("fingerprint") == key:
            return Shown(**content)
    shutil.rmtree(kept.parent, ignore_errors=True)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gallery-") as scratch:
        folder = Path(scratch).resolve()
        try:
            record, progress, diagnosis = _run(scenario, folder / "hang", scenario.claims, {})
            operator, verdict = _texts(scenario, record, diagnosis)
            fixed_operator = fixed_verdict = ""
            if scenario.fixed:
                fixed, _, healthy = _run(scenario, folder / "fixed", scenario.fixed, {"FIXED": "1"})
                fixed_operator, fixed_verdict = _texts(scenario, fixed, healthy)
        except (RankLabError, FrAnalysisError) as error:
            raise CaptureError(f"{scenario.name}: {error}") from None
        shown = Shown(
            operator=operator,
            entries=entry_table(progress),
            verdict=verdict,
            fixed_operator=fixed_operator,
            fixed_verdict=fixed_verdict,
            picture=draw_grid(progress, diagnosis),
            picture_alt=describe_grid(diagnosis),
        )
        shutil.copytree(record.dump_dir, kept_dumps(scenario, captures), dirs_exist_ok=True)
    content = {name: getattr(shown, name) for name in Shown.__slots__}
    kept.write_text(json.dumps(content | {"fingerprint": key}), encoding="utf-8")
    # sphinx-gallery's worker processes have no part in Sphinx's log. The line above is its progress
    # in percent, which has no end.
    print(f"\n{scenario.name}: ran in {time.monotonic() - start:.0f} s", flush=True)
    return shown


def kept_dumps(scenario: Scenario, captures: Path) -> Path:
    """Where the dumps of a page's run are kept, for whoever wants to look again."""
    return captures / "hang_gallery" / scenario.name / DUMPS_NAME


def _block(text: str, caption: str) -> str:
    indented = "\n".join(f"   {line}".rstrip() for line in text.rstrip().splitlines())
    return f".. code-block:: text\n   :caption: {caption}\n\n{indented}\n\n"


def _section(title: str) -> str:
    return f"{title}\n{'-' * len(title)}\n\n"


def _page(scenario: Scenario, shown: Shown, picture: str) -> str:
    command = f"torchrun --nproc_per_node={NPROC} {scenario.source.name}"
    parts = [
        _section("What the operator sees"),
        _block(shown.operator, command),
        _section("What the dumps say"),
        picture,
        _block(shown.entries, "fr-analysis fr_dumps -j"),
        _section("The verdict"),
        _block(shown.verdict, "fr-analysis fr_dumps"),
    ]
    if scenario.fixed:
        parts += [
            _section("With the fix"),
            _block(shown.fixed_operator, f"FIXED=1 {command}"),
            _block(shown.fixed_verdict, "fr-analysis fr_dumps"),
        ]
    return "".join(parts)


def show_run(block: Any, block_vars: dict[str, Any], gallery_conf: dict[str, Any]) -> str:
    """sphinx-gallery's scraper: after a script's last block, the results of its run.

    Args:
        block: the code block that was executed. block_vars: its page's state.
        gallery_conf: sphinx-gallery's settings.

    Returns:
        RST for the page; empty for any other block.
    """
    if "__main__" not in block.content:
        return ""
    source = Path(gallery_conf["src_dir"], block_vars["src_file"])
    try:
        scenario = load_scenario(source)
        shown = run_scenario(scenario, SOURCE.parent / "_build" / "captures")
    except CaptureError as error:
        raise ExtensionError(str(error)) from None
    image = Path(next(block_vars["image_path_iterator"])).with_suffix(".svg")
    image.write_text(shown.picture, encoding="utf-8")
    picture = figure_rst([str(image)], gallery_conf["src_dir"], shown.picture_alt)
    return "\n\n" + _page(scenario, shown, picture + "\n\n")


def _edit_page(app: Sphinx, docname: str, source: list[str]) -> None:
    """Leave out what sphinx-gallery adds, and make the symptom an entry of the index.

    Search ranks entries before pages that merely have the same words, as all of these have.
    """
    if re.fullmatch(r"intermediate/hang_gallery/(?!index).*", docname):
        text = _ADDED.sub("", source[0])
        source[0] = _SYMPTOM.sub(r".. index::\n   single: \1\n\n\g<0>", text)


def setup(app: Sphinx) -> None:
    """Register with Sphinx."""
    app.connect("source-read", _edit_page)
