"""`make scenario` begins a page that builds, or says in one line why it does not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from site_build.recorded_job import CANONICAL
from site_build.scenario import ScenarioError, scaffold
from support import ROOT, sphinx_build

GALLERY = "intermediate_source/hang_gallery"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A gallery's folder with one page and the index, and the list of published addresses."""
    folder = tmp_path / "hang_gallery"
    folder.mkdir()
    (tmp_path / "published_urls.txt").write_text("index.html\nsearch.html\n")
    for name in ("slow_checkpoint.py", "index.rst"):
        shutil.copy(CANONICAL.parent / name, folder)
    (folder / "order.txt").write_text("slow_checkpoint\n")
    return folder


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A site that has the gallery alone, as `conf.py` sets it up, and in it no page yet."""
    sources = tmp_path / "sources"
    shutil.copytree(ROOT / "src", sources / "src", ignore=shutil.ignore_patterns("__pycache__"))
    gallery = sources / GALLERY
    gallery.mkdir(parents=True)
    shutil.copy(CANONICAL, gallery)
    (gallery / "index.rst").write_text("Gallery\n=======\n\n.. hang-gallery::\n")
    (gallery.parent / "index.rst").write_text(":orphan:\n\nPages\n=====\n")
    (sources / "index.rst").write_text(
        "Site\n====\n\n.. toctree::\n\n   intermediate/hang_gallery/index\n"
    )
    (sources / "conf.py").write_text(
        "import runpy, sys\n"
        f"sphinx_gallery_conf = runpy.run_path({str(ROOT / 'conf.py')!r})['sphinx_gallery_conf']\n"
        f"sys.path.insert(0, {str(sources / 'src')!r})\n"
        "extensions = ['sphinx_gallery.gen_gallery', 'site_build.cards',\n"
        "              'site_build.gallery', 'site_build.gallery_index']\n"
        "exclude_patterns = ['intermediate_source']\n"
        "html_theme = 'basic'\n"
    )
    return sources


def test_a_new_page_builds(sources: Path) -> None:
    begun = subprocess.run(
        [sys.executable, "-m", "site_build.scenario", "my_hang"],
        cwd=sources,
        env=os.environ | {"PYTHONPATH": "src"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert begun.returncode == 0, begun.stderr
    assert begun.stdout.startswith(f"{sources / GALLERY / 'my_hang.py'}: begun")
    # Its last section is taken from there; the page itself need not be built.
    (sources / GALLERY / CANONICAL.name).unlink()

    html = sources / "html"
    built = sphinx_build(sources, html)
    assert built.returncode == 0, built.stdout[-2000:] + built.stderr[-4000:]
    assert "my_hang: ran in " in built.stdout
    page = (html / "intermediate/hang_gallery/my_hang.html").read_text()
    for shown in ("suspect rank 1", "wait_for_nobody", "With the fix", "HEALTHY"):
        assert shown in page
    assert "my_hang.html" in (html / "intermediate/hang_gallery/index.html").read_text()


def test_a_new_page_is_listed(folder: Path) -> None:
    scaffold("my_hang", folder)
    assert (folder / "order.txt").read_text() == "slow_checkpoint\nmy_hang\n"
    assert (folder.parent / "published_urls.txt").read_text() == (
        "index.html\nintermediate/hang_gallery/my_hang.html\nsearch.html\n"
    )


def test_a_new_page_has_the_style_of_the_others(folder: Path) -> None:
    script = scaffold("my_hang", folder)
    text = script.read_text()
    # Checked under the name that it would have here, for which some rules are off.
    name = f"{GALLERY}/my_hang.py"
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [Path(sys.executable).with_name("ruff"), *command, "--stdin-filename", name, "-"],
            cwd=ROOT,
            input=text,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("slow_checkpoint", r"slow_checkpoint\.py is there already"),
        ("index", r"index\.rst is there already"),
        ("", "expected lower-case words joined by underscores, such as my_hang"),
        ("My_Hang", "expected lower-case words"),
        ("../my_hang", "expected lower-case words"),
        ("my-hang", "expected lower-case words"),
        ("2_hangs", "expected lower-case words"),
        ("pickle", "the script would hide the module of that name"),
        ("test_hang", "are no pages"),
    ],
)
def test_what_cannot_be_a_page_is_refused_in_one_line(folder: Path, name: str, reason: str) -> None:
    before = {file: file.read_bytes() for file in folder.iterdir()}
    with pytest.raises(ScenarioError, match=reason) as caught:
        scaffold(name, folder)
    assert "\n" not in str(caught.value)
    assert {file: file.read_bytes() for file in folder.iterdir()} == before
