"""The README shows what the build's own run printed."""

import json

import pytest
from benchmarks import results
from benchmarks.reliability import kept

from site_build.readme import OUTPUT, with_output
from support import ROOT


@pytest.mark.usefixtures("site")
def test_readme_shows_the_output_of_the_build() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    output = OUTPUT.read_text(encoding="utf-8")
    assert readme == with_output(readme, output), "run `make readme` and look at the change"
    assert with_output(readme, "something else\n") != readme


def test_readme_and_page_show_what_the_benchmark_kept() -> None:
    kept = json.loads(results.RESULTS.read_text(encoding="utf-8"))
    readme = results.README.read_text(encoding="utf-8")
    assert readme == results.with_table(readme, results.as_markdown(kept)), (
        "run `python -m benchmarks.results`"
    )
    assert results.PAGE.read_text(encoding="utf-8") == results.as_page(kept)
    assert results.with_table(readme, "something else\n") != readme


@pytest.mark.parametrize("part", kept.parts())
def test_page_shows_what_a_part_of_the_reliability_run_kept(part: str) -> None:
    stored = json.loads((kept.FOLDER / f"{part}.json").read_text(encoding="utf-8"))
    rendered = (kept.FOLDER / f"{part}.rst").read_text(encoding="utf-8")
    assert rendered == kept.as_page(stored), "run `python -m benchmarks.reliability.kept`"
