"""The browser that takes the site's pictures and runs its tests: any Chromium that is installed."""

from __future__ import annotations

import shutil

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


def find_chromium() -> str | None:
    """The path of Chromium, or of a browser that is built from it; None where there is none."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next(filter(None, map(shutil.which, names)), None)
