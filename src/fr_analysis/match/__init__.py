"""``match``: from a ``Trace`` to ``Progress``. Only this package knows how numbers count."""

from fr_analysis.match.groups import Groups, ProcessGroup
from fr_analysis.match.progress import Advance, Join, Progress, match

__all__ = ["Advance", "Groups", "Join", "ProcessGroup", "Progress", "match"]
