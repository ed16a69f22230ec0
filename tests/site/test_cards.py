"""Cards: what they link to and show exists, or the build fails; their tags become buttons."""

from html.parser import HTMLParser

import pytest

PAGE = """
Page
====

.. customcards::

   .. customcarditem::
      :header: The first
      :card_description: Says ``what``.
      :image: pictures/one.svg
      :alt: A grid
      :link: other
      :tags: Gloo, stuck in host code

   .. customcarditem::
      :header: The second
      :link: https://example.org/page
      :tags: R&D "quoted", Gloo,

.. toctree::

   other
"""
PICTURE = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9"><path d="M0 0h9v9z"/></svg>'


class Elements(HTMLParser):
    """Collects (tag, attributes, text up to the next tag)."""

    def __init__(self, html):
        super().__init__()
        self.found = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs), []))

    def handle_data(self, data):
        if self.found:
            self.found[-1][2].append(data)

    def having(self, tag, **wanted):
        return [
            (attrs, "".join(text))
            for name, attrs, text in self.found
            if name == tag and all(value in (attrs.get(key) or "") for key, value in wanted.items())
        ]


@pytest.fixture
def project(make_project):
    made = make_project("extensions = ['site_build.cards']\nexclude_patterns = ['html']")
    made.write(index=PAGE, other="Other\n=====\n")
    (made.folder / "pictures").mkdir()
    (made.folder / "pictures" / "one.svg").write_text(PICTURE)
    return made


def test_a_card_links_to_its_page_and_shows_its_picture(project):
    result = project.build()
    assert result.returncode == 0, result.stderr
    page = Elements(project.html("index"))
    (picture,) = [attrs for attrs, _ in page.having("img", **{"class": "fr-card-image"})]
    assert picture["alt"] == "A grid"
    assert (project.folder / "html" / picture["src"]).read_text() == PICTURE
    card_links = page.having("a", **{"class": "reference"})
    assert {"other.html", "https://example.org/page"} <= {attrs["href"] for attrs, _ in card_links}
    assert (project.folder / "html" / "other.html").exists()


def test_the_description_is_rst(project):
    project.build()
    assert '<span class="pre">what</span>' in project.html("index")


def test_each_tag_has_one_button_with_its_count(project):
    project.build()
    page = Elements(project.html("index"))
    buttons = {attrs.get("data-tag"): text for attrs, text in page.having("button")}
    # In alphabetical order behind the one that shows all, whose own text ends where <small> begins.
    assert list(buttons) == [None, "Gloo", 'R&D "quoted"', "stuck in host code"]
    assert [text for _, text in page.having("small")] == ["2", "2", "1", "1"]
    assert all(attrs["aria-pressed"] for attrs, _ in page.having("button"))
    # The script compares the two, so they must be equal to the letter.
    tags = {text.strip() for _, text in page.having("span", **{"class": "fr-card-tag"})}
    assert tags == set(buttons) - {None}


def test_the_filter_is_hidden_until_its_script_runs_and_stands_right_before_the_cards(project):
    project.build()
    page = Elements(project.html("index"))
    ((attrs, _),) = page.having("div", **{"class": "fr-filter"})
    assert "hidden" in attrs
    assert '<p role="status"></p></div><ul class="fr-cards' in project.html("index")


def test_cards_without_tags_have_no_filter(project):
    project.write(
        other="Other\n=====\n\n.. customcards::\n\n   .. customcarditem::\n"
        "      :header: Back\n      :link: index\n"
    )
    assert project.build().returncode == 0
    assert "fr-filter" not in project.html("other")
    assert "fr-card" in project.html("other")


def test_a_link_may_name_the_built_file(project):
    project.write(index=PAGE.replace(":link: other", ":link: other.html"))
    result = project.build()
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (":link: other", ":link: nowhere", "index.rst:7: WARNING: unknown document: 'nowhere'"),
        ("one.svg", "none.svg", "index.rst:7: WARNING: image file not readable: pictures/none.svg"),
        (
            "one.svg\n      :alt: A grid",
            "none.svg",
            "index.rst:7: WARNING: image file not readable: pictures/none.svg",
        ),
        ("   :header: The first\n   ", "", "needs the option :header:"),
        ("      :link: other\n", "", "needs the option :link:"),
        (":tags: Gloo, s", ":tagz: s", 'unknown option: "tagz"'),
        ("``what``", "``what", "Inline literal start-string without end-string"),
        (".. customcards::", ".. container:: x", "stands inside a customcards directive"),
    ],
)
def test_a_mistake_in_a_card_fails_the_build(project, old, new, message):
    assert old in PAGE
    project.write(index=PAGE.replace(old, new))
    result = project.build()
    assert result.returncode != 0
    assert message in result.stderr


def test_only_cards_stand_among_cards(project):
    project.write(other="Other\n=====\n\n.. customcards::\n\n   Some text.\n")
    result = project.build()
    assert result.returncode != 0
    assert "Only customcarditem directives stand inside customcards" in result.stderr
