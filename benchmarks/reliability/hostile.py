"""Hostile and broken input: ``python -m benchmarks.reliability.hostile``.

Sets off all bombs, changes real dumps some thousand times, and has hypothesis and a coverage-guided
fuzzer look for input that breaks what must hold. What ``tests/hostile`` does for a moment is done
here at length, by the same code. Ends with status 1 where anything was found.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy
from tests.hostile import bombs, dumps, pickle_tricks
from tests.hostile.mutations import GOOD, KINDS, Outcome, judged, real_jobs

from benchmarks.reliability.fuzz import TARGETS, fuzz
from benchmarks.reliability.kept import Table, keep
from fr_analysis.read import read_dump
from fr_analysis.trace import Unread

SEED = 20261201
"""Of the mutations, and of hypothesis."""

ENDED = {0: "an answer", 1: "an answer", 2: "a reason", 3: "an answer, or a reason"}


def changed_dumps(count: int, problems: list[str]) -> Table:
    """Real dumps, changed, and what became of the answers."""
    jobs = real_jobs()
    counted: Counter[tuple[str, Outcome]] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for number, changed, outcome, told in judged(jobs, SEED, range(count), Path(folder)):
            counted[changed.kind, outcome] += 1
            if outcome not in GOOD:
                problems.append(f"mutation {number}, {changed.kind}: {outcome}: {told}")
    order = (Outcome.SAME, Outcome.REFUSED, Outcome.OTHER)

    def row(name: str, kinds: Iterable[str]) -> tuple[str, ...]:
        numbers = [sum(counted[kind, outcome] for kind in kinds) for outcome in order]
        bad = sum(counted[kind, outcome] for kind in kinds for outcome in set(Outcome) - GOOD)
        return name, *(f"{number:,}" for number in (sum(numbers) + bad, *numbers, bad))

    files = sum(len(job.files) for job in jobs)
    return Table(
        f"Real dumps, changed: {files} files of {len(jobs)} jobs, seed {SEED}",
        (
            *("What was done to a file", "Changed files", "Same answer", "Refused, with a reason"),
            *("A whole dump of other content", "Crashes and wrong answers"),
        ),
        [*(row(kind, [kind]) for kind in KINDS), row("all", KINDS)],
    )


def bombs_set_off(problems: list[str]) -> Table:
    """Every bomb, set off in a process of its own."""
    rows = []
    for name in bombs.MADE:
        with tempfile.TemporaryDirectory() as folder:
            ran, wrong = bombs.defused(name, Path(folder))
            size = (Path(folder) / "rank_0").stat().st_size
        if wrong:
            problems.append(f"bomb {name}: {wrong}")
        ended = wrong or ENDED[ran.status]
        peak = f"{ran.peak_bytes >> 20:,} MB"
        rows.append((name, f"{size:,}", ended, f"{ran.seconds:.1f} s", peak))
    return Table(
        f"Bombs: the whole command, within {bombs.SECONDS} s and {bombs.MEMORY >> 30} GB",
        ("Bomb", "Bytes", "Ended with", "Took", "Peak memory"),
        rows,
    )


def tricks_refused(problems: list[str]) -> Table:
    """Pickles that would run code where they are unpickled without care."""
    rows = []
    for name, group in (
        ("one for each opcode that imports, calls or builds", pickle_tricks.OPCODES),
        ("names that scanners let pass", pickle_tricks.NAMES),
        ("places where scanners do not look", pickle_tricks.PLACES),
    ):
        refused = bites = 0
        for trick, content in group.items():
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "rank_0"
                path.write_bytes(content)
                is_refused = isinstance(read_dump(0, path), Unread)
            refused += is_refused
            bites += trick not in pickle_tricks.LEAVE_NO_MARK
            if not is_refused and trick not in pickle_tricks.ARE_DUMPS:
                problems.append(f"trick {trick}: not refused")
        rows.append((name, f"{len(group)}", f"{bites}", f"{refused}"))
    return Table(
        "Pickles that run code where they are loaded without care",
        ("Kind", "Pickles", "Run code with ``pickle.load``", "Refused"),
        rows,
    )


def _made(
    made: SearchStrategy[Any], holds: Callable[[Any], None], examples: int
) -> tuple[int, str | None]:
    """How many inputs hypothesis has tried, and what broke with one of them, if any did."""
    tried = 0

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @seed(SEED)
    @given(made)
    def look(one: Any) -> None:
        nonlocal tried
        tried += 1
        holds(one)

    try:
        look()
    except Exception as error:
        return tried, repr(error)
    return tried, None


def looked_for(examples: int, seconds: int, problems: list[str]) -> Table:
    """Inputs that break what must hold, looked for in two ways."""
    rows = []
    for name, (made, holds) in dumps.PROPERTIES.items():
        tried, broken = _made(made, holds, examples)
        if broken:
            problems.append(f"hypothesis, {name}: {broken}")
        found = "1" if broken else "0"
        rows.append((name, "hypothesis", f"{tried:,}", "not measured", found))
    for target in TARGETS if importlib.util.find_spec("atheris") else ():
        ran = fuzz(target, seconds)
        problems += [f"atheris, {target.name}: {one}" for one in ran.findings]
        how = f"atheris, {ran.seconds} s"
        rows.append(
            (target.name, how, f"{ran.executions:,}", f"{ran.edges:,}", f"{len(ran.findings)}")
        )
    return Table(
        "Input that breaks what must hold, looked for",
        ("Of what", "By", "Inputs tried", "Branches reached", "Found"),
        rows,
    )


def main() -> int:
    """Measure, keep, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutations", type=int, default=200 * len(KINDS))
    parser.add_argument("--examples", type=int, default=400, help="of hypothesis, per property")
    parser.add_argument("--seconds", type=int, default=60, help="of the fuzzer, per target")
    options = parser.parse_args()
    problems: list[str] = []
    tables = [
        changed_dumps(options.mutations, problems),
        tricks_refused(problems),
        bombs_set_off(problems),
        looked_for(options.examples, options.seconds, problems),
    ]
    packages = ["fr-analysis", "numpy", "hypothesis"]
    if importlib.util.find_spec("atheris"):
        packages.append("atheris")
    else:
        print("atheris is not installed (pip install -e '.[fuzz]'): the fuzzer was left out.")
    command = "python -m benchmarks.reliability.hostile " + " ".join(sys.argv[1:])
    keep("hostile", command.strip(), tables, packages)
    print("\n".join(problems) or "Nothing was found.")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
