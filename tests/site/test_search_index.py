"""After an edit, search finds what it finds after a fresh build of the same sources."""

import shutil

import pytest
from sphinx.search import js_index

CONF = 'extensions = ["site_build.search_index"]\nexclude_patterns = ["html"]'
PAGES = {
    "index": "Root\n====\n\n.. toctree::\n\n   b\n   c\n   hidden\n",
    "b": "Title\n=====\n\nOldword.\n\n.. index:: --option, word\n"
    ".. index::\n   single: outer; Inner\n   see: x; y\n",
    "c": "Title\n=====\n\n.. index:: --option\n",
    "hidden": ":nosearch:\n\nHidden\n======\n\n.. index:: secret\n",
}


@pytest.fixture
def project(make_project):
    made = make_project(CONF)
    made.write(**PAGES)
    build(made)
    return made


def build(project):
    result = project.build()
    assert result.returncode == 0, result.stderr


def index(project):
    return (project.folder / "html" / "searchindex.js").read_text()


def fresh_index(project):
    """What a build from nothing has."""
    for made in ("html", "doctrees"):
        shutil.rmtree(project.folder / made)
    build(project)
    return index(project)


def entries(text):
    """Entries and where they are, in any order."""
    found = js_index.loads(text)["indexentries"]
    return {entry: sorted(places) for entry, places in found.items()}


@pytest.mark.parametrize(
    "edit",
    [
        {"c": PAGES["c"] + "\nNewword.\n"},
        {"b": PAGES["b"].replace("Oldword", "Newword").replace("--option, ", "")},
        {"b": PAGES["b"].replace("Title\n=====", "Other\n=====")},
    ],
    ids=["a word more", "a word and an entry less", "another title"],
)
def test_an_edit_leaves_the_index_of_a_fresh_build(project, edit):
    project.write(**edit)
    build(project)
    edited = index(project)
    assert edited == fresh_index(project)


def test_a_removed_page_leaves_the_index_of_a_fresh_build(project):
    (project.folder / "b.rst").unlink()
    project.write(index=PAGES["index"].replace("   b\n", ""))
    build(project)
    edited = index(project)
    assert edited == fresh_index(project)


def test_entries_are_those_that_sphinx_finds_in_all_pages(project):
    completed = index(project)
    conf = project.folder / "conf.py"
    conf.write_text(conf.read_text().replace('"site_build.search_index"', ""))
    assert entries(completed) == entries(fresh_index(project))
    assert set(entries(completed)) == {"--option", "word", "outer", "inner", "x", "y"}


def test_an_index_that_lacks_entries_is_completed_where_no_page_changed(project):
    whole = index(project)
    found = js_index.loads(whole)
    (project.folder / "html" / "searchindex.js").write_text(
        js_index.dumps(found | {"indexentries": {}})
    )
    build(project)
    assert index(project) == whole


def test_an_index_that_is_gone_is_made_anew(project):
    whole = index(project)
    (project.folder / "html" / "searchindex.js").unlink()
    project.write(c=PAGES["c"])
    build(project)
    assert index(project) == whole
