"""The real dumps beside the project come out as their ``expected.json`` says.

The folder is not part of the repository: without it these tests are skipped.
"""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest

from fr_analysis import Diagnosis, Verdict, analyze

CASES = Path(__file__).resolve().parents[2].parent / "shared" / "cases"
FOUND = sorted(path.parent for path in CASES.glob("*/expected.json"))

pytestmark = pytest.mark.skipif(not FOUND, reason=f"no cases in {CASES}")


def expected_of(case: Path) -> dict[str, Any]:
    """What is known of a case."""
    expected: dict[str, Any] = json.loads((case / "expected.json").read_text())
    return expected


def diagnose(case: Path, pattern: str | None = None) -> Diagnosis:
    """Analyze a case as a user would who knows its world size."""
    expected = expected_of(case)
    folder, _, names = (pattern or expected["pattern"]).rpartition("/")
    return analyze(case / folder, pattern=names, expected_world_size=expected["world_size"])


def assert_as_expected(diagnosis: Diagnosis, expected: dict[str, Any]) -> None:
    """Every field of ``expected.json`` that a diagnosis can answer."""
    if "suspects" in expected:
        assert set(diagnosis.suspects) == set(expected["suspects"])
    if "victims" in expected:
        assert set(diagnosis.victims) == set(expected["victims"])
    assert not set(diagnosis.suspects) & set(diagnosis.victims)
    fault = expected.get("fault", "")
    if fault == "healthy":
        assert diagnosis.verdict is Verdict.HEALTHY
    elif "suspects" in expected:
        assert diagnosis.verdict is Verdict.FAULT
        first = diagnosis.faults[0]
        assert first.kind.value == fault
        for key, value in (
            ("group", first.group),
            ("collective", first.collective),
            ("collective_seq_id", first.collective_seq_id),
        ):
            assert key not in expected or value == expected[key], key


@pytest.mark.parametrize("case", FOUND, ids=lambda case: case.name)
def test_case_comes_out_as_expected(case: Path) -> None:
    expected = expected_of(case)
    assert_as_expected(diagnose(case), expected)
    if "json_pattern" in expected:
        assert_as_expected(diagnose(case, expected["json_pattern"]), expected)


@pytest.mark.parametrize(
    "case",
    [case for case in FOUND if "stuck_at" in expected_of(case)],
    ids=lambda case: case.name,
)
def test_line_where_a_suspect_is_stuck(case: Path) -> None:
    stuck_at = expected_of(case)["stuck_at"]
    details = {suspect.rank: suspect for suspect in diagnose(case).details}
    for rank, place in stuck_at.items():
        location = details[int(rank)].location
        assert location is not None
        assert f"{Path(location.filename).name}:{location.line}" == place.split(" ")[0]


def test_two_device_errors_among_16_ranks_are_named_with_no_rank_of_another_stage() -> None:
    case = CASES / "nvrx_megatron_gpu_error_16ranks"
    if not case.exists():
        pytest.skip("not here")
    diagnosis = diagnose(case)
    assert diagnosis.suspects[0] == 12
    assert set(diagnosis.suspects) <= {12, 13, 14, 15}
    assert diagnosis.notes


def _copied(case: Path, to: Path) -> dict[int, Path]:
    """A case's dumps in a folder of their own, by rank."""
    to.mkdir()
    copies = {}
    for path in case.glob(expected_of(case)["pattern"]):
        copies[int(path.name.rpartition("_")[2])] = Path(shutil.copy(path, to))
    return copies


NAMED = [case for case in FOUND if expected_of(case).get("suspects")]


@pytest.mark.parametrize("case", NAMED, ids=lambda case: case.name)
def test_dropping_a_victims_dump_keeps_the_suspects(case: Path, tmp_path: Path) -> None:
    expected = expected_of(case)
    suspects = set(expected["suspects"])
    victims = sorted(set(range(expected["world_size"])) - suspects)
    if len(expected.get("victims", victims)) < 2:
        return  # nobody would be left that waits
    for victim in {victims[0], victims[-1]}:
        copies = _copied(case, tmp_path / f"without_{victim}")
        if victim not in copies or len(copies) < 3 or suspects - copies.keys():
            continue  # with the culprit's dump gone too, both look alike
        copies[victim].unlink()
        diagnosis = analyze(copies[victim].parent, expected_world_size=expected["world_size"])
        assert set(diagnosis.suspects) == suspects, f"without rank {victim}"


@pytest.mark.parametrize("case", NAMED, ids=lambda case: case.name)
def test_the_order_of_files_does_not_matter(case: Path, tmp_path: Path) -> None:
    copies = _copied(case, tmp_path / "plain")
    reversed_ = tmp_path / "reversed"
    reversed_.mkdir()
    for rank in sorted(copies, reverse=True):
        # Names that sort the other way round, in folders as of one host each.
        host = reversed_ / f"host{len(copies) - rank:03d}"
        host.mkdir(exist_ok=True)
        shutil.copy(copies[rank], host)
    world = expected_of(case)["world_size"]
    diagnosis = analyze(reversed_ / "host*" / "*", expected_world_size=world)
    assert set(diagnosis.suspects) == set(expected_of(case)["suspects"])


def test_renumbered_ranks_give_renumbered_suspects(tmp_path: Path) -> None:
    """Turn the ranks of a one-group job round: only their numbers change."""
    for name, suspect in (("torchcomms_gloo_op_mismatch", 2), ("torchcomms_gloo_size_mismatch", 2)):
        case = CASES / name
        if not case.exists():
            pytest.skip("not here")
        folder = tmp_path / name
        copies = _copied(case, folder)
        dumps = {rank: pickle.loads(path.read_bytes()) for rank, path in copies.items()}  # noqa: S301
        for shift in (1, 2, 3):
            for rank, dump in dumps.items():
                new = (rank + shift) % len(dumps)
                (folder / f"rank_{new}").write_bytes(pickle.dumps(dump, protocol=2))
            assert analyze(folder).suspects == ((suspect + shift) % len(dumps),)
