"""A Sphinx project of a few lines, built as the site is: a warning fails the build."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"


@dataclass(frozen=True)
class Project:
    """A project in a folder of its own."""

    folder: Path

    def write(self, **pages: str) -> None:
        """Write pages; `__` in a name stands for a folder."""
        for name, text in pages.items():
            path = self.folder / f"{name.replace('__', '/')}.rst"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def build(self, *more: str) -> subprocess.CompletedProcess[str]:
        """Build what changed since the last time."""
        options = ["-q", "-W", "--keep-going", "-n", "-d", "doctrees", *more]
        return subprocess.run(
            [sys.executable, "-m", "sphinx", "-b", "html", *options, ".", "html"],
            cwd=self.folder,
            text=True,
            capture_output=True,
        )

    def html(self, page: str) -> str:
        """Read a built page."""
        return (self.folder / "html" / f"{page}.html").read_text()


@pytest.fixture
def make_project(tmp_path):
    """Make a project from the rest of its `conf.py`."""

    def make(conf: str) -> Project:
        (tmp_path / "conf.py").write_text(
            f"import sys\nsys.path.insert(0, {str(SRC)!r})\nhtml_theme = 'basic'\n{conf}\n"
        )
        return Project(tmp_path)

    return make
