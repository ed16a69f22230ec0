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
    linking,
    pages,
    published,
    search_index,
    sharing,
    summaries,
)


def setup(app: Sphinx) -> dict[str, bool | int]:
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
    linking.setup(app)
    summaries.setup(app)
    sharing.setup(app)
    published.setup(app)
    search_index.setup(app)
    # What `summaries` keeps with each page: one more wherever that changes.
    return {"env_version": 1, "parallel_read_safe": True, "parallel_write_safe": True}
