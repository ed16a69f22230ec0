"""Addresses stay: the list of published URLs, redirects, links from other projects, and the lists
that tell others of the pages."""

import re
import subprocess
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit
from xml.etree import ElementTree

import pytest
from PIL import Image

from site_build.browser import find_chromium
from site_build.published import lost_urls
from support import ROOT, Watched, sphinx_build

LISTED = (ROOT / "intermediate_source/published_urls.txt").read_text().split()
LINKING = "intermediate/linking_to_this_site.html"
ADDRESS = "https://docs.example.org/hangs"

CONF = """
extensions = ["sphinx_reredirects", "site_build.published"]
published_urls = "urls.txt"
"""
INDEX = "Root\n====\n\n.. toctree::\n   :glob:\n\n   pages/*\n"
PAGE = ".. _the-cause:\n\nCause\n=====\n\n.. glossary::\n\n   rank\n      A process.\n"


class Head(HTMLParser):
    """What a page's head says of it: by `name`, `property` or `rel`."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.said: dict[str, str] = {}
        self.ids: set[str] = set()
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("meta", "link"):
            key = given.get("name") or given.get("property") or given.get("rel") or ""
            self.said[key] = given.get("content") or given.get("href") or ""
        if given.get("id"):
            self.ids.add(given["id"] or "")


def complaints(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What a build warned of."""
    return re.findall(r"^WARNING: (.*)$", done.stderr, re.MULTILINE)


# -- The list ---------------------------------------------------------------------------------


def test_every_published_url_is_there(site: Path) -> None:
    heads = {page: Head(site / page) for page in {url.partition("#")[0] for url in LISTED}}
    assert len(heads) > 25
    for url in LISTED:
        page, _, anchor = url.partition("#")
        assert not anchor or anchor in heads[page].ids, url


def test_labels_that_others_link_to_are_listed() -> None:
    tutorial = "intermediate/debug_hangs_with_flight_recorder.html"
    assert {
        "index.html#your-job-hangs-now",
        f"{tutorial}#hang-symptoms",
        f"{tutorial}#live-debug-server",
        "intermediate/hang_gallery/straggler.html",
    } <= set(LISTED)


def test_a_page_that_is_gone_is_named_with_its_anchors(site: Path) -> None:
    pages = {url for url in LISTED if "#" not in url}
    assert lost_urls(LISTED, site, pages, {}) == []
    gone = "intermediate/how_attribution_works.html"
    lost = lost_urls(LISTED, site, pages - {gone}, {})
    assert len(lost) == sum(url.startswith(gone) for url in LISTED) > 1
    assert lost[0] == f"{gone} was published and is gone: redirect {gone}; see CONTRIBUTING.md"
    assert lost_urls(LISTED, site, pages - {gone}, {gone: "index.html"}) == []


@pytest.fixture
def project(make_project):
    """A site of two pages, all of whose URLs are listed."""
    made = make_project(CONF)
    made.write(index=INDEX, pages__cause=PAGE)
    (made.folder / "urls.txt").write_text("")
    built = made.build("-D", "published_urls_add=1")
    assert built.returncode == 0, built.stderr
    return made


def redirect(project, source: str, target: str) -> None:
    """Add a redirect to the project."""
    conf = project.folder / "conf.py"
    conf.write_text(f"{conf.read_text()}\nredirects = {{{source!r}: {target!r}}}\n")


def test_new_ones_are_added(project) -> None:
    assert (project.folder / "urls.txt").read_text().split() == [
        "index.html",
        "pages/cause.html",
        "pages/cause.html#term-rank",
        "pages/cause.html#the-cause",
    ]
    assert project.build().returncode == 0


def test_a_new_one_that_is_not_listed_fails_the_build(project) -> None:
    project.write(pages__other=".. _other-cause:\n\nOther\n=====\n")
    built = project.build()
    assert built.returncode != 0
    assert complaints(built) == [
        "pages/other.html is new: `make urls` adds it to urls.txt",
        "pages/other.html#other-cause is new: `make urls` adds it to urls.txt",
    ]


def test_one_that_is_gone_fails_the_build_each_time_and_is_never_unlisted(project) -> None:
    (project.folder / "pages" / "cause.rst").unlink()
    project.write(pages__reason=PAGE.replace("the-cause", "the-reason"))
    for _ in range(2):
        built = project.build("-D", "published_urls_add=1")
        assert built.returncode != 0
        gone = "was published and is gone: redirect pages/cause.html; see CONTRIBUTING.md"
        assert complaints(built) == [
            f"pages/cause.html {gone}",
            f"pages/cause.html#term-rank {gone}",
            f"pages/cause.html#the-cause {gone}",
        ]
    assert "pages/cause.html#the-cause" in (project.folder / "urls.txt").read_text().split()


def test_an_anchor_that_is_gone_fails_the_build(project) -> None:
    project.write(pages__cause=PAGE.replace("the-cause", "a-cause"))
    built = project.build("-D", "published_urls_add=1")
    assert built.returncode != 0
    assert complaints(built) == [
        "pages/cause.html#the-cause was published and its anchor is gone: put it back; "
        "see CONTRIBUTING.md"
    ]


# -- Redirects --------------------------------------------------------------------------------


def test_a_moved_page_leads_to_its_new_place_and_keeps_the_anchor(
    project, watched: Watched
) -> None:
    (project.folder / "pages" / "cause.rst").unlink()
    project.write(pages__deep__reason=PAGE, index=INDEX.replace("pages/*", "pages/deep/*"))
    redirect(project, "pages/cause", "deep/reason.html")
    built = project.build("-D", "published_urls_add=1")
    assert built.returncode == 0, built.stderr
    old = project.folder / "html" / "pages" / "cause.html"
    watched.page.goto(f"{old.as_uri()}#the-cause")
    watched.page.wait_for_url("**/pages/deep/reason.html#the-cause")
    assert watched.page.title().startswith("Cause")
    assert all(request.startswith("file:") for request in watched.requests)


def test_a_redirect_to_nowhere_fails_the_build(project) -> None:
    (project.folder / "pages" / "cause.rst").unlink()
    redirect(project, "pages/cause", "reason.html")
    built = project.build()
    assert built.returncode != 0
    assert (
        "pages/cause.html is redirected to reason.html, which is no page; see CONTRIBUTING.md"
        in complaints(built)
    )


def test_a_redirect_does_not_replace_a_page_unnoticed(project) -> None:
    redirect(project, "pages/cause", "../index.html")
    built = project.build()
    assert built.returncode != 0
    assert (
        "pages/cause.html is a page, which its redirect would overwrite; see CONTRIBUTING.md"
        in complaints(built)
    )


# -- Links from other projects ----------------------------------------------------------------


def pasted(site: Path) -> list[str]:
    """The blocks of the page on linking, as a reader copies them."""
    found = re.findall(r"<pre>(.*?)</pre>", (site / LINKING).read_text(), re.DOTALL)
    return [unescape(re.sub(r"<[^>]+>", "", block)) for block in found]


def test_what_the_page_says_to_paste_links_here_from_another_project(
    site: Path, tmp_path: Path
) -> None:
    mapping, labels, names, _ = pasted(site)
    address = "https://ADDRESS-OF-THIS-SITE/"
    assert f'("{address}", None)' in mapping
    # Offline: the inventory is read from the build, the links lead to the address all the same.
    inventory = site / "objects.inv"
    (tmp_path / "conf.py").write_text(
        mapping.replace(f'("{address}", None)', f'("{address}", {str(inventory)!r})')
    )
    (tmp_path / "index.rst").write_text(f"Other\n=====\n\n{labels}\n{names}")
    built = sphinx_build(tmp_path, tmp_path / "html")
    assert built.returncode == 0, built.stderr
    links = re.findall(rf'href="{address}([^"]+)"', (tmp_path / "html" / "index.html").read_text())
    assert len(links) == (labels + names).count(":external+hangs:") > 14
    for link in links:
        page, _, anchor = link.partition("#")
        assert not anchor or anchor in Head(site / page).ids, link


def test_a_label_that_is_gone_would_be_noticed_there(site: Path, tmp_path: Path) -> None:
    (tmp_path / "conf.py").write_text(
        'extensions = ["sphinx.ext.intersphinx"]\n'
        f'intersphinx_mapping = {{"hangs": ("https://h/", {str(site / "objects.inv")!r})}}\n'
    )
    (tmp_path / "index.rst").write_text("T\n=\n\n:external+hangs:ref:`no <no-such-label>`\n")
    assert sphinx_build(tmp_path, tmp_path / "html").returncode != 0


def test_the_plain_links_lead_to_published_urls(site: Path) -> None:
    links = re.findall(r"\]\(https://ADDRESS-OF-THIS-SITE/([^)]*)\)", pasted(site)[-1])
    assert len(links) > 5
    assert set(links) <= set(LISTED)


# -- What others are told of the pages --------------------------------------------------------


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as whoever publishes it builds it."""
    html = tmp_path_factory.mktemp("published") / "html"
    built = sphinx_build(ROOT, html, SITE_URL=ADDRESS)
    assert built.returncode == 0, built.stdout[-2000:] + built.stderr[-4000:]
    return html


def pages_of(site: Path) -> list[str]:
    """The pages that were written by hand."""
    return [url for url in LISTED if "#" not in url and (site / url).exists()]


def test_every_page_has_a_description(site: Path) -> None:
    for page in pages_of(site):
        description = Head(site / page).said.get("description", "")
        assert 20 < len(description) < 400, f"{page}: {description!r}"


def test_a_copy_that_is_not_published_names_no_address(site: Path) -> None:
    assert not (site / "sitemap.xml").exists()
    for page in pages_of(site):
        said = Head(site / page).said
        assert "canonical" not in said, page
        assert not [key for key in said if key.startswith("og:")], page


def test_a_published_page_names_its_address_and_its_picture(published: Path) -> None:
    for page in pages_of(published):
        said = Head(published / page).said
        assert said["canonical"] == said["og:url"] == f"{ADDRESS}/{page}"
        assert said["og:description"] == said["description"]
        assert said["og:title"]
        assert said["og:image:alt"]
        assert said["og:image"].startswith(f"{ADDRESS}/_static/")
        image = published / said["og:image"].removeprefix(f"{ADDRESS}/")
        assert Image.open(image).format == "PNG", page


def test_a_published_page_with_a_card_shows_the_card_s_picture(published: Path) -> None:
    if find_chromium() is None:
        pytest.skip("no Chromium here: pages show the screenshot")
    said = Head(published / "intermediate/hang_gallery/straggler.html").said
    assert "straggler" in said["og:image"]
    image = Image.open(published / said["og:image"].removeprefix(f"{ADDRESS}/"))
    assert image.size == (1200, 630)
    # The drawing is there, not only its ground.
    assert len(image.getcolors(1 << 24) or []) > 10


def test_the_sitemap_lists_every_page(published: Path) -> None:
    tree = ElementTree.parse(published / "sitemap.xml")
    places = [place.text for place in tree.iter("{http://www.sitemaps.org/schemas/sitemap/0.9}loc")]
    assert places == sorted(f"{ADDRESS}/{page}" for page in pages_of(published))


def test_llms_txt_lists_every_page_with_a_line_on_it(site: Path, published: Path) -> None:
    for built, address in ((site, ""), (published, f"{ADDRESS}/")):
        text = (built / "llms.txt").read_text(encoding="utf-8")
        assert re.match(r"# .+\n\n> .+\n\n## Pages\n\n- \[", text)
        entries = re.findall(r"^- \[(.+)\]\((.+)\): (.+)$", text, re.MULTILINE)
        pages = [page.removeprefix(address) for _, page, _ in entries]
        # The page that is there only to lead back is left out.
        assert set(pages) == set(pages_of(built)) - {"intermediate/index.html"}
        assert len(pages) == len(set(pages))
        assert all(urlsplit(page).scheme == urlsplit(address).scheme for _, page, _ in entries)


def test_a_card_that_is_edited_changes_the_page_that_it_leads_to(make_project) -> None:
    project = make_project(
        'extensions = ["site_build.cards", "site_build.summaries", "site_build.sharing"]\n'
        'exclude_patterns = ["html"]\n'
    )
    card = (
        ".. customcards::\n\n   .. customcarditem::\n      :header: Page\n"
        "      :card_description: About *ranks*.\n      :link: page\n"
    )
    project.write(
        index=f"Root\n====\n\nFirst one. Second one.\n\n{card}\n.. toctree::\n\n   page\n",
        page="Page\n====\n\nThe page's own.\n",
    )
    assert project.build().returncode == 0
    html = project.folder / "html"
    assert Head(html / "page.html").said["description"] == "About ranks."
    assert Head(html / "index.html").said["description"] == "First one."
    index = project.folder / "index.rst"
    index.write_text(index.read_text().replace("About", "All about"))
    assert project.build().returncode == 0
    assert Head(html / "page.html").said["description"] == "All about ranks."
    assert "- [Page](page.html): All about ranks." in (html / "llms.txt").read_text()
    project.write(page=".. meta::\n   :description: It says so.\n\nPage\n====\n\nThe page's own.\n")
    assert project.build().returncode == 0
    assert Head(html / "page.html").said["description"] == "It says so."
    assert project.html("page").count('"description"') == 1
