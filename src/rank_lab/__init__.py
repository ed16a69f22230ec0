"""Runs a script on real ranks: torchrun with a hard deadline, and everything collected.

:func:`run_ranks` starts a script on several processes of this machine, waits for it no longer than
a deadline, makes sure that nothing of it is left running, and returns a :class:`RunRecord`: what
each rank said, how the launcher ended, and which dumps and stacks the script left.
"""

from rank_lab.launch import run_ranks
from rank_lab.record import RankLabError, RankOutput, RunRecord

__all__ = ["RankLabError", "RankOutput", "RunRecord", "run_ranks"]
