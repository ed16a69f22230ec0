"""After an edit, the site is what a fresh build of the same sources would give."""

import pytest

CONF = """
extensions = ["sphinx_gallery.gen_gallery", "site_build.pages"]
exclude_patterns = ["source", "html"]
html_static_path = ["static"]
html_css_files = ["site.css"]
sphinx_gallery_conf = {
    "examples_dirs": ["source"],
    "gallery_dirs": ["pages"],
    "copyfile_regex": r".*[.]rst$",
    "filename_pattern": r"[.]py$",
    "image_scrapers": (),
    "reset_modules": (),
    "download_all_examples": False,
    "write_computation_times": False,
}
"""
ROOT = "Root\n====\n\n.. toctree::\n   :glob:\n\n   pages/*\n"
TEXT = ":orphan:\n\nText\n====\n\nBefore.\n"


@pytest.fixture
def project(make_project):
    made = make_project(CONF)
    made.write(index=ROOT, source__index="Pages\n=====\n", source__text=TEXT)
    (made.folder / "static").mkdir()
    (made.folder / "static" / "site.css").write_text("p { color: red; }")
    result = made.build()
    assert result.returncode == 0, result.stderr
    return made


def test_a_page_is_published_beside_its_index(project):
    assert "Before." in project.html("pages/text")


def test_an_edited_page_is_published_again(project):
    project.write(source__text=TEXT.replace("Before", "After"))
    assert project.build().returncode == 0
    assert "After." in project.html("pages/text")


def test_a_removed_page_is_unpublished(project):
    (project.folder / "source" / "text.rst").unlink()
    assert project.build().returncode == 0
    assert not (project.folder / "pages" / "text.rst").exists()
    assert not (project.folder / "html" / "pages" / "text.html").exists()
    assert (project.folder / "html" / "pages" / "index.html").exists()


def test_a_removed_example_is_unpublished(project):
    example = project.folder / "source" / "example.py"
    example.write_text('"""\nExample\n=======\n\nText.\n"""\nprint("ran")\n')
    result = project.build()
    assert result.returncode == 0, result.stderr
    assert "ran" in project.html("pages/example")
    example.unlink()
    assert project.build().returncode == 0
    assert not list((project.folder / "pages").glob("example.*"))
    assert not (project.folder / "html" / "pages" / "example.html").exists()


def test_removing_a_page_that_others_link_to_fails_the_build(project):
    project.write(source__index="Pages\n=====\n\nSee :doc:`text`.\n")
    assert project.build().returncode == 0
    (project.folder / "source" / "text.rst").unlink()
    result = project.build()
    assert result.returncode != 0
    assert "unknown document: 'text'" in result.stderr


def test_a_failed_build_fails_again_when_repeated(project):
    project.write(source__text=f"{TEXT}\nSee :doc:`nowhere`.\n")
    assert project.build().returncode != 0
    again = project.build()
    assert again.returncode != 0
    assert "unknown document: 'nowhere'" in again.stderr


def test_an_edited_style_sheet_reaches_the_site_and_its_pages(project):
    before = project.html("index")
    (project.folder / "static" / "site.css").write_text("p { color: blue; }")
    assert project.build().returncode == 0
    assert "blue" in (project.folder / "html" / "_static" / "site.css").read_text()
    # The address holds a checksum, or browsers would go on with the sheet that they know.
    assert project.html("index") != before


def test_a_build_without_an_edit_writes_nothing(project):
    page = project.folder / "html" / "index.html"
    written = page.stat().st_mtime_ns
    assert project.build().returncode == 0
    assert page.stat().st_mtime_ns == written
