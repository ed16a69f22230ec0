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
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import pytest

from support import ROOT


def checkout_with(pages: Path, folder: Path) -> Path:
    """A checkout in which make finds these pages built, and looks at all their links."""
    for name in ("Makefile", "lychee.toml"):
        shutil.copy(ROOT / name, folder)
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / ".venv" / "bin" / "lychee").symlink_to(Path(sys.executable).with_name("lychee"))
    shutil.copytree(pages, folder / "_build" / "html")
    return folder


def make(checkout: Path, target: str) -> subprocess.CompletedProcess[str]:
    """Make a target that looks at links, without building the site anew."""
    return subprocess.run(
        ["make", "--assume-old=html", target, "PAUSE=1"],
        cwd=checkout,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def checkout(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One with a copy of the site, to break."""
    return checkout_with(site, tmp_path_factory.mktemp("checkout"))


def test_nothing_is_broken(checkout: Path) -> None:
    done = make(checkout, "linkcheck")
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
def test_what_is_broken_is_found(checkout: Path, what: str) -> None:
    page = checkout / "_build/html/intermediate/hang_gallery/stuck_in_host_code.html"
    before = page.read_text(encoding="utf-8")
    page.write_text(before.replace("</article>", f"{what}</article>", 1), encoding="utf-8")
    try:
        done = make(checkout, "linkcheck")
    finally:
        page.write_text(before, encoding="utf-8")
    assert done.returncode != 0, done.stdout
    assert "1 Error" in done.stdout
    assert "nowhere" in done.stdout


def idle(ignore: str, links: list[str]) -> list[str]:
    """The entries of a `.lycheeignore` that match no link, or have no reason above them."""
    return [
        entry
        for above, entry in pairwise(["", *ignore.splitlines()])
        if entry
        and not entry.startswith("#")
        and not (re.match(r"# \w", above) and any(re.search(entry, link) for link in links))
    ]


def test_what_is_ignored_is_a_link_of_the_site_and_has_a_reason(checkout: Path) -> None:
    links = make(checkout, "linklist").stdout.split()
    assert links
    assert idle((ROOT / ".lycheeignore").read_text(encoding="utf-8"), links) == []


def test_an_idle_entry_is_found() -> None:
    links = ["https://example.org/page"]
    assert idle("# Wants a password.\n^https://example\\.org/page$\n", links) == []
    assert idle("# Is gone.\n^https://example\\.org/other$\n", links) == [
        r"^https://example\.org/other$"
    ]
    assert idle("# About the file.\n\nexample\n", links) == ["example"]


class Host(BaseHTTPRequestHandler):
    """Another host. A page says by its name when it is there, and what it answers before."""

    asked: ClassVar[Counter[str]] = Counter()

    def do_GET(self) -> None:
        """Answer."""
        self.asked[self.path] += 1
        there_from, status = map(int, self.path[1:].split("-"))
        self.send_response(200 if self.asked[self.path] >= there_from else status)
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


def linked(host: str, folder: Path, *pages: str) -> Path:
    """A checkout of a site that links to pages of another host."""
    site = folder / "site"
    site.mkdir()
    links = "".join(f'<a href="{host}/{page}">x</a>' for page in pages)
    (site / "index.html").write_text(f"<p>{links}</p>")
    (folder / "checkout").mkdir()
    return checkout_with(site, folder / "checkout")


@pytest.mark.parametrize("page", ["2-429", "3-503"])
def test_a_busy_host_is_asked_again(tmp_path: Path, host: str, page: str) -> None:
    done = make(linked(host, tmp_path, "1-404", page), "linkcheck-external")
    assert done.returncode == 0, done.stdout
    assert Host.asked[f"/{page}"] == int(page[0])


def test_a_page_that_is_gone_is_found(tmp_path: Path, host: str) -> None:
    done = make(linked(host, tmp_path, "1-404", "9-404"), "linkcheck-external")
    assert done.returncode != 0
    assert Host.asked["/9-404"] == 3
    assert "/9-404" in done.stdout
    assert "/1-404" not in done.stdout


def test_without_a_network_no_other_host_is_asked(tmp_path: Path, host: str) -> None:
    done = make(linked(host, tmp_path, "9-404"), "linkcheck")
    assert done.returncode == 0, done.stdout
    assert not Host.asked
