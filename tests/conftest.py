"""Fixtures for tests of several folders."""

from pathlib import Path

import pytest

from support import ROOT, sphinx_build


@pytest.fixture(scope="session")
def site() -> Path:
    """The site of this checkout, built where `make html` builds it."""
    built = sphinx_build(ROOT, ROOT / "_build" / "html")
    assert built.returncode == 0, built.stdout[-2000:] + built.stderr[-4000:]
    return ROOT / "_build" / "html"
