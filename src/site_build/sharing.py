"""What the site tells programs that show or list it: search engines, chats, language models.

Every page has a description; `llms.txt` lists all pages with theirs. Where it is known at which
address the site is published (``html_baseurl``), pages also name their picture, and `sitemap.xml`
lists their addresses. sphinxext-opengraph writes the rest of what chats show.

sphinx-sitemap lists only the pages that a build wrote, so a sitemap made after an edit would lack
all others. sphinx-llms-txt needs copies of the sources, which are not published.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

from site_build.browser import find_chromium, take_picture
from site_build.summaries import summaries

PICTURES = "_static/shared"

# What chats show is this large, whatever the picture's shape; SVG they do not show.
_WIDTH, _HEIGHT = 1200, 630
_PICTURE = """<!doctype html>
<style>
  body {{ margin: 0; background: #17263b }}
  img {{ display: block; box-sizing: border-box; width: {width}px; height: {height}px;
    padding: 40px; object-fit: contain }}
</style>
<img src="{image}" alt="">
"""


def setup(app: Sphinx) -> None:
    """Register the steps."""
    app.add_config_value("llms_summary", "", "", [str])
    # Before sphinxext-opengraph, which takes from the page's fields what it would not guess.
    app.connect("html-page-context", describe_page, priority=400)
    app.connect("build-finished", write_lists)


def describe_page(
    app: Sphinx,
    pagename: str,
    templatename: str,
    context: dict[str, Any],
    doctree: nodes.document | None,
) -> None:
    """Give a page its description and, where the site is published, its picture."""
    summary = summaries(app.env).get(pagename)
    if summary is None or not summary.text:
        return
    text = escape(summary.text)
    # A page that describes itself has Sphinx write this.
    if 'name="description"' not in context["metatags"]:
        context["metatags"] += f'<meta name="description" content="{text}" />\n'
    if not app.config.html_baseurl:
        return
    picture = _picture(app, summary.image) or app.config.ogp_image
    context["meta"] = {
        **(context["meta"] or {}),
        "og:description": text,
        "og:image": app.config.html_baseurl + picture,
        "og:image:alt": escape(summary.alt or app.config.html_title),
    }


def _picture(app: Sphinx, image: str) -> str:
    """The PNG of a page's picture, from the site's folder; empty where none can be made."""
    if not image or find_chromium() is None:
        return ""
    source = Path(app.srcdir, image)
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:8]
    name = f"{PICTURES}/{source.stem}-{digest}.png"
    target = Path(app.outdir, name)
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="shared-") as folder:
            page = Path(folder, "picture.html")
            page.write_text(
                _PICTURE.format(image=source.as_uri(), width=_WIDTH, height=_HEIGHT),
                encoding="utf-8",
            )
            take_picture(page, target, width=_WIDTH, height=_HEIGHT)
    return name


def write_lists(app: Sphinx, exception: Exception | None) -> None:
    """Write `llms.txt` and, where the site's address is known, `sitemap.xml`."""
    if exception is not None or app.builder.name != "html":
        return
    site = Path(app.outdir)
    (site / "llms.txt").write_text(llms_txt(app), encoding="utf-8")
    sitemap = site / "sitemap.xml"
    # One of an earlier build would name an address that this one does not have.
    sitemap.unlink(missing_ok=True)
    if app.config.html_baseurl:
        urls = ElementTree.Element("urlset", xmlns="http://www.sitemaps.org/schemas/sitemap/0.9")
        for docname in sorted(app.env.found_docs):
            place = ElementTree.SubElement(ElementTree.SubElement(urls, "url"), "loc")
            place.text = app.config.html_baseurl + app.builder.get_target_uri(docname)
        ElementTree.ElementTree(urls).write(sitemap, encoding="utf-8", xml_declaration=True)


def llms_txt(app: Sphinx) -> str:
    """All pages in the order of reading, as https://llmstxt.org describes it."""
    lines = [f"# {app.config.html_title}", "", f"> {app.config.llms_summary}", "", "## Pages", ""]
    for docname in pages_in_order(app.env, app.config.root_doc):
        title = app.env.titles[docname].astext()
        address = app.config.html_baseurl + app.builder.get_target_uri(docname)
        lines.append(f"- [{title}]({address}): {summaries(app.env)[docname].text}")
    return "\n".join(lines) + "\n"


def pages_in_order(env: BuildEnvironment, start: str) -> Iterator[str]:
    """A page, then all that its tables of contents lead to; pages that none leads to are left out.

    Args:
        env: Sphinx's, with all pages read. start: the page to begin with.
    """
    yield start
    for child in env.toctree_includes.get(start, []):
        yield from pages_in_order(env, child)
