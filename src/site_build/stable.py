"""Makes captured output the same on every machine and at every run.

What changes from run to run (paths, hosts, ports, times, thread ids) is replaced by
something that stays; what the page explains is left as it was printed.
"""

from __future__ import annotations

import re
import socket
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    # Names of snapshots carry the time at which they were taken.
    (re.compile(r"_20\d{6}_\d{6}\b"), "_<time>"),
    (re.compile(r"http://[^/\s:]+:\d+/handler/"), "http://<host>:<port>/handler/"),
    (re.compile(r"\b0x[0-9a-f]{8,16}\b"), "0x<thread>"),
    (re.compile(r"\bafter \d+\.\d s\b"), "after <seconds> s"),
    (re.compile(r"\bsince \d\d:\d\d:\d\d UTC, for \d+ s\b"), "since <time> UTC, for <seconds> s"),
    (re.compile(r"\bsnapshots \d+\.\d s apart\b"), "snapshots <seconds> s apart"),
    (re.compile(r"localhost:\d{5}\b"), "localhost:25999"),
    (re.compile(r"(\"time_\w+_ns\": )\d{19}"), r'\1"<nanoseconds>"'),
    (re.compile(r"(\"thread_id\": )\"\d+\""), r'\1"<thread>"'),
    # torchrun's report of a rank that died, and Gloo's of its connection.
    (re.compile(r"(?m)^(  time +: )20[\d-]+_[\d:]+$"), r"\1<time>"),
    (re.compile(r"(?m)^(  host +: ).*$"), r"\1<host>"),
    (re.compile(r"(?m)^([=-])\1{39,}$"), r"\1" * 60),  # as long as the script's path
    (re.compile(r"(\(pid: |received by PID )\d+"), r"\1<pid>"),
    (re.compile(r"(\[127\.0\.0\.1\]:)\d+"), r"\1<port>"),
    # How many snapshots fit into the hang depends on the machine.
    (re.compile(r"(?m)(^\[rank \d+\]\s+)\d+( \w*(?:stacks|fr_trace)_\*\.txt$)"), r"\1<n>\2"),
)


def replace_places(text: str, places: Sequence[tuple[Path, str]]) -> str:
    """Replace folders of this machine and of this run.

    Args:
        text: any text.
        places: folders of this run and what to show for them, the more specific first.

    Returns:
        The text.
    """
    for place, shown in places:
        text = text.replace(str(place), shown)
    text = text.replace(str(Path(sys.executable).parent), ".../bin")
    text = text.replace(sysconfig.get_path("purelib"), ".../site-packages")
    return text.replace(sysconfig.get_path("stdlib"), ".../lib/python3")


def stabilize(text: str, places: Sequence[tuple[Path, str]]) -> str:
    """Replace what changes from run to run.

    Args:
        text: output of a command.
        places: folders of this run and what to show for them, the more specific first.

    Returns:
        The text, with trailing spaces and empty lines at the end removed.
    """
    text = replace_places(text, places)
    text = text.replace(f"http://{socket.gethostname()}:", "http://<host>:")
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return "\n".join(line.rstrip() for line in text.splitlines()).rstrip() + "\n"
