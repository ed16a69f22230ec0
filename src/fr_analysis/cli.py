"""The command ``fr-analysis``.

It answers to the options of NVIDIA's ``CollectiveAnalyzer`` command (``--fr-path``, ``-p``,
``-v``, ``-c``, ``--debug``) and covers those of ``torchfrtrace`` (``-j``,
``--print-stack-trace``, ``--mismatch-cap``, ``--selected-ranks``, ``--pg-filters``,
``--transform-ft``, ``--group-world-size``).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import errno
import io
import os
import re
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from enum import IntEnum
from pathlib import Path
from typing import IO

import fr_analysis
from fr_analysis.attribute import attribute
from fr_analysis.debug_dumps import write_json_copies
from fr_analysis.diagnosis import Diagnosis, Verdict
from fr_analysis.errors import FrAnalysisError, printable
from fr_analysis.match import Progress, match
from fr_analysis.read import read_trace
from fr_analysis.read.files import is_url
from fr_analysis.report import FORMATS, render_text
from fr_analysis.report.tables import entry_table, group_table, health_table, rank_table
from fr_analysis.trace import Source, Trace


class ExitStatus(IntEnum):
    """What the command's exit status says."""

    HEALTHY = 0
    FAULT = 1
    BAD_INPUT = 2
    UNDETERMINED = 3


_EPILOG = """\
fr-analysis reduce PATH -o FILE puts dumps into one small file that can be analyzed in their place:
see fr-analysis reduce --help

exit status:
  0  healthy: nothing is outstanding and every dump was read
  1  fault found
  2  bad input: nothing could be read, or the command line is wrong
  3  undetermined: the dumps do not decide, or some could not be read
"""

_TIMEOUT_S = 10.0
_STUCK_AFTER_S = 60.0

_PROGRESS_FROM = 64
"""Fewer dumps than this are read before a progress bar could be of use."""


def parse_rank_list(text: str) -> frozenset[int]:
    """Read ``0,3,8-11``.

    Raises:
        argparse.ArgumentTypeError: it is no such list.
    """
    ranks: set[int] = set()
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", part)
        if not found or (found[2] and int(found[2]) < int(found[1])):
            raise argparse.ArgumentTypeError(f"{text!r}: expected ranks such as 0,3,8-11")
        ranks.update(range(int(found[1]), int(found[2] or found[1]) + 1))
    return frozenset(ranks)


def _positive(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number from 1 on")
    return int(text)


def _seconds(text: str) -> float:
    """Read a time that a person can wait for."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text!r}: expected seconds, 0.1 or more")
    return seconds


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fr-analysis",
        description="Read PyTorch Flight Recorder dumps and name the ranks to blame for a hang.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "path",
        nargs="?",
        metavar="PATH",
        help="directory with one dump per rank, one dump, a glob, or a prefix of file names; "
        "or files that reduce has made; also a URL, such as s3://BUCKET/DUMPS/",
    )
    add("--fr-path", metavar="PATH", help="the same as PATH")
    add("--version", action="version", version=fr_analysis.__version__)

    reading = parser.add_argument_group("what is read")
    add = reading.add_argument
    add("-p", "--pattern", metavar="GLOB", help="in a directory, take only names that match")
    add(
        "--stacks",
        metavar="FILE",
        action="append",
        default=[],
        help="stacks snapshot of the debug server, or py-spy dump output, file or URL "
        "(default: those beside the dumps)",
    )
    add("--expected-world-size", metavar="N", type=_positive, help="how many ranks the job has")

    add(
        "--transform-ft",
        action="store_true",
        help="the dumps are of torchft replicas: number their ranks over all replicas",
    )
    add(
        "--group-world-size",
        metavar="N",
        type=_positive,
        help="with --transform-ft: how many ranks one replica has",
    )

    add(
        "--executor",
        metavar="URL",
        help="read the files on the workers of a Dask cluster, dask://HOST:PORT of its scheduler",
    )

    live = parser.add_argument_group("a running job, instead of PATH")
    add = live.add_argument
    add(
        "--url",
        metavar="URL",
        help="ask the job's debug server, http://HOST:25999 on rank 0's host, and answer at once",
    )
    add(
        "--watch",
        metavar="SECONDS",
        type=_seconds,
        help="ask again and again; end with the answer when the job is stuck, or over",
    )
    add(
        "--stuck-after",
        metavar="SECONDS",
        type=_seconds,
        help=f"with --watch: how long a stuck job must have stood still ({_STUCK_AFTER_S:g})",
    )
    add(
        "--timeout",
        metavar="SECONDS",
        type=_seconds,
        help=f"how long a rank has to answer ({_TIMEOUT_S:g})",
    )

    shown = parser.add_argument_group("what is shown")
    add = shown.add_argument
    add("--format", choices=sorted(FORMATS), default="text", help="of the answer (text)")
    add(
        "-o",
        "--output",
        metavar="PATH",
        type=Path,
        help="write the answer to this file, or with --debug the JSON copies to this directory; "
        "nothing is overwritten",
    )
    add("-v", "--verbose", action="store_true", help="add a table of ranks and one of groups")
    add("-c", "--health-check", action="store_true", help="add the nodes' health from the dumps")
    add(
        "-j",
        "--just-print-entries",
        "--just_print_entries",
        action="store_true",
        help="print all entries side by side instead of an answer; status 0 then says only that "
        "all dumps were read",
    )
    add(
        "--print-stack-trace",
        "--print_stack_trace",
        action="store_true",
        help="add the stacks of the calls and of the suspects",
    )
    add(
        "--mismatch-cap",
        "--mismatch_cap",
        metavar="N",
        type=_positive,
        help="show at most N faults, from the earliest",
    )
    add(
        "--ranks",
        "--selected-ranks",
        metavar="LIST",
        type=parse_rank_list,
        default=frozenset(),
        help="in tables show these ranks only, such as 0,3,8-11",
    )
    add(
        "--groups",
        "--pg-filters",
        metavar="LIST",
        type=lambda text: [name for name in text.split(",") if name],
        default=[],
        help="in tables show these process groups only, by name or part of it, such as tp,dp",
    )
    add(
        "--debug",
        action="store_true",
        default=os.environ.get("FR_DEBUG") == "1",
        help="write a JSON copy beside each binary dump, or into -o (also: FR_DEBUG=1)",
    )
    return parser


def exit_status(diagnosis: Diagnosis) -> ExitStatus:
    """The exit status that a diagnosis has."""
    return {
        Verdict.HEALTHY: ExitStatus.HEALTHY,
        Verdict.FAULT: ExitStatus.FAULT,
        Verdict.UNDETERMINED: ExitStatus.UNDETERMINED,
    }[diagnosis.verdict]


def with_progress(files: Sequence[tuple[int, Source]]) -> Iterable[object]:
    """Show a progress bar while many dumps are read, on a terminal only."""
    if len(files) < _PROGRESS_FROM or not sys.stderr.isatty():
        return files
    from tqdm import tqdm

    return tqdm(files, desc="Reading", unit="dump", leave=False)


def _colored(text: str) -> str:
    """Emphasize the first line, the verdict, on a terminal that wants colour."""
    is_shown = sys.stdout is not None and sys.stdout.isatty()
    if not is_shown or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb":
        return text
    first, _, rest = text.partition("\n")
    color = {"HEALTHY": "32", "FAULT": "31"}.get(first.partition(":")[0], "33")
    return f"\033[1;{color}m{first}\033[0m\n{rest}"


def _tables(options: argparse.Namespace, trace: Trace, progress: Progress) -> list[str]:
    tables = []
    if options.verbose:
        tables.append(rank_table(trace, options.ranks, options.groups))
        tables.append(group_table(progress, options.ranks, options.groups))
    if options.health_check:
        tables.append(health_table(trace, options.ranks))
    return tables


def _answer(
    options: argparse.Namespace, progress: Progress, diagnosis: Diagnosis
) -> tuple[str, ExitStatus]:
    """What is printed, and the exit status."""
    if options.just_print_entries:
        for unread in diagnosis.unread:  # the table cannot say that they are not in it
            tell(f"fr-analysis: {printable(unread.path)}: {unread.reason}")
        status = ExitStatus.UNDETERMINED if diagnosis.unread else ExitStatus.HEALTHY
        return entry_table(progress, options.ranks, options.groups), status
    shown = diagnosis
    cap = options.mismatch_cap
    if cap is not None and len(diagnosis.faults) > cap:
        hidden = f"{len(diagnosis.faults) - cap} later faults are not shown (--mismatch-cap {cap})"
        shown = dataclasses.replace(
            diagnosis, faults=diagnosis.faults[:cap], notes=(*diagnosis.notes, hidden)
        )
    if options.format != "text":
        return FORMATS[options.format](shown, progress), exit_status(diagnosis)
    answer = render_text(shown, stacks=options.print_stack_trace)
    tables = _tables(options, progress.trace, progress)
    return "\n".join([answer, *tables]), exit_status(diagnosis)


def _give_up(stream: IO[str]) -> None:
    """Keep the interpreter from failing at exit over what could not be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def tell(line: str) -> None:
    """Write a line to standard error, where there is one: what is told there is no answer."""
    if sys.stderr is None:  # to print, that would mean standard output
        return
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        _give_up(sys.stderr)


def print_text(text: str) -> None:
    """Write to standard output, whatever characters it takes and whether it is still read.

    Raises:
        FrAnalysisError: it cannot be written to.
    """
    if sys.stdout is None:
        raise FrAnalysisError("the answer cannot be printed (standard output is closed)")
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that knows few characters must not cost the answer.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        _give_up(sys.stdout)  # the reader, such as head, has gone
    except OSError as error:
        _give_up(sys.stdout)
        raise FrAnalysisError(f"the answer cannot be printed ({error.strerror})") from None


def refuse_taken(target: Path) -> None:
    """Leave alone what is there already.

    Raises:
        FrAnalysisError: no new file can have this name.
    """
    if os.path.isdir(target):  # Path's own method fails where a name is too long
        raise FrAnalysisError(f"{printable(target)}: is a directory; name a file to write")
    if os.path.lexists(target):
        raise FrAnalysisError(
            f"{printable(target)}: is there already and is not overwritten; remove it or name "
            "another"
        )


def _write(text: str, target: Path) -> None:
    refuse_taken(target)
    try:
        with target.open("x", encoding="utf-8", errors="backslashreplace") as stream:
            try:
                stream.write(text)
                stream.flush()
            except OSError:
                # Half an answer would be in the way of the next try.
                target.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise FrAnalysisError(
            f"{printable(target)}: cannot be written ({error.strerror})"
        ) from None


def _deliver(text: str, options: argparse.Namespace) -> None:
    """Print the answer, or write it to the file that is asked for."""
    # With --debug the option names the directory for the JSON copies.
    if options.output is not None and not (options.debug and options.url is None):
        _write(text, options.output)
        return
    if options.format == "html" and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # as the page says of itself
    print_text(_colored(text) if options.format == "text" else text)


def _executor(url: str | None) -> contextlib.AbstractContextManager[Executor | None]:
    if url is None:
        return contextlib.nullcontext()
    # Dask takes its time to load: not for those who read files here.
    from fr_analysis.read.executors import open_executor

    return open_executor(url)


def _end(number: int, _: object) -> None:
    raise SystemExit(128 + number)


def _run(options: argparse.Namespace, path: str) -> ExitStatus:
    if is_url(path):
        signal.signal(signal.SIGTERM, _end)  # temporary files are removed on the way out
    with _executor(options.executor) as executor:
        trace = read_trace(
            path,
            pattern=options.pattern,
            stacks=options.stacks,
            expected_world_size=options.expected_world_size,
            transform_ft=options.transform_ft,
            group_world_size=options.group_world_size,
            track=with_progress,
            executor=executor,
        )
    if options.debug:
        found = [dump.source for dump in trace.dumps.values()]
        sources = [source for source in found if isinstance(source, Path)]
        if len(sources) < len(found):
            tell("fr-analysis: --debug copies local dumps only, none of a URL")
        for line in write_json_copies(sources, options.output):
            tell(f"fr-analysis: {line}")
    progress = match(trace)
    text, status = _answer(options, progress, attribute(progress))
    _deliver(text, options)
    return status


def _check_answer(options: argparse.Namespace) -> None:
    """Learn before a long watch, not after it, that its answer cannot be made or written."""
    if options.format != "text":
        nothing = match(Trace({}))
        FORMATS[options.format](attribute(nothing), nothing)
    target = options.output
    if target is None:
        return
    refuse_taken(target)
    folder, reason = target.parent, None
    if not os.path.lexists(folder):
        reason = errno.ENOENT
    elif not folder.is_dir():
        reason = errno.ENOTDIR
    elif not os.access(folder, os.W_OK | os.X_OK):
        reason = errno.EACCES
    if reason:
        raise FrAnalysisError(f"{printable(target)}: cannot be written ({os.strerror(reason)})")


def _run_live(options: argparse.Namespace) -> int:
    """Ask a running job, once or until it is stuck or over."""
    # What asks over the network takes its time to load: not for those who read files.
    from fr_analysis.live.collect import Job
    from fr_analysis.live.judge import examine
    from fr_analysis.live.watch import End, watch

    _check_answer(options)
    take = Job(options.url, options.timeout or _TIMEOUT_S).take
    if options.watch is None:
        reading, diagnosis = examine(take)
        text, status = _answer(options, reading.progress, diagnosis)
        _deliver(text, options)
        return status

    def tell_when(line: str) -> None:
        tell(f"{time.strftime('%H:%M:%S')} {line}")

    watched = watch(take, options.watch, options.stuck_after or _STUCK_AFTER_S, tell_when)
    status = ExitStatus.HEALTHY
    if watched.reading is not None and watched.diagnosis is not None:
        text, told = _answer(options, watched.reading.progress, watched.diagnosis)
        _deliver(text, options)
        # What was seen just before a job ended is no verdict: its ranks end one by one.
        status = told if watched.end is End.STUCK or watched.stands else ExitStatus.HEALTHY
    if watched.end is End.UNREACHED and status is not ExitStatus.FAULT:
        status = ExitStatus.UNDETERMINED
    return 128 + 2 if watched.end is End.INTERRUPTED else status


def _check_live(options: argparse.Namespace) -> str | None:
    """What is wrong with the options for a running job, if anything."""
    own = {"--watch": options.watch, "--stuck-after": options.stuck_after}
    own["--timeout"] = options.timeout
    given = [name for name, value in own.items() if value is not None]
    if options.url is None:
        return f"{given[0]} asks a running job: it needs --url URL" if given else None
    if options.stuck_after is not None and options.watch is None:
        return "--stuck-after needs --watch SECONDS: one look does not tell how long a job stands"
    files = {
        "PATH": options.path,
        "--fr-path": options.fr_path,
        "--pattern": options.pattern,
        "--stacks": options.stacks,
        "--expected-world-size": options.expected_world_size,
        "--transform-ft": options.transform_ft,
        "--group-world-size": options.group_world_size,
        "--executor": options.executor,
        "--debug": options.debug and os.environ.get("FR_DEBUG") != "1",
    }
    clash = next((name for name, value in files.items() if value), None)
    return (
        f"{clash} is about files: it does not go with --url, which asks the job" if clash else None
    )


def _analyze(given: Sequence[str]) -> int:
    parser = _parser()
    options, more = parser.parse_known_args(given)
    if more and not any(argument.startswith("-") for argument in more):
        # Most likely the shell has put in the names that a glob matches.
        parser.error(
            f"{options.path} and {len(more)} more PATHs given: name their directory, or put a "
            "glob in quotes"
        )
    if more:
        parser.error(f"unrecognized arguments: {' '.join(more)}")
    wrong = _check_live(options)
    if wrong:
        parser.error(wrong)
    path = options.path or options.fr_path
    if path is None and options.url is None:
        parser.error("no PATH given: name the directory that holds the dumps, or a job by --url")
    if options.path and options.fr_path and options.path != options.fr_path:
        parser.error("PATH and --fr-path name different places: give one of them")
    tables = options.just_print_entries or options.verbose or options.health_check
    if tables and options.format != "text":
        parser.error(f"-j, -v and -c add tables of text: they do not go with {options.format}")
    for stacks in options.stacks:
        if os.path.isdir(stacks):
            parser.error(f"--stacks {stacks}: is a directory; name a snapshot in it")
        if not is_url(stacks) and not os.path.isfile(stacks):
            parser.error(f"--stacks {stacks}: no such file")
    return _run(options, path) if options.url is None else _run_live(options)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: the command line without the program's name; None takes ``sys.argv``.

    Returns:
        An ``ExitStatus``.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if given[:1] == ["reduce"]:
            from fr_analysis.reduce import main as reduce

            return reduce(given[1:])
        return _analyze(given)
    except FrAnalysisError as error:
        tell(f"fr-analysis: {error}")
        return ExitStatus.BAD_INPUT
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # we are ending: more of them change nothing
        tell("fr-analysis: interrupted")
        return 128 + 2
    except Exception:
        # Python ends with status 1 over what nobody expected, which would mean: a fault of the job.
        sys.excepthook(*sys.exc_info())
        tell("fr-analysis: this is a fault of fr-analysis, and says nothing of the job: report it")
        return ExitStatus.BAD_INPUT
