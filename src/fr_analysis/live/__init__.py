"""``live``: from a running job's debug server to an answer, and from answers to progress."""

from fr_analysis.live.collect import NoServerError, Snapshot, collect, collect_ranks
from fr_analysis.live.fetch import Address
from fr_analysis.live.judge import Reading, examine
from fr_analysis.live.watch import End, Watched, watch

__all__ = [
    "Address",
    "End",
    "NoServerError",
    "Reading",
    "Snapshot",
    "Watched",
    "collect",
    "collect_ranks",
    "examine",
    "watch",
]
