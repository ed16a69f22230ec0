"""Runs a page's demo on real ranks, checks what the page claims, and keeps what was printed.

Beside a page ``NAME.rst`` stands ``NAME.toml``: ``[run]`` (script, number of ranks,
environment), ``[claims]`` (the outcome), ``[partial]`` (folders with some ranks' dumps),
``[[live]]`` (pages and commands asked while the ranks hang), ``[[shown]]`` (commands run on the
dumps) and ``[[picture]]`` (of pages that these left, taken by a browser). A page that only
shows commands has no ``[run]``, and takes dumps of the repository by ``[data]``.

Outputs land in ``_build/captures/NAME``, from where the page includes them; they are kept
until the script, the claims, the analyzer or torch change. A claim that does not hold stops
the build, and then nothing is kept.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import tomllib
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fr_analysis import FrAnalysisError, analyze
from rank_lab import RankLabError, RunRecord, run_ranks
from rank_lab.claims import Claims, differences
from site_build.browser import find_chromium, take_picture
from site_build.stable import replace_places, stabilize

SOURCE = Path(__file__).resolve().parent.parent
"""Our own packages: a change in any of them makes captures stale."""

COMMAND_LIMIT_S = 300

_VERDICT_PAGE = "/fr_analysis"

_END_S = 20.0
"""The ranks end so soon after their debug server, at the latest."""

DUMPS_NAME = "fr_dumps"
"""What the pages call the folder with the dumps."""


class CaptureError(Exception):
    """A demo did not run, or did something else than its page claims."""


@dataclass(frozen=True, slots=True)
class ShownCommand:
    """A command run on the dumps, and the exit status that it must have.

    ``file`` is shown where it is given, which the command writes, and else what it prints.
    """

    name: str
    command: str
    exit_status: int = 0
    file: str = ""


@dataclass(frozen=True, slots=True)
class Live:
    """What is asked of the debug server while the ranks hang.

    Either a ``page`` of it, kept in the file ``name``.html, or a ``command``, whose ``PORT`` is
    replaced by the server's, and which must end with ``exit_status``.
    """

    name: str
    page: str = ""
    command: str = ""
    exit_status: int = 0


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture, ``name``.png, of an HTML file that the run or a command left."""

    name: str
    file: str
    height: int = 900


@dataclass(frozen=True, slots=True)
class Demo:
    """A script to run on real ranks, and what is claimed of the run.

    ``partial`` are folders to make with the dumps of some ranks only: name to ranks. ``live`` is
    asked while the ranks hang.
    """

    script: Path
    nproc: int
    deadline_s: float
    env: Mapping[str, str]
    claims: Claims
    partial: Mapping[str, list[int]]
    live: tuple[Live, ...]


@dataclass(frozen=True, slots=True)
class PageRun:
    """What a page runs, claims and shows, read from its TOML file.

    ``data`` are names under which commands find files of the repository.
    """

    name: str
    source: Path
    demo: Demo | None
    data: Mapping[str, Path]
    shown: tuple[ShownCommand, ...]
    pictures: tuple[Picture, ...]


def communicator() -> str:
    """Which communicator demos take here: ``torchcomms`` where it imports, else ``torch``."""
    try:
        importlib.import_module("torchcomms")
    except ImportError:  # the placeholder of that name on the package index raises it, too
        return "torch"
    return "torchcomms"


def _load_demo(table: Mapping[str, Any], folder: Path) -> Demo:
    claims = dict(table["claims"])
    special = {name: claims.pop(name, {}) for name in ("torch", "torchcomms")}
    return Demo(
        script=folder / table["run"]["script"],
        nproc=table["run"]["nproc"],
        deadline_s=table["run"]["deadline_s"],
        env=table["run"].get("env", {}),
        claims=Claims.from_mapping(claims | special[communicator()]),
        partial=table.get("partial", {}),
        live=tuple(Live(**live) for live in table.get("live", [])),
    )


def load_page_run(source: Path) -> PageRun:
    """Read a page's TOML file.

    Raises:
        CaptureError: the file is no such table; the message names it.
    """
    try:
        table: dict[str, Any] = tomllib.loads(source.read_text(encoding="utf-8"))
        return PageRun(
            name=source.stem,
            source=source,
            demo=_load_demo(table, source.parent) if "run" in table else None,
            data={name: SOURCE.parent / path for name, path in table.get("data", {}).items()},
            shown=tuple(ShownCommand(**shown) for shown in table.get("shown", [])),
            pictures=tuple(Picture(**picture) for picture in table.get("picture", [])),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CaptureError(f"{source}: {error}") from None


def fingerprint_of(files: Iterable[Path]) -> str:
    """A hash of files, of our packages, and of the versions that a run depends on."""
    digest = hashlib.sha256()
    packages = ("fr_analysis", "rank_lab", "site_build")
    own = [
        file
        for name in packages
        for file in sorted((SOURCE / name).rglob("*"))
        if file.is_file() and "__pycache__" not in file.parts
    ]
    for file in [*files, *own]:
        digest.update(str(file.name).encode() + b"\0" + file.read_bytes() + b"\0")
    versions = [importlib.metadata.version("torch"), sys.version, communicator()]
    digest.update("\0".join(versions).encode())
    return digest.hexdigest()


def fingerprint(run: PageRun) -> str:
    """A hash of all that the captured output depends on."""
    files = [run.source]
    if run.demo:
        files.append(run.demo.script)
    for data in run.data.values():
        files.extend(
            sorted(f for f in data.rglob("*") if f.is_file() and "__pycache__" not in f.parts)
        )
    # A browser that was installed meanwhile can take the pictures that are lacking.
    browser = "with" if run.pictures and find_chromium() else "without"
    return f"{fingerprint_of(files)} {browser} pictures"


def substitutions(run: PageRun) -> dict[str, str]:
    """The claims as texts for a page: the numbers in its prose are these and no others."""
    if run.demo is None:
        return {}
    claims = run.demo.claims
    texts = {
        "nproc": str(run.demo.nproc),
        "torch-version": importlib.metadata.version("torch").split("+")[0],
        "communicator": {"torch": "torch.distributed", "torchcomms": "TorchComms"}[communicator()],
    }
    if claims.suspects:
        texts["suspect"] = ", ".join(map(str, claims.suspects))
        texts["missing-ranks"] = f"``{{{texts['suspect']}}}``"  # as the text snapshot prints a set
    if claims.victims:
        texts["victim"] = ", ".join(map(str, claims.victims))
    if claims.collective_seq_id is not None:
        texts["seq-id"] = str(claims.collective_seq_id)
    for rank, count in enumerate(claims.operations or ()):
        texts[f"operations-of-rank-{rank}"] = str(count)
    return texts | {f"env-{name}": value for name, value in run.demo.env.items()}


def _run_command(command: str, exit_status: int, folder: Path) -> str:
    """Run a command of this environment in a folder; both streams are kept, as a terminal would."""
    words = shlex.split(command)
    program = Path(sys.executable).parent / words[0]
    if not program.exists():
        raise CaptureError(f"{command}: no such program in {program.parent}")
    finished = subprocess.run(
        [str(program), *words[1:]],
        cwd=folder,
        env={k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"} | {"COLUMNS": "100"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=COMMAND_LIMIT_S,
        check=False,
    )
    if finished.returncode != exit_status:
        raise CaptureError(
            f"`{command}` ended with status {finished.returncode} instead of "
            f"{exit_status}:\n{finished.stdout.strip()[-2000:]}"
        )
    return finished.stdout


def check_run(record: RunRecord, exit_status: int = 0) -> None:
    """Raise CaptureError for a run that ended otherwise, or left processes behind."""
    if record.timed_out or record.exit_status != exit_status:
        how = (
            f"did not end within {record.duration_s:.0f} s"
            if record.timed_out
            else f"ended with status {record.exit_status}"
        )
        tail = "\n".join((rank.stdout + rank.stderr)[-1500:] for rank in record.ranks)
        raise CaptureError(f"{record.script.name} {how}\n{tail}\n{record.launcher_output[-1500:]}")

    if record.survivors:
        raise CaptureError(
            f"{record.script.name} left processes behind: {'; '.join(record.survivors)}"
        )


def _listing(folder: Path) -> str:
    return "\n".join(
        str(file.relative_to(folder)) for file in sorted(folder.rglob("*")) if file.is_file()
    )


def _last_entry(dump: Path) -> str:
    """The newest entry of a per-rank pickle as JSON, read by the analyzer's safe reader."""
    from fr_analysis.read.decode import decode

    content = decode(dump)
    assert isinstance(content, dict)
    return json.dumps(content["entries"][-1], indent=2)


class _Observer:
    """Asks the debug server what the page shows live, as soon as the hang is there to be seen."""

    def __init__(self, live: tuple[Live, ...], folder: Path) -> None:
        self._live = live
        self._folder = folder
        self.texts: dict[str, str] = {}
        self.failed: str | None = "the debug server never showed a fault"

    def __call__(self, port: int, over: threading.Event) -> None:
        """Called in a thread of its own while the ranks run, with the server's port."""
        try:
            self._ask(port, over)
        except (CaptureError, OSError) as error:
            self.failed = str(error)
            # The server goes first, then the ranks: one question may come between.
            if over.wait(_END_S):
                self.failed = f"it was over before all was asked; is the machine busy? {error}"

    def _ask(self, port: int, over: threading.Event) -> None:
        while "FAULT" not in (verdict := self._page(port, _VERDICT_PAGE)):
            if over.wait(0.2):
                return
        for live in self._live:
            if live.page:
                # A page takes seconds to answer, and the hang does not last for ever.
                is_known = live.page == _VERDICT_PAGE
                content = verdict if is_known else self._page(port, live.page)
                (self._folder / f"{live.name}.html").write_text(content, encoding="utf-8")
            else:
                command = live.command.replace("PORT", str(port))
                printed = _run_command(command, live.exit_status, self._folder)
                self.texts[f"{live.name}.txt"] = printed.replace(str(port), "25999")
        self.failed = None

    @staticmethod
    def _page(port: int, path: str) -> str:
        try:
            with urllib.request.urlopen(f"http://localhost:{port}{path}", timeout=30) as answer:
                content: bytes = answer.read()
        except OSError:
            return ""  # it has not started yet, or has ended
        return content.decode("utf-8", errors="replace")


def _run_demo(run: PageRun, demo: Demo, folder: Path) -> tuple[RunRecord, dict[str, str]]:
    """Run the demo and check the claims; returns the texts that the run itself left."""
    observed = folder.parent / "observed"
    observed.mkdir()
    observer = _Observer(demo.live, observed)
    record = run_ranks(
        demo.script,
        nproc=demo.nproc,
        run_dir=folder,
        deadline_s=demo.deadline_s,
        env=demo.env,
        meanwhile=observer if demo.live else None,
    )
    check_run(record)
    if demo.live and observer.failed:
        raise CaptureError(f"{run.name}: while the ranks hung: {observer.failed}")
    for file in observed.iterdir():
        file.rename(folder / file.name)
    if wrong := differences(demo.claims, analyze(record.dump_dir)):
        raise CaptureError(
            f"{run.name}: the run is not what the page claims in {run.source.name}: "
            + "; ".join(wrong)
        )
    traces = sorted(record.dump_dir.glob("*fr_trace_*.txt"))
    if not traces:
        raise CaptureError(f"{run.name}: the run left no text snapshot of the recorders")
    (folder / DUMPS_NAME).symlink_to(record.dump_dir)
    for name, ranks in demo.partial.items():
        (folder / name).mkdir()
        for rank in ranks:
            shutil.copy(record.dump_files[rank], folder / name)
    return record, observer.texts | {
        "ranks.txt": "".join(rank.stdout for rank in record.ranks),
        "files.txt": _listing(record.dump_dir),
        "entry.json": _last_entry(record.dump_files[0]),
        "stacks.txt": record.stacks_files[-1].read_text(encoding="utf-8"),
        "fr_trace.txt": traces[-1].read_text(encoding="utf-8"),
    }


def _produce(run: PageRun, folder: Path) -> tuple[dict[str, str], list[Path]]:
    """Run everything in a folder; returns the stable texts by file name, and the pictures."""
    texts: dict[str, str] = {}
    places: list[tuple[Path, str]] = []
    if run.demo:
        record, texts = _run_demo(run, run.demo, folder)
        places = [(record.dump_dir, DUMPS_NAME), (run.demo.script.parent, "/home/you")]
    folder.mkdir(exist_ok=True)
    for name, data in run.data.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(data)
    for shown in run.shown:
        printed = _run_command(shown.command, shown.exit_status, folder)
        file = folder / shown.file
        if shown.file or printed:
            texts[f"{shown.name}.txt"] = file.read_text("utf-8") if shown.file else printed
    stable = {name: stabilize(text, [*places, (folder, ".")]) for name, text in texts.items()}
    if "files.txt" in stable:
        # One line per kind of snapshot: how many there are depends on the machine.
        stable["files.txt"] = "".join(dict.fromkeys(stable["files.txt"].splitlines(keepends=True)))
    return stable, _take_pictures(run, folder, [*places, (folder, ".")])


def _take_pictures(run: PageRun, folder: Path, places: list[tuple[Path, str]]) -> list[Path]:
    if find_chromium() is None:
        return []
    taken = []
    for picture in run.pictures:
        taken.append(folder / f"{picture.name}.png")
        page = folder / f"{picture.name}_pictured.html"
        page.write_text(replace_places((folder / picture.file).read_text("utf-8"), places), "utf-8")
        try:
            take_picture(page, taken[-1], height=picture.height)
        except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
            raise CaptureError(f"{run.name}: {error}") from None
    return taken


def capture(run: PageRun, captures: Path, announce: Callable[[str], object] = print) -> bool:
    """Bring a page's captured output up to date.

    Args:
        run: what to run.
        captures: folder for the output of all pages; this page's is a folder in it.
        announce: told, as one line, what is about to run.

    Returns:
        True if the demo was run, False if what is there is still valid.

    Raises:
        CaptureError: the demo did not run, or a claim does not hold. Nothing is kept then.
    """
    target = captures / run.name
    key_file = target / "fingerprint"
    key = fingerprint(run)
    if key_file.exists() and key_file.read_text() == key:
        return False
    what = f"{run.demo.script.name} on {run.demo.nproc} ranks" if run.demo else "its commands"
    announce(f"{run.name}: running {what} ...")
    shutil.rmtree(target, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="capture-") as scratch:
        try:
            texts, pictures = _produce(run, Path(scratch).resolve() / "run")
        except (RankLabError, FrAnalysisError) as error:
            raise CaptureError(f"{run.name}: {error}") from None
        target.mkdir(parents=True)
        for file in pictures:
            shutil.copy(file, target)
    for name, text in texts.items():
        (target / name).write_text(text, encoding="utf-8")
    # Last: a folder without it is incomplete and is made anew.
    key_file.write_text(key)
    return True
