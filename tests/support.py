"""What tests of several folders need: this checkout, how its site is built, a page under watch."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

ROOT = Path(__file__).resolve().parents[1]


def sphinx_build(source: Path, output: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Build a site as `make html` does, with variables added to the environment."""
    options = ["-b", "html", "-W", "--keep-going", "-n", "-d", str(output.parent / "doctrees")]
    return subprocess.run(
        [sys.executable, "-m", "sphinx", *options, str(source), str(output)],
        capture_output=True,
        text=True,
        timeout=1500,
        env=os.environ | env,
        check=False,
    )


def fr_analysis(
    *arguments: object, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "fr_analysis", *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | environment,
        check=False,
    )


def run_as_a_reader(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run one of torch's commands as a page's reader does: in the folder, without settings."""
    program, *arguments = command
    return subprocess.run(
        [Path(sys.executable).with_name(program), *arguments],
        cwd=folder,
        # Only this differs: torchrun's own port is taken when two jobs run at once.
        env=os.environ | {"PET_STANDALONE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
        check=False,
    )


class Watched:
    """A page in a real browser, with what it asked for and complained about."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.requests: list[str] = []
        self.complaints: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda message: self._complain(message.type, message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _complain(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(text)

    def serious_faults(self) -> list[str]:
        """What axe finds wrong with the page's accessibility, minor faults left out."""
        found: list[dict[str, Any]] = Axe().run(self.page).response["violations"]
        return [
            f"{fault['id']}: {node['html'][:200]}"
            for fault in found
            if fault["impact"] in ("serious", "critical")
            for node in fault["nodes"]
        ]
