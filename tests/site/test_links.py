"""What is broken is found; other hosts are given time; nothing is ignored without a reason."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from support import ROOT

LYCHEE = Path(sys.executable).with_name("lychee")
PAGE = "intermediate/hang_gallery/stuck_in_host_code.html"


def lychee(pages: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Look at a site's links as the Makefile does, but without `.lycheeignore`."""
    return subprocess.run(
        [LYCHEE, "--config", ROOT / "lychee.toml", "--root-dir", pages, *options, pages],
        cwd=pages,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def copied_site(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the site, to break."""
    return Path(shutil.copytree(site, tmp_path_factory.mktemp("copy") / "html"))


def test_nothing_is_broken(copied_site: Path) -> None:
    done = lychee(copied_site, "--offline")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "what",
    [
        '<a href="nowhere.html">link</a>',
        '<a href="../../distributed.html#nowhere">anchor of another page</a>',
        '<a href="#nowhere">anchor</a>',
        '<img src="nowhere.svg" alt="picture">',
        '<a href="../../_downloads/nowhere/script.py" download="">download</a>',
    ],
)
def test_what_is_broken_is_found(copied_site: Path, what: str) -> None:
    page = copied_site / PAGE
    before = page.read_text(encoding="utf-8")
    page.write_text(before.replace("</article>", f"{what}</article>", 1), encoding="utf-8")
    try:
        done = lychee(copied_site, "--offline")
    finally:
        page.write_text(before, encoding="utf-8")
    assert done.returncode == 2, done.stdout
    assert "1 Error" in done.stdout
    assert "nowhere" in done.stdout


IGNORED = (ROOT / ".lycheeignore").read_text(encoding="utf-8").splitlines()
ENTRIES = [line for line in IGNORED if line and not line.startswith("#")]


@pytest.fixture(scope="module")
def links(copied_site: Path) -> list[str]:
    """Every link of the site."""
    return lychee(copied_site, "--dump").stdout.split()


@pytest.mark.parametrize("entry", ENTRIES)
def test_what_is_ignored_is_a_link_of_the_site_and_has_a_reason(
    links: list[str], entry: str
) -> None:
    assert any(re.search(entry, link) for link in links), "no link matches: remove the entry"
    above = IGNORED[IGNORED.index(entry) - 1]
    assert re.match(r"# \w", above), "say above it why it is ignored"


class Host(BaseHTTPRequestHandler):
    """Another host: some pages of it answer only the third time."""

    asked: ClassVar[Counter[str]] = Counter()

    def do_GET(self) -> None:
        """Answer."""
        self.asked[self.path] += 1
        kind, _, status = self.path[1:].partition("-")
        well = kind == "there" or (kind == "busy" and self.asked[self.path] > 2)
        self.send_response(200 if well else int(status))
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@pytest.fixture
def host() -> Iterator[str]:
    """The address of another host."""
    Host.asked.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Host)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_busy_host_is_asked_again(tmp_path: Path, host: str) -> None:
    links = "".join(f'<a href="{host}/{page}">x</a>' for page in ("there", "busy-503", "busy-429"))
    (tmp_path / "index.html").write_text(f"<p>{links}</p>")
    done = lychee(tmp_path)
    assert done.returncode == 0, done.stdout
    assert Host.asked["/busy-503"] == Host.asked["/busy-429"] == 3


def test_a_page_that_is_gone_is_found(tmp_path: Path, host: str) -> None:
    (tmp_path / "index.html").write_text(f'<a href="{host}/gone-404">x</a>')
    done = lychee(tmp_path)
    assert done.returncode == 2
    assert "/gone-404" in done.stdout
