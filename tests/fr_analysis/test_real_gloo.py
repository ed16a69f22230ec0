"""Who is blamed for faults of real Gloo ranks, from what torch's native recorder says of them.

``gloo_faults.py`` makes the faults. ``after`` dumps are taken when all ranks are in the
call that ends their part; ``during`` dumps mostly before what then fails has failed.
"""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import pytest

from fr_analysis import Diagnosis, FaultKind, Verdict, analyze
from rank_lab import RunRecord, run_ranks

FIXTURE = Path(__file__).with_name("gloo_faults.py")

# fault, dumps, kind, suspects, victims
BLAMED: list[tuple[str, str, str, tuple[int, ...], tuple[int, ...]]] = [
    ("asleep", "after", "rank_missing", (2,), (0, 1, 3)),
    ("asleep_rank_0", "after", "rank_missing", (0,), (1, 2, 3)),
    ("asleep_after_the_ring_wrapped", "after", "rank_missing", (2,), (0, 1, 3)),
    ("asleep_while_the_others_ran_on", "after", "rank_missing", (2,), (0, 1, 3)),
    ("asleep_until_the_peers_timed_out", "after", "rank_missing", (2,), (0, 1, 3)),
    ("killed", "during", "rank_missing", (1,), (0, 2)),
    ("killed", "after", "rank_missing", (1,), (0, 2)),
    ("exception_swallowed", "after", "rank_missing", (1,), (0, 2, 3)),
    ("skip_that_depends_on_data", "after", "operation_mismatch", (3,), (0, 1, 2)),
    ("one_rank_has_fewer_inputs", "after", "rank_missing", (3,), (0, 1, 2)),
    # The others are idle, not missing: the one that is alone in a collective is to blame.
    ("one_rank_has_more_inputs", "after", "rank_missing", (3,), ()),
    ("other_order", "after", "operation_mismatch", (1,), (0, 2, 3)),
    ("other_operation_one_against_one", "after", "operation_mismatch", (), ()),
    ("other_size", "during", "size_mismatch", (0,), (1, 2, 3)),
    # Rank 3 was aborted by what rank 0 sent: no dump, so nobody says that it waits.
    ("other_size", "after", "size_mismatch", (0,), (1, 2)),
    # Gloo compares bytes and takes fewer than it expects: these two are complete, and wrong.
    ("other_dtype", "after", "dtype_mismatch", (1,), ()),
    ("wrong_splits", "after", "split_mismatch", (2,), ()),
    ("groups_entered_in_opposite_order", "after", "order_deadlock", (0, 1), ()),
    ("mesh_with_a_rank_asleep", "after", "rank_missing", (3,), (0, 1, 2)),
    ("mesh_with_two_ranks_asleep", "after", "rank_missing", (1, 3), (0, 2)),
]

# Gloo's recorder does not say who belongs to a group. While none of a group's operations is
# complete its members are not known, nor, with them, who is missing.
UNDETERMINED = ["groups_created_in_another_order", "groups_first_used_in_opposite_order"]

# new_group and recv leave no entry: these dumps do not differ from those of an idle job.
LOOKS_IDLE = ["healthy", "group_that_a_member_did_not_create", "receive_that_nobody_sends"]

ALL = [*dict.fromkeys(fault for fault, *_ in BLAMED), *UNDETERMINED, *LOOKS_IDLE]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    """Make every fault, on four ranks."""
    folder = tmp_path_factory.mktemp("gloo") / "run"
    record = run_ranks(FIXTURE, nproc=4, run_dir=folder, deadline_s=300, args=ALL)
    assert record.exit_status == 0, record.launcher_output + record.text
    return record


def diagnose(run: RunRecord, fault: str, when: str) -> Diagnosis:
    """Analyze the dumps of one fault."""
    return analyze(run.dump_dir / fault / when)


@pytest.mark.parametrize(
    ("fault", "when", "kind", "suspects", "victims"),
    BLAMED,
    ids=[f"{fault}-{when}" for fault, when, *_ in BLAMED],
)
def test_blames_who_is_at_fault(
    run: RunRecord,
    fault: str,
    when: str,
    kind: str,
    suspects: tuple[int, ...],
    victims: tuple[int, ...],
) -> None:
    diagnosis = diagnose(run, fault, when)
    assert diagnosis.verdict is Verdict.FAULT
    assert {found.kind for found in diagnosis.faults} == {FaultKind(kind)}
    assert tuple(sorted(diagnosis.suspects)) == suspects
    assert diagnosis.victims == victims
    assert not diagnosis.unread


def test_who_waits_is_a_victim_also_where_the_odd_rank_has_failed(
    run: RunRecord, tmp_path: Path
) -> None:
    """Whether the odd rank's mark comes before or after its dump, a run of the fault decides."""
    folder = shutil.copytree(run.dump_dir / "other_size" / "during", tmp_path / "dumps")
    path = folder / "rank_0"
    dump = pickle.loads(path.read_bytes())  # noqa: S301
    dump["entries"][-1]["retired"] = True
    path.write_bytes(pickle.dumps(dump))
    diagnosis = analyze(folder)
    assert (diagnosis.suspects, diagnosis.victims) == ((0,), (1, 2, 3))


@pytest.mark.parametrize("fault", UNDETERMINED)
def test_abstains_where_nobody_knows_the_members(run: RunRecord, fault: str) -> None:
    diagnosis = diagnose(run, fault, "after")
    assert diagnosis.verdict is Verdict.UNDETERMINED
    assert diagnosis.suspects == diagnosis.victims == ()
    assert any("no dump tells the members" in note for note in diagnosis.notes)


@pytest.mark.parametrize("fault", LOOKS_IDLE)
def test_says_what_gloo_does_not_record_where_nothing_is_outstanding(
    run: RunRecord, fault: str
) -> None:
    diagnosis = diagnose(run, fault, "after")
    assert diagnosis.verdict is Verdict.HEALTHY
    assert diagnosis.faults == ()
    assert any("records no send, recv" in note for note in diagnosis.notes)


def test_the_faults_were_what_they_claim(run: RunRecord) -> None:
    """The ring had wrapped, the timeout had passed, ranks had died: else the above is cheap."""

    def entries(fault: str, when: str, rank: int) -> list[dict[str, object]]:
        path = run.dump_dir / fault / when / f"rank_{rank}"
        dump = pickle.loads(path.read_bytes())  # noqa: S301 (written by our own run)
        found: list[dict[str, object]] = dump["entries"]
        return found

    assert entries("asleep_after_the_ring_wrapped", "after", 0)[0]["record_id"] == 46
    others_ran_on = entries("asleep_while_the_others_ran_on", "after", 0)
    assert {entry["process_group"] for entry in others_ran_on[:-1]} == {("1", "undefined")}
    assert entries("asleep", "after", 0)[-1]["retired"] is False
    assert entries("asleep_until_the_peers_timed_out", "after", 0)[-1]["retired"] is True
    assert entries("killed", "during", 0)[-1]["retired"] is False
    assert entries("killed", "after", 0)[-1]["retired"] is True
    assert "killed: exit -9" in run.ranks[1].stdout
    assert "other_size: exit -6" in run.ranks[3].stdout


def test_names_the_line_where_the_others_wait(run: RunRecord) -> None:
    (fault,) = diagnose(run, "asleep", "after").faults
    (call,) = fault.calls
    assert call.code is not None
    assert (Path(call.code.filename).name, call.code.name) == ("gloo_faults.py", "asleep")
    line = Path(call.code.filename).read_text(encoding="utf-8").splitlines()[call.code.line - 1]
    assert line.strip() == "dist.all_reduce(torch.ones(8))"
