"""Keeps the output that the README shows equal to what the build's own run printed.

``python -m site_build.readme`` (``make readme``) puts it there; a test compares.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OUTPUT = ROOT / "_build" / "captures" / "debug_hangs_with_flight_recorder" / "fr_analysis.txt"


def with_output(readme: str, output: str) -> str:
    """The README with its one text block replaced by a command's output."""
    return re.sub(r"(?<=```text\n).*?(?=```)", lambda _: output, readme, count=1, flags=re.DOTALL)


def main() -> int:
    """Update README.md from the captured output."""
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    readme.write_text(with_output(text, OUTPUT.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
