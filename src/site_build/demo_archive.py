"""One archive of all demos, for a reader who wants them at once: made before pages are read.

Its files are those that the pages offer one by one, and a README.txt that says how to run each.
The same sources give the same bytes, so that a build without an edit changes no page.
"""

from __future__ import annotations

import importlib.metadata
import io
import zipfile
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

from site_build.captures import CaptureError
from site_build.gallery import NPROC, Scenario
from site_build.gallery_index import FOLDER, ordered_scenarios

NAME = "distributed_hang_demos"
"""Of the archive, and of the one folder in it."""

ARCHIVE = Path("_build", "downloads", f"{NAME}.zip")
"""Where pages find it, below the folder of `conf.py`."""

_README = """\
Programs that hang on purpose
=============================

They run on a laptop's CPU, and were tried with this release of PyTorch:

  pip install torch=={torch} tabulate Jinja2 aiohttp

Start them in this folder. Each ends by itself and leaves its dumps in fr_dumps, which fr-analysis
reads. Remove fr_dumps before the next run.

The tutorial's demo
-------------------

  torchrun --nproc_per_node=2 verify_flight_recorder.py
  fr-analysis fr_dumps

The hang gallery
----------------

FIXED=1 in front of a command runs the program with its fault mended.

{gallery}
The exercises
-------------

Find the fault, mend it, and let the test decide. It needs pytest and fr-analysis.

  torchrun --nproc_per_node=4 exercises/exercise_1.py
  fr-analysis fr_dumps
  pytest exercises/test_exercises.py
"""


def setup(app: Sphinx) -> None:
    """Register the step."""
    app.connect("builder-inited", write_archive)


def _readme(scenarios: list[Scenario]) -> str:
    gallery = "".join(
        f"{scenario.title}\n  torchrun --nproc_per_node={NPROC} {FOLDER}/{scenario.source.name}\n\n"
        for scenario in scenarios
    )
    torch = importlib.metadata.version("torch").split("+")[0]
    return _README.format(gallery=gallery, torch=torch)


def archive_of(sources: Path) -> bytes:
    """The archive.

    Args:
        sources: the folder of the pages and demos.

    Raises:
        CaptureError: a gallery script is not as it should be; the message names it.
    """
    scenarios = ordered_scenarios(sources / FOLDER)
    demos = [sources / "verify_flight_recorder.py"]
    demos += [scenario.source for scenario in scenarios]
    demos += sorted((sources / "exercises").glob("*.py"))
    contents = {"README.txt": _readme(scenarios).encode()}
    contents |= {str(demo.relative_to(sources)): demo.read_bytes() for demo in demos}
    buffer = io.BytesIO()
    # Not compressed: releases of zlib differ in their bytes, and the files are small.
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in contents.items():
            entry = zipfile.ZipInfo(f"{NAME}/{name}")  # whose time is a fixed one
            entry.create_system = 3  # Unix, also where the site is built elsewhere
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, content)
    return buffer.getvalue()


def write_archive(app: Sphinx) -> None:
    """Bring the archive up to date, or stop the build."""
    target = Path(app.confdir, ARCHIVE)
    try:
        content = archive_of(Path(app.confdir, "intermediate_source"))
    except CaptureError as error:
        raise ExtensionError(str(error)) from None
    # A file that is written anew would have its pages read again.
    if not target.exists() or target.read_bytes() != content:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
