"""The gallery's index, made from its pages: from symptom to page, and cards to filter by tag."""

from __future__ import annotations

from pathlib import Path

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

from site_build.captures import CaptureError
from site_build.gallery import Scenario, load_scenario

FOLDER = "hang_gallery"


def setup(app: Sphinx) -> None:
    """Register the directive."""
    app.add_directive("hang-gallery", HangGallery)


def ordered_scenarios(folder: Path) -> list[Scenario]:
    """Every script of the gallery, in the order of ``order.txt`` in its folder.

    Raises:
        CaptureError: the file and the scripts differ, or a script does not say what it should.
    """
    order = folder / "order.txt"
    names = order.read_text(encoding="utf-8").split()
    scripts = {file.stem: file for file in folder.glob("*.py")}
    if set(names) != set(scripts):
        differing = ", ".join(sorted(set(names) ^ set(scripts)))
        raise CaptureError(f"{order} and the scripts differ: {differing}")
    return [load_scenario(scripts[name]) for name in names]


def _table(scenarios: list[Scenario]) -> list[str]:
    lines = [
        ".. list-table:: From symptom to page",
        "   :header-rows: 1",
        "   :widths: 45 30 25",
        "",
    ]
    lines += ["   * - Symptom", "     - Page", "     - Verdict"]
    for scenario in scenarios:
        claims = scenario.claims
        lines += [
            f"   * - {scenario.symptom}",
            f"     - :doc:`/intermediate/{FOLDER}/{scenario.name}`",
            f"     - ``{claims.kind or claims.verdict}``",
        ]
    return [*lines, ""]


def _cards(scenarios: list[Scenario]) -> list[str]:
    lines = [".. customcards::", ""]
    for scenario in scenarios:
        lines += [
            "   .. customcarditem::",
            f"      :header: {scenario.title}",
            f"      :card_description: {scenario.symptom}.",
            f"      :image: /intermediate/{FOLDER}/images/thumb/sphx_glr_{scenario.name}_thumb.svg",
            f"      :alt: {scenario.title}: ranks by sequence number",
            f"      :link: /intermediate/{FOLDER}/{scenario.name}",
            f"      :tags: {', '.join(scenario.tags)}",
            "",
        ]
    return lines


def _toctree(scenarios: list[Scenario]) -> list[str]:
    return [".. toctree::", "   :hidden:", "", *(f"   {scenario.name}" for scenario in scenarios)]


class HangGallery(SphinxDirective):
    """Lists every script of the gallery, in the order of ``ORDER`` in its folder."""

    def run(self) -> list[nodes.Node]:
        """Make the table, the cards and the toctree."""
        folder = Path(self.env.app.confdir, "intermediate_source", FOLDER)
        self.env.note_dependency(str(folder / "order.txt"))
        try:
            scenarios = ordered_scenarios(folder)
        except CaptureError as error:
            raise ExtensionError(str(error)) from None
        for scenario in scenarios:
            self.env.note_dependency(str(scenario.source))
        lines = [*_table(scenarios), *_cards(scenarios), *_toctree(scenarios)]
        container = nodes.container()
        self.state.nested_parse(
            StringList(lines, source=self.env.docname), self.content_offset, container
        )
        return container.children
