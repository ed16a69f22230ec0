"""How the site is built: `make html`, or `sphinx-build -b html -W -n . _build/html`."""

import os
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT / "src"))

# -- The project ------------------------------------------------------------------------------

project = "fr-analysis"
project_copyright = "2026, fr-analysis contributors"
# One place for the version: the package's own metadata.
version = release = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

# -- Extensions -------------------------------------------------------------------------------

extensions = [
    # Named here although `html_theme` would load it: it registers a `customcarditem` of its own,
    # and whoever registers last wins. Ours must come after.
    "pytorch_sphinx_theme2",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "sphinx_reredirects",
    "site_build",
]

# -- Addresses --------------------------------------------------------------------------------

# Where the site is published, such as https://example.org/hangs/: whoever publishes it sets this.
# Any other copy names no address of its own: no canonical URLs, no sitemap, no OpenGraph.
html_baseurl = os.environ.get("SITE_URL", "").rstrip("/")
if html_baseurl:
    html_baseurl += "/"
    extensions.append("sphinxext.opengraph")
# What pages show for it.
site_address = html_baseurl or "https://ADDRESS-OF-THIS-SITE/"

# Others link to these; see "Addresses" in CONTRIBUTING.md.
published_urls = "intermediate_source/published_urls.txt"
# From a page that moved, without suffix, to its new address relative to the old one.
redirects: dict[str, str] = {}

ogp_site_url = html_baseurl
ogp_site_name = "Debugging distributed hangs"
# For pages that no card leads to; the others have their card's picture.
ogp_image = "_static/screenshot.png"
ogp_custom_meta_tags = ['<meta name="twitter:card" content="summary_large_image" />']
llms_summary = (
    "How to find the rank that hangs a distributed PyTorch job: a tutorial, a gallery of hangs, "
    "each run on real ranks, and the analyzer fr-analysis, which reads Flight Recorder dumps."
)

# -- Sources ----------------------------------------------------------------------------------

# Only the pages: sphinx-gallery publishes `intermediate_source` as `intermediate`.
exclude_patterns = [
    ".*",
    "_build",
    "benchmarks",
    "intermediate_source",
    "src",
    "tests",
]
html_copy_source = False
# Two hyphens begin an option, also in a caption; they are no dash.
smartquotes_action = "qe"

# Pages whose demo runs at every build: what they claim, beside the page. Claims become
# substitutions such as |suspect|; what the demo prints lands in _build/captures.
demo_sources = [
    "intermediate_source/debug_hangs_with_flight_recorder.toml",
    "intermediate_source/fr_analysis_reference.toml",
    "intermediate_source/compared_with_torchfrtrace.toml",
]

# The reference is made from the docstrings. Types of the standard library lead nowhere: their
# inventory would have to be fetched from another host at every build.
nitpick_ignore_regex = [
    ("py:.*", r"(collections\.abc|pathlib|os|enum|typing|dataclasses)\..*"),
    ("py:class", r"(Mapping|Any|Path|StrEnum|TypedDict)"),
]
autodoc_member_order = "bysource"
maximum_signature_line_length = 80

# Copying a command must give what one types: no prompt, no output, no line number.
copybutton_exclude = ".linenos, .gp, .go"

sphinx_gallery_conf = {
    "examples_dirs": ["intermediate_source"],
    "gallery_dirs": ["intermediate"],
    # Pages that are not Python files go along as they are; an `index.rst` of our own stands in
    # for the generated one, in this folder and in each below it.
    "copyfile_regex": r".*\.rst$",
    # Programs that pages include; they are no pages by themselves.
    "ignore_pattern": r"(__init__|verify_flight_recorder|exercise_\d|test_exercises)\.py$",
    "filename_pattern": r"\.py$",
    # Runs a page's job on real ranks, checks its claims, and puts what it left on the page.
    "image_scrapers": ("site_build.gallery.show_run",),
    # A notebook has no ranks: these scripts are for torchrun.
    "notebook_extensions": set(),
    "reset_modules": (),
    # A bare expression's repr may show paths of the machine that built the page.
    "capture_repr": ("_repr_html_",),
    "abort_on_example_error": True,
    # Ranks mostly wait: two pages at a time.
    "parallel": 2,
    "download_all_examples": False,
    "show_signature": False,
    # As in the file, which a traceback names; `site_build.line_anchors` makes them links.
    "line_numbers": True,
    # Run times would differ at every build.
    "min_reported_time": 86400,
    # These pages would load scripts from other hosts.
    "write_computation_times": False,
}

# -- The look ---------------------------------------------------------------------------------

# The theme is used for its style sheet only. Its documentation also adds its templates folder to
# `templates_path`; those templates load trackers, fonts and scripts from other hosts on every
# page, and cannot be told not to. Without them the pages are self-contained.
html_theme = "pytorch_sphinx_theme2"
html_title = "Debugging distributed hangs"
html_favicon = "_static/favicon.svg"
html_static_path = ["_static"]
templates_path = ["_templates"]
html_css_files = ["css/site.css"]
html_js_files = ["js/mend.js", ("js/card-filter.js", {"defer": "defer"})]
html_show_sphinx = False
html_show_sourcelink = False
# The site is shallow: the bar at the top and the page's own contents at the right are enough.
html_sidebars = {"**": []}
# Light or dark as the reader's system has it, until the reader chooses.
html_context = {"default_mode": "auto"}
html_theme_options = {
    "logo": {
        "image_light": "_static/logo.svg",
        "image_dark": "_static/logo.svg",
        "text": "Distributed hangs",
    },
    "navbar_start": ["navbar-logo"],
    "navbar_center": ["navbar-nav"],
    "navbar_end": ["theme-switcher"],
    "navbar_persistent": ["search-button"],
    "article_header_start": ["breadcrumbs"],
    "secondary_sidebar_items": ["page-toc"],
    "show_toc_level": 2,
    "show_prev_next": False,
    "footer_start": ["copyright"],
    "footer_end": [],
    # Each of these has a default that only the theme's templates fill.
    "article_header_end": [],
    "article_footer_items": [],
    "primary_sidebar_end": [],
    "use_edit_page_button": False,
    "llm_disabled": "true",
}
