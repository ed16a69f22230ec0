"""What readers do on the site, in a real browser: search, copy, link to a line, filter cards."""

import functools
import http.server
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from support import ROOT, Watched

TUTORIAL = "intermediate/debug_hangs_with_flight_recorder.html"
SCENARIO = "intermediate/hang_gallery/stuck_in_host_code"
FIRST_RESULTS = 5


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files and says nothing."""

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def served(site: Path) -> Iterator[str]:
    """The site on a local server, as `make serve` has it."""
    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


# -- Search -----------------------------------------------------------------------------------


def search(page: Page, site: str, words: str) -> list[str]:
    """The pages that a search finds, the best first."""
    page.goto(f"{site}/search.html?q={quote(words)}")
    page.wait_for_function(
        "document.querySelector('.search-summary')?.innerText.match(/found|not match/)"
    )
    links = page.locator("#search-results li > a").evaluate_all("all => all.map((a) => a.href)")
    return [link.partition("#")[0].removeprefix(f"{site}/") for link in links]


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("missing ranks", TUTORIAL),
        ("KeyError", TUTORIAL),
        ("all_gather", "intermediate/hang_gallery/data_dependent_branch.html"),
        ("--watch", "intermediate/fr_analysis_reference.html"),
        ("--stuck-after", "intermediate/fr_analysis_reference.html"),
        ("stuck-after", "intermediate/fr_analysis_reference.html"),
        ("TORCH_FR_BUFFER_SIZE", TUTORIAL),
        ("two neighbours are in send", "intermediate/hang_gallery/pipeline_both_send.html"),
        ("ends at a checkpoint", "intermediate/hang_gallery/slow_checkpoint.html"),
    ],
)
def test_search_finds(served: str, watched: Watched, words: str, wanted: str) -> None:
    assert wanted in search(watched.page, served, words)[:FIRST_RESULTS]
    assert watched.complaints == []


def test_every_option_of_the_command_can_be_searched_for(site: Path) -> None:
    index = json.loads((site / "searchindex.js").read_text()[len("Search.setIndex(") : -1])
    help_text = ROOT / "_build" / "captures" / "fr_analysis_reference" / "help.txt"
    options = set(re.findall(r"--[a-z][a-z-]+(?![\w-])", help_text.read_text()))
    assert len(options) > 20
    assert options - {"--help"} - set(index["indexentries"]) == set()


def test_search_works_from_files(site: Path, watched: Watched) -> None:
    address = site.as_uri()
    assert TUTORIAL in search(watched.page, address, "missing ranks")[:FIRST_RESULTS]
    assert watched.complaints == []


def test_the_search_button_opens_a_field_that_finds(site: Path, watched: Watched) -> None:
    page = watched.page
    page.goto((site / "index.html").as_uri())
    page.keyboard.press("Control+k")
    page.keyboard.type("straggler")
    page.keyboard.press("Enter")
    expect(page.locator("#search-results li a").first).to_be_visible()
    assert watched.complaints == []


# -- Code -------------------------------------------------------------------------------------


def copied(page: Page, block: str) -> str:
    """What the button of a block of code puts on the clipboard."""
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    box = page.locator(block).first
    box.hover()
    box.locator("button.copybtn").click()
    expect(box.locator("button.copybtn.success")).to_be_visible()
    text: str = page.evaluate("navigator.clipboard.readText()")
    return text


def test_a_command_is_copied_as_one_types_it(served: str, watched: Watched) -> None:
    watched.page.goto(f"{served}/{TUTORIAL}")
    command = copied(watched.page, "section:has(> #run-fr-analysis) .highlight-bash")
    assert command.strip() == "fr-analysis fr_dumps"


def test_a_script_is_copied_without_the_numbers_of_its_lines(served: str, watched: Watched) -> None:
    watched.page.goto(f"{served}/{TUTORIAL}")
    script = ROOT / "intermediate_source" / "verify_flight_recorder.py"
    text = copied(watched.page, "section:has(> #flight-recorder-demo) .highlight-python")
    assert text.strip() == script.read_text(encoding="utf-8").strip()


def test_a_line_of_a_script_has_an_address(site: Path, watched: Watched) -> None:
    page = watched.page
    script = ROOT / "intermediate_source" / "verify_flight_recorder.py"
    lines = script.read_text(encoding="utf-8").splitlines()
    number = next(n for n, line in enumerate(lines, 1) if line.startswith("def write_dump_in_hang"))
    page.goto((site / TUTORIAL).as_uri())
    page.locator(f'a[href="#verify_flight_recorder-{number}"]').click()
    assert page.url.endswith(f"#verify_flight_recorder-{number}")
    line = page.locator(":target")
    assert lines[number - 1] in line.inner_text()
    assert line.evaluate("line => getComputedStyle(line).backgroundColor") != "rgba(0, 0, 0, 0)"


def test_lines_of_a_gallery_page_are_numbered_as_in_its_file(site: Path, watched: Watched) -> None:
    page = watched.page
    name = Path(SCENARIO).name
    script = ROOT / "intermediate_source" / "hang_gallery" / f"{name}.py"
    lines = script.read_text(encoding="utf-8").splitlines()
    page.goto((site / f"{SCENARIO}.html").as_uri())
    numbered = page.locator(f'[id^="{name}-"]:has(.linenos)').evaluate_all(
        "all => all.map((line) => [line.id, line.innerText])"
    )
    assert len(numbered) > 50
    for anchor, text in numbered:
        number = int(anchor.rpartition("-")[2])
        assert text.split() == [str(number), *lines[number - 1].split()]


# -- Cards ------------------------------------------------------------------------------------


def shown_cards(page: Page) -> list[str]:
    """The titles of the cards that are to be seen."""
    titles: list[str] = page.locator(".fr-card:visible .fr-card-title").all_inner_texts()
    return titles


def test_cards_are_filtered_with_the_keyboard_and_several_tags_combine(
    site: Path, watched: Watched
) -> None:
    page = watched.page
    page.goto((site / "distributed.html").as_uri())
    every = shown_cards(page)
    status = page.locator(".fr-filter [role=status]")
    assert status.inner_text() == f"Showing all {len(every)}"

    page.locator('.fr-filter button[data-tag="Flight Recorder"]').focus()
    page.keyboard.press("Space")
    one = shown_cards(page)
    assert 0 < len(one) < len(every)
    assert status.inner_text() == f"Showing {len(one)} of {len(every)}: Flight Recorder"

    page.keyboard.press("Tab")  # to the next button, in alphabetical order
    focused = page.evaluate("document.activeElement.dataset.tag")
    assert focused
    page.locator('.fr-filter button[data-tag="Gloo"]').focus()
    page.keyboard.press("Enter")
    two = shown_cards(page)
    assert 0 < len(two) <= len(one)
    assert set(two) <= set(one)
    pressed = page.locator('.fr-filter button[aria-pressed="true"]')
    assert pressed.evaluate_all("all => all.map((button) => button.dataset.tag)") == [
        "Flight Recorder",
        "Gloo",
    ]
    assert page.url.endswith("?tag=Flight+Recorder&tag=Gloo")

    page.reload()
    assert shown_cards(page) == two
    page.get_by_role("button", name=f"All {len(every)}").click()
    assert shown_cards(page) == every
    assert "?" not in page.url
    assert watched.complaints == []


def test_a_button_counts_the_cards_that_it_leaves(site: Path, watched: Watched) -> None:
    page = watched.page
    page.goto((site / "intermediate/hang_gallery/index.html").as_uri())
    buttons = page.locator(".fr-filter button[data-tag]")
    assert buttons.count() > 3
    for number in range(buttons.count()):
        button = buttons.nth(number)
        button.click()
        assert len(shown_cards(page)) == int(button.locator("small").inner_text())
        button.click()


def test_a_link_with_a_tag_that_is_gone_shows_every_card(site: Path, watched: Watched) -> None:
    page = watched.page
    page.goto((site / "distributed.html").as_uri() + "?tag=gone")
    assert len(shown_cards(page)) == page.locator(".fr-card").count()


# -- Light and dark ---------------------------------------------------------------------------


def test_the_reader_chooses_light_or_dark_and_the_choice_stays(
    site: Path, watched: Watched
) -> None:
    page = watched.page
    page.goto((site / "index.html").as_uri())
    switch = page.locator(".bd-header .theme-switch-button").first
    seen = set()
    for _ in range(3):
        switch.click()
        seen.add(page.evaluate("document.documentElement.dataset.mode"))
    assert seen == {"light", "dark", "auto"}
    while page.evaluate("document.documentElement.dataset.mode") != "dark":
        switch.click()
    light = "getComputedStyle(document.body).backgroundColor"
    page.goto((site / TUTORIAL).as_uri())
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.evaluate(light) != "rgb(255, 255, 255)"
