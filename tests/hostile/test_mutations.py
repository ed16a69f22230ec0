"""Real dumps, changed: no crash, no refusal without a reason, no wrong answer in silence."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.hostile import mutations
from tests.hostile.mutations import GOOD, Outcome, judged, real_jobs

SEED = 20261130
COUNT = 14 * len(mutations.KINDS)
JOBS = real_jobs()


def test_changed_dumps_are_refused_with_a_reason_or_read_as_what_they_are(tmp_path: Path) -> None:
    if len(JOBS) == 1:
        print(f"no cases in {mutations.CASES}: of {JOBS[0].name} alone")
    bad = []
    outcomes = set()
    for number, changed, outcome, told in judged(JOBS, SEED, range(COUNT), tmp_path):
        outcomes.add(outcome)
        if outcome not in GOOD:
            bad.append((number, changed.kind, changed.job.name, changed.file.name, outcome, told))
    assert bad == []
    assert outcomes == GOOD
    assert COUNT >= 300


def test_the_same_seed_makes_the_same_mutations() -> None:
    numbers = range(len(mutations.KINDS))
    made = [mutations.mutation(JOBS, SEED, number) for number in numbers]
    again = [mutations.mutation(JOBS, SEED, number) for number in numbers]
    assert made == again
    assert [one.kind for one in made] == list(mutations.KINDS)
    assert made != [mutations.mutation(JOBS, SEED + 1, number) for number in numbers]


@pytest.mark.parametrize(
    ("of_the_reader", "instead", "outcome"),
    [
        ("read_dump", ValueError("hostile"), Outcome.CRASH),
        ("trusted", None, Outcome.SILENT),
        ("trusted", {"version": "2.10", "entries": []}, Outcome.MISREAD),
        ("read_short", ("cut short", False), Outcome.TWO_WAYS),
    ],
)
def test_each_way_to_be_wrong_would_be_seen(
    of_the_reader: str,
    instead: object,
    outcome: Outcome,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = JOBS[-1]
    same = mutations.Mutation("none", job, job.files[0], job.files[0].read_bytes())
    answers = mutations.Answers(tmp_path)
    assert answers.judge(same) == (Outcome.SAME, "")

    def wrong(*_: object) -> object:
        if isinstance(instead, Exception):
            raise instead
        return instead

    monkeypatch.setattr(mutations, of_the_reader, wrong)
    assert answers.judge(same)[0] is outcome
