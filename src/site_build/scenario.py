"""Begins a page of the hang gallery: ``python -m site_build.scenario NAME`` (``make scenario``).

The page is whole from the start: its job hangs, is diagnosed as its docstring says, and has a fix.
Its author then changes the job, the docstring and the text until they show another way to hang.
"""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from pathlib import Path
from string import Template

from site_build import recorded_job

FOLDER = recorded_job.CANONICAL.parent
TEMPLATE = Path(__file__).with_name("scenario.template")

_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")

# Files that are no pages begin so.
_NO_PAGES = ("test_", "exercise_")


class ScenarioError(Exception):
    """A page of this name cannot be begun; the message is one line."""


def _check(name: str, folder: Path) -> None:
    """Refuse a name that cannot be a page's."""
    if not _NAME.fullmatch(name):
        raise ScenarioError(
            f"NAME={name!r}: expected lower-case words joined by underscores, such as my_hang"
        )
    if name.startswith(_NO_PAGES):
        raise ScenarioError(f"NAME={name}: files that begin with {_NO_PAGES} are no pages")
    for file in folder.glob(f"{name}.*"):
        raise ScenarioError(f"NAME={name}: {file.name} is there already")
    # The script's folder comes first where Python looks for modules.
    if find_spec(name):
        raise ScenarioError(f"NAME={name}: the script would hide the module of that name")


def scaffold(name: str, folder: Path = FOLDER) -> Path:
    """Write a page that builds, and list it last in the gallery's order.

    Args:
        name: of the file and of the page's address, without ending.
        folder: the gallery's.

    Returns:
        The script.

    Raises:
        ScenarioError: the name is taken, or cannot be a page's.
    """
    _check(name, folder)
    own, section = recorded_job.split(recorded_job.CANONICAL.read_text(encoding="utf-8"))
    _, cell, introduction = own.rpartition("# %%\n")
    title = name.replace("_", " ").capitalize()
    page = Template(TEMPLATE.read_text(encoding="utf-8"))
    script = folder / f"{name}.py"
    script.write_text(
        page.substitute(title=title, rule="=" * len(title)) + cell + introduction + section,
        encoding="utf-8",
    )
    with (folder / "order.txt").open("a", encoding="utf-8") as order:
        order.write(f"{name}\n")
    # Where the site keeps a list of its addresses, a build with one that is not listed fails.
    published = folder.parent / "published_urls.txt"
    if published.exists():
        urls = {*published.read_text(encoding="utf-8").split()}
        urls.add(f"intermediate/{FOLDER.name}/{name}.html")
        published.write_text("\n".join(sorted(urls)) + "\n", encoding="utf-8")
    return script


def main() -> int:
    """Begin the page that the command line names."""
    try:
        script = scaffold(sys.argv[1] if len(sys.argv) == 2 else "")
    except ScenarioError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{script}: begun, and listed in order.txt; it builds as it is. Next:")
    print("  1. make the job hang your way, and say so in the docstring and the text")
    print("  2. make html: it runs the job, and stops where the diagnosis is not what you claim")
    return 0


if __name__ == "__main__":
    sys.exit(main())
