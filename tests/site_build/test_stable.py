"""Captured output becomes the same at every run, and keeps what the page explains."""

from pathlib import Path

from site_build.stable import stabilize


def test_two_runs_come_out_alike() -> None:
    run = (
        "[rank 0] {dir}/dumps at http://vm{n}:5{n}321/handler/dump_traceback? "
        "0x00007f8a9ffff6c{n}\n"
    )
    first, second = (
        stabilize(run.format(dir=f"/tmp/{n}", n=n), [(Path(f"/tmp/{n}/dumps"), "fr_dumps")])
        for n in (1, 2)
    )
    assert first == second
    assert first.startswith("[rank 0] fr_dumps at http://<host>:<port>/handler/dump_traceback?")


def test_snapshot_names_and_seconds() -> None:
    text = "stacks_20261130_093210.txt failed after 8.0 s\n[rank 0]   3 stacks_*.txt\n"
    assert stabilize(text, []) == (
        "stacks_<time>.txt failed after <seconds> s\n[rank 0]   <n> stacks_*.txt\n"
    )


def test_how_long_a_job_has_waited() -> None:
    text = "has waited since 12:47:54 UTC, for 7 s, between two snapshots 1.6 s apart\n"
    assert stabilize(text, []) == (
        "has waited since <time> UTC, for <seconds> s, between two snapshots <seconds> s apart\n"
    )


def test_what_the_page_explains_stays() -> None:
    text = "rank 1 never joined all_reduce #5, {0, 1}, 8000ms, [[1024]]\n"
    assert stabilize(text, []) == text
