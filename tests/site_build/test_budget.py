"""A build says how long it took, and when that is too long."""

from site_build.budget import told


def test_within_and_over() -> None:
    assert told("site", 299.6, 300) == "time budget of the site: 300 s of 300 s"
    assert told("tests", 301, 300).startswith("time budget of the tests: 301 s of 300 s: over it")
