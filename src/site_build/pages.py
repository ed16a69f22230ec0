"""Keeps an edited site equal to a fresh build of the same sources.

Neither Sphinx nor sphinx-gallery removes a page whose source is gone, nor looks again at the pages
that link to it. A style sheet or script that was edited is not copied unless a page was edited too.
And a build that failed on a warning passes when it is simply repeated, as the page that caused the
warning is not read again.
"""

import filecmp
from pathlib import Path

from sphinx.application import ENV_PICKLE_FILENAME, Sphinx
from sphinx.builders.html import StandaloneHTMLBuilder
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

logger = logging.getLogger(__name__)


def setup(app: Sphinx) -> None:
    """Register the steps."""
    app.connect("builder-inited", remove_orphans)
    app.connect("env-get-outdated", unpublish)
    app.connect("env-get-outdated", restyle)
    app.connect("build-finished", forget_failed_build)


def remove_orphans(app: Sphinx) -> None:
    """Delete every page in a gallery folder that no source file accounts for."""
    conf = app.config.sphinx_gallery_conf
    for source, gallery in zip(conf["examples_dirs"], conf["gallery_dirs"], strict=True):
        source_dir, gallery_dir = Path(app.srcdir, source), Path(app.srcdir, gallery)
        for page in gallery_dir.rglob("*.rst"):
            origin = source_dir / page.relative_to(gallery_dir)
            if origin.exists() or origin.with_suffix(".py").exists():
                continue
            logger.info("removing %s: its source is gone", page.relative_to(app.srcdir))
            # What sphinx-gallery made beside the page: its script, notebook, checksum, archive.
            for leftover in page.parent.glob(f"{page.stem}.*"):
                leftover.unlink()


def unpublish(
    app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]
) -> set[str]:
    """Delete the HTML of removed pages, and have all others read again for links to them."""
    if isinstance(app.builder, StandaloneHTMLBuilder):
        for docname in removed:
            Path(app.builder.get_outfilename(docname)).unlink(missing_ok=True)
    return set(env.found_docs) if removed else set()


def restyle(
    app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]
) -> set[str]:
    """Have every page written again, with new checksums, if a file that they load was edited."""
    built = Path(app.outdir, "_static")
    for name in app.config.html_static_path:
        # Extensions add folders of their own, by absolute path: nobody edits those.
        if Path(name).is_absolute():
            continue
        folder = Path(app.confdir, name)
        for file in folder.rglob("*"):
            copy = built / file.relative_to(folder)
            if file.is_file() and not (copy.exists() and filecmp.cmp(file, copy, shallow=False)):
                return set(env.found_docs)
    return set()


def forget_failed_build(app: Sphinx, exception: Exception | None) -> None:
    """After a build with warnings, have the next one read every page again."""
    if app._warncount:
        Path(app.doctreedir, ENV_PICKLE_FILENAME).unlink(missing_ok=True)
