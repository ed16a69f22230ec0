"""Claims are compared with a diagnosis, every one of them."""

import dataclasses
from pathlib import Path

import pytest

from fr_analysis import Diagnosis, analyze
from rank_lab.claims import Claims, differences

DUMPS = Path(__file__).resolve().parents[1] / "data" / "gloo_hang_3ranks"

HELD = Claims(
    verdict="fault",
    kind="rank_missing",
    group="0",
    collective="all_reduce",
    collective_seq_id=3,
    suspects=(2,),
    victims=(0, 1),
    operations=(3, 3),
    stuck_in="nowhere",
)


@pytest.fixture(scope="module")
def diagnosis() -> Diagnosis:
    return analyze(DUMPS)


def test_claims_that_hold(diagnosis: Diagnosis) -> None:
    assert differences(HELD, diagnosis) == ()


@pytest.mark.parametrize(
    ("claim", "wrong"),
    [
        ("verdict", "healthy"),
        ("kind", "size_mismatch"),
        ("group", "1"),
        ("collective", "broadcast"),
        ("collective_seq_id", 4),
        ("suspects", (1,)),
        ("victims", (0,)),
        ("operations", (3, 4)),
        ("stuck_in", "main"),
    ],
)
def test_every_claim_can_fail(diagnosis: Diagnosis, claim: str, wrong: object) -> None:
    found = differences(dataclasses.replace(HELD, **{claim: wrong}), diagnosis)
    assert len(found) == 1
    assert found[0].startswith(f"{claim} is ")


def test_nothing_claimed_always_holds(diagnosis: Diagnosis) -> None:
    assert differences(Claims(), diagnosis) == ()
