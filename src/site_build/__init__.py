"""The Sphinx extension of this site: what `conf.py` needs and no published extension offers."""

from sphinx.application import Sphinx

from site_build import (
    budget,
    cards,
    demo_archive,
    demos,
    gallery,
    gallery_index,
    lean_styles,
    line_anchors,
    pages,
)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register everything with Sphinx."""
    budget.setup(app)
    cards.setup(app)
    pages.setup(app)
    demos.setup(app)
    demo_archive.setup(app)
    gallery.setup(app)
    gallery_index.setup(app)
    line_anchors.setup(app)
    lean_styles.setup(app)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
