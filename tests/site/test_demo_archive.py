"""The zip of all demos: it runs as its README says, and holds what the pages offer one by one."""

from __future__ import annotations

import re
import shlex
import zipfile
from pathlib import Path
from urllib.parse import unquote

import pytest

from fr_analysis import analyze
from rank_lab.claims import differences
from site_build.demo_archive import NAME, archive_of
from site_build.gallery import load_scenario
from support import ROOT, run_as_a_reader

SOURCES = ROOT / "intermediate_source"
OFFERING = ("debug_hangs_with_flight_recorder", "hang_gallery/index", "exercises/index")


def downloads(site: Path, page: str) -> list[Path]:
    """The files that a page offers."""
    file = site / "intermediate" / f"{page}.html"
    links = re.findall(r'href="([^"]*_downloads/[^"]+)"', file.read_text(encoding="utf-8"))
    return [(file.parent / unquote(link)).resolve() for link in links]


@pytest.fixture(scope="module")
def archive(site: Path) -> Path:
    """The archive, as the pages offer it."""
    offered = {file for page in OFFERING for file in downloads(site, page) if file.suffix == ".zip"}
    (found,) = offered
    assert found.name == f"{NAME}.zip"
    return found


@pytest.mark.usefixtures("site")
def test_every_page_that_should_offers_it(site: Path, archive: Path) -> None:
    assert all(archive in downloads(site, page) for page in OFFERING)


def test_its_files_are_those_that_pages_offer(site: Path, archive: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(archive) as opened:
        opened.extractall(tmp_path)
    unpacked = {
        str(file.relative_to(tmp_path / NAME)): file.read_bytes()
        for file in (tmp_path / NAME).rglob("*")
        if file.is_file()
    }
    assert unpacked.pop("README.txt")
    pages = [str(page.relative_to(SOURCES).with_suffix("")) for page in SOURCES.rglob("*.rst")]
    pages += [f"hang_gallery/{script.stem}" for script in (SOURCES / "hang_gallery").glob("*.py")]
    offered = {
        file.name: file.read_bytes()
        for page in pages
        for file in downloads(site, page)
        if file.suffix == ".py"
    }
    assert {Path(name).name: content for name, content in unpacked.items()} == offered
    assert len(unpacked) == len(offered)


def test_a_script_of_it_runs_as_the_readme_says(archive: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(archive) as opened:
        opened.extractall(tmp_path)
    folder = tmp_path / NAME
    readme = (folder / "README.txt").read_text(encoding="utf-8")
    (command,) = re.findall(r"^  (torchrun .*uneven_inputs\.py)$", readme, flags=re.MULTILINE)
    scenario = load_scenario(SOURCES / "hang_gallery" / "uneven_inputs.py")
    done = run_as_a_reader(shlex.split(command), folder)
    assert done.returncode == scenario.exit_status, done.stdout
    assert differences(scenario.claims, analyze(folder / "fr_dumps")) == ()


def test_every_command_of_the_readme_names_a_file_of_it(archive: Path) -> None:
    with zipfile.ZipFile(archive) as opened:
        names = {name.removeprefix(f"{NAME}/") for name in opened.namelist()}
        readme = opened.read(f"{NAME}/README.txt").decode()
    named = set(re.findall(r"[\w/]+\.py", readme))
    assert named <= names
    assert {name for name in names if name.startswith("hang_gallery/")} <= named


def test_the_same_sources_give_the_same_bytes(archive: Path) -> None:
    assert archive_of(SOURCES) == archive.read_bytes()
