"""Columns over all ranks: what a function says of each operation's signature and stack."""

import pickle
from pathlib import Path

from tests.plain_dumps import dump, entry

from fr_analysis.match.columns import EndToEnd
from fr_analysis.read import read_trace
from fr_analysis.trace import Frame, Signature


def test_a_table_that_ranks_share_is_asked_about_once(tmp_path: Path) -> None:
    without_stack = [entry(1), entry(2, frames=[])]
    for rank, content in enumerate((*[dump(4)] * 3, dump(4, 2) | {"entries": without_stack})):
        (tmp_path / f"trace_{rank}").write_bytes(pickle.dumps(content))
    trace = read_trace(tmp_path)
    columns = EndToEnd(trace)
    asked: list[Signature] = []

    def number(signature: Signature) -> int:
        asked.append(signature)
        return 7

    def depth(stack: tuple[Frame, ...]) -> int:
        return len(stack)

    assert columns.of_signatures(number).tolist() == [7] * 11
    assert len(asked) < len(trace.dumps)
    assert columns.of_stacks(depth).tolist() == [2] * 10 + [0]
