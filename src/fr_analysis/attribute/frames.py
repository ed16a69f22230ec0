"""Reads a stack as a person does: which thread runs the program, and which line of it is theirs."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

from fr_analysis.trace import Frame, RankStacks, ThreadStack

_TORCH = re.compile(
    r"[/\\](?:site|dist)-packages[/\\](?:torch|torchcomms|functorch)[/\\]"
    r"|(?:^|[/\\])torch[/\\](?:distributed|nn|utils|autograd|cuda|optim|_[a-z]+)[/\\]"
    r"|^(?:torch|torchcomms|functorch)[/\\]"  # py-spy shortens names
)
_STANDARD_LIBRARY = re.compile(r"[/\\]lib[/\\]python3\.\d+[/\\](?!site-packages|dist-packages)|^<")


def is_torch(frame: Frame) -> bool:
    """Whether a frame is torch's own."""
    return bool(_TORCH.search(frame.filename))


def code_line(frames: Sequence[Frame]) -> Frame | None:
    """The innermost frame outside torch and the standard library.

    Args:
        frames: innermost first.

    Returns:
        The frame, or None where there is none.
    """
    for frame in frames:
        if not is_torch(frame) and not _is_standard_library(frame.filename):
            return frame
    return None


def _is_standard_library(filename: str) -> bool:
    if _STANDARD_LIBRARY.search(filename):
        return True
    # py-spy writes threading.py and multiprocessing/connection.py.
    top = re.split(r"[/\\]", filename, maxsplit=1)[0].removesuffix(".py")
    return top in sys.stdlib_module_names and top != "test"


def main_thread(stacks: RankStacks) -> ThreadStack | None:
    """The thread that runs the program: its outermost frame is the module."""
    with_frames = [thread for thread in stacks.threads if thread.frames]
    for thread in with_frames:
        if thread.frames[-1].name == "<module>":
            return thread
    return with_frames[-1] if with_frames else None
