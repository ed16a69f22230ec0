"""A strict reader of Chrome's Trace Event Format, for the events that the timeline uses.

Stricter than the viewers, which drop silently what they cannot use: slices of one thread must
nest or lie apart, an arrow's ends must lie on slices and not run backwards, and every thread
and process that has events must be named.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

Event = dict[str, Any]
Thread = tuple[int, int]


@dataclass
class ChromeTrace:
    """A trace that was found to be right.

    Attributes:
        other: its ``otherData``.
        processes, threads: names.
        slices: per thread in order, those that arrows end at left out; an open one has no
            ``dur``.
        arrows: by id, the slices that an arrow leads through.
        instants: the instants.
    """

    other: dict[str, Any]
    processes: dict[int, str] = field(default_factory=dict)
    labels: dict[int, str] = field(default_factory=dict)
    threads: dict[Thread, str] = field(default_factory=dict)
    slices: dict[Thread, list[Event]] = field(default_factory=lambda: defaultdict(list))
    arrows: dict[int, list[Event]] = field(default_factory=lambda: defaultdict(list))
    instants: list[Event] = field(default_factory=list)

    def named(self, rank: int, name: str) -> list[Event]:
        """The slices of a rank's thread."""
        (thread,) = (key for key, text in self.threads.items() if key[0] == rank and text == name)
        return self.slices[thread]


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


def read_chrome_trace(text: str) -> ChromeTrace:
    """Read and check a trace.

    Raises:
        AssertionError: it is not as the format wants it.
    """
    assert text.isascii()
    content = json.loads(text, parse_constant=_refuse)
    assert set(content) == {"displayTimeUnit", "otherData", "traceEvents"}
    assert content["displayTimeUnit"] in ("ms", "ns")
    trace = ChromeTrace(content["otherData"])
    points: dict[int, list[tuple[Event, Event]]] = defaultdict(list)
    for event in content["traceEvents"]:
        phase, thread = event["ph"], (event["pid"], event["tid"])
        assert all(type(part) is int and part >= 0 for part in thread), event
        if phase == "M":
            (value,) = event["args"].values()
            if event["name"] == "process_name":
                assert trace.processes.setdefault(event["pid"], value) == value
            elif event["name"] == "process_labels":
                trace.labels[event["pid"]] = value
            elif event["name"] == "thread_name":
                assert thread not in trace.threads
                trace.threads[thread] = value
            else:
                assert event["name"] in ("process_sort_index", "thread_sort_index")
                assert type(value) is int
            continue
        assert type(event["ts"]) is int, event
        assert 0 <= event["ts"] * 1000 < 1 << 63, event
        assert isinstance(event["name"], str), event
        if phase in "XB":
            assert ("dur" in event) is (phase == "X"), event
            assert event.get("dur", 0) >= 0, event
            assert isinstance(event["args"], dict), event
            trace.slices[thread].append(event)
        elif phase in "stf":
            assert type(event["id"]) is int
            assert event.get("bp") == ("e" if phase == "f" else None)
            operation, moment = trace.slices[thread][-2:]
            assert moment["cat"] == event["cat"] == "arrow"
            assert moment["dur"] == 0
            assert moment["ts"] == operation["ts"]
            points[event["id"]].append((event, operation))
        else:
            assert phase == "i", event
            assert event["s"] in ("g", "p", "t")
            trace.instants.append(event)
    for thread, slices in trace.slices.items():
        assert thread in trace.threads
        _check_nesting(slices)
        trace.slices[thread] = [event for event in slices if event["cat"] != "arrow"]
    assert {pid for pid, _ in trace.threads} <= set(trace.processes)
    assert {event["pid"] for event in trace.instants} <= set(trace.processes)
    for identity, ends in points.items():
        trace.arrows[identity] = _check_arrow(ends)
    return trace


def _check_nesting(slices: list[Event]) -> None:
    """Each slice lies within the one that it begins in; an open one never ends."""
    stops: list[float] = []
    slices.sort(key=lambda event: event["ts"])  # stable, as readers sort
    for event in slices:
        stop = event["ts"] + event.get("dur", float("inf"))
        while stops and stops[-1] <= event["ts"] and stops[-1] != float("inf"):
            stops.pop()
        assert not stops or stop <= stops[-1], f"overlaps what it begins in: {event}"
        stops.append(stop)
    assert len(stops) < 100, "deeper than viewers draw"


def _check_arrow(ends: list[tuple[Event, Event]]) -> list[Event]:
    ends.sort(key=lambda end: end[0]["ts"])  # stable, as readers sort
    phases = "".join(point["ph"] for point, _ in ends)
    assert phases == "s" + "t" * (len(ends) - 2) + "f", phases
    assert len({(point["name"], point["cat"]) for point, _ in ends}) == 1
    for point, event in ends:
        assert event["ts"] == point["ts"]
        assert (event["pid"], event["tid"]) == (point["pid"], point["tid"])
    return [event for _, event in ends]
