"""The README shows what the build's own run printed."""

import pytest
from support import ROOT


@pytest.mark.usefixtures("site")
def test_readme_shows_the_output_of_the_build() -> None:
    shown = ROOT / "_build/captures/debug_hangs_with_flight_recorder/fr_analysis.txt"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"```text\n{shown.read_text(encoding='utf-8')}```" in readme
