"""Code blocks that show the site's own address, so that they can be pasted as they are."""

from __future__ import annotations

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.directives.code import CodeBlock

MARK = "|site-address|"


def setup(app: Sphinx) -> None:
    """Register the directive."""
    # Not `html_baseurl`: Sphinx would not read pages again when that changes.
    app.add_config_value("site_address", "", "env", [str])
    app.add_directive("site-code-block", SiteCodeBlock)


class SiteCodeBlock(CodeBlock):
    """A ``code-block`` in which ``MARK`` stands for the site's address."""

    def run(self) -> list[nodes.Node]:
        """Make the block."""
        address = self.config.site_address
        self.content = StringList(
            [line.replace(MARK, address) for line in self.content], items=self.content.items
        )
        return super().run()
