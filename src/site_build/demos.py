"""Ties captures to Sphinx: demos run before the pages are read; claims become substitutions."""

from __future__ import annotations

import time
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst.directives.images import Figure
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.errors import ExtensionError
from sphinx.util import logging

from site_build.captures import CaptureError, PageRun, capture, load_page_run, substitutions

logger = logging.getLogger(__name__)


def setup(app: Sphinx) -> None:
    """Register the steps."""
    app.add_config_value("demo_sources", [], "env", [list])
    app.add_directive("captured-picture", CapturedPicture)
    app.connect("config-inited", add_substitutions)
    app.connect("builder-inited", run_demos)


class CapturedPicture(Figure):
    """A picture that the build took of a demo's run: ``.. captured-picture:: PAGE/NAME.png``."""

    def run(self) -> list[nodes.Node]:
        """Make a figure; where the build had no browser, a line that says so."""
        file = f"/_build/captures/{self.arguments[0]}"
        settings = self.state.document.settings
        if not Path(settings.env.app.srcdir, file[1:]).is_file():
            missing = "A picture belongs here; this copy of the site was built without a browser."
            return [nodes.paragraph("", "", nodes.emphasis("", missing))]
        self.arguments[0] = file
        return list(super().run())


def _page_runs(confdir: Path, config: Config) -> list[PageRun]:
    try:
        return [load_page_run(confdir / name) for name in config.demo_sources]
    except CaptureError as error:
        raise ExtensionError(str(error)) from None


def add_substitutions(app: Sphinx, config: Config) -> None:
    """Give every page the claims as ``|name|``."""
    lines: list[str] = []
    for run in _page_runs(Path(app.confdir), config):
        lines.extend(f".. |{name}| replace:: {text}" for name, text in substitutions(run).items())
    config["rst_epilog"] = "\n".join([config["rst_epilog"] or "", *lines])


def run_demos(app: Sphinx) -> None:
    """Bring the captured output of every page up to date, or stop the build."""
    for run in _page_runs(Path(app.confdir), app.config):
        start = time.monotonic()
        try:
            ran = capture(run, Path(app.srcdir) / "_build" / "captures", announce=logger.info)
        except CaptureError as error:
            raise ExtensionError(f"{error}") from None
        took = f"ran in {time.monotonic() - start:.0f} s" if ran else "unchanged, output kept"
        logger.info("%s: %s", run.name, took)
