"""Fixtures for tests of several folders."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from site_build.browser import CHROMIUM_OPTIONS, find_chromium
from site_build.budget import told
from support import ROOT, Watched, sphinx_build

ALL_TESTS_S = 1800
"""How long all tests may take, on two cores."""

START = time.monotonic()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was spent of the time budget."""
    terminalreporter.line(told("tests", time.monotonic() - START, ALL_TESTS_S))


@pytest.fixture(scope="session")
def site() -> Path:
    """The site of this checkout, built where `make html` builds it."""
    built = sphinx_build(ROOT, ROOT / "_build" / "html")
    assert built.returncode == 0, built.stdout[-2000:] + built.stderr[-4000:]
    return ROOT / "_build" / "html"


# Not for the whole session: its event loop would be in the way of tests that have their own.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, or another one that is installed."""
    path = find_chromium()
    if path is None:
        pytest.skip("no Chromium here: `make browser` installs Debian's")
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=path, args=list(CHROMIUM_OPTIONS))


@pytest.fixture
def watched(browser: Browser) -> Iterator[Watched]:
    """An empty page, and whatever goes wrong in it."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    yield Watched(context.new_page())
    context.close()
