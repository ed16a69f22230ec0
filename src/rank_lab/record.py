"""What a run leaves: plain, immutable data."""

from dataclasses import dataclass
from pathlib import Path


class RankLabError(Exception):
    """A run could not be started; the message is one line that says what to change."""


@dataclass(frozen=True)
class RankOutput:
    """What one rank wrote."""

    rank: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class RunRecord:
    """One run of a script on real ranks."""

    script: Path
    run_id: str
    """What marks its processes, see :mod:`rank_lab.processes`."""
    nproc: int
    exit_status: int | None
    """The launcher's exit status; None if the deadline ended the run."""
    timed_out: bool
    duration_s: float
    launcher_output: str
    """What torchrun itself wrote: nothing, or why it thinks the run has failed."""
    ranks: tuple[RankOutput, ...]
    run_dir: Path
    dump_dir: Path
    """Where the script was told to write, in ``FR_DUMP_DIR``."""
    dump_files: tuple[Path, ...]
    """The dumps of single ranks, by rank."""
    stacks_files: tuple[Path, ...]
    """The snapshots of the Python stacks, oldest first."""
    survivors: tuple[str, ...]
    """What was still alive when the launcher had ended (it no longer is), one line a process."""

    @property
    def text(self) -> str:
        """The output of all ranks, one rank after the other: nothing is interleaved."""
        return "".join(
            part if part.endswith("\n") else f"{part}\n"
            for rank in self.ranks
            for part in (rank.stdout, rank.stderr)
            if part
        )
