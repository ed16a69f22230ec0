"""Random jobs with a known culprit: nobody else is named. ``make reliability`` runs thousands."""

from __future__ import annotations

from tests.made_jobs import score
from tests.made_jobs.random_jobs import FAULTS

JOBS = range(300)


def test_no_rank_is_blamed_that_is_not_a_culprit() -> None:
    outcomes = [score.answer(seed, through_files=seed % 50 == 0) for seed in JOBS]
    wrong = [outcome.told for outcome in outcomes if outcome.ending == score.WRONG]
    assert not wrong, "\n".join(wrong)
    assert {outcome.fault for outcome in outcomes} == set(FAULTS)
    shown = sum(outcome.shown for outcome in outcomes)
    assert sum(outcome.found for outcome in outcomes) >= 0.9 * shown


def test_the_same_seed_draws_the_same_job() -> None:
    for seed in (3, 14):
        assert score.made(seed).record() == score.made(seed).record()
