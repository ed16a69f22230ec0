"""``fr-analysis reduce``: the dumps of a node, or any others, in one small file to send.

The analysis of reduced files gives the answer that the dumps give. The format is that of
``fr_analysis.read.reduced``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fr_analysis.cli import ExitStatus, print_text, refuse_taken, tell, with_progress
from fr_analysis.errors import FrAnalysisError, UnreadableDump, printable
from fr_analysis.read import ft_size_of, read_contents, without_strays
from fr_analysis.read.files import find_files, is_url
from fr_analysis.read.parallel import size_of
from fr_analysis.read.reduced import Contents, need_parquet, read_reduced, write_reduced
from fr_analysis.trace import Source, Unread

_EPILOG = """\
exit status:
  0  the file is written, and every dump is in it
  2  nothing is written
  3  the file is written, and says of some dumps only why they could not be read
"""


@dataclass(frozen=True, slots=True)
class Reduced:
    """What became of the dumps.

    Attributes:
        ranks: how many ranks the file has dumps of.
        operations: how many operations they hold together.
        bytes_read, bytes_written: sizes of the dumps and stacks snapshots, and of the file.
        unread: files that could not be read; the reduced file carries them and the reasons.
    """

    ranks: int
    operations: int
    bytes_read: int
    bytes_written: int
    unread: tuple[Unread, ...]


def _namer(contents: Contents) -> Callable[[Source], str]:
    """How files are called in the reduced one: by their paths below the folder of all."""
    files = [dump.source for dump in contents.dumps]
    files += [unread.path for unread in (*contents.unread, *contents.misfits)]
    folder = os.path.commonpath([os.path.dirname(file) for file in files])
    return lambda file: printable(os.path.relpath(file, folder))


def _place(written: Path, target: Path) -> None:
    """Give a file its name, unless the name is taken, also by one that came meanwhile."""
    try:
        os.link(written, target)
    except FileExistsError:
        raise
    except OSError:
        # A file system without links: take the name, then put the file in its place.
        target.open("xb").close()
        os.replace(written, target)


def _write(target: Path, write: Callable[[Path], None]) -> None:
    """Write a file under a name of its own, and rename it when it is whole."""
    refuse_taken(target)
    # Hidden, so that no analysis takes it for a dump.
    written = target.with_name(f".fr_analysis_{secrets.token_hex(8)}")
    try:
        try:
            write(written)
            _place(written, target)
        finally:
            with contextlib.suppress(FileNotFoundError):
                written.unlink()
    except FileExistsError:
        refuse_taken(target)
        raise
    except OSError as error:
        raise FrAnalysisError(
            f"{printable(target)}: cannot be written ({error.strerror or error})"
        ) from None


def reduce(
    path: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    pattern: str | None = None,
    stacks: Sequence[str | os.PathLike[str]] = (),
    transform_ft: bool = False,
    group_world_size: int | None = None,
    track: Callable[[Sequence[tuple[int, Source]]], Iterable[object]] = iter,
) -> Reduced:
    """Put the dumps that a path means, and the stacks beside them, into one Parquet file.

    Args:
        path: a directory, one file, a glob, or a prefix of file names; reduced files, too.
        output: the file to write.
        pattern: in a directory, take only file names that match this glob.
        stacks: stacks snapshots to take instead of those found beside the dumps.
        transform_ft: the dumps are of torchft replicas: number their ranks over all replicas.
            Then the analysis of the file needs the same.
        group_world_size: with ``transform_ft``, how many ranks one replica has.
        track: passes the files on one by one, such as a progress bar does.

    Returns:
        What was read and written.

    Raises:
        FrAnalysisError: there is nothing to read, or the file cannot be written.
    """
    target = Path(output)
    ft_size = ft_size_of(transform_ft, group_world_size)
    need_parquet()
    refuse_taken(target)
    if is_url(os.fspath(path)):
        raise FrAnalysisError(f"{printable(path)}: reduce reads files where they are, not at a URL")
    found = find_files(path, pattern)
    contents = read_contents(found, stacks=stacks, track=track, group_world_size=ft_size)
    name_of = _namer(contents)

    def write(file: Path) -> None:
        with file.open("xb") as stream:
            write_reduced(contents, stream, name_of=name_of, group_world_size=ft_size)
            stream.flush()
            # A node may end with its job.
            os.fsync(stream.fileno())
        try:
            read_reduced(file, group_world_size=ft_size)
        except UnreadableDump as reason:
            raise FrAnalysisError(f"what would be written {reason}") from None

    _write(target, write)
    unread = contents.misfits + contents.unread
    if contents.dumps:
        unread = without_strays(unread, contents.dumps)
    snapshots = [Path(name) for name in stacks] or found.stacks
    return Reduced(
        ranks=len({dump.rank for dump in contents.dumps}),
        operations=sum(len(dump.operations) for dump in contents.dumps),
        bytes_read=sum(map(size_of, [*(file for _, file in found.dumps), *snapshots])),
        bytes_written=size_of(target),
        unread=(*unread, *contents.bad_stacks),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fr-analysis reduce",
        description="Put dumps, and the stacks snapshots beside them, into one small Parquet file. "
        "The analysis of such files, one or many, gives the answer that the dumps give.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "path",
        metavar="PATH",
        help="directory with one dump per rank, one dump, a glob, or a prefix of file names",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        required=True,
        help="the file to write, such as node3.parquet; nothing is overwritten",
    )
    parser.add_argument(
        "-p", "--pattern", metavar="GLOB", help="in a directory, take only names that match"
    )
    parser.add_argument(
        "--stacks",
        metavar="FILE",
        action="append",
        default=[],
        help="stacks snapshot to take (default: those beside the dumps)",
    )
    parser.add_argument(
        "--transform-ft",
        action="store_true",
        help="the dumps are of torchft replicas: number their ranks over all replicas",
    )
    parser.add_argument(
        "--group-world-size",
        metavar="N",
        type=int,
        help="with --transform-ft: how many ranks one replica has",
    )
    return parser


def main(arguments: Sequence[str]) -> ExitStatus:
    """Run the command.

    Args:
        arguments: the command line after ``reduce``.

    Returns:
        HEALTHY where every dump was read, else UNDETERMINED.

    Raises:
        FrAnalysisError: nothing was written.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    for stacks in options.stacks:
        if not os.path.isfile(stacks):
            parser.error(f"--stacks {stacks}: no such file")
    done = reduce(
        options.path,
        options.output,
        pattern=options.pattern,
        stacks=options.stacks,
        transform_ft=options.transform_ft,
        group_world_size=options.group_world_size,
        track=with_progress,
    )
    for found in done.unread:
        tell(f"fr-analysis: {printable(found.path)}: {found.reason}")
    written = (
        f"{printable(options.output)}: {done.ranks} rank{'s' * (done.ranks != 1)}, "
        f"{done.operations} operations; read {done.bytes_read} bytes, "
        f"wrote {done.bytes_written} bytes\n"
    )
    try:
        print_text(written)
    except FrAnalysisError as error:
        tell(f"fr-analysis: {error}")  # the file is there, which is what the status is about
    return ExitStatus.UNDETERMINED if done.unread else ExitStatus.HEALTHY
