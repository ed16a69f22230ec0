"""Random jobs with a known culprit: nobody else is named. ``make reliability`` runs thousands."""

from __future__ import annotations

import pytest
from tests.made_jobs import score
from tests.made_jobs.random_jobs import FAULTS

from fr_analysis import Verdict

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


ONCE_WRONG = {
    # A rank that hangs by a call too few, and dumps that were lost.
    9114126: "skipped call [4] in call 5 in ep",
    # Lost dumps: their ranks wait for who called another thing than its peers.
    8008490: "swapped order 2, call 0 in default_pg, dp",
    9209067: "skipped call [6] in call 3 in dp",
    9216536: "skipped call [4] in call 7 in tp",
    17005314: "skipped call [2] in call 0 in pp",
    # Gloo's first operation of a group without declared members: two may wait elsewhere.
    15003210: "asleep [1, 2] before Collective 1 in dp",
    # Active entries only: two ranks that have come as far as each other, and one that came further.
    15003337: "skipped call [2] in call 5 in dp",
    # A rank whose peer left no dump is no straggler.
    8002582: "straggler 3, every 1",
    # The two groups of a kind that are left differ: neither is the majority.
    9314581: "dtype [0, 7] in call 0 in pp",
    # One rank of another group of the kind is none either.
    10005319: "operation [1, 4] in call 2 in tp",
    # An abort ended what a rank waited in, before its last operation.
    9311233: "dtype [1] in call 0 in tp",
    # Rings that have lost what their ranks wait in: collectives, transfers, or a group's beginning.
    8008356: "extra call [4, 9] in call 0 in default_pg",
    9102969: "swapped order 3, call 3 in tp, dp",
    9313294: "extra call [3] in call 0 in default_pg",
    9315739: "dead [3] before Collective 0 in pp",
    9609866: "dead [0] before Collective 0 in default_pg",
    # A rank of another pipeline stage calls other numbers of collectives.
    12006528: "extra call [3] in call 3 in dp",
    # Where no ends are recorded, three times late is too few.
    12000310: "straggler 2, every 3",
    # Rings that do not show that a group's numbers count batches of transfers too.
    9213637: "extra call [3, 4] in call 5 in dp",
    # The same, but an abort has counted all as finished.
    9308154: "skipped call [2] in call 5 in dp",
    # Numbers that are counted from where each ring begins.
    9313487: "skipped call [2] in call 2 in dp",
    9322576: "size [1] in call 5 in tp",
    # A lost dump that a single rank misses, where other dumps are lost too.
    18003667: "skipped call [5] in call 2 in pp",
    19000425: "two faults [7] in call 3 in dp, and [10] in call 1 in pp",
    # Counters of ranks on either side of the call that one of them skipped or added.
    19003941: "skipped call [0] in call 22 in ep",
    20000082: "skipped call [1, 4] in call 1 in default_pg",
    19004013: "extra call [2] in call 1 in dp",
    19006277: "skipped call [7] in call 0 in tp",
    # Active entries only: the newest of those is not the newest call.
    22000814: "dead [1] before Collective 0 in pp",
    22002734: "dead [5] before Collective 0 in dp",
    25007371: "swapped order 4, call 1 in pp, default_pg",
    25007418: "extra call [1, 2] in call 7 in tp",
    # The same; two ranks whose rings have lost what they wait in, by their counters.
    26004737: "two faults [7] in call 0 in tp, and [13] in call 0 in dp",
    # A rank that may be behind a peer whose counters differ.
    24009083: "swapped order 3, call 0 in pp, default_pg",
    # Gloo: what some have gone on from is over, though two ranks called nothing more.
    29002783: "two faults [4] in call 6 in default_pg, and [3, 8] before Collective 1 in tp",
}


@pytest.mark.parametrize("seed", ONCE_WRONG)
def test_a_job_that_was_once_answered_wrong_is_not_again(seed: int) -> None:
    outcome = score.answer(seed)
    assert outcome.told.startswith(ONCE_WRONG[seed] + "; "), "another job is drawn now"
    assert outcome.ending != score.WRONG, outcome.told


@pytest.mark.parametrize("seed", [22006087, 22007292, 23002328, 32007148])
def test_who_left_out_a_call_is_told_by_how_many_were_recorded_before_a_shared_one(
    seed: int,
) -> None:
    job = score.made(seed)
    assert job.recorder.only_active, "another job is drawn now"
    assert job.culprits == job.shown == set(score.diagnose(job).suspects)


@pytest.mark.parametrize("seed", [16003059, 16000104, 16002630, 17000713])
def test_who_left_the_way_is_told_by_counters_where_its_beginning_is_not_held(seed: int) -> None:
    job = score.made(seed)
    assert job.recorder.only_active or job.recorder.ring < 10, "another job is drawn now"
    assert len(job.culprits) == 1
    assert job.culprits == job.shown == set(score.diagnose(job).suspects)


@pytest.mark.parametrize("seed", [22000167, 22003557, 22004647, 23000109, 23005901])
def test_no_job_is_healthy_whose_newest_operations_may_have_timed_out(seed: int) -> None:
    job = score.made(seed)
    assert job.hangs, "another job is drawn now"
    diagnosis = score.diagnose(job)
    assert diagnosis.verdict is Verdict.UNDETERMINED
    assert any("marks what timed out like what was done" in note for note in diagnosis.notes)


# A root that left no dump is all that is missing; two stages tell which of a third one's two left.
@pytest.mark.parametrize("seed", [22000856, 22003699, 22009070, 22006265])
def test_who_is_missing_or_left_is_told_by_those_that_called_nothing_else(seed: int) -> None:
    job = score.made(seed)
    assert job.culprits == job.shown, "another job is drawn now"
    assert job.culprits == set(score.diagnose(job).suspects)
