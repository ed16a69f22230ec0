"""What the build asks while a demo's ranks run, and the pictures that it takes."""

from pathlib import Path

import pytest

from site_build import captures
from site_build.browser import find_chromium, take_picture
from site_build.captures import CaptureError, capture, load_page_run

RUN = """
[run]
script = "demo.py"
nproc = 1
deadline_s = 60
[claims]
verdict = "fault"
"""


def write(folder: Path, table: str) -> Path:
    """A page's TOML file, with a demo that does nothing."""
    (folder / "demo.py").write_text("")
    page = folder / "page.toml"
    page.write_text(table)
    return page


def test_a_demo_that_shows_no_fault_while_it_runs_breaks_the_build(tmp_path: Path) -> None:
    page = write(tmp_path, RUN + '[[live]]\nname = "live"\npage = "/fr_analysis"\n')
    with pytest.raises(CaptureError, match="while the ranks hung: the debug server never showed"):
        capture(load_page_run(page), tmp_path / "captures")
    assert not (tmp_path / "captures").exists()


SHOWS_A_FAULT_ONCE = """
import http.server, os
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"FAULT")
http.server.HTTPServer(("", int(os.environ["DEBUG_PORT"])), Handler).handle_request()
"""


def test_a_hang_that_ends_before_all_was_asked_is_told_from_a_wrong_answer(tmp_path: Path) -> None:
    question = 'name = "live"\ncommand = "fr-analysis --url http://localhost:PORT"\n'
    page = write(tmp_path, f"{RUN}[[live]]\n{question}")
    (tmp_path / "demo.py").write_text(SHOWS_A_FAULT_ONCE)
    said = r"it was over before all was asked; is the machine busy\? .* with status 2 instead of 0"
    with pytest.raises(CaptureError, match=said):
        capture(load_page_run(page), tmp_path / "captures")


PICTURE = """
[data]
"page.html" = "tests/data/gloo_hang_3ranks"
[[picture]]
name = "front"
file = "front.html"
"""


def test_without_a_browser_no_picture_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(captures, "find_chromium", lambda: None)
    run = load_page_run(write(tmp_path, PICTURE))
    assert capture(run, tmp_path / "captures")
    assert [file.name for file in (tmp_path / "captures/page").iterdir()] == ["fingerprint"]


@pytest.mark.skipif(not find_chromium(), reason="no Chromium here: `make browser` installs it")
def test_a_browser_that_came_later_takes_the_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = '[[shown]]\nname = "made"\ncommand = "python -c \'open(\\"front.html\\", \\"w\\")\'"\n'
    page = write(tmp_path, PICTURE + shown)
    with monkeypatch.context() as without:
        without.setattr(captures, "find_chromium", lambda: None)
        assert capture(load_page_run(page), tmp_path / "captures")
    assert capture(load_page_run(page), tmp_path / "captures")
    picture = tmp_path / "captures/page/front.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert not capture(load_page_run(page), tmp_path / "captures")


@pytest.mark.skipif(not find_chromium(), reason="no Chromium here: `make browser` installs it")
def test_a_picture_of_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises((RuntimeError, OSError)):
        take_picture(tmp_path / "page.html", tmp_path / "no_such_folder" / "picture.png")
