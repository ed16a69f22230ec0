"""The site's addresses are a contract: others link to them.

``published_urls`` in `conf.py` names a text file with every page and every label's anchor, one on
each line. A build that lacks one of them fails, unless ``redirects`` (sphinx-reredirects) leads
on from its page. A build with one that is not listed fails too, so that the list stays complete:
``make urls`` adds it. Nothing removes one.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util import logging

logger = logging.getLogger(__name__)

SEE = "see CONTRIBUTING.md"


def setup(app: Sphinx) -> None:
    """Register the check."""
    app.add_config_value("published_urls", "", "", [str])
    # Sphinx makes a number of what its option -D gives.
    app.add_config_value("published_urls_add", False, "", [bool, int])
    app.connect("build-finished", check)


def check(app: Sphinx, exception: Exception | None) -> None:
    """Compare the site that was just built with the list; one warning for each difference."""
    if exception is not None or app.builder.name != "html" or not app.config.published_urls:
        return
    file = Path(app.confdir, app.config.published_urls)
    listed = set(file.read_text(encoding="utf-8").split())
    built = built_urls(app)
    new = sorted(built - listed)
    if app.config.published_urls_add and new:
        file.write_text("\n".join(sorted(listed | built)) + "\n", encoding="utf-8")
        logger.info("added to %s:\n%s", app.config.published_urls, "\n".join(new))
        new = []
    pages = {url for url in built if "#" not in url}
    redirects = {
        f"{source.removesuffix('.html')}.html": target
        for source, target in app.config.redirects.items()
    }
    for complaint in (
        *wrong_redirects(redirects, pages),
        *lost_urls(listed, Path(app.outdir), pages, redirects),
        *(f"{url} is new: `make urls` adds it to {app.config.published_urls}" for url in new),
    ):
        logger.warning(complaint)


def built_urls(app: Sphinx) -> set[str]:
    """Every page of the site, and every anchor that a label or a glossary's term has."""
    std = app.env.domains["std"]
    anchors = [
        # sphinx-gallery's own labels follow from the page's path; they promise nothing more.
        *(place[:2] for name, place in std.data["anonlabels"].items() if name[:9] != "sphx_glr_"),
        *std.data["objects"].values(),
    ]
    pages = {docname: app.builder.get_target_uri(docname) for docname in app.env.found_docs}
    # The labels of the index and the search page lead to no anchor.
    fragments = {f"{pages[docname]}#{anchor}" for docname, anchor in anchors if anchor}
    return {*pages.values(), *fragments}


def wrong_redirects(redirects: Mapping[str, str], pages: set[str]) -> list[str]:
    """What is wrong with redirects, a line for each.

    Args:
        redirects: from old page to target, relative to the old page. pages: those of the site.
    """
    complaints = []
    for source, target in redirects.items():
        if source in pages:
            complaints.append(f"{source} is a page, which its redirect would overwrite; {SEE}")
        elsewhere = re.match(r"https?://", target)
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if not elsewhere and path not in pages:
            complaints.append(f"{source} is redirected to {target}, which is no page; {SEE}")
    return complaints


def lost_urls(
    listed: Iterable[str], site: Path, pages: set[str], redirects: Mapping[str, str]
) -> list[str]:
    """The published URLs that a site lacks, a line for each.

    Args:
        listed: published URLs, relative to the site. site: the folder it was built in.
        pages: its pages. A file that an earlier build left there is none.
        redirects: from old page to target. An old page's anchors are redirected with it.
    """
    complaints = []
    texts: dict[str, str] = {}
    for url in sorted(listed):
        page, _, anchor = url.partition("#")
        if page in redirects:
            continue
        if page not in pages:
            complaints.append(f"{url} was published and is gone: redirect {page}; {SEE}")
            continue
        if page not in texts:
            texts[page] = (site / page).read_text(encoding="utf-8")
        # Sphinx writes ids so, and a quote in text as an entity.
        if anchor and f' id="{anchor}"' not in texts[page]:
            complaints.append(f"{url} was published and its anchor is gone: put it back; {SEE}")
    return complaints
