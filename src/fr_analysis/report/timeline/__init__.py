"""The timeline: what every rank recorded, as a trace for ui.perfetto.dev and chrome://tracing.

Format: the JSON object form of Chrome's Trace Event Format (the document of that name of the
Catapult project), as far as Perfetto's trace processor reads it
(``src/trace_processor/importers/json`` of Perfetto). Used are complete slices ("X"), begun
ones without an end ("B"), instants ("i"), flows ("s", "t", "f") and metadata ("M").
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import numpy as np

import fr_analysis
from fr_analysis.attribute.evidence import ranks_text
from fr_analysis.attribute.frames import code_line
from fr_analysis.diagnosis import Diagnosis, shapes_text
from fr_analysis.match import Progress
from fr_analysis.match.clocks import ClockEstimate, Clocks, estimate_clocks
from fr_analysis.match.p2p import peer_rank
from fr_analysis.match.semantics import PointToPoint, operation_name, point_to_point
from fr_analysis.report.text import headline
from fr_analysis.report.timeline.layout import (
    MOST_NESTED,
    Arrows,
    End,
    Layout,
    Track,
    TrackKind,
    join_up,
    lay_out,
)
from fr_analysis.trace import UNKNOWN, Completion, IntColumn, Signature

__all__ = ["render_perfetto"]

_LONGEST_TEXT = 200
"""Of one argument: a dump may name a hundred thousand tensors in each of its entries."""
_MOST_TENSORS = 8
_LEAST_OPEN_US = 1_000
"""How long an open slice is at least: it ends where the trace does."""
_LATEST_US = ((1 << 63) - 1) // 1000
"""Readers count nanoseconds in 64 bits."""

_STATES = {
    Completion.UNKNOWN: "not recorded",
    Completion.PENDING: "pending",
    Completion.RETIRED: "retired",
    Completion.TIMED: "retired",
    Completion.COMPLETED: "completed",
}
_ENDS = {
    End.RECORDED: "recorded",
    End.OF_BATCH: "of the batch",
    End.LAST_JOIN: "inferred: last join",
    End.UNTOLD: "not recorded",
    End.PENDING: "none",
    End.NEVER_WHOLE: "none: not all joined",
}
_READING = {
    "start: device": "the device was seen to begin it",
    "start: call": "when the host made the call; the device may have begun it later",
    "start: inferred: queue": "when what is in front of it on its track was over, or began where "
    "that is open",
    "end: recorded": "when it was seen to be over",
    "end: of the batch": "when the batch that it belongs to was seen to be over",
    "end: inferred: last join": "the backend records no ends: when the last member known to "
    "have joined did so",
    "end: not recorded": "drawn without duration",
    "end: none": "pending",
    "end: none: not all joined": "marked as over, but by its dump a member never joined; a "
    "timeout leaves such marks, too",
    "arrows": "lead through the ranks of a collective in the order in which they begin it",
}
"""What the arguments of slices mean: said once, since it would double the file's size."""
_CLOCK_METHOD = (
    "Where ends of collectives are recorded: the median of a rank's distance from the other "
    "members' ends, and half the span of the middle 80 % of these. Else: the bounds by nobody "
    "being done with a collective, or a barrier, before the last member joined. Over several "
    "groups, uncertainties add up. Only offsets beyond their uncertainty are taken off."
)


def render_perfetto(diagnosis: Diagnosis, progress: Progress) -> str:
    """Render the matched dumps as a timeline.

    A process is a rank, a thread one of its process groups, or its sends to or receives from
    one peer. A pending operation has no end. Arrows lead through the ranks of a collective in
    the order in which they began it, to the one that the others waited for. A process of its own
    holds the verdict.

    Args:
        diagnosis: the answer; marks suspects and faults.
        progress: the matched dumps.

    Returns:
        JSON text, ASCII only, ending in a newline, one event a line. ``otherData`` says what
        the clocks were corrected by, and what is not drawn.
    """
    clocks = estimate_clocks(progress)
    layout = lay_out(progress, clocks)
    arrows = join_up(progress, layout)
    end_us = min(layout.end_us + max(_LEAST_OPEN_US, layout.end_us // 50), _LATEST_US)
    events = [
        *_process_names(diagnosis, progress, clocks),
        *_thread_names(progress, layout),
        *_operations(layout, arrows, progress),
        *_marks(diagnosis, clocks, layout, end_us),
    ]
    other = _json(_other_data(diagnosis, clocks, layout, arrows))
    lines = ",\n".join(events)
    return f'{{"displayTimeUnit":"ms","otherData":{other},"traceEvents":[\n{lines}\n]}}\n'


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _text(value: object) -> str:
    """A text without lone surrogates, which not every reader of JSON takes, and not too long."""
    text = str(value).encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 3] + "..."


def _ms(nanoseconds: int) -> float:
    return round(nanoseconds / 1e6, 3)


def _clock_text(clocks: Clocks, rank: int) -> str:
    estimate = clocks.estimates.get(rank)
    if rank == clocks.reference:
        return "clock: the reference"
    if estimate is None:
        return "clock: no estimate, kept"
    done = "corrected" if estimate.significant else "not significant, kept"
    return (
        f"clock: {_ms(estimate.offset_ns):+.3f} +- {_ms(estimate.uncertainty_ns):.3f} ms "
        f"against rank {clocks.reference}, {done}"
    )


def _metadata(name: str, pid: int, tid: int, key: str, value: object) -> str:
    return _json({"ph": "M", "pid": pid, "tid": tid, "name": name, "args": {key: value}})


def _process_names(diagnosis: Diagnosis, progress: Progress, clocks: Clocks) -> Iterator[str]:
    """One process per rank with a dump, and per suspect without one."""
    conditions = {detail.rank: detail.condition.value for detail in diagnosis.details}
    for rank in sorted({*progress.trace.dumps, *diagnosis.suspects}):
        name = f"rank {rank}"
        if rank in diagnosis.suspects:
            name += f" (suspect: {conditions.get(rank, 'see the verdict')})"
        elif rank in diagnosis.victims:
            name += " (waits)"
        yield _metadata("process_name", rank, 0, "name", name)
        yield _metadata("process_sort_index", rank, 0, "sort_index", rank)
        has_dump = rank in progress.trace.dumps
        label = _clock_text(clocks, rank) if has_dump else "no usable dump"
        yield _metadata("process_labels", rank, 0, "labels", label)


def _first_thread(layout: Layout) -> int:
    """The number of the first track's thread: above all ranks, so that no thread is main."""
    return int(layout.operations.ranks.max(initial=0)) + 1


def _thread_names(progress: Progress, layout: Layout) -> Iterator[str]:
    first = _first_thread(layout)
    for at, track in enumerate(layout.tracks):
        name = _text(_track_name(progress, track))
        yield _metadata("thread_name", track.rank, first + at, "name", name)
        yield _metadata("thread_sort_index", track.rank, first + at, "sort_index", at)


def _track_name(progress: Progress, track: Track) -> str:
    group = progress.group_named(track.group)
    name = f"group {group.name}"
    if track.kind is TrackKind.COLLECTIVES:
        return name
    if track.kind is TrackKind.BATCHES:
        return f"{name}: ends of batches"
    is_send = track.kind is TrackKind.SENDS
    position = track.peer if track.peer != UNKNOWN else None
    peer = peer_rank(group, track.rank, PointToPoint(is_send, None, position))
    whom = "a peer that is not recorded" if peer is None else f"rank {peer}"
    return f"{name}: sends to {whom}" if is_send else f"{name}: receives from {whom}"


def _shapes(sizes: tuple[tuple[int, ...], ...] | None) -> str | None:
    if sizes is None:
        return None
    shown = shapes_text(sizes[:_MOST_TENSORS])
    more = f" and {len(sizes) - _MOST_TENSORS} more" if len(sizes) > _MOST_TENSORS else ""
    return _text(shown or "none") + more


def _call_arguments(signature: Signature, code: str) -> dict[str, str]:
    """What is told of a call; what is not recorded is left out."""
    dtypes = signature.input_dtypes or signature.output_dtypes
    told = {
        "input sizes": _shapes(signature.input_sizes),
        "output sizes": _shapes(signature.output_sizes),
        "dtypes": "/".join(dict.fromkeys(dtypes[:_MOST_TENSORS])) if dtypes else None,
        "code": code,
    }
    return {key: _text(value) for key, value in told.items() if value}


class _Fragments:
    """The part of an event's text that many operations share, made once for each of them."""

    def __init__(self, layout: Layout, progress: Progress) -> None:
        signatures: dict[Signature, int] = {}
        codes: dict[str, int] = {}
        parts: list[IntColumn] = []
        for rank in layout.operations.ranks.tolist():
            dump = progress.trace.dumps[rank]
            at = [signatures.setdefault(s, len(signatures)) for s in dump.signatures]
            lines = [str(code_line(stack) or "") for stack in dump.stacks]
            code_at = [codes.setdefault(line, len(codes)) for line in (*lines, "")]
            operations = dump.operations
            # The last of a rank's codes is that of no stack, which is what UNKNOWN takes.
            parts.append(
                np.stack(
                    [
                        np.array(at, dtype=np.int64)[operations.signature],
                        np.array(code_at, dtype=np.int64)[operations.stack],
                        operations.completion.astype(np.int64),
                    ]
                )
                if len(operations)
                else np.zeros((3, 0), dtype=np.int64)
            )
        columns = np.concatenate(parts, axis=1) if parts else np.zeros((3, 0), dtype=np.int64)
        keys = np.stack(
            [
                *columns[:, layout.place],
                layout.end,
                layout.begun.astype(np.int64),
                layout.behind.astype(np.int64),
            ]
        )
        distinct, inverse = np.unique(keys, axis=1, return_inverse=True)
        by_signature, by_code = list(signatures), list(codes)
        self.texts = [
            self._text(by_signature[s], by_code[c], Completion(state), End(end), bool(b), bool(f))
            for s, c, state, end, b, f in distinct.T.tolist()
        ]
        self.of_line: list[int] = inverse.reshape(-1).tolist()

    @staticmethod
    def _text(
        signature: Signature, code: str, state: Completion, end: End, begun: bool, behind: bool
    ) -> str:
        """From the category to the opened arguments, for a sequence number to follow."""
        is_open = end in (End.PENDING, End.NEVER_WHOLE)
        transfer = point_to_point(signature.operation)
        if transfer is None:
            category, name = "collective", operation_name(signature.operation)
        else:
            category, name = "transfer", "send" if transfer.is_send else "recv"
        start = "inferred: queue" if behind else "device" if begun else "call"
        arguments = {
            **_call_arguments(signature, code),
            "state": _STATES[state],
            "start": start,
            "end": _ENDS[end],
        }
        shown = _json({"cat": f"{category},pending" if is_open else category, "name": _text(name)})
        # A colour of chrome://tracing's; others take their own.
        color = ',"cname":"terrible"' if is_open else ""
        return f'{shown[1:-1]}{color},"args":{_json(arguments)[:-1]}'


def _operations(layout: Layout, arrows: Arrows, progress: Progress) -> Iterator[str]:
    """The operations, each with its end of an arrow."""
    first = _first_thread(layout)
    fragments = _Fragments(layout, progress)
    number = layout.operations.column(lambda o: o.number)[layout.place]
    texts, of_line = fragments.texts, fragments.of_line
    for line, (rank, track, start, stop, called, seq, is_open, is_instant, flow) in enumerate(
        zip(
            layout.operations.rank[layout.place].tolist(),
            (layout.track + first).tolist(),
            layout.start_us.tolist(),
            layout.stop_us.tolist(),
            layout.called_us.tolist(),
            number.tolist(),
            layout.is_open.tolist(),
            layout.is_instant.tolist(),
            arrows.flow.tolist(),
            strict=True,
        )
    ):
        at = f'"pid":{rank},"tid":{track},"ts":{start}'
        if is_instant:
            shape = f'{{"ph":"i","s":"t",{at}'
        elif is_open:
            shape = f'{{"ph":"B",{at}'
        else:
            shape = f'{{"ph":"X",{at},"dur":{stop - start}'
        more = f',"sequence number":{seq}' if seq != UNKNOWN else ""
        if called != UNKNOWN and called != start:
            more += f',"called before, us":{start - called}'
        if line in layout.missing:
            more += f',"not joined":{_json(_text(layout.missing[line]))}'
        yield f"{shape},{texts[of_line[line]]}{more}}}}}"
        phase = arrows.phase[line]
        if phase:
            # Perfetto draws an arrow from the end of a slice: from that of the operation it would
            # lead back in time, since the others joined before. So a moment within is joined up.
            shared = f'{at},"cat":"arrow","name":"joined"'
            enclosing = ',"bp":"e"' if phase == "f" else ""
            yield f'{{"ph":"X",{shared},"dur":0,"args":{{}}}}'
            yield f'{{"ph":"{phase}",{shared},"id":{flow}{enclosing}}}'


def _marks(diagnosis: Diagnosis, clocks: Clocks, layout: Layout, end_us: int) -> Iterator[str]:
    """A track of the verdict, with the faults where they were first seen, and the suspects."""
    own = max([_first_thread(layout), *(rank + 1 for rank in diagnosis.suspects)])
    thread = _first_thread(layout) + len(layout.tracks)

    def instant(scope: str, pid: int, at: int, name: str, arguments: dict[str, str]) -> str:
        tid = thread if pid == own else 0
        event = {"ph": "i", "s": scope, "pid": pid, "tid": tid, "ts": at, "cat": "verdict"}
        return _json({**event, "name": _text(name), "args": arguments})

    yield _metadata("process_name", own, 0, "name", _text(headline(diagnosis)))
    yield _metadata("process_sort_index", own, 0, "sort_index", -1)
    yield _metadata("thread_name", own, thread, "name", "faults and verdict")
    created = layout.operations.column(lambda o: o.created_ns)
    by_time = np.argsort(created, kind="stable")
    said: dict[int, list[str]] = defaultdict(list)
    for fault in diagnosis.faults:
        for suspect in fault.suspects:
            said[suspect].extend(fault.evidence)
        if fault.first_seen_ns is None:
            continue
        # Told by the clock of the rank that entered first: that of the entry of that time.
        place = by_time[np.searchsorted(created, fault.first_seen_ns, sorter=by_time)]
        rank = int(layout.operations.rank[place])
        seen_ns = fault.first_seen_ns - clocks.correction_ns(rank) - layout.origin_ns
        name = f"{fault.kind.value} in group {fault.group}"
        told = {str(n + 1): _text(line) for n, line in enumerate(fault.evidence)}
        yield instant("t", own, min(max(seen_ns // 1000, 0), end_us), name, told)
    for detail in diagnosis.details:
        told = {str(n + 1): _text(line) for n, line in enumerate(said[detail.rank])}
        yield instant("p", detail.rank, end_us, f"suspect: {detail.condition.value}", told)
    summary = {
        "verdict": diagnosis.verdict.value,
        "suspects": _text(ranks_text(diagnosis.suspects) or "none"),
        "waiting": _text(ranks_text(diagnosis.victims) or "none"),
    }
    yield instant("t", own, end_us, f"verdict: {diagnosis.verdict.value}", summary)


def _other_data(
    diagnosis: Diagnosis, clocks: Clocks, layout: Layout, arrows: Arrows
) -> dict[str, object]:
    """What a trace's reader should know; viewers show it as the trace's metadata."""
    began = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=layout.origin_ns // 1000)
    held = len(layout.operations.rank)

    def clock(rank: int, estimate: ClockEstimate) -> dict[str, object]:
        return {
            "rank": rank,
            "offset_ms": _ms(estimate.offset_ns),
            "uncertainty_ms": _ms(estimate.uncertainty_ns),
            "corrected": clocks.correction_ns(rank) != 0,
        }

    return {
        "tool": f"fr-analysis {fr_analysis.__version__}",
        "verdict": diagnosis.verdict.value,
        "headline": _text(headline(diagnosis)),
        "suspects": list(diagnosis.suspects),
        "waiting": list(diagnosis.victims),
        "notes": [_text(note) for note in diagnosis.notes],
        "begins": began.isoformat(),
        "reading": _READING,
        "clocks": {
            "reference rank": clocks.reference,
            "method": _CLOCK_METHOD,
            "estimates": [clock(*item) for item in clocks.estimates.items()],
            "no estimate, kept": ranks_text(clocks.without) or "none",
        },
        "drawn": {
            "operations": len(layout.place),
            "of them open": int(layout.is_open.sum()),
            f"of them instants (open beyond {MOST_NESTED} on a track)": int(
                layout.is_instant.sum()
            ),
            "left out, having no time": held - len(layout.place),
            "collectives with arrows": arrows.collectives,
            "collectives left without arrows (too many)": arrows.left_out,
        },
    }
