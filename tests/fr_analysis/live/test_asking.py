"""What is made of answers, and of their absence: in bounded time, with one clear reason."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fr_analysis.live.fakes import answering, full, raw, store_page

from fr_analysis import Verdict
from fr_analysis.cli import ExitStatus, main
from fr_analysis.live.collect import (
    Job,
    NoServerError,
    collect_ranks,
    page_answers,
    parse_url,
)
from fr_analysis.live.fetch import Address, Answer, Contact, ask, run
from fr_analysis.live.judge import examine, read
from fr_analysis.report import render_text
from plain_dumps import Dump, dump, entry

STACKS = b"""Thread 0x00007f0000000000 (most recent call first):
  File "/job/train.py", line 7 in load
  File "/job/train.py", line 20 in <module>
"""
IN_ALL_REDUCE = b"""Thread 0x00007f0000000000 (most recent call first):
  File "/x/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "/job/train.py", line 9 in step
  File "/job/train.py", line 21 in <module>
"""
TORCHCOMMS = Path(__file__).with_name("torchcomms")
"""Recorded: what TorchComms 0.3.0 on Gloo answered on 4 ranks, of which rank 3 never joined."""

Pages = dict[str, tuple[int, bytes]]


def pages_of(content: object, recorder: str = "fr_trace_json", stacks: bytes = STACKS) -> Pages:
    """What the worker of a rank answers."""
    return {
        f"/handler/{recorder}": (200, json.dumps(content).encode()),
        "/handler/dump_traceback": (200, stacks),
    }


@contextlib.contextmanager
def job(*ranks: Pages | int | Address) -> Iterator[str]:
    """A debug server with these ranks, each what its worker answers, or where it is asked.

    Yields its URL.
    """
    with contextlib.ExitStack() as servers:
        found = [
            servers.enter_context(answering(rank)) if isinstance(rank, dict) else rank
            for rank in ranks
        ]
        workers = {
            rank: f"http://{Address('127.0.0.1', at) if isinstance(at, int) else at}"
            for rank, at in enumerate(found)
        }
        front = servers.enter_context(answering({"/tcpstore": (200, store_page(workers))}))
        yield f"http://127.0.0.1:{front}"


def waiting(world: int = 2) -> Dump:
    """A rank's dump of an operation that others have not joined."""
    content = dump(world)
    for held in content["entries"]:
        del held["frames"]  # workers answer without them
    pending = {"state": "scheduled", "retired": False, "frames": []}
    content["entries"].append(entry(4, **pending))
    content["pg_status"]["0"]["last_enqueued_collective"] = 4
    return content


def put(address: Address, timeout_s: float = 0.4, limit: int = 1000) -> Answer:
    """Ask one question."""
    return run(ask(address, "GET", "/", timeout_s=timeout_s, limit=limit))


# -- one question ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "then", "contact", "reason"),
    [
        (b"", b"", Contact.SILENT, "no answer within 0.4 s"),
        (b"H", b"T", Contact.SILENT, "no answer within 0.4 s"),
        (b"HTTP/1.0 200 OK\r\n\r\n", b"x", Contact.SILENT, "no answer within 0.4 s"),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", b"", Contact.ANSWERED, "what it answered is no HTTP"),
        (b"x" * 200_000, b"", Contact.ANSWERED, "what it answered is no HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx", b"", Contact.GONE, "within its answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n", b"", Contact.ANSWERED, "larger than"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"y" * 2000, b"", Contact.ANSWERED, "larger than"),
        (b"HTTP/1.1 200", b"", Contact.GONE, "closed the connection without an answer"),
    ],
    ids=["nothing", "drip", "drip-body", "ssh", "flood", "cut", "says-large", "large", "half"],
)
def test_a_server_that_misbehaves(first: bytes, then: bytes, contact: Contact, reason: str) -> None:
    with raw(first, then) as port:
        began = time.monotonic()
        answer = put(Address("127.0.0.1", port))
        assert time.monotonic() - began < 2
    assert (answer.contact, answer.is_good) == (contact, False)
    assert reason in answer.error


def test_what_follows_an_answer_s_end_is_no_part_of_it() -> None:
    with raw(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcdef") as port:
        assert put(Address("127.0.0.1", port)).body == b"abc"


@pytest.mark.parametrize(
    ("host", "contact", "reason"),
    [
        ("localhost", Contact.GONE, "connection refused"),
        ("127.0.0.1", Contact.GONE, "connection refused"),
        ("no-such-host.invalid", Contact.UNREACHABLE, "its name does not resolve"),
        ("a" * 70, Contact.UNREACHABLE, "name"),
    ],
)
def test_nobody_there(host: str, contact: Contact, reason: str) -> None:
    answer = put(Address(host, 9))
    assert answer.contact is contact
    assert reason in answer.error
    assert answer.error


def test_addresses() -> None:
    assert parse_url("http://node0:1234/fr_analysis") == Address("node0", 1234)
    assert parse_url("node0") == Address("node0", 25999)
    assert str(parse_url("http://[::1]:25999")) == "[::1]:25999"
    assert parse_url("HTTP://node0:1") == Address("node0", 1)
    with pytest.raises(NoServerError, match="speaks http only"):
        parse_url("HTTPS://node0:1")
    for bad in ("https://node0:1", "", "http://", "http://a:b", "node0:70000", "http://u:p@h:1"):
        with pytest.raises(NoServerError, match="expected http://HOST:PORT"):
            parse_url(bad)


@pytest.mark.parametrize("url", ["http://no\x1bde:1", "http://node:1/\x1b[31m", "\x9b1m:x"])
def test_what_commands_a_terminal_is_not_echoed(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--url", url]) == ExitStatus.BAD_INPUT
    (line,) = capsys.readouterr().err.splitlines()
    assert line.isprintable()


# -- a job ----------------------------------------------------------------------------------


def test_the_rank_that_is_missing_and_its_line_of_code() -> None:
    with job(pages_of(waiting()), pages_of(dump())) as url:
        reading, diagnosis = examine(lambda silent: Job(url, 5).take(silent), 0.01)
    assert (diagnosis.verdict, diagnosis.suspects) == (Verdict.FAULT, (1,))
    assert str(diagnosis.details[0].location) == "/job/train.py:7 in load"
    assert reading.snapshot.trace.expected_world_size == 2
    assert any("no rank in it moved between two snapshots" in note for note in diagnosis.notes)


@pytest.mark.parametrize(
    ("stacks", "code"), [(IN_ALL_REDUCE, "/job/train.py:9 in step"), (STACKS, "None")]
)
def test_the_line_that_waits_comes_from_the_stacks(stacks: bytes, code: str) -> None:
    with job(pages_of(waiting(), stacks=stacks), pages_of(dump())) as url:
        _, diagnosis = examine(lambda silent: Job(url, 5).take(silent), 0.01)
    (call,) = diagnosis.faults[0].calls
    assert str(call.code) == code


def test_torchcomms_answers_on_its_own_endpoint() -> None:
    recorded = [
        pages_of(json.loads(path.read_text()), "torchcomms_fr_trace_json")
        | {"/handler/fr_trace_json": (200, b'{"version": "2.10", "pg_config": {}}')}
        for path in sorted(TORCHCOMMS.iterdir())
    ]
    with job(*recorded) as url:
        _, diagnosis = examine(lambda silent: Job(url, 5).take(silent), 0.01)
    assert (diagnosis.suspects, diagnosis.victims) == ((3,), (0, 1, 2))


@pytest.mark.parametrize(
    ("pages", "reason"),
    [
        ({}, "it has no Flight Recorder to ask"),
        ({"/handler/fr_trace_json": (500, b"oops")}, "answered fr_trace_json with status 500"),
        ({"/handler/fr_trace_json": (200, b"<html>")}, "fr_trace_json is cut short or damaged"),
        ({"/handler/fr_trace_json": (200, b"[1]")}, "fr_trace_json holds a list"),
        ({"/handler/fr_trace_json": (200, b"[" * 99_999)}, "nested too deeply"),
        ({"/handler/fr_trace_json": (200, b"\xff{")}, "is neither a pickle nor JSON"),
        (pages_of({"version": "9.0"}), "versions 1 and 2 are understood"),
    ],
)
def test_a_rank_that_answers_nonsense_is_named_with_the_reason(pages: Pages, reason: str) -> None:
    with job(pages_of(waiting()), pages) as url:
        snapshot = Job(url, 5).take()
    (unread,) = snapshot.trace.unread
    assert unread.rank == 1
    assert reason in unread.reason
    assert list(snapshot.trace.dumps) == [0]


def test_a_rank_whose_stacks_do_not_come_is_told() -> None:
    trace_only = pages_of(dump())
    del trace_only["/handler/dump_traceback"]
    with job(pages_of(waiting()), trace_only) as url:
        snapshot = Job(url, 5).take()
    assert list(snapshot.trace.dumps) == [0, 1]
    assert any("rank 1 answered what was recorded but not" in note for note in snapshot.notes)


def test_silence_is_evidence_and_costs_one_timeout() -> None:
    with raw(b"") as stopped, job(pages_of(waiting()), stopped) as url:
        began = time.monotonic()
        _, diagnosis = examine(lambda silent: Job(url, 1).take(silent), 0.01)
        assert time.monotonic() - began < 1.7
    assert (diagnosis.verdict, diagnosis.suspects) == (Verdict.FAULT, (1,))
    assert diagnosis.missing_dumps == (1,)
    assert any("did not answer (no answer within 1 s)" in note for note in diagnosis.notes)
    assert not any("cannot be told apart" in note for note in diagnosis.notes)


def test_ranks_of_a_host_that_cannot_be_reached_are_not_blamed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with full("127.0.0.2") as port:
        away = Address("127.0.0.2", port)
        with job(pages_of(waiting(3)), away, away) as url:
            assert main(["--url", url, "--timeout", "0.5"]) == ExitStatus.UNDETERMINED
    said = capsys.readouterr().out
    assert (
        "  whether ranks 1, 2 joined is not known: they could not be reached (no connection within "
        "0.5 s)\n  victims: rank 0\n"
    ) in said
    assert (
        "  ranks 1, 2 could not be reached (no connection within 0.5 s), nor could anything else "
        "at 127.0.0.2: a host is down or the way to it is cut, and its ranks may wait like the "
        "others; look at the host, or ask from one that reaches it\n"
    ) in said
    assert "Suspects" not in said
    assert "ask again" not in said


def test_a_rank_that_has_ended_is_blamed_beside_one_that_cannot_be_reached() -> None:
    with full("127.0.0.2") as port, job(pages_of(waiting(3)), 9, Address("127.0.0.2", port)) as url:
        _, diagnosis = examine(lambda silent: Job(url, 0.5).take(silent), 0.01)
    assert (diagnosis.verdict, diagnosis.suspects) == (Verdict.FAULT, (1,))
    assert diagnosis.missing_dumps == (1, 2)
    (fault,) = diagnosis.faults
    assert fault.evidence[-2:] == (
        "rank 1 never joined: it did not answer (connection refused)",
        "whether rank 2 joined is not known: it could not be reached (no connection within 0.5 s)",
    )


def test_a_rank_that_takes_no_connection_is_blamed_where_its_host_is_reached() -> None:
    """A stopped process takes none when it has taken a few."""
    with full() as port, job(pages_of(waiting()), port) as url:
        _, diagnosis = examine(lambda silent: Job(url, 0.5).take(silent), 0.01)
    assert (diagnosis.verdict, diagnosis.suspects) == (Verdict.FAULT, (1,))
    assert any("although others on the same host do" in note for note in diagnosis.notes)


def test_many_hosts_that_cannot_be_reached_are_named_in_short() -> None:
    addresses: dict[int, Address | None] = {
        rank: Address(f"224.0.0.{rank // 2}", 9) for rank in range(20)
    }
    (note, *_) = collect_ranks(addresses, 5).notes
    assert note.startswith(
        "ranks 0-19 could not be reached (network is unreachable), nor could anything else at "
        "224.0.0.0, 224.0.0.1, 224.0.0.2, 224.0.0.3 and 6 more hosts: a host is "
    )


def test_a_job_in_which_nobody_answers() -> None:
    with job(9, 9) as url:
        reading, diagnosis = examine(lambda silent: Job(url, 1).take(silent), 0.01)
    assert reading.snapshot.alone
    assert diagnosis.verdict is Verdict.UNDETERMINED
    assert any("ranks 0, 1 did not answer (connection refused)" in n for n in diagnosis.notes)
    assert not any("run again" in note for note in diagnosis.notes)
    assert any("; ask again, or look at their hosts" in note for note in diagnosis.notes)
    assert render_text(diagnosis).endswith("\nRead the dumps of no rank; none of 0, 1.\n")


def test_a_recorder_that_is_off_is_told_how_to_switch_it_on() -> None:
    off = pages_of({"version": "2.10", "pg_config": {}, "pg_status": {}})
    with job(off, off) as url:
        _, diagnosis = examine(lambda silent: Job(url, 5).take(silent), 0.01)
    assert diagnosis.verdict is Verdict.UNDETERMINED
    assert any("TORCH_FR_BUFFER_SIZE=2000" in note for note in diagnosis.notes)


def test_hundreds_of_ranks_in_bounded_time() -> None:
    with answering(pages_of(dump(400))) as port, raw(b"") as stopped:
        addresses: dict[int, Address | None] = {
            rank: Address("127.0.0.1", stopped if rank < 20 else port) for rank in range(400)
        }
        began = time.monotonic()
        snapshot = collect_ranks(addresses, 4)
        took_s = time.monotonic() - began
    assert sorted(snapshot.silent) == list(range(20))
    assert len(snapshot.trace.dumps) == 380
    assert took_s < 30


def test_so_many_silent_ranks_that_the_rest_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fr_analysis.live.collect.AT_ONCE", 4)
    monkeypatch.setattr("fr_analysis.live.collect.MOST_SILENT", 8)
    with raw(b"") as stopped:
        addresses: dict[int, Address | None] = {
            rank: Address("127.0.0.1", stopped) for rank in range(200)
        }
        began = time.monotonic()
        snapshot = collect_ranks(addresses, 0.3)
        assert time.monotonic() - began < 3
    assert any("not asked: too many others did not answer" in note for note in snapshot.notes)


def test_one_line_of_a_page_does_not_make_a_million_ranks() -> None:
    workers = {0: "http://127.0.0.1:9", 999_999: "http://127.0.0.1:9"}
    with answering({"/tcpstore": (200, store_page(workers))}) as port:
        began = time.monotonic()
        with pytest.raises(NoServerError, match="it names 2 ranks, one of them rank 999999: no"):
            Job(f"http://127.0.0.1:{port}", 1).take()
        assert time.monotonic() - began < 2


@pytest.mark.parametrize(
    "page",
    [
        b"\n" * (1 << 20),
        b"<h2>Rank 0: http://a:1/x</h2>\n" + b"<pre>" * (1 << 18),
        b"HTTP/1.1 200 OK\r\n\r\n" * (1 << 16),
    ],
    ids=["blank lines", "tags that do not end", "heads"],
)
def test_a_page_that_is_none_costs_no_time(page: bytes) -> None:
    began = time.monotonic()
    front = answering({"/tcpstore": (200, page), "/stacks": (200, page)})
    with front as port, contextlib.suppress(NoServerError):
        assert Job(f"http://127.0.0.1:{port}", 2).take().alone
    assert page_answers(page.decode()).get(0, Answer(Contact.ANSWERED)).body == b""
    assert time.monotonic() - began < 5


def test_a_host_whose_name_commands_a_terminal_is_none() -> None:
    with answering({"/tcpstore": (200, store_page({0: "http://a\x1b[31mb:9"}))}) as port:
        (note,) = Job(f"http://127.0.0.1:{port}", 1).take().notes
    assert note == "rank 0 could not be reached (the job's store holds no address of it)"


def test_a_server_that_leads_elsewhere_or_packs_its_answer_is_not_followed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        elsewhere.setblocking(False)
        where = f"http://127.0.0.1:{elsewhere.getsockname()[1]}/"
        moved = f"HTTP/1.1 302 Found\r\nLocation: {where}\r\nContent-Length: 0\r\n\r\n"
        bomb = gzip.compress(bytes(100 << 20))
        packed = f"HTTP/1.1 200 OK\r\nContent-Length: {len(bomb)}\r\n"
        packed += "Content-Encoding: gzip\r\n\r\n"
        with (
            raw(moved.encode()) as one,
            raw(packed.encode() + bomb) as other,
            job(pages_of(waiting(3)), one, other) as url,
        ):
            unread = Job(url, 5).take().trace.unread
        with pytest.raises(BlockingIOError):  # nobody has called
            elsewhere.accept()
    assert "with status 302" in unread[0].reason
    assert "is neither a pickle nor JSON" in unread[1].reason


def test_stacks_without_end_do_not_cost_what_was_recorded() -> None:
    with job(pages_of(waiting(), stacks=STACKS + b"\n" * (5 << 20)), pages_of(dump())) as url:
        snapshot = Job(url, 10).take()
    assert list(snapshot.trace.dumps) == [0, 1]
    assert list(snapshot.trace.stacks) == [1]


def test_addresses_that_are_none_are_told_and_command_no_terminal() -> None:
    with answering(pages_of(waiting())) as worker:
        workers = {
            0: f"http://127.0.0.1:{worker}",
            1: "http://127.0.0.1:99999",
            2: "http://\x1b]0;owned\x07:80",
        }
        with answering({"/tcpstore": (200, store_page(workers))}) as port:
            snapshot = Job(f"http://127.0.0.1:{port}", 5).take()
    assert list(snapshot.trace.dumps) == [0]
    assert all(note.isprintable() for note in snapshot.notes), snapshot.notes
    told = " ".join(snapshot.notes)
    assert "rank 1 could not be reached (its port is above 65535)" in told
    assert "rank 2 could not be reached (the job's store holds no address of it)" in told


def test_ranks_without_an_address_cost_no_time() -> None:
    began = time.monotonic()
    snapshot = collect_ranks(dict.fromkeys(range(20_000)), 5)
    assert len(snapshot.silent) == 20_000
    assert read(snapshot).diagnosis.verdict is Verdict.UNDETERMINED
    assert time.monotonic() - began < 5
    assert any("ranks 0-19999 could not be reached" in note for note in snapshot.notes)


# -- a front that does not answer any more ----------------------------------------------------


@pytest.mark.parametrize("front", ["silent", "failing", "gone"])
def test_ranks_are_asked_without_the_front_once_they_are_known(front: str) -> None:
    with answering(pages_of(waiting())) as first, answering(pages_of(dump())) as second:
        workers = {rank: f"http://127.0.0.1:{port}" for rank, port in enumerate((first, second))}
        pages: Pages = {"/tcpstore": (200, store_page(workers))}
        with answering(pages) as port:
            running = Job(f"http://127.0.0.1:{port}", 0.5)
            assert list(running.take().trace.dumps) == [0, 1]
            if front == "failing":
                pages["/tcpstore"] = (500, b"no store")
                assert running.take().without_front
        if front == "silent":
            with socket.create_server(("127.0.0.1", port)):
                found = running.take()
            assert list(found.trace.dumps) == [0, 1]
            assert "no answer within 0.5 s" in found.without_front
            assert "asked where it had told before" in found.notes[0]
        with pytest.raises(NoServerError) as gone:
            running.take()
        assert gone.value.is_gone


def test_a_watch_that_gets_no_answer_does_not_say_that_the_job_has_ended(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Rank 0's host is cut off, say: the job moved when it was last seen."""
    with contextlib.ExitStack() as workers:
        worker = workers.enter_context(answering(pages_of(dump(1))))
        front: Pages = {"/tcpstore": (200, store_page({0: f"http://127.0.0.1:{worker}"}))}

        def cut_off() -> None:
            front["/tcpstore"] = (500, b"no store")
            workers.close()

        with answering(front) as port:
            timer = threading.Timer(0.5, cut_off)
            timer.start()
            arguments = ["--watch", "0.1", "--stuck-after", "0.5", "--timeout", "0.5"]
            status = main(["--url", f"http://127.0.0.1:{port}", *arguments])
            timer.join()
    err = capsys.readouterr().err
    assert status == ExitStatus.UNDETERMINED, err
    assert "no longer reached, so whether the job has ended is not known: " in err
    assert "the job has ended:" not in err


# -- through the front ----------------------------------------------------------------------


def page(title: str, sections: list[str]) -> bytes:
    """A page of the front as torch 2.13's templates make it."""
    parts = [
        f"    <h2>Rank {rank}: http://nowhere.invalid:{7000 + rank}/handler/x?</h2>\n        \n"
        f"            {section}\n"
        for rank, section in enumerate(sections)
    ]
    return f"<nav></nav><h1>{title}</h1>\n{''.join(parts)}</section>".encode()


def test_the_front_passes_on_what_cannot_be_reached_from_here() -> None:
    failed = "<p>Failed to fetch: status=408</p>\n <pre>Timeout: </pre>"
    dumps = [f"<pre>{json.dumps(content, indent=2)}</pre>" for content in (waiting(3), dump(3))]
    stacks = [f"<pre>{STACKS.decode()}</pre>"] * 2
    workers = {rank: f"http://nowhere.invalid:{7000 + rank}" for rank in range(3)}
    front = {
        "/tcpstore": (200, store_page(workers)),
        "/fr_trace_json": (200, page("FlightRecorder", [*dumps, failed])),
        "/stacks": (200, page("Stacks", [*stacks, failed])),
        "/torchcomms_fr_trace_json": (500, b"JSONDecodeError"),
    }
    with answering(front) as port:
        snapshot = Job(f"http://127.0.0.1:{port}", 5).take()
    assert list(snapshot.trace.dumps) == [0, 1]
    assert list(snapshot.silent) == [2]
    assert list(snapshot.trace.stacks) == [0, 1]
    assert any("the debug server's own pages were read" in note for note in snapshot.notes)
    assert read(snapshot).diagnosis.suspects


def test_escaped_pages_are_read_as_well() -> None:
    text = page("Stacks", ["<pre>File &quot;a&quot;, line 1 in &lt;module&gt;</pre>"]).decode()
    answers = page_answers(text)
    assert answers[0].body == b'File "a", line 1 in <module>'


def test_addresses_that_the_store_s_page_cuts_come_from_another_page() -> None:
    with answering(pages_of(dump(1))) as worker:
        cut = b"    debug_server/rank0: b'http://a-very-long-name...\n"
        heading = f"<h2>Rank 0: http://127.0.0.1:{worker}/handler/dump_traceback?</h2>\n<pre></pre>"
        with answering({"/tcpstore": (200, cut), "/stacks": (200, heading.encode())}) as port:
            snapshot = Job(f"http://127.0.0.1:{port}", 5).take()
    assert list(snapshot.trace.dumps) == [0]


# -- the command ----------------------------------------------------------------------------


def test_no_server_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--url", "http://localhost:9"]) == ExitStatus.BAD_INPUT
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        "fr-analysis: http://localhost:9: no debug server answers there (connection refused); "
        "start it in the job with start_debug_server(), or name the host and port of rank 0, "
        "where it runs\n"
    )


def test_what_answers_but_is_no_debug_server(capsys: pytest.CaptureFixture[str]) -> None:
    with answering({"/": (200, b"<h1>It works!</h1>")}) as port:
        assert main(["--url", f"http://localhost:{port}"]) == ExitStatus.BAD_INPUT
    assert "is no debug server of torch (/tcpstore: status 404" in capsys.readouterr().err
    with raw(b"220 mail ready\r\n\r\n") as port:
        assert main(["--url", f"http://localhost:{port}"]) == ExitStatus.BAD_INPUT
    assert "what it answered is no HTTP" in capsys.readouterr().err
    with raw(b"") as port:
        began = time.monotonic()
        arguments = ["--url", f"http://localhost:{port}", "--timeout", "0.5", "--watch", "1"]
        assert main(arguments) == ExitStatus.BAD_INPUT
        assert time.monotonic() - began < 2
    assert "no answer within 0.5 s; is rank 0's host up" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["/tmp", "--url", "u"], "PATH is about files: it does not go with --url"),
        (["--fr-path", "/tmp", "--url", "u"], "--fr-path is about files"),
        (["--url", "u", "--stacks", "s.txt"], "--stacks is about files"),
        (["--url", "u", "-p", "x*"], "--pattern is about files"),
        (["--url", "u", "--expected-world-size", "4"], "--expected-world-size is about files"),
        (["--url", "u", "--debug"], "--debug is about files"),
        (["/tmp", "--watch", "2"], "--watch asks a running job: it needs --url URL"),
        (["/tmp", "--timeout", "2"], "--timeout asks a running job"),
        (["--url", "u", "--stuck-after", "5"], "--stuck-after needs --watch SECONDS"),
        (["--url", "u", "--watch", "0"], "expected seconds, 0.1 or more"),
        (["--url", "u", "--watch", "nan"], "expected seconds, 0.1 or more"),
        (["--url", "u", "--format", "json", "-v"], "do not go with json"),
        ([], "or a job by --url"),
    ],
)
def test_options_that_do_not_go_together(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == ExitStatus.BAD_INPUT
    assert said in capsys.readouterr().err


def test_entries_of_a_job_and_an_answer_in_a_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with job(pages_of(waiting()), pages_of(dump())) as url:
        assert main(["--url", url, "-j"]) == ExitStatus.HEALTHY
        assert "pending" in capsys.readouterr().out
        target = tmp_path / "answer.json"
        assert main(["--url", url, "--format", "json", "-o", str(target)]) == ExitStatus.FAULT
    assert json.loads(target.read_text())["suspects"] == [1]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("there", "is there already and is not overwritten; remove it or name another"),
        ("none/answer", "cannot be written (No such file or directory)"),
        ("there/answer", "cannot be written (Not a directory)"),
    ],
)
def test_a_watch_learns_at_once_that_its_answer_cannot_be_written(
    made: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "there").touch()
    target = tmp_path / made
    # Nobody listens there: that would be the complaint of a first look.
    arguments = ["--url", "http://localhost:9", "--watch", "1", "-o", str(target)]
    assert main(arguments) == ExitStatus.BAD_INPUT
    assert capsys.readouterr().err == f"fr-analysis: {target}: {said}\n"


def test_a_watch_learns_at_once_that_a_library_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert main(["--url", "http://localhost:9", "--watch", "1", "--format", "html"]) == 2
    assert "--format html needs jinja2, which is not installed" in capsys.readouterr().err


# -- inside the debug server -------------------------------------------------------------


@pytest.mark.parametrize("broken", ["absent", "without a class", "without a method"])
def test_another_torch_is_refused_in_one_line(broken: str) -> None:
    """The private modules that the handler extends lack what it needs."""
    breaks = {
        "absent": "sys.modules['torch.distributed.debug._frontend'] = None",
        "without a class": "f = types.ModuleType('f'); f.DebugHandler = object",
        "without a method": "f = types.ModuleType('f'); f.DebugHandler = object\n"
        "f.Route = f.NavLink = lambda *a: 0",
    }
    program = (
        "import sys, types\n"
        # Without torch itself, whose import takes seconds.
        "for name in ('torch', 'torch.distributed', 'torch.distributed.debug'):\n"
        "    sys.modules[name] = types.ModuleType(name); sys.modules[name].__path__ = []\n"
        "sys.modules['torch'].__version__ = '9.9'\n"
        f"{breaks[broken]}\n"
        "s = types.ModuleType('s'); s.tcpstore_client = s.get_world_size = print\n"
        "d = sys.modules['torch.distributed.debug']; d._store = s\n"
        "if 'f' in dir(): d._frontend = f\n"
        "import fr_analysis.debug_server\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3] / "src")},
    )
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: fr_analysis.debug_server extends torch.distributed.debug")
    assert "as torch 2.13 has it; in torch 9.9: " in last
    assert "During handling" not in done.stderr


def test_asking_needs_no_torch() -> None:
    """It works on a login node."""
    program = (
        "import sys; sys.modules['torch'] = None; import fr_analysis.cli, fr_analysis.live.page"
    )
    subprocess.run([sys.executable, "-c", program], timeout=60, check=True)
