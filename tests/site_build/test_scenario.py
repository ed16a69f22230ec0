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
    """A gallery's folder with one page and the index."""
    for name in ("slow_checkpoint.py", "index.rst"):
        shutil.copy(CANONICAL.parent / name, tmp_path)
    (tmp_path / "order.txt").write_text("slow_checkpoint\n")
    return tmp_path


def test_a_new_page_builds(tmp_path: Path) -> None:
    """Begun as `make scenario` does, in sources whose gallery has no other page."""
    sources = tmp_path / "sources"
    shutil.copytree(ROOT / "src", sources / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "_static", sources / "_static")
    (sources / GALLERY).mkdir(parents=True)
    indexes = ("intermediate_source/index.rst", f"{GALLERY}/index.rst")
    for name in ("conf.py", "pyproject.toml", *indexes):
        shutil.copy(ROOT / name, sources / name)
    canonical = Path(shutil.copy(CANONICAL, sources / GALLERY))

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
    script = sources / GALLERY / "my_hang.py"
    assert begun.stdout.startswith(f"{script}: begun")

    canonical.unlink()
    with (sources / "conf.py").open("a") as conf:
        conf.write("\ndemo_sources = []\n")
    (sources / "index.rst").write_text(
        "Site\n====\n\n.. toctree::\n\n   intermediate/hang_gallery/index\n"
    )
    (sources / "distributed.rst").write_text(":orphan:\n\nDistributed\n===========\n")
    built = sphinx_build(sources, tmp_path / "html")
    assert built.returncode == 0, built.stdout[-2000:] + built.stderr[-4000:]
    assert "my_hang: ran in " in built.stdout
    page = (tmp_path / "html/intermediate/hang_gallery/my_hang.html").read_text()
    for shown in ("suspect rank 1", "wait_for_nobody", "With the fix", "HEALTHY"):
        assert shown in page
    assert "my_hang.html" in (tmp_path / "html/intermediate/hang_gallery/index.html").read_text()


def test_a_new_page_has_the_style_of_the_others(folder: Path) -> None:
    script = scaffold("my_hang", folder)
    assert (folder / "order.txt").read_text() == "slow_checkpoint\nmy_hang\n"
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
