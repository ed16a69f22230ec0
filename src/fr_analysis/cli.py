"""The command ``fr-analysis``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from enum import IntEnum

import fr_analysis
from fr_analysis.diagnosis import Diagnosis, Verdict
from fr_analysis.errors import FrAnalysisError
from fr_analysis.report import render_text


class ExitStatus(IntEnum):
    """What the command's exit status says."""

    HEALTHY = 0
    FAULT = 1
    BAD_INPUT = 2
    UNDETERMINED = 3


_EPILOG = """\
exit status:
  0  healthy: nothing is outstanding and every dump was read
  1  fault found
  2  bad input: nothing could be read, or the command line is wrong
  3  undetermined: the dumps do not decide
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fr-analysis",
        description="Read PyTorch Flight Recorder dumps and name the ranks to blame for a hang.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "path",
        nargs="?",
        metavar="PATH",
        help="directory with one dump per rank, one dump, a glob, or a prefix of file names",
    )
    parser.add_argument("--fr-path", metavar="PATH", help="the same as PATH")
    parser.add_argument(
        "-p", "--pattern", metavar="GLOB", help="in a directory, take only names that match"
    )
    parser.add_argument(
        "--stacks",
        metavar="FILE",
        action="append",
        default=[],
        help="stacks snapshot of the debug server, or py-spy dump output "
        "(default: the newest beside the dumps)",
    )
    parser.add_argument(
        "--expected-world-size", metavar="N", type=int, help="how many ranks the job has"
    )
    parser.add_argument("--version", action="version", version=fr_analysis.__version__)
    return parser


def exit_status(diagnosis: Diagnosis) -> ExitStatus:
    """The exit status that a diagnosis has."""
    return {
        Verdict.HEALTHY: ExitStatus.HEALTHY,
        Verdict.FAULT: ExitStatus.FAULT,
        Verdict.UNDETERMINED: ExitStatus.UNDETERMINED,
    }[diagnosis.verdict]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: the command line without the program's name; None takes ``sys.argv``.

    Returns:
        An ``ExitStatus``.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    path = options.path or options.fr_path
    if path is None:
        parser.error("no PATH given: name the directory that holds the dumps")
    try:
        diagnosis = fr_analysis.analyze(
            path,
            pattern=options.pattern,
            stacks=options.stacks,
            expected_world_size=options.expected_world_size,
        )
        sys.stdout.write(render_text(diagnosis))
        sys.stdout.flush()
    except FrAnalysisError as error:
        print(f"fr-analysis: {error}", file=sys.stderr)
        return ExitStatus.BAD_INPUT
    except BrokenPipeError:
        # The reader, such as head, has gone; keep the interpreter from failing at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return exit_status(diagnosis)
