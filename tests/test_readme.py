"""The README shows what the build's own run printed."""

import pytest

from site_build.readme import OUTPUT, with_output
from support import ROOT


@pytest.mark.usefixtures("site")
def test_readme_shows_the_output_of_the_build() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    output = OUTPUT.read_text(encoding="utf-8")
    assert readme == with_output(readme, output), "run `make readme` and look at the change"
    assert with_output(readme, "something else\n") != readme
