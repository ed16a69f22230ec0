"""What tests of several folders need: this checkout, and how its site is built."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def sphinx_build(source: Path, output: Path) -> subprocess.CompletedProcess[str]:
    """Build a site as `make html` does."""
    options = ["-b", "html", "-W", "--keep-going", "-n", "-d", str(output.parent / "doctrees")]
    return subprocess.run(
        [sys.executable, "-m", "sphinx", *options, str(source), str(output)],
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
