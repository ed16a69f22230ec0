"""The tutorial as it is built: its claims are checked, and its output comes from the run."""

import re
import shutil
import tomllib
from html.parser import HTMLParser
from pathlib import Path

import pytest

from site_build.captures import CaptureError, capture, fingerprint, load_page_run, substitutions
from support import ROOT, sphinx_build

CLAIMS = ROOT / "intermediate_source" / "debug_hangs_with_flight_recorder.toml"
PAGE = "intermediate/debug_hangs_with_flight_recorder.html"


class Page(HTMLParser):
    """What a page holds that the tests ask for."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.blocks: list[str] = []
        self._in_block = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("script", "img", "iframe") and given.get("src"):
            self.loads.append(given["src"] or "")
        if tag == "link" and given.get("rel") in ("stylesheet", "preload", "icon"):
            self.loads.append(given["href"] or "")
        if tag == "a" and given.get("href"):
            self.links.append(given["href"] or "")
        if tag == "pre":
            self._in_block = True
            self.blocks.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == "pre":
            self._in_block = False

    def handle_data(self, data: str) -> None:
        if self._in_block:
            self.blocks[-1] += data


@pytest.fixture(scope="session")
def page(site: Path) -> Page:
    """The tutorial's page."""
    return Page((site / PAGE).read_text(encoding="utf-8"))


def test_every_captured_output_is_on_the_page(page: Page) -> None:
    captures = ROOT / "_build" / "captures" / CLAIMS.stem
    outputs = [file for file in sorted(captures.iterdir()) if file.name != "fingerprint"]
    assert len(outputs) >= 10
    for output in outputs:
        if output.suffix == ".png":
            assert any(load.endswith(f"/{output.name}") for load in page.loads), output.name
            continue
        text = output.read_text(encoding="utf-8").strip()
        assert any(text in block for block in page.blocks), f"{output.name} is not shown"


def test_prose_states_the_claims(site: Path) -> None:
    text = re.sub(r"<[^>]+>", "", (site / PAGE).read_text(encoding="utf-8"))
    text = " ".join(text.split())
    claims = tomllib.loads(CLAIMS.read_text(encoding="utf-8"))["claims"]
    first, second = claims["operations"]
    (suspect,), (victim,) = claims["suspects"], claims["victims"]
    assert f"rank {victim} has {first} entries, rank {suspect} has {second}" in text


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for file in site.rglob("*.html"):
        if "_static" in file.parts:
            continue
        loads = Page(file.read_text(encoding="utf-8")).loads
        assert [load for load in loads if re.match(r"(https?:)?//", load)] == [], file


def test_download_is_the_demo_itself(site: Path, page: Page) -> None:
    (link,) = {link for link in page.links if link.endswith("verify_flight_recorder.py")}
    offered = (site / PAGE).parent / link
    demo = ROOT / "intermediate_source" / "verify_flight_recorder.py"
    assert offered.read_bytes() == demo.read_bytes()


@pytest.mark.usefixtures("site")
def test_unchanged_demo_is_not_run_again(tmp_path: Path) -> None:
    run = load_page_run(CLAIMS)
    assert capture(run, ROOT / "_build" / "captures") is False
    shutil.copytree(ROOT / "intermediate_source", tmp_path / "pages")
    changed = tmp_path / "pages" / "verify_flight_recorder.py"
    changed.write_text(changed.read_text() + "\n# edited\n")
    assert fingerprint(load_page_run(tmp_path / "pages" / CLAIMS.name)) != fingerprint(run)


def test_demo_that_hangs_elsewhere_breaks_the_build(tmp_path: Path) -> None:
    site = tmp_path / "site"
    # Without the gallery, whose many ranks run first.
    left_out = shutil.ignore_patterns("__pycache__", "hang_gallery", "exercises")
    for name in ("intermediate_source", "_static", "src"):
        shutil.copytree(ROOT / name, site / name, ignore=left_out)
    for name in ("conf.py", "pyproject.toml", "index.rst", "distributed.rst"):
        shutil.copy(ROOT / name, site)
    claims = site / "intermediate_source" / CLAIMS.name
    text = claims.read_text(encoding="utf-8")
    assert 'HANGING_RANK = "1"' in text
    claims.write_text(text.replace('HANGING_RANK = "1"', 'HANGING_RANK = "0"'))

    built = sphinx_build(site, tmp_path / "html")

    assert built.returncode != 0
    message = [line for line in built.stderr.splitlines() if "not what the page claims" in line]
    assert len(message) == 1, built.stderr
    assert "suspects is (0,), claimed is (1,)" in message[0]
    assert "Traceback" not in built.stderr
    assert not (site / "_build" / "captures" / CLAIMS.stem / "fingerprint").exists()


def test_claims_of_another_shape_are_refused(tmp_path: Path) -> None:
    broken = tmp_path / "page.toml"
    broken.write_text(CLAIMS.read_text(encoding="utf-8").replace("suspects =", "suspekts ="))
    with pytest.raises(CaptureError, match=r"page\.toml: no such claim: suspekts"):
        load_page_run(broken)


def test_substitutions_are_the_claims() -> None:
    texts = substitutions(load_page_run(CLAIMS))
    assert texts["suspect"] == "1"
    assert texts["missing-ranks"] == "``{1}``"
    assert texts["operations-of-rank-0"] == "5"
