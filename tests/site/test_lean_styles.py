"""Style sheets keep what a page may use, and lose the rest."""

import re
from pathlib import Path

import pytest

from site_build.lean_styles import lean, used_words


@pytest.mark.parametrize(
    ("sheet", "kept"),
    [
        ("p { color: red }", "p{color: red}"),
        (".here { color: red }", ".here{color: red}"),
        (".gone { color: red }", ""),
        ("#gone { color: red }", ""),
        (".here, .gone p { color: red }", ".here{color: red}"),
        (".here.gone { color: red }", ""),
        # Matches where there is no such class.
        (".here:not(.gone) { color: red }", ".here:not(.gone){color: red}"),
        (":is(.gone, p) { color: red }", ":is(.gone, p){color: red}"),
        ('a[href=".gone"] { color: red }', 'a[href=".gone"]{color: red}'),
        ("@media print { .gone { color: red } .here { top: 0 } }", "@media print {.here{top: 0}}"),
        ("@media print { .gone { color: red } }", ""),
        ('@import "../basic.css";', '@import "../basic.css";'),
        ("@font-face { font-family: gone }", "@font-face { font-family: gone }"),
        ("/* gone */", ""),
    ],
)
def test_rules(sheet: str, kept: str) -> None:
    assert lean(sheet, {"here"}).strip() == kept


def test_words_of_pages_and_of_their_scripts_are_used(tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "script.js").write_text('box.classList.add("set-by-script")')
    (tmp_path / "other.js").write_text('box.classList.add("never")')
    page = tmp_path / "pages" / "page.html"
    page.write_text('<p class="fr-card"><script defer src="../script.js?v=1"></script>')
    words = used_words([page])
    assert {"fr-card", "set-by-script"} <= words
    assert "never" not in words


def test_code_without_marks_looks_as_with_them(site: Path) -> None:
    """What is not marked has the color of all code, in both themes."""
    sheet = (site / "_static" / "pygments.css").read_text()
    rules = dict(re.findall(r"(html\[[^{]*?)\s*{([^}]*)}", sheet))
    for theme in ("light", "dark"):
        code = f'html[data-theme="{theme}"] .highlight'
        (color,) = re.findall(r"color: *(#\w+)$", rules[code].strip())
        for name in "npw":
            assert rules.get(f"{code} .{name}", f"color: {color}").strip() == f"color: {color}"
    page = (site / "intermediate" / "debug_hangs_with_flight_recorder.html").read_text()
    assert '<span class="k">' in page
    assert not re.search('<span class="[npw]">', page)
