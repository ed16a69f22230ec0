"""Keeps the last section of every gallery script and exercise the same.

Each of these scripts must run alone, so each carries the section that records the job. It
is written in one of them, ``CANONICAL``; ``python -m site_build.recorded_job`` (``make
gallery-sync``) copies it from there into all others, and a test compares them.
"""

from __future__ import annotations

import sys
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[2] / "intermediate_source"
CANONICAL = SOURCES / "hang_gallery" / "stuck_in_host_code.py"
FIRST_LINE = "# --- recorded job: the same in every script of the gallery ---\n"


def split(text: str) -> tuple[str, str]:
    """A script's own part, and its copy of the section; empty where it has none."""
    own, mark, section = text.partition(FIRST_LINE)
    return own, mark + section


def scripts() -> list[Path]:
    """Every script that must carry the section."""
    folders = ["hang_gallery", "exercises", "exercises/solutions"]
    found = [file for folder in folders for file in sorted((SOURCES / folder).glob("*.py"))]
    return [file for file in found if not file.name.startswith("test_")]


def main() -> int:
    """Copy the section into every script; names those that changed."""
    _, section = split(CANONICAL.read_text(encoding="utf-8"))
    for file in scripts():
        text = file.read_text(encoding="utf-8")
        own, _ = split(text)
        if own + section != text:
            file.write_text(own + section, encoding="utf-8")
            print(f"{file.relative_to(SOURCES)}: section renewed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
