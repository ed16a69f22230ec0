"""Numbers the lines of scripts, so that one can link to a line: ``#verify_flight_recorder-377``.

An anchor is the script's name and the line's number in the file, also where a page shows the script
in parts. Snippets have no numbers: they are lines of no file.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

LANGUAGES = ("python", "Python")  # the second is what sphinx-gallery writes


def setup(app: Sphinx) -> None:
    """Register with Sphinx, after sphinx-gallery."""
    app.connect("doctree-read", number_lines)
    # It writes code anew, without anchors, to link names to references that are not here.
    transforms = app.registry.post_transforms
    transforms[:] = [each for each in transforms if each.__name__ != "CodeLinksTransform"]


def number_lines(app: Sphinx, doctree: nodes.document) -> None:
    """Give every line of an included script, or of a gallery page's own, its number and anchor."""
    for block in doctree.findall(nodes.literal_block):
        if block.get("language") not in LANGUAGES:
            continue
        arguments: dict[str, Any] = block.setdefault("highlight_args", {})
        if "source" in block:
            name = PurePath(block["source"]).stem
        elif "linenostart" in arguments:
            name = PurePath(app.env.docname).name
        else:
            continue
        block["linenos"] = True
        arguments |= {"linespans": name, "anchorlinenos": True}
