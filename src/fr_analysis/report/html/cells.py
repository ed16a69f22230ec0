"""The grids of a report as compact arrays: per process group, ranks by sequence number.

Each cell is a number: what a rank has of a collective. In large groups, ranks whose cells are all
alike share a row: where all but a few of thousands do the same, that takes a few rows.
"""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fr_analysis.attribute.evidence import ranks_text
from fr_analysis.attribute.frames import code_line
from fr_analysis.diagnosis import Diagnosis
from fr_analysis.match import ProcessGroup, Progress
from fr_analysis.match.columns import EndToEnd
from fr_analysis.match.semantics import operation_name
from fr_analysis.report.tables import operation_text
from fr_analysis.trace import UNKNOWN, Completion, Frame, Signature

UNKNOWN_CELL, ABSENT_CELL = 0, 1
"""No dump tells; and the rank never joined. Above these, a cell is an index into the calls."""

_MOST_CALLS = 65_000
"""Cells are numbers of 16 bits; calls beyond this many are shown as one, without details."""

_ALL_ROWS = 64
"""Groups of so many ranks are shown rank by rank."""

Matrix = npt.NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class CallText:
    """A distinct way in which some rank holds a collective, in words."""

    operation: str
    what: str
    state: str
    """``done``, ``waiting`` or ``odd``."""
    code: str
    stack: tuple[str, ...]


class Cells:
    """All cells of a report; ``as_json`` is what the page's script reads."""

    def __init__(self, progress: Progress, diagnosis: Diagnosis) -> None:
        self._progress = progress
        self._signatures: dict[Signature, int] = {}
        self._stacks: dict[tuple[Frame, ...], int] = {(): 0}
        columns = EndToEnd(progress.trace)
        places = columns.places(progress)
        self._recorded = columns.column(lambda operations: operations.number)[places]
        completion = columns.column(lambda operations: operations.completion)[places]
        self._waiting = completion == Completion.PENDING

        def signature_number(signature: Signature) -> int:
            return self._signatures.setdefault(signature, len(self._signatures))

        def stack_number(stack: tuple[Frame, ...]) -> int:
            return self._stacks.setdefault(stack, len(self._stacks))

        # A number per collective that tells its signature and its stack.
        keys = columns.of_signatures(signature_number)[places] << 32
        keys += columns.of_stacks(stack_number)[places]
        self._mark_waiting(diagnosis)
        odd = self._odd(diagnosis)
        # What is alike: signature, stack and state.
        states = np.where(odd, 2, np.where(self._waiting, 1, 0))
        self._signature_list, self._stack_list = list(self._signatures), list(self._stacks)
        distinct, self._codes = np.unique(keys * 3 + states, return_inverse=True)
        self.calls = [self._text(int(key)) for key in distinct[:_MOST_CALLS]]
        if len(distinct) > _MOST_CALLS:
            self.calls.append(CallText("", "an operation", "done", "", ()))
        self._codes = np.minimum(self._codes, _MOST_CALLS) + 2

    def _places(
        self, group_name: str, seq_id: int | None, ranks: tuple[int, ...]
    ) -> npt.NDArray[np.bool_]:
        """Where the table holds these ranks' parts in a collective as they recorded it."""
        named = [g.index for g in self._progress.groups.groups if g.name.name == group_name]
        found: npt.NDArray[np.bool_] = (
            np.isin(self._progress.group, named)
            & (self._recorded == (UNKNOWN if seq_id is None else seq_id))
            & np.isin(self._progress.rank, ranks)
        )
        return found

    def _mark_waiting(self, diagnosis: Diagnosis) -> None:
        """Let ranks wait where the answer says so: a timeout makes torch's Gloo mark an end."""
        for stuck in diagnosis.wavefront:
            if stuck.missing:
                place = self._places(stuck.group, stuck.collective_seq_id, stuck.waiting)
                self._waiting |= place

    def _odd(self, diagnosis: Diagnosis) -> npt.NDArray[np.bool_]:
        odd = np.zeros(len(self._progress.group), dtype=np.bool_)
        for fault in diagnosis.faults:
            if len(fault.calls) > 1:
                odd |= self._places(fault.group, fault.collective_seq_id, fault.suspects)
        return odd

    def _text(self, key: int) -> CallText:
        key, state = divmod(key, 3)
        signature = self._signature_list[key >> 32]
        stack = self._stack_list[key & 0xFFFFFFFF]
        line = code_line(stack)
        return CallText(
            operation_name(signature.operation),
            operation_text(signature),
            ("done", "waiting", "odd")[state],
            str(line) if line else "",
            tuple(map(str, stack)),
        )

    def matrix(self, group: ProcessGroup) -> tuple[list[int], list[list[int]], Matrix]:
        """One group's cells: the number of each column, the ranks of each row, and the cells.

        A row is a member with a dump; members without one share the last.
        """
        progress = self._progress
        first, last = np.searchsorted(progress.group, [group.index, group.index + 1])
        numbers, columns = np.unique(progress.number[first:last], return_inverse=True)
        known = [rank for rank in group.members if rank in progress.trace.dumps]
        rest = [rank for rank in group.members if rank not in progress.trace.dumps]
        rows = [[rank] for rank in known] + ([rest] if rest else [])
        cells = np.full((len(rows), len(numbers)), UNKNOWN_CELL, dtype=np.uint16)
        for line, rank in enumerate(known):
            cells[line, progress.never_joined(group.index, rank, numbers)] = ABSENT_CELL
        lines = np.searchsorted(known, progress.rank[first:last])
        cells[lines, columns] = self._codes[first:last]
        labels = numbers.copy()
        labels[columns] = self._recorded[first:last]
        return labels.tolist(), rows, cells

    def as_json(self, first: tuple[str, ...]) -> dict[str, Any]:
        """Everything for the page's script.

        Args:
            first: names of the groups to list first.

        Returns:
            ``groups`` with their rows and columns, ``calls``, and ``cells``: all groups' rows one
            after the other as unsigned 16-bit numbers, little-endian, zlib, base64.
        """
        groups: list[dict[str, Any]] = []
        pieces: list[bytes] = []
        size = 0
        order = {name: at for at, name in enumerate(dict.fromkeys(first))}
        for group in sorted(
            self._progress.groups.groups,
            key=lambda g: (order.get(g.name.name, len(order)), g.index),
        ):
            labels, ranks, matrix = self.matrix(group)
            if not labels or not len(matrix):
                continue
            rows, row_of = matrix, np.arange(len(matrix))
            if len(matrix) > _ALL_ROWS:
                rows, row_of = np.unique(matrix, axis=0, return_inverse=True)
            alike: list[list[int]] = [[] for _ in rows]
            for some, row in zip(ranks, row_of.reshape(-1).tolist(), strict=True):
                alike[row] = sorted(alike[row] + some)
            by_rank = sorted(range(len(rows)), key=lambda row: alike[row][0])
            pieces.append(rows[by_rank].astype("<u2").tobytes())
            groups.append(
                {
                    "name": str(group.name),
                    "members": len(group.members),
                    "rows": [_spans(alike[row]) for row in by_rank],
                    "labels": [ranks_text(alike[row]) for row in by_rank],
                    "numbers": _spans(labels),
                    "at": size,
                }
            )
            size += rows.size
        return {
            "groups": groups,
            "calls": [
                {
                    "operation": call.operation,
                    "what": call.what,
                    "state": call.state,
                    "code": call.code,
                    "stack": call.stack,
                }
                for call in self.calls
            ],
            "cells": base64.b64encode(zlib.compress(b"".join(pieces), 6)).decode("ascii"),
        }


def _spans(numbers: list[int]) -> list[list[int]]:
    """``[[first, count], ...]``: numbers that follow each other as one."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][0] + spans[-1][1]:
            spans[-1][1] += 1
        else:
            spans.append([number, 1])
    return spans
