"""Says how long a build took, beside how long it may take with nothing built before."""

import time

from sphinx.application import Sphinx
from sphinx.util import logging

logger = logging.getLogger(__name__)

SITE_S = 300
"""Of the whole site, its gallery run on real ranks, on two cores."""


def setup(app: Sphinx) -> None:
    """Begin to count."""
    start = time.monotonic()

    def tell(app: Sphinx, exception: Exception | None) -> None:
        if exception is None:
            logger.info(told("site", time.monotonic() - start, SITE_S))

    app.connect("build-finished", tell)


def told(what: str, seconds: float, budget_s: int) -> str:
    """One line on what was spent of a time budget.

    Args:
        what: what took the time. seconds: how long it took. budget_s: how long it may take.
    """
    over = "" if seconds <= budget_s else ": over it, look for what has become slow"
    return f"time budget of the {what}: {seconds:.0f} s of {budget_s} s{over}"
