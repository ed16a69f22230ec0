"""Runs a script on real ranks: torchrun with a hard deadline, and everything collected.

:func:`run_ranks` starts a script on several processes of this machine, waits for it no longer than
a deadline, makes sure that nothing of it is left running, and returns a :class:`RunRecord`: what
each rank said, how the launcher ended, and which dumps and stacks the script left. A
:class:`WarmLauncher` starts run after run in a fraction of a second.
"""

from rank_lab.launch import run_ranks
from rank_lab.record import RankLabError, RankOutput, RunRecord
from rank_lab.warm import WarmLauncher

__all__ = ["RankLabError", "RankOutput", "RunRecord", "WarmLauncher", "run_ranks"]
