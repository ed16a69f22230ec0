"""Every message on the troubleshooting page is one that our tools say: each is provoked here."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import lzma
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from tests.fr_analysis.live.fakes import answering, full, raw, store_page
from tests.test_makefile import copy_checkout, interpreter, lend_packages, make

from fr_analysis.cli import main
from plain_dumps import dump, entry, write, write_job
from site_build.captures import CaptureError, capture, load_page_run
from site_build.gallery_index import ordered_scenarios
from support import ROOT

PAGES = ROOT / "intermediate_source"
TEXT = (PAGES / "troubleshooting.rst").read_text(encoding="utf-8")

MESSAGES = re.findall(r"^``(.+)``$", TEXT, flags=re.MULTILINE)
"""What the page explains: each stands alone on a line."""

Patch = pytest.MonkeyPatch


@contextlib.contextmanager
def heard() -> Iterator[io.StringIO]:
    """What is printed, and what ends a program."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            yield said
        except (SystemExit, CaptureError, ImportError) as error:
            said.write(f"{error}\n")


def command(*arguments: str | Path) -> str:
    """What `fr-analysis` says."""
    with heard() as said:
        main(list(map(str, arguments)))
    return said.getvalue()


def waiting(**other: Any) -> dict[str, Any]:
    """A dump whose last operation is not over."""
    pending = entry(4, state="scheduled", retired=False, **other)
    return dump(2) | {"entries": [*dump(2)["entries"], pending]}


def answers(folder: Path, patch: Patch) -> Iterator[str]:
    """Notes of an answer."""
    write(folder / "lost" / "rank_0", dump(3))
    yield command(folder / "lost")
    write(folder / "even" / "rank_0", waiting())
    write(folder / "even" / "rank_1", waiting(profiling_name="nccl:broadcast"))
    yield command(folder / "even")
    write(folder / "alive" / "rank_0", waiting())
    write(folder / "alive" / "rank_1", dump(2))
    yield command(folder / "alive")
    for rank in (0, 1):
        gloo = [entry(number, profiling_name="gloo:all_reduce") for number in (1, 2, 3)]
        write(folder / "gloo" / f"rank_{rank}", dump(2) | {"entries": gloo})
    yield command(folder / "gloo")
    write(folder / "mixed" / "rank_0", dump(2, entries=3))
    write(folder / "mixed" / "rank_1", dump(2, entries=8))
    yield command(folder / "mixed")


def files(folder: Path, patch: Patch) -> Iterator[str]:
    """Dumps that are not there, or no dumps."""
    (folder / "empty").mkdir()
    yield command(folder / "empty")
    yield command(folder / "nowhere")
    yield command(ROOT / "LICENSE")
    write_job(folder / "job")
    (folder / "job" / "rank_2").touch()
    whole = (folder / "job" / "rank_0").read_bytes()
    (folder / "job" / "rank_3").write_bytes(whole[: len(whole) // 2])
    hostile = b"\x80\x02cposix\nsystem\nX\x04\x00\x00\x00true\x85R."
    (folder / "job" / "rank_4").write_bytes(hostile)
    write(folder / "job" / "rank_5", dump(2) | {"version": "3.0"})
    (folder / "job" / "rank_6.zst").write_bytes(b"\x28\xb5\x2f\xfd" + whole)
    (folder / "job" / "rank_7.xz").write_bytes(lzma.compress(whole))
    write(folder / "job" / "rank_99999999", dump(2))
    (folder / "job" / "pyspy.txt").write_bytes(
        (ROOT / "tests/fr_analysis/read/stacks/pyspy_3.txt").read_bytes()
    )
    for name in ("compression.zstd", "zstandard"):
        patch.setitem(sys.modules, name, None)
    yield command(folder / "job")
    for name, numbers in ("a", (1, 3)), ("b", (2,)):
        content = dump(1) | {"entries": list(map(entry, numbers))}
        write(folder / "jobs" / name / "rank_0", content)
    yield command(folder / "jobs")


def options(folder: Path, patch: Patch) -> Iterator[str]:
    """Command lines that cannot work, and packages that are not there."""
    write_job(folder / "job")
    yield command()
    yield command(folder / "job", "-o", folder / "job" / "rank_0")
    yield command(folder / "job", "-o", folder)
    yield command(folder / "job", "--debug", "-o", folder / "job" / "rank_0")
    yield command("reduce", "", "-o", folder / "reduced")
    with patch.context() as broken:
        broken.setattr("fr_analysis.cli.match", lambda _: {}[0])
        yield command(folder / "job")
    yield command(folder / "job", "--transform-ft")
    yield command("reduce", "memory://dumps", "-o", folder / "reduced")
    for name in ("jinja2", "pyarrow", "fsspec", "distributed"):
        patch.setitem(sys.modules, name, None)
    yield command(folder / "job", "--format", "html")
    yield command("reduce", folder / "job", "-o", folder / "reduced")
    yield command("s3://bucket/dumps")
    yield command(folder / "job", "--executor", "dask://localhost:9")


def clusters(folder: Path, patch: Patch) -> Iterator[str]:
    """URLs and clusters that are not there."""
    yield command("nosuch://bucket/dumps")
    yield command(folder, "--executor", "tcp://localhost:9")
    write_job(folder / "job")
    yield command(folder / "job", "--executor", "dask://localhost:9")


def running_jobs(folder: Path, patch: Patch) -> Iterator[str]:
    """Servers that are not there, or are none."""
    yield command("--url", "http://localhost:9")
    yield command("--url", "https://localhost:9")
    yield command("--url", "http://localhost:9", "--stacks", "x")
    yield command("--url", "http://localhost:9", "--stuck-after", "9")
    with raw(b"") as silent:
        yield command("--url", f"http://localhost:{silent}", "--timeout", "0.2")
    with full() as away:
        page = store_page({0: f"http://127.0.0.1:{away}"})
        with answering({"/tcpstore": (200, page)}) as front:
            yield command("--url", f"http://localhost:{front}", "--timeout", "0.2")
    with answering({}) as other:
        yield command("--url", f"http://localhost:{other}")
    off = {"/handler/fr_trace_json": (200, b'{"version": "2.10", "pg_config": {}}')}
    with (
        answering(off) as worker,
        answering({"/tcpstore": (200, store_page({0: f"http://127.0.0.1:{worker}"}))}) as front,
    ):
        yield command("--url", f"http://localhost:{front}")
    patch.setitem(sys.modules, "torch.distributed.debug", None)
    patch.delitem(sys.modules, "fr_analysis.debug_server", raising=False)
    with heard() as said:
        importlib.import_module("fr_analysis.debug_server")
    yield said.getvalue()


def demo(patch: Patch, then: Callable[[Any], object] = vars, **variables: str) -> str:
    """What the demo says as rank 0 of two, started as torchrun would."""
    settings = {"RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x"}
    settings |= {"TORCH_CPP_LOG_LEVEL": "ERROR", "TORCHCOMM_FR_DUMP_TEMP_FILE": ""}
    settings |= {"TORCHCOMM_HEALTH_CHECK_WAIT_MS": ""}
    with patch.context() as set_up:
        for name, value in (settings | variables).items():
            set_up.setenv(name, value)
            if not value:
                set_up.delenv(name)
        spec = importlib.util.spec_from_file_location("demo", PAGES / "verify_flight_recorder.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        with heard() as said:
            spec.loader.exec_module(module)
            then(module)
    return said.getvalue()


def demos(folder: Path, patch: Patch) -> Iterator[str]:
    """Settings of the demo that cannot work."""
    yield demo(patch, TORCHELASTIC_RUN_ID="")
    yield demo(patch, WORLD_SIZE="1")
    yield demo(patch, HANGING_RANK="2")
    patch.setitem(sys.modules, "torchcomms", None)
    yield demo(patch, lambda module: module.choose_communicator(), FR_COMMUNICATOR="torchcomms")
    yield demo(patch, lambda module: module.choose_communicator(), TEST_BACKEND="nccl")
    patch.chdir(folder)
    (folder / "fr_dumps").mkdir()

    def report(module: Any) -> None:
        module.communicator = module.TorchDistributed
        module.report()

    yield demo(patch, report)

    def write(module: Any) -> None:
        module.TorchDistributed.__init__ = lambda self: None  # no other rank to meet here
        module.TorchDistributed.dump = lambda self: {"entries": [{"retired": False}]}
        module.communicator = module.TorchDistributed()
        module.hang_ends_at = math.inf
        module.write_dump_in_hang(None, Mock())  # there is no folder per_rank
        module.report()

    yield demo(patch, write)

    def serve(module: Any) -> None:
        module.communicator = module.TorchDistributed
        module.start_debug_server = Mock()  # starts no process
        module.start_server()

    yield demo(patch, serve)
    yield demo(patch, lambda module: module.name_absent(module.dist.HashStore(), "start"))
    (folder / "fr_dumps" / "stacks_20260101_000000.txt").touch()
    yield demo(patch, lambda module: module.make_dump_dir())
    patch.setitem(sys.modules, "aiohttp", None)
    yield demo(patch)


def builds(folder: Path, patch: Patch) -> Iterator[str]:
    """Machines that cannot build the site, and pages that do not tell what happens."""
    copy_checkout(folder)
    yield make(folder, "setup", "PYTHON=no-such-python").stdout
    for case in ("*version_info*) exit 1", "*ensurepip*) exit 1"):
        python = interpreter(folder, f'case "$*" in {case};; esac')
        yield make(folder, "setup", f"PYTHON={python}").stdout
    nothing = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0"}
    nothing |= {"PIP_CONFIG_FILE": os.devnull, "PIP_EXTRA_INDEX_URL": "", "PIP_FIND_LINKS": ""}
    yield make(folder, "setup", f"PYTHON={sys.executable}", **nothing).stdout
    (folder / "alone").mkdir()
    copy_checkout(folder / "alone")
    lend_packages(folder / "alone")
    yield make(folder / "alone", "audit", https_proxy="http://127.0.0.1:9").stdout
    (folder / "bare").mkdir()
    bare = [shutil.which("make") or "make", "browser"]
    yield subprocess.run(
        bare, cwd=folder, env={"PATH": str(folder / "bare")}, capture_output=True, text=True
    ).stdout

    (folder / "demo.py").write_text(
        "import os, pathlib, shutil\n"
        "dumps = pathlib.Path(os.environ['FR_DUMP_DIR'])\n"
        f"shutil.copytree({str(ROOT / 'tests/data/gloo_hang_3ranks')!r}, dumps / 'per_rank')\n"
    )
    page = folder / "page.toml"
    run = '[run]\nscript = "demo.py"\nnproc = 1\ndeadline_s = 60\n[claims]\nverdict = "healthy"\n'
    page.write_text(run)
    with heard() as said:
        capture(load_page_run(page), folder / "captures")
    yield said.getvalue()
    (folder / "order.txt").write_text("no_such_script\n")
    (folder / "demo.py").unlink()
    with heard() as said:
        ordered_scenarios(folder)
    yield said.getvalue()


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Everything that our tools say when they are given what they cannot take."""
    texts: list[str] = []
    for provoke in (answers, files, options, clusters, running_jobs, demos, builds):
        with pytest.MonkeyPatch.context() as patch:
            texts += provoke(tmp_path_factory.mktemp(provoke.__name__), patch)
    return " ".join(" ".join(texts).split())


def test_the_page_has_messages() -> None:
    assert len(MESSAGES) > 40
    assert len(MESSAGES) == len(set(MESSAGES))


@pytest.mark.parametrize("message", MESSAGES)
def test_our_tools_say_it(said: str, message: str) -> None:
    # What differs is told by dots, and is never longer than a few lines.
    pattern = ".{0,400}?".join(map(re.escape, message.split("...")))
    assert re.search(pattern, said), f"nothing says {message!r}"
