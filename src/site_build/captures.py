"""Runs a page's demo on real ranks, checks what the page claims, and keeps what was printed.

Beside a page ``NAME.rst`` stands ``NAME.toml`` with three parts: ``[run]`` (script, number
of ranks, environment), ``[claims]`` (the outcome) and ``[[shown]]`` (commands run on the
dumps). Outputs land in ``_build/captures/NAME``, from where the page includes them; they
are kept until the script, the claims, the analyzer or torch change. A claim that does not
hold stops the build, and then nothing is kept.
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
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fr_analysis import FrAnalysisError, analyze
from rank_lab import RankLabError, RunRecord, run_ranks
from rank_lab.claims import Claims, differences
from site_build.stable import stabilize

SOURCE = Path(__file__).resolve().parent.parent
"""Our own packages: a change in any of them makes captures stale."""

DUMPS_NAME = "fr_dumps"
"""What the pages call the folder with the dumps."""


class CaptureError(Exception):
    """A demo did not run, or did something else than its page claims."""


@dataclass(frozen=True, slots=True)
class ShownCommand:
    """A command run on the dumps, and the exit status that it must have."""

    name: str
    command: str
    exit_status: int = 0


@dataclass(frozen=True, slots=True)
class PageRun:
    """What a page runs and claims, read from its TOML file."""

    name: str
    source: Path
    script: Path
    nproc: int
    deadline_s: float
    env: Mapping[str, str]
    claims: Claims
    shown: tuple[ShownCommand, ...]
    partial: Mapping[str, list[int]]
    """Folders to make with the dumps of some ranks only: name to ranks."""


def communicator() -> str:
    """Which communicator demos take here: ``torchcomms`` where it imports, else ``torch``."""
    try:
        importlib.import_module("torchcomms")
    except ImportError:  # the placeholder of that name on the package index raises it, too
        return "torch"
    return "torchcomms"


def load_page_run(source: Path) -> PageRun:
    """Read a page's TOML file.

    Raises:
        CaptureError: the file is no such table; the message names it.
    """
    try:
        table: dict[str, Any] = tomllib.loads(source.read_text(encoding="utf-8"))
        claims = dict(table["claims"])
        special = {name: claims.pop(name, {}) for name in ("torch", "torchcomms")}
        return PageRun(
            name=source.stem,
            source=source,
            script=source.parent / table["run"]["script"],
            nproc=table["run"]["nproc"],
            deadline_s=table["run"]["deadline_s"],
            env=table["run"].get("env", {}),
            claims=Claims.from_mapping(claims | special[communicator()]),
            shown=tuple(ShownCommand(**shown) for shown in table.get("shown", [])),
            partial=table.get("partial", {}),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CaptureError(f"{source}: {error}") from None


def fingerprint(run: PageRun) -> str:
    """A hash of all that the captured output depends on."""
    digest = hashlib.sha256()
    files = [run.source, run.script]
    for package in ("fr_analysis", "rank_lab", "site_build"):
        files.extend(sorted((SOURCE / package).rglob("*.py")))
    for file in files:
        digest.update(str(file.name).encode() + b"\0" + file.read_bytes() + b"\0")
    versions = [importlib.metadata.version("torch"), sys.version, communicator()]
    digest.update("\0".join(versions).encode())
    return digest.hexdigest()


def substitutions(run: PageRun) -> dict[str, str]:
    """The claims as texts for a page: the numbers in its prose are these and no others."""
    claims = run.claims
    texts = {
        "nproc": str(run.nproc),
        "torch-version": importlib.metadata.version("torch").split("+")[0],
        "python-version": ".".join(map(str, sys.version_info[:2])),
        "communicator": {"torch": "torch.distributed", "torchcomms": "TorchComms"}[communicator()],
    }
    if claims.suspects:
        texts["suspect"] = ", ".join(map(str, claims.suspects))
        texts["missing-ranks"] = f"``{{{texts['suspect']}}}``"  # as the text snapshot prints a set
    if claims.victims:
        texts["victim"] = ", ".join(map(str, claims.victims))
    if claims.collective_seq_id is not None:
        texts["seq-id"] = str(claims.collective_seq_id)
        texts["seq-id-before"] = str(claims.collective_seq_id - 1)
    for rank, count in enumerate(claims.operations or ()):
        texts[f"operations-of-rank-{rank}"] = str(count)
    texts |= {f"env-{name}": value for name, value in run.env.items()}
    return texts


def _run_command(shown: ShownCommand, folder: Path) -> str:
    """Run a command of this environment in a folder; both streams are kept, as a terminal would."""
    words = shlex.split(shown.command)
    program = Path(sys.executable).parent / words[0]
    if not program.exists():
        raise CaptureError(f"{shown.command}: no such program in {program.parent}")
    finished = subprocess.run(
        [str(program), *words[1:]],
        cwd=folder,
        env={k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"} | {"COLUMNS": "100"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    if finished.returncode != shown.exit_status:
        raise CaptureError(
            f"`{shown.command}` ended with status {finished.returncode} instead of "
            f"{shown.exit_status}:\n{finished.stdout.strip()[-2000:]}"
        )
    return finished.stdout


def _check_run(record: RunRecord) -> None:
    if record.timed_out or record.exit_status != 0:
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


def _produce(run: PageRun, folder: Path) -> dict[str, str]:
    """Run everything; returns the texts by file name."""
    record = run_ranks(
        run.script,
        nproc=run.nproc,
        run_dir=folder / "run",
        deadline_s=run.deadline_s,
        env=run.env,
    )
    _check_run(record)
    if wrong := differences(run.claims, analyze(record.dump_dir)):
        raise CaptureError(
            f"{run.name}: the run is not what the page claims in {run.source.name}: "
            + "; ".join(wrong)
        )
    (record.run_dir / DUMPS_NAME).symlink_to(record.dump_dir)
    texts = {"ranks.txt": "".join(rank.stdout for rank in record.ranks)}
    texts["files.txt"] = _listing(record.dump_dir)
    texts["entry.json"] = _last_entry(record.dump_files[0])
    texts["stacks.txt"] = record.stacks_files[-1].read_text()
    traces = sorted(record.dump_dir.glob("*fr_trace_*.txt"))
    if not traces:
        raise CaptureError(f"{run.name}: the run left no text snapshot of the recorders")
    texts["fr_trace.txt"] = traces[-1].read_text()
    for name, ranks in run.partial.items():
        (record.run_dir / name).mkdir()
        for rank in ranks:
            shutil.copy(record.dump_files[rank], record.run_dir / name)
    for shown in run.shown:
        texts[f"{shown.name}.txt"] = _run_command(shown, record.run_dir)
    places = (
        (record.dump_dir, DUMPS_NAME),
        (record.run_dir, "."),
        (run.script.parent, "/home/you"),
    )
    stable = {name: stabilize(text, places) for name, text in texts.items()}
    # One line per kind of snapshot: how many there are depends on the machine.
    stable["files.txt"] = "".join(dict.fromkeys(stable["files.txt"].splitlines(keepends=True)))
    return stable


def capture(run: PageRun, captures: Path, announce: Callable[[str], object] = print) -> bool:
    """Bring a page's captured output up to date.

    Args:
        run: what to run.
        captures: folder for the output of all pages; this page's is a folder in it.
        announce: told, as one line, that the demo is about to run.

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
    announce(f"{run.name}: running {run.script.name} on {run.nproc} ranks ...")
    shutil.rmtree(target, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="capture-") as scratch:
        try:
            texts = _produce(run, Path(scratch))
        except (RankLabError, FrAnalysisError) as error:
            raise CaptureError(f"{run.name}: {error}") from None
    target.mkdir(parents=True)
    for name, text in texts.items():
        (target / name).write_text(text, encoding="utf-8")
    # Last: a folder without it is incomplete and is made anew.
    key_file.write_text(key)
    return True
