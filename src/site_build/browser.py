"""The browser that takes the site's pictures and runs its tests: any Chromium that is installed."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
from pathlib import Path

CHROMIUM_OPTIONS = (
    "--no-sandbox",  # it cannot have one as root, as in a container
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    # It would look for hosts of its maker at every start.
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

_LIMIT_S = 120


def find_chromium() -> str | None:
    """The path of Chromium, or of a browser that is built from it; None where there is none."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next(filter(None, map(shutil.which, names)), None)


def take_picture(page: Path, target: Path, *, width: int = 1280, height: int = 900) -> None:
    """Open a page and write what is seen of it as a PNG.

    Args:
        page: an HTML file. target: the picture to write. width, height: of the window, in pixels.

    Raises:
        RuntimeError: there is no browser, or it took no picture.
    """
    browser = find_chromium()
    if browser is None:
        raise RuntimeError("no Chromium is installed")
    with tempfile.TemporaryDirectory(prefix="chromium-") as profile:
        options = [
            f"--user-data-dir={profile}",
            f"--window-size={width},{height}",
            f"--screenshot={target}",
            "--headless",
            "--hide-scrollbars",
            "--virtual-time-budget=4000",  # the page's own scripts have run by then
        ]
        done = subprocess.run(
            [browser, *CHROMIUM_OPTIONS, *options, page.as_uri()],
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
    if not target.is_file():
        raise RuntimeError(f"{browser} took no picture of {page}: {done.stderr.strip()[-500:]}")


def main() -> None:
    """Take a picture of a page."""
    parser = argparse.ArgumentParser(description="take a picture of a page")
    parser.add_argument("page", type=Path)
    parser.add_argument("target", type=Path)
    options = parser.parse_args()
    take_picture(options.page.resolve(), options.target.resolve())


if __name__ == "__main__":
    main()
