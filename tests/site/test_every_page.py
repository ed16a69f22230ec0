"""Every page of the built site, opened as a file in a real browser: what readers suffer from."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Request

from support import Watched

WEIGHT = 500_000
"""Of a page's HTML and all style sheets and scripts that it loads, in bytes as they lie on disk."""

DESKTOP = {"width": 1280, "height": 900}
PHONE = {"width": 390, "height": 844}
PAPER = {"width": 718, "height": 1000}
"""What margins of one centimetre leave of a sheet of A4."""

WCAG_AA = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]

FURTHER_LINES = "pre > span[id]:nth-of-type(n + 60)"
"""Of long scripts; axe skips them: they are made as the first ones are, and take long."""

UNFOLDING_MS = 500
"""After it the theme has looked which blocks of unfolded code scroll."""

HEAD = """() => ({
    title: document.title,
    lang: document.documentElement.lang,
    viewport: document.querySelector("meta[name=viewport]")?.content ?? "",
    charset: document.characterSet,
    icon: document.querySelector("link[rel=icon]")?.href ?? "",
})"""

BODY = """() => {
    const main = document.querySelector("main");
    const all = (selector) => [...main.querySelectorAll(selector)];
    return {
        headings: all("h1, h2, h3, h4, h5, h6").map((heading) => Number(heading.tagName[1])),
        // Alternatives may be empty, which says "decoration", but must be there.
        withoutAlternative: [...document.images].filter((image) => !image.hasAttribute("alt"))
            .map((image) => image.src),
        broken: [...document.images].filter((image) => image.complete && !image.naturalWidth)
            .map((image) => image.src),
        linkTexts: all("a[href]").map((link) =>
            (link.ariaLabel ?? link.querySelector("img[alt]")?.alt ?? link.textContent).trim()),
        duplicateIds: [...document.querySelectorAll("[id]")].map((element) => element.id)
            .filter((id, index, ids) => id && ids.indexOf(id) !== index),
    };
}"""

UNFOLD = """() => {
    const folded = [...document.querySelectorAll("details:not([open])")];
    for (const box of folded) box.open = true;
    return folded.length;
}"""

# Nothing sticks out but of a box that scrolls by itself.
CUT_OFF = """() => {
    const scrolls = (element) => {
        // The theme has all of the text in a box that scrolls: that is the page, to a reader.
        for (let box = element; box && box.tagName !== "ARTICLE"; box = box.parentElement) {
            if (["auto", "scroll"].includes(getComputedStyle(box).overflowX)) return true;
        }
        return false;
    };
    const root = document.documentElement;
    const wide = root.scrollWidth > root.clientWidth ? [`page: ${root.scrollWidth} pixels`] : [];
    const cut = [...document.querySelectorAll("article *")].filter((element) =>
        element.getBoundingClientRect().right > root.clientWidth + 1 && !scrolls(element));
    return [...wide, ...cut.map((element) => element.outerHTML.slice(0, 120))];
}"""

ON_PAPER = """async () => {
    // The theme is changed when the next frame is drawn.
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    const shown = (selector) => [...document.querySelectorAll(selector)]
        .filter((element) => element.checkVisibility() && element.getClientRects().length);
    const left = [
        ".bd-header", ".bd-header-article", ".bd-sidebar-primary", ".bd-sidebar-secondary",
        ".copybtn", ".fr-filter", "#pst-back-to-top", ".headerlink", "main button",
    ].filter((selector) => shown(selector).length);
    const cut = shown("main pre, main table").filter((box) => box.scrollWidth > box.clientWidth
        || box.getBoundingClientRect().right > document.documentElement.clientWidth + 1);
    return [
        ...left.map((selector) => `is printed: ${selector}`),
        ...cut.map((box) => `is cut off: ${box.innerText.slice(0, 80)}`),
        ...document.documentElement.dataset.theme === "light" ? [] : ["is printed dark"],
    ];
}"""


@dataclass
class Visit:
    """What was seen on one page."""

    complaints: list[str]
    requests: list[tuple[str, str]]
    head: dict[str, str] = field(default_factory=dict)
    body: dict[str, Any] = field(default_factory=dict)
    axe: dict[str, list[str]] = field(default_factory=dict)
    cut_off: list[str] = field(default_factory=list)
    on_paper: list[str] = field(default_factory=list)

    def weight(self) -> int:
        """The bytes of the page and of what it loads, without pictures and the icons' font."""
        files = {unquote(urlsplit(url).path) for url, kind in self.requests if kind in LOADED}
        return sum(Path(file).stat().st_size for file in files if Path(file).is_file())


LOADED = ("document", "stylesheet", "script")

CHOOSE = """async theme => {
    document.documentElement.dataset.theme = theme;
    // Colors on their way from one theme to the other are of neither.
    await Promise.allSettled(document.getAnimations().map(change => change.finished));
}"""


def violations(page: Page, run_only: list[str]) -> list[str]:
    """What axe says is wrong, by these rules or sets of rules."""
    # Preloading is for other hosts' style sheets, and no file may ask for its own that way.
    options = {"runOnly": run_only, "resultTypes": ["violations"], "preload": False}
    context = {"exclude": [FURTHER_LINES]}
    found = Axe().run(page, context, options).response["violations"]
    return [f"{fault['id']}: {node['html'][:160]}" for fault in found for node in fault["nodes"]]


def visit(page: Page, address: str) -> Visit:
    """Look at a page on a desktop in both themes, on a phone and on paper."""
    page.set_viewport_size(DESKTOP)
    watched = Watched(page)
    requests: list[tuple[str, str]] = []

    def note(request: Request) -> None:
        requests.append((request.url, request.resource_type))

    def choose(theme: str) -> None:
        page.evaluate(CHOOSE, theme)

    page.on("request", note)
    page.goto(address, wait_until="load")
    seen = Visit(watched.complaints, requests)
    seen.head = page.evaluate(HEAD)
    # What is folded away must be as good as what is seen at once.
    if page.evaluate(UNFOLD):
        page.wait_for_timeout(UNFOLDING_MS)
    seen.body = page.evaluate(BODY)
    choose("light")
    seen.axe["light"] = violations(page, WCAG_AA)
    # Nothing else is different in the dark.
    choose("dark")
    seen.axe["dark"] = violations(page, ["color-contrast"])
    page.set_viewport_size(PHONE)
    seen.cut_off = page.evaluate(CUT_OFF)
    page.set_viewport_size(PAPER)
    page.emulate_media(media="print")
    seen.on_paper = page.evaluate(ON_PAPER)
    return seen


@pytest.fixture(scope="module")
def visits(site: Path, browser: Browser) -> Iterator[dict[str, Visit]]:
    """All pages, each looked at once."""
    context = browser.new_context(reduced_motion="reduce")
    seen = {}
    for file in sorted(site.rglob("*.html")):
        if "_static" in file.parts:
            continue
        page = context.new_page()
        seen[str(file.relative_to(site))] = visit(page, file.as_uri())
        page.close()
    yield seen
    context.close()


def faults(visits: dict[str, Visit], find: Callable[[Visit], Any]) -> dict[str, Any]:
    """What is found on the pages that have a fault."""
    return {page: found for page, seen in visits.items() if (found := find(seen))}


def test_there_are_pages(visits: dict[str, Visit]) -> None:
    assert {"index.html", "search.html", "intermediate/hang_gallery/straggler.html"} <= set(visits)


def test_nothing_is_asked_of_another_host(visits: dict[str, Visit]) -> None:
    foreign = faults(
        visits,
        lambda seen: [url for url, _ in seen.requests if not url.startswith(("file:", "data:"))],
    )
    assert foreign == {}


def test_the_browser_complains_of_nothing(visits: dict[str, Visit]) -> None:
    assert faults(visits, lambda seen: seen.complaints) == {}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_is_against_wcag_aa(visits: dict[str, Visit], theme: str) -> None:
    assert faults(visits, lambda seen: seen.axe[theme]) == {}


def test_nothing_is_cut_off_on_a_phone(visits: dict[str, Visit]) -> None:
    assert faults(visits, lambda seen: seen.cut_off) == {}


def test_paper_shows_the_text_and_all_of_the_code(visits: dict[str, Visit]) -> None:
    assert faults(visits, lambda seen: seen.on_paper) == {}


def test_pages_are_light(visits: dict[str, Visit]) -> None:
    weights = {page: seen.weight() for page, seen in visits.items()}
    assert {page: weight for page, weight in weights.items() if weight > WEIGHT} == {}
    assert min(weights.values()) > 50_000, "the scripts and style sheets were not counted"


def test_every_picture_is_there_and_has_an_alternative(visits: dict[str, Visit]) -> None:
    assert faults(visits, lambda seen: seen.body["withoutAlternative"]) == {}
    assert faults(visits, lambda seen: seen.body["broken"]) == {}


def test_heads_say_what_the_page_is(visits: dict[str, Visit]) -> None:
    def missing(seen: Visit) -> list[str]:
        return [name for name, value in seen.head.items() if not value]

    assert faults(visits, missing) == {}
    assert {seen.head["lang"] for seen in visits.values()} == {"en"}
    assert all("width=device-width" in seen.head["viewport"] for seen in visits.values())
    titles = [seen.head["title"] for seen in visits.values()]
    assert sorted(titles) == sorted(set(titles))


def test_headings_are_an_outline(visits: dict[str, Visit]) -> None:
    def wrong(seen: Visit) -> list[int]:
        levels = seen.body["headings"]
        steps = pairwise(levels)
        fine = levels[:1] == [1] and levels.count(1) == 1 and all(b <= a + 1 for a, b in steps)
        return [] if fine else levels

    assert faults(visits, wrong) == {}


def test_links_say_where_they_lead(visits: dict[str, Visit]) -> None:
    empty_words = {"", "here", "click here", "this", "link", "more", "read more"}
    assert faults(visits, lambda seen: empty_words.intersection(seen.body["linkTexts"])) == {}


def test_every_anchor_is_the_only_one_of_its_name(visits: dict[str, Visit]) -> None:
    assert faults(visits, lambda seen: seen.body["duplicateIds"]) == {}
