"""``report``: from a ``Diagnosis`` to what a person or a program reads."""

from fr_analysis.report.text import headline, render_text

__all__ = ["headline", "render_text"]
