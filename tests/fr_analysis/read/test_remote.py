"""Dumps at URLs are read as local ones are, from a real S3 server."""

import errno
import gzip
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fr_analysis import FrAnalysisError
from fr_analysis.cli import ExitStatus
from fr_analysis.read import read_trace, remote
from fr_analysis.read.remote import Url, redacted
from fr_analysis.reduce import reduce
from fr_analysis.trace import UNKNOWN
from s3_server import S3Server, s3_server
from support import ROOT
from support import fr_analysis as run

HANG = ROOT / "tests" / "data" / "gloo_hang_3ranks"
STACKS = """\
=== Rank 2: http://node0:25999 ===
Thread 0x00007f0000000000 (most recent call first):
  File "/job/train.py", line 12 in load_batch
"""


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as started:
        started.put("hang", "job/dumps", [*HANG.iterdir()])
        yield started


@pytest.fixture(autouse=True)
def _environment(
    server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    server.calm()
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    nowhere = str(tmp_path_factory.getbasetemp() / "none")
    monkeypatch.setenv("AWS_CONFIG_FILE", nowhere)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", nowhere)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go; each test checks that none is left."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    return folder


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "fr_analysis", *arguments]


def copies(folder: Path, count: int) -> list[Path]:
    """Dumps of a job of one rank more, which is missing."""
    folder.mkdir()
    dump = pickle.loads((HANG / "trace_0").read_bytes())  # noqa: S301 (our own file)
    dump["pg_config"][""]["ranks"] = str([*range(count + 1)])
    for rank in range(count):
        (folder / f"trace_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    return sorted(folder.iterdir())


@pytest.mark.parametrize(
    "meant", ["dumps/", "dumps", "", "dumps/trace_[01]", "dumps/trace_?", "dumps/tra"]
)
def test_a_url_means_what_a_path_means(meant: str, temporary: Path) -> None:
    trace = read_trace(f"s3://hang/job/{meant}")
    local = read_trace(HANG)
    assert [str(dump.source) for dump in trace.dumps.values()] == [
        "s3://hang/job/dumps/trace_0",
        "s3://hang/job/dumps/trace_1",
    ]
    assert [len(dump.operations) for dump in trace.dumps.values()] == [
        len(dump.operations) for dump in local.dumps.values()
    ]
    # What S3 tells is when it was uploaded.
    assert {dump.written_ns for dump in trace.dumps.values()} == {UNKNOWN}
    assert list(temporary.iterdir()) == []


def test_the_command_answers_as_for_local_files(temporary: Path) -> None:
    far, near = (run(path, "--format", "json") for path in ("s3://hang/job/dumps", str(HANG)))
    assert far.returncode == near.returncode == ExitStatus.FAULT
    assert far.stdout == near.stdout
    assert far.stderr == ""
    assert "s3://hang/job/dumps/trace_0" in run("s3://hang/job/dumps/trace_0", "-v").stdout
    assert list(temporary.iterdir()) == []


def test_a_reduced_file_in_place_of_the_dumps(
    server: S3Server, temporary: Path, tmp_path: Path
) -> None:
    node = tmp_path / "node0.parquet"
    reduce(HANG, node)
    server.put("reduced", "job", [node])
    trace = read_trace("s3://reduced/job/")
    assert [str(dump.source) for dump in trace.dumps.values()] == [
        "s3://reduced/job/node0.parquet/trace_0",
        "s3://reduced/job/node0.parquet/trace_1",
    ]
    answers = [run(path, "--format", "json") for path in ("s3://reduced/job/", str(HANG))]
    assert answers[0].stdout == answers[1].stdout
    assert answers[0].returncode == ExitStatus.FAULT
    assert list(temporary.iterdir()) == []


def test_an_object_that_is_no_dump_is_named_by_its_url(
    server: S3Server, temporary: Path, tmp_path: Path
) -> None:
    bad = tmp_path / "trace_2"
    bad.write_bytes(b"\x80\x02}")
    server.put("damaged", "job", [*HANG.iterdir(), bad])
    answer = run("s3://damaged/job/", "--format", "json")
    (unread,) = json.loads(answer.stdout)["unread"]
    assert unread["path"] == "s3://damaged/job/trace_2"
    assert list(temporary.iterdir()) == []


def test_a_file_url(tmp_path: Path) -> None:
    answer = run(HANG.as_uri())
    assert (answer.stdout, answer.stderr) == (run(str(HANG)).stdout, "")
    (dump,) = read_trace(f"{HANG.as_uri()}/trace_0").dumps.values()
    assert dump.written_ns == pytest.approx((HANG / "trace_0").stat().st_mtime_ns, abs=1e6)
    with pytest.raises(FrAnalysisError, match=r"file:///.*/none: no such object"):
        read_trace(f"{tmp_path.as_uri()}/none")


def test_stacks_beside_the_dumps_above_them_and_named(server: S3Server) -> None:
    server.put("stacks", "job/per_rank", HANG.iterdir())
    server.client.put_object(Bucket="stacks", Key="job/stacks_20260101_000000.txt", Body=STACKS)
    server.client.put_object(Bucket="stacks", Key="job/per_rank/log.txt", Body="x")
    found = read_trace("s3://stacks/job/per_rank/").stacks
    assert str(found[2].source) == "s3://stacks/job/stacks_20260101_000000.txt"
    assert found[2].threads[0].frames[0].line == 12
    answer = run(str(HANG), "--stacks", "s3://stacks/job/stacks_20260101_000000.txt")
    assert "train.py:12 in load_batch" in answer.stdout
    missing = run(str(HANG), "--stacks", "s3://stacks/none.txt")
    assert "s3://stacks/none.txt: cannot be fetched (there is no such object)" in missing.stdout


def test_what_cannot_be_read_is_named_by_its_url(
    server: S3Server, tmp_path: Path, temporary: Path
) -> None:
    files = copies(tmp_path / "dumps", 4)
    files[1].write_bytes(files[1].read_bytes()[:100])
    content = pickle.loads(files[2].read_bytes())  # noqa: S301 (our own file)
    files[2].write_bytes(b"\x80")
    (tmp_path / "dumps" / "trace_2.json").write_text(json.dumps(content))
    files[3].write_bytes(gzip.compress(files[3].read_bytes()))
    url = server.put("damaged", "dumps", (tmp_path / "dumps").iterdir())
    trace = read_trace(url)
    assert [str(dump.source) for dump in trace.dumps.values()] == [
        f"{url}/trace_0",
        f"{url}/trace_2.json",
        f"{url}/trace_3",
    ]
    assert {str(unread.path) for unread in trace.unread} == {f"{url}/trace_1", f"{url}/trace_2"}
    assert "is cut short" in trace.unread[0].reason
    assert str(temporary) not in run(url, "-v").stdout


def test_an_object_that_disappears_costs_only_itself(server: S3Server, tmp_path: Path) -> None:
    url = server.put("vanishing", "dumps", copies(tmp_path / "dumps", 3))

    def delete(method: str, path: str) -> None:
        if method == "GET" and path == "/vanishing/dumps/trace_1":
            server.client.delete_object(Bucket="vanishing", Key="dumps/trace_1")

    server.before = delete
    answer = run(url)
    assert f"{url}/trace_1: cannot be fetched (there is no such object)" in answer.stdout
    assert "Read the dumps of ranks 0, 2; none of 1, 3." in answer.stdout


def test_a_place_is_looked_at_anew_each_time(server: S3Server, tmp_path: Path) -> None:
    first, second = copies(tmp_path / "dumps", 2)
    url = server.put("growing", "dumps", [first])
    assert len(read_trace(url).dumps) == 1
    server.client.put_object(Bucket="growing", Key="dumps/trace_1", Body=second.read_bytes())
    assert len(read_trace(url).dumps) == 2


@pytest.mark.parametrize("by", ["command", "library"])
def test_many_objects_are_fetched_at_once(server: S3Server, tmp_path: Path, by: str) -> None:
    url = server.put(f"many-{by}", "dumps", copies(tmp_path / "dumps", 64))
    server.slow(0.3)
    began = time.monotonic()
    if by == "command":
        assert run(url).returncode == ExitStatus.FAULT
    else:
        assert len(read_trace(url).dumps) == 64
    assert server.most_at_once >= 16
    assert time.monotonic() - began < 64 * 0.3 / 2
    # The folder itself, its listing, and each object once.
    assert len(server.requests) <= 64 + 4


def test_folders_are_listed_at_once(server: S3Server, tmp_path: Path) -> None:
    server.client.create_bucket(Bucket="hosts")
    for file in copies(tmp_path / "dumps", 20):
        key = f"job/host{file.name}/{file.name}"
        server.client.put_object(Bucket="hosts", Key=key, Body=file.read_bytes())
    server.client.put_object(Bucket="hosts", Key="job/", Body=b"")
    server.calm()
    most = 0

    def note(method: str, path: str) -> None:
        nonlocal most
        time.sleep(0.2)
        if path in ("/hosts", "/hosts/"):
            most = max(most, server.most_at_once)

    server.before = note
    assert len(read_trace("s3://hosts/job").dumps) == 20
    assert most >= 10


def test_errors_are_one_line_that_names_the_url(server: S3Server) -> None:
    lines = {
        "s3://no-such-bucket/dumps/": "no bucket of this name",
        "s3://hang/none": "no such object",
        "s3://hang/none/": "no such place",
        "nonsense://hang/none/": "no kind of URL",
        "file:///a::s3://hang/job": "chain",
    }
    for url, told in lines.items():
        with pytest.raises(FrAnalysisError) as caught:
            read_trace(url)
        assert str(caught.value).startswith(f"{url}: ")
        assert told in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, "Could not connect"),
        ({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, "Unable to locate credentials"),
    ],
)
def test_no_way_to_the_server(environment: dict[str, str], told: str) -> None:
    began = time.monotonic()
    answer = run("s3://hang/job/dumps", **environment)
    assert answer.returncode == ExitStatus.BAD_INPUT
    assert answer.stderr.startswith("fr-analysis: s3://hang/job/dumps: cannot be listed (")
    assert told in answer.stderr
    assert answer.stderr.count("\n") == 1
    assert time.monotonic() - began < 15


@pytest.mark.parametrize(
    ("module", "url", "extra"),
    [("fsspec", "gs://x/y", "remote"), ("fsspec", "s3://x/y", "s3"), ("s3fs", "s3://x/y", "s3")],
)
def test_a_missing_package_is_named(tmp_path: Path, module: str, url: str, extra: str) -> None:
    (tmp_path / f"{module}.py").write_text("raise ImportError('not here')")
    path = os.pathsep.join([str(tmp_path), str(ROOT / "src")])
    answer = run(url, PYTHONPATH=path)
    assert answer.returncode == ExitStatus.BAD_INPUT
    assert f"pip install 'fr-analysis[{extra}]'" in answer.stderr
    assert answer.stderr.count("\n") == 1


def test_a_server_that_stays_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "PATIENCE_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{listener.getsockname()[1]}")
        # A file system is kept by its options: this one must be made anew.
        monkeypatch.setattr(remote, "_AT_ONCE", 63)
        began = time.monotonic()
        with pytest.raises(FrAnalysisError, match=r"s3://hang/job: .*did not answer for 1 seconds"):
            read_trace("s3://hang/job")
    assert time.monotonic() - began < 5


def test_a_server_that_falls_silent(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not each part of a large job waits for it again."""
    url = server.put("silent", "dumps", copies(tmp_path / "dumps", 50))
    monkeypatch.setattr(remote, "PATIENCE_S", 1.0)
    monkeypatch.setattr(remote, "_PART", 4)
    over = threading.Event()

    def hold(method: str, path: str) -> None:
        if "trace_" in path:
            over.wait(30)

    server.before = hold
    monkeypatch.setattr(remote, "_AT_ONCE", 4)
    began = time.monotonic()
    with pytest.raises(FrAnalysisError, match=r"trace_0: .*did not answer.*and 49 more"):
        read_trace(url)
    over.set()
    assert time.monotonic() - began < 10


def test_the_limit_on_a_file_holds(monkeypatch: pytest.MonkeyPatch, temporary: Path) -> None:
    monkeypatch.setattr(remote, "MAX_FILE_BYTES", 1 << 10)
    with pytest.raises(FrAnalysisError, match="s3://hang/job/dumps/trace_0: is larger than"):
        read_trace("s3://hang/job/dumps")
    # It may grow after it was listed.
    url = Url("s3://hang", "hang/job/dumps/trace_0", "s3://hang/job/dumps/trace_0", size=10)
    ((result,),) = remote.read_part(
        lambda files: pytest.fail("read") if files else [], None, [(0, url)]
    )
    assert "is larger than" in result.reason  # type: ignore[union-attr]
    assert list(temporary.iterdir()) == []


def test_a_full_disk_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    url = Url("s3://hang", "hang/job/dumps/trace_0", "s3://hang/job/dumps/trace_0")
    monkeypatch.setattr("tempfile.TemporaryDirectory", full)
    ((result,),) = remote.read_part(
        lambda files: pytest.fail("read") if files else [], None, [(0, url)]
    )
    assert "No space left" in result.reason  # type: ignore[union-attr]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_when_it_is_ended(server: S3Server, temporary: Path, number: int) -> None:
    asked, over = threading.Event(), threading.Event()

    def hold(method: str, path: str) -> None:
        if path.endswith("trace_1"):
            asked.set()
            over.wait(20)

    server.before = hold
    with subprocess.Popen(command("s3://hang/job/dumps"), stderr=subprocess.PIPE) as process:
        assert asked.wait(20)
        assert len(list(temporary.iterdir())) == 1
        process.send_signal(number)
        assert process.wait(10) == 128 + number
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()
    over.set()
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("sftp://me:secret@host/dumps", "sftp://me:***@host/dumps"),
        ("sftp://me:sec/ret@host/dumps", "sftp://me:***@host/dumps"),
        ("sftp://me:sec@ret@host/dumps", "sftp://me:***@host/dumps"),
        ("no way to sftp://me:secret@host/x now", "no way to sftp://me:***@host/x now"),
        ("https://host/rank_3?X-Amz-Signature=secret", "https://host/rank_3"),
        ("s3://bucket/dumps/rank_?", "s3://bucket/dumps/rank_?"),
        ("sftp://host:22/a@b", "sftp://host:22/a@b"),
        ("s3://bucket/a:b@c", "s3://bucket/a:b@c"),
    ],
)
def test_passwords_and_signatures_are_not_shown(text: str, shown: str) -> None:
    assert redacted(text) == shown


def test_a_password_is_not_told_by_the_command() -> None:
    answer = run("ftp://me:secret@127.0.0.1:1/dumps")
    assert answer.stderr.startswith("fr-analysis: ftp://me:***@127.0.0.1:1/dumps: cannot be ")
    assert "secret" not in answer.stderr


def test_a_signed_url_of_one_dump(server: S3Server) -> None:
    place = {"Bucket": "hang", "Key": "job/dumps/trace_1"}
    signed = server.client.generate_presigned_url("get_object", Params=place)
    (dump,) = read_trace(signed).dumps.values()
    assert dump.rank == 1
    assert str(dump.source) == signed.partition("?")[0]


def test_json_copies_are_of_local_dumps_only(tmp_path: Path) -> None:
    answer = run("s3://hang/job/dumps", "--debug", "-o", str(tmp_path / "copies"))
    assert answer.returncode == ExitStatus.FAULT
    assert answer.stderr == "fr-analysis: --debug copies local dumps only, none of a URL\n"


def test_local_files_are_read_without_all_this() -> None:
    script = (
        "import sys; from fr_analysis.cli import main; main([sys.argv[1]]); "
        "own = {'fr_analysis.read.remote', 'fr_analysis.read.executors'}; "
        "print({'fsspec', 's3fs', 'distributed', 'dask', *own} & set(sys.modules))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script, str(HANG)], capture_output=True, text=True, check=True
    )
    assert answer.stdout.splitlines()[-1] == "set()"
