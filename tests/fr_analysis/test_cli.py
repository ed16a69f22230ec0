"""The command as its users type it: real processes, real dumps."""

import json
import os
import pickle
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from fr_analysis import schema
from fr_analysis.cli import ExitStatus, main, parse_rank_list
from support import ROOT
from support import fr_analysis as run

HANG = ROOT / "tests" / "data" / "gloo_hang_3ranks"


def healthy(folder: Path) -> Path:
    """The hang's dumps without the operation that hangs, and without the rank that is not there."""
    for rank in (0, 1):
        dump = pickle.loads((HANG / f"trace_{rank}").read_bytes())  # noqa: S301 (our own file)
        dump["entries"] = [entry for entry in dump["entries"] if entry["retired"]]
        dump["pg_config"][""]["ranks"] = "[0, 1]"
        dump["pg_status"]["0"]["last_enqueued_collective"] = 2
        (folder / f"trace_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    return folder


def test_fault() -> None:
    done = run(HANG)
    assert done.returncode == ExitStatus.FAULT
    assert done.stdout.startswith("FAULT: suspect rank 2; ranks 0, 1 wait.\n")
    assert "hang2.py:19" in done.stdout
    assert done.stderr == ""


def test_healthy(tmp_path: Path) -> None:
    done = run(healthy(tmp_path))
    assert done.returncode == ExitStatus.HEALTHY, done.stdout
    assert done.stdout.startswith("HEALTHY: nothing is outstanding on 2 ranks.\n")


@pytest.mark.parametrize("option", ["--fr-path", None])
def test_path_as_argument_and_as_option(option: str | None) -> None:
    arguments = [option, HANG] if option else [HANG]
    assert run(*arguments, "-p", "trace_*").returncode == ExitStatus.FAULT


def test_prefix_and_glob_and_file() -> None:
    prefix = run(f"{HANG}/trace_")
    assert prefix.stdout == run(f"{HANG}/trace_*").stdout == run(HANG).stdout
    assert run(HANG / "trace_0").returncode in (ExitStatus.FAULT, ExitStatus.UNDETERMINED)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "no PATH given"),
        (["/no/such/place"], "/no/such/place: no such file or directory"),
        ([HANG, "-p", "nothing_*"], "no dump matching 'nothing_*' in this directory"),
        ([HANG, "--ranks", "x"], "expected ranks such as 0,3,8-11"),
        ([HANG, "--mismatch-cap", "0"], "expected a number from 1 on"),
        ([ROOT / "LICENSE"], "is neither a pickle nor JSON"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str | Path], said: str) -> None:
    done = run(*arguments)
    assert done.returncode == ExitStatus.BAD_INPUT
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_empty_directory(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == ExitStatus.BAD_INPUT
    assert len(done.stderr.splitlines()) == 1


def test_a_directory_of_archives_says_to_unpack_them(tmp_path: Path) -> None:
    (tmp_path / "dumps.tar.gz").touch()
    done = run(tmp_path)
    assert done.returncode == ExitStatus.BAD_INPUT
    assert done.stderr.endswith("; unpack dumps.tar.gz first\n")


def test_says_when_more_ranks_are_found_than_expected() -> None:
    done = run(HANG, "--expected-world-size", "1")
    assert "a job of 1 ranks was expected; the dumps tell of 3" in done.stdout


def test_json_fits_the_published_schema() -> None:
    done = run(HANG, "--format", "json")
    answer = json.loads(done.stdout)
    jsonschema.Draft202012Validator(schema()).validate(answer)
    assert answer["verdict"] == "fault"
    assert answer["suspects"] == [2]
    assert answer["faults"][0]["kind"] == "rank_missing"
    assert next(iter(answer)) == "schema_version"


def test_schema_refuses_what_is_none() -> None:
    answer = json.loads(run(HANG, "--format", "json").stdout)
    answer["faults"][0]["kind"] = "gremlins"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(schema()).validate(answer)


def test_output_goes_to_a_file_once(tmp_path: Path) -> None:
    target = tmp_path / "answer.txt"
    assert run(HANG, "-o", target).stdout == ""
    text = target.read_text()
    assert text.startswith("FAULT")
    again = run(HANG, "-o", target)
    assert again.returncode == ExitStatus.BAD_INPUT
    assert "is not overwritten" in again.stderr
    assert target.read_text() == text


@pytest.mark.parametrize("how", ["--debug", "FR_DEBUG"])
def test_debug_writes_json_copies_and_overwrites_nothing(tmp_path: Path, how: str) -> None:
    target = tmp_path / "copies"
    target.mkdir()
    (target / "trace_1.json").write_text("mine")
    arguments = [HANG, "-o", target]
    done = run(*arguments, how) if how == "--debug" else run(*arguments, FR_DEBUG="1")
    assert done.returncode == ExitStatus.FAULT
    assert done.stdout.startswith("FAULT")
    copy = json.loads((target / "trace_0.json").read_text())
    assert copy["entries"][-1]["collective_seq_id"] == 3
    assert (target / "trace_1.json").read_text() == "mine"
    assert "trace_1.json: is there already and was left as it is" in done.stderr


def test_copies_beside_the_dumps_are_not_read_as_second_dumps(tmp_path: Path) -> None:
    for dump in HANG.iterdir():
        (tmp_path / dump.name).write_bytes(dump.read_bytes())
    first = run(tmp_path, "--debug")
    assert (tmp_path / "trace_0.json").exists()
    assert run(tmp_path).stdout == first.stdout


def test_verbose_tables() -> None:
    done = run(HANG, "-v", "--ranks", "1")
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["1", "3", "1", "all_reduce(8", "Float)", "#3", "of", "0", "(default_pg)"] in [
        line[:9] for line in lines
    ]
    assert not any(line[:1] == ["0"] for line in lines)


def test_entries_side_by_side() -> None:
    done = run(HANG, "-j")
    last = done.stdout.rstrip().splitlines()[-1]
    assert last.split() == ["3", *["all_reduce(8", "Float)", "pending"] * 2]
    assert "Group" not in run(HANG, "-j", "--groups", "tensor").stdout


def test_stack_traces() -> None:
    assert "distributed_c10d.py:3245 in all_reduce" not in run(HANG).stdout
    assert "distributed_c10d.py:3245 in all_reduce" in run(HANG, "--print-stack-trace").stdout


def test_health_of_nodes(tmp_path: Path) -> None:
    assert "No dump holds health check results" in run(HANG, "-c").stdout
    for dump in HANG.iterdir():
        content = pickle.loads(dump.read_bytes())  # noqa: S301 (our own file)
        content["health_check_results"] = {"gpu": {"status": "Failed", "output": "xid 79"}}
        (tmp_path / dump.name).write_bytes(pickle.dumps(content, protocol=2))
    healths = run(tmp_path, "-c")
    assert ["0", "gpu", "Failed", "xid", "79"] in [
        line.split() for line in healths.stdout.splitlines()
    ]
    assert healths.returncode == ExitStatus.FAULT


def test_reader_that_stops_early() -> None:
    command = f"{sys.executable} -m fr_analysis {HANG} -v | head -n 1"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "FAULT: suspect rank 2; ranks 0, 1 wait.\n"
    assert done.stderr == ""


def test_colour_on_a_terminal_only() -> None:
    assert "\033" not in run(HANG).stdout
    leader, follower = pty.openpty()
    subprocess.run(
        [sys.executable, "-m", "fr_analysis", str(HANG)],
        stdout=follower,
        timeout=60,
        env={k: v for k, v in os.environ.items() if k != "NO_COLOR"} | {"TERM": "xterm"},
        check=False,
    )
    os.close(follower)
    assert os.read(leader, 4096).startswith(b"\033[1;31mFAULT: suspect rank 2")
    os.close(leader)


def test_needs_no_torch() -> None:
    program = (
        "import sys; sys.modules['torch'] = None\n"
        f"from fr_analysis import analyze; print(analyze({str(HANG)!r}).suspects)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "(2,)\n", done.stderr


def test_rank_lists() -> None:
    assert parse_rank_list("0,3,8-11") == {0, 3, 8, 9, 10, 11}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-v", "--format", "json"], "add tables of text: they do not go with json"),
        (["--fr-path", "/elsewhere"], "PATH and --fr-path name different places"),
        (["--stacks", "/no/stacks"], "--stacks /no/stacks: no such file"),
        (["--stacks", str(HANG)], "is a directory; name a snapshot in it"),
        (["trace_1", "trace_2"], "and 2 more PATHs given: name their directory, or put a glob in"),
        (["--no-such-option", "x"], "unrecognized arguments: --no-such-option x"),
        (["--transform-ft"], "--transform-ft needs --group-world-size"),
    ],
)
def test_options_that_do_not_go_together(arguments: list[str], said: str) -> None:
    done = run(HANG, *arguments)
    assert done.returncode == ExitStatus.BAD_INPUT
    assert said in done.stderr


def test_full_disk_is_not_a_verdict() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "fr_analysis", str(HANG)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == ExitStatus.BAD_INPUT
    assert done.stderr == "fr-analysis: the answer cannot be printed (No space left on device)\n"


def test_suspects_of_whom_the_same_is_known_are_put_together(tmp_path: Path) -> None:
    for dump in HANG.iterdir():
        (tmp_path / dump.name).write_bytes(dump.read_bytes())
    done = run(tmp_path, "--expected-world-size", "4")
    assert "  ranks 2, 3: left no dump\n" in done.stdout


def test_names_that_no_terminal_takes_are_shown_harmless(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/bad\xff"
    shutil.copytree(HANG, os.fsdecode(folder))
    Path(os.fsdecode(folder), "rank_\x1b[31m_5").write_bytes(b"\x80\x02]")
    for target in (tmp_path / "a.txt", tmp_path / "a.html"):
        arguments = ["--format", "html"] if target.suffix == ".html" else []
        assert main([os.fsdecode(folder), "-o", str(target), *arguments]) == 1
        assert "\x1b" not in target.read_text()


def test_a_closed_output_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    command = f"{sys.executable} -m fr_analysis {HANG} >&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "standard output is closed" in done.stderr


def test_half_an_answer_is_not_left(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    command = f"ulimit -f 100; {sys.executable} -m fr_analysis {HANG} --format html -o {target}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "cannot be written" in done.stderr
    assert not target.exists()


def shell(command: str) -> subprocess.CompletedProcess[str]:
    """Run a line of shell in which FR is the command, in the folder that is named in it."""
    line = f'FR="{sys.executable} -m fr_analysis"; {command}'
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("where", ["2>&-", "2>/dev/full"])
def test_what_cannot_be_told_changes_no_status(where: str, tmp_path: Path) -> None:
    healthy(tmp_path)
    (tmp_path / "trace_2").write_bytes(b"\x80\x02]")
    assert shell(f"$FR /no/such/place {where}").returncode == ExitStatus.BAD_INPUT
    copied = shell(f"$FR {tmp_path} --debug -o {tmp_path}/copies --format json {where}")
    assert copied.returncode == ExitStatus.UNDETERMINED
    assert json.loads(copied.stdout)["ranks"] == [0, 1]


def test_what_nobody_expected_is_no_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fr_analysis.cli.match", lambda _: {}[0])
    assert main([str(HANG)]) == ExitStatus.BAD_INPUT
    told = capsys.readouterr().err
    assert "KeyError" in told
    assert "this is a fault of fr-analysis, and says nothing of the job" in told


@pytest.mark.parametrize("where", [">&-", ">/dev/full"])
def test_a_reduced_file_is_there_whoever_hears_of_it(where: str, tmp_path: Path) -> None:
    target = tmp_path / "node.parquet"
    done = shell(f"$FR reduce {HANG} -o {target} {where}")
    assert (done.returncode, done.stderr.count("\n")) == (0, 1)
    assert "the answer cannot be printed" in done.stderr
    assert target.exists()


def test_entries_of_dumps_that_cannot_be_read_are_told_of(tmp_path: Path) -> None:
    healthy(tmp_path)
    assert run(tmp_path, "-j").returncode == ExitStatus.HEALTHY
    (tmp_path / "trace_2").write_bytes(b"\x80\x02]")
    done = run(tmp_path, "-j")
    assert done.returncode == ExitStatus.UNDETERMINED
    assert "trace_2: is cut short" in done.stderr
    assert "Rank 1" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([HANG, "-o", "x" * 300], "cannot be written (File name too long)"),
        (["reduce", "", "-o", "node.parquet"], "an empty PATH names nothing"),
        ([HANG, "--expected-world-size", 10**12], "it may have 1 to 1000000"),
        ([HANG, "--expected-world-size", "²"], "expected a number from 1 on"),
        ([HANG, "--ranks", "0-9999999"], "expected ranks such as"),
    ],
)
def test_odd_values_are_refused_at_once(arguments: list[object], said: str, tmp_path: Path) -> None:
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == ExitStatus.BAD_INPUT
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())
