"""From a debug server (``torch.distributed.debug``, torch 2.13) to what its ranks have recorded.

The server has a front page on rank 0's host and a worker in every rank's process. Which rank
listens where is a key ``debug_server/rank<N>`` of the job's store, value ``http://HOST:PORT``,
and the page ``/tcpstore`` lists all keys. Workers answer ``POST /handler/<name>``:
``fr_trace_json``, ``dump_nccl_trace_json`` and ``torchcomms_fr_trace_json`` with the recorder's
dump as JSON, each only where there is such a recorder, and ``dump_traceback`` with
faulthandler's text. They do so from threads of their own while the program hangs.

Where no worker can be reached from here, behind a firewall or a tunnel, the front's own pages
pass on what it has collected: HTML with one ``<h2>Rank N: URL</h2><pre>...</pre>`` per rank. They
wait for a silent rank as long as the job has set (60 s).
"""

from __future__ import annotations

import asyncio
import html
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from fr_analysis.attribute.evidence import named_ranks
from fr_analysis.attribute.frames import is_torch
from fr_analysis.errors import FrAnalysisError, UnreadableDump
from fr_analysis.live.fetch import MAX_ANSWER, Address, Answer, Contact, ask, run
from fr_analysis.match.semantics import operation_name
from fr_analysis.read.decode import load_json
from fr_analysis.read.dump import MAX_RANK, build_dump
from fr_analysis.read.stacks import stacks_of_rank
from fr_analysis.trace import Completion, RankDump, RankStacks, Silence, Trace, Unread

RECORDERS = {
    "fr_trace_json": "/fr_trace_json",
    "dump_nccl_trace_json": "/fr_trace_nccl_json",
    "torchcomms_fr_trace_json": "/torchcomms_fr_trace_json",
}
"""The workers' names of the recorders, and the front's pages of them."""
STACKS = "dump_traceback"
STACKS_PAGE = "/stacks"

MOST_STACKS = 4 << 20
"""Bytes that are read of a rank's stacks: a thousand threads with forty frames each."""
AT_ONCE = 64
"""Ranks that are asked at the same time; each takes four connections."""
MOST_SILENT = 6 * AT_ONCE
"""After so many silent ranks the rest is not asked: that took six timeouts."""
FEWEST_KNOWN = 64
"""A job whose ranks are coming up may lack so many addresses, and as many as it has."""
PAGE_S = 60.0
"""How long the front's pages wait for a silent rank if the job sets nothing else."""

_HOST = r"((?:(?!['\"/<>])[!-~])+)"
"""It is printed: in ASCII, as names of hosts are, it cannot command the terminal."""
# No blank line begins a search anew.
_KEY = re.compile(
    rf"^[ \t]*debug_server/rank(\d{{1,6}}): b(['\"])(?:http://{_HOST}:(\d{{1,5}})\2)?", re.M
)
_HEADING = re.compile(
    rf"^[ \t]*<h2>Rank (\d{{1,6}}): http://{_HOST}:(\d{{1,5}})/[^<\n]*</h2>", re.M
)
_FAILED = re.compile(r"<p>Failed to fetch: status=(\d{3})</p>")


_FRONT_ERRORS = {
    "408": "the debug server got no answer in time",
    "503": "the debug server got no connection",
}
"""What the front made of a rank that did not answer it, by the status on its pages."""

NO_RANKS: Mapping[int, Answer] = {}


class NoServerError(FrAnalysisError):
    """No debug server answers at an address, or what answers is none.

    ``is_gone``: nobody listens there at all.
    """

    def __init__(self, message: str, *, is_gone: bool = False) -> None:
        super().__init__(message)
        self.is_gone = is_gone


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What all ranks had recorded at one moment.

    Attributes:
        trace: their dumps and stacks.
        taken_ns: when it was asked for, on this host's clock.
        notes: which ranks did not answer, and why.
        silent: ranks that did not answer at all, and how they did not.
        without_front: why the debug server did not answer, where the ranks were asked at the
            addresses that it had told before.
        alone: no rank answered.
    """

    trace: Trace
    taken_ns: int
    notes: tuple[str, ...] = ()
    silent: Mapping[int, Answer] = field(default_factory=dict)
    without_front: str = ""

    @property
    def alone(self) -> bool:
        """Whether nobody answered."""
        return not self.trace.dumps


@dataclass(slots=True)
class _Rank:
    """What one rank answered, read.

    ``shows_host`` says whether any answer of it came from its host, if only a refusal.
    """

    rank: int
    address: Address | None
    shows_host: bool = False
    dumps: dict[str, RankDump] = field(default_factory=dict)
    unreadable: str | None = None
    stacks: RankStacks | None = None
    trouble: Answer | None = None

    @property
    def source(self) -> Path:
        """Where its answers came from."""
        return Path(str(self.address or "no address"))


def parse_url(url: str) -> Address:
    """Read the address of a debug server's front page.

    Args:
        url: ``http://HOST:PORT``, with or without the scheme and a path.

    Returns:
        The address; the port is 25999 where none is given.

    Raises:
        NoServerError: it is no such address.
    """
    # What is printed must not command the terminal.
    url = url.strip()
    shown = url if url.isprintable() else ascii(url)
    if url.lower().startswith("https://"):
        raise NoServerError(
            f"--url {shown}: the debug server speaks http only, expected http://HOST:PORT"
        )
    found = re.fullmatch(
        r"(?i:http://)?(?:\[([0-9A-Fa-f:.%]+)\]|([^\s/:@\[\]]+))(?::(\d{1,5}))?(?:/.*)?", url
    )
    if not found or not url.isprintable() or not 0 < int(found[3] or 25999) < 65536:
        raise NoServerError(f"--url {shown}: expected http://HOST:PORT, such as http://node0:25999")
    return Address(found[1] or found[2], int(found[3] or 25999))


# -- reading what was answered ----------------------------------------------------------------


_SHOWS_HOST = frozenset({Contact.ANSWERED, Contact.SILENT, Contact.GONE})
"""So far a question comes only where there is a host."""


def _read_rank(
    rank: int, address: Address | None, answers: Mapping[str, Answer], taken_ns: int
) -> _Rank:
    """Read what one rank answered to all questions."""
    found = _Rank(rank, address)
    found.shows_host = any(answer.contact in _SHOWS_HOST for answer in answers.values())
    for name in RECORDERS:
        answer = answers[name]
        if answer.status == 404:
            continue  # a recorder that this build of torch does not have
        if not answer.is_good:
            why = answer.error or f"it answered {name} with status {answer.status}"
            if answer.contact is Contact.ANSWERED:
                found.unreadable = why
            elif not found.trouble or answer.contact in _SHOWS_HOST:
                found.trouble = answer
            continue
        try:
            dump = build_dump(load_json(answer.body), rank, found.source)
            found.dumps[name] = replace(dump, written_ns=taken_ns)
        except UnreadableDump as error:
            found.unreadable = f"what it answered to {name} {error}"
    if not found.dumps and not found.unreadable and not found.trouble:
        found.unreadable = "it has no Flight Recorder to ask: it answered 404 to all of them"
    stacks = answers[STACKS]
    if stacks.is_good:
        text = stacks.body.decode("utf-8", errors="replace")
        found.stacks = stacks_of_rank(rank, found.source, text)
    else:
        why = stacks.error or f"status {stacks.status}"
        found.stacks = RankStacks(rank, found.source, (), f"no stacks: {why}")
    return found


def _with_line(dump: RankDump, stacks: RankStacks | None) -> RankDump:
    """Give what a rank is in now the line of code that called it, from the rank's stacks.

    Workers answer without the recorder's own frames (torch 2.13).
    """
    operations = dump.operations
    if dump.stacks or not stacks or not len(operations):
        return dump
    if operations.completion[-1] != Completion.PENDING:
        return dump
    name = operation_name(dump.signatures[operations.signature[-1]].operation)
    for thread in stacks.threads:
        if any(frame.name == name and is_torch(frame) for frame in thread.frames):
            stack = operations.stack.copy()
            stack[-1] = 0
            return replace(
                dump, operations=replace(operations, stack=stack), stacks=(thread.frames,)
            )
    return dump


_TROUBLES = {
    Contact.SILENT: "did not answer ({reason}): the process is stopped, or its host is "
    "overloaded or cut off",
    Contact.NO_CONNECTION: "did not answer ({reason}), although others on the same host do: the "
    "process is stopped, most likely",
    Contact.GONE: "did not answer ({reason}): the process has ended, most likely",
}
MOST_HOSTS = 4
"""Hosts that a note names."""


def _reached_hosts(ranks: Iterable[_Rank]) -> set[str]:
    """Hosts from which an answer came, be it a refusal."""
    return {found.address.host for found in ranks if found.address and found.shows_host}


def _silences(ranks: list[_Rank]) -> dict[int, Silence]:
    """How ranks that gave no answer did not.

    What lets no connection come about is the rank's own fault only where others on its host answer.
    """
    hosts = _reached_hosts(ranks)
    return {
        found.rank: Silence(
            found.trouble.error,
            found.trouble.contact is not Contact.UNREACHABLE
            and found.address is not None
            and found.address.host in hosts,
        )
        for found in ranks
        if found.trouble and not found.dumps
    }


def _unreached_note(reason: str, ranks: list[_Rank], reached: set[str]) -> str:
    """What is known of ranks that could not be reached for the same reason."""
    note = f"{named_ranks([found.rank for found in ranks])} could not be reached ({reason})"
    hosts = dict.fromkeys(found.address.host for found in ranks if found.address)
    lost = [host for host in hosts if host not in reached]
    if not lost:
        return note
    named = ", ".join(lost[:MOST_HOSTS])
    if len(lost) > MOST_HOSTS:
        named += f" and {len(lost) - MOST_HOSTS} more hosts"
    return (
        f"{note}, nor could anything else at {named}: a host is down or the way to it is cut, and "
        "its ranks may wait like the others; look at the host, or ask from one that reaches it"
    )


def _trouble_notes(ranks: list[_Rank], silences: Mapping[int, Silence]) -> list[str]:
    """One note per way in which ranks did not answer."""
    unreached: dict[str, list[_Rank]] = defaultdict(list)
    alike: dict[Answer, list[_Rank]] = defaultdict(list)
    for found in ranks:
        silence = silences.get(found.rank)
        if silence and not silence.is_reached:
            unreached[silence.reason].append(found)
        elif silence and found.trouble:
            alike[found.trouble].append(found)
    reached = _reached_hosts(ranks)
    notes = [_unreached_note(reason, found, reached) for reason, found in unreached.items()]
    for trouble, silent in alike.items():
        who = named_ranks([found.rank for found in silent])
        if len(silent) == 1:
            who += f" at {silent[0].source}"
        notes.append(f"{who} {_TROUBLES[trouble.contact].format(reason=trouble.error)}")
    return notes


def _snapshot(ranks: list[_Rank], taken_ns: int) -> Snapshot:
    """Put the ranks' answers together, of the recorder that most of the job uses."""
    recorded = {
        name: sum(len(found.dumps[name].operations) for found in ranks if name in found.dumps)
        for name in RECORDERS
    }
    used = max(recorded, key=lambda name: recorded[name])
    others = [name for name, count in recorded.items() if count and name != used]
    dumps: dict[int, RankDump] = {}
    for found in ranks:
        dump = found.dumps.get(used) or next(iter(found.dumps.values()), None)
        if dump is not None:
            dumps[found.rank] = _with_line(dump, found.stacks)
    silences = _silences(ranks)
    notes = _trouble_notes(ranks, silences)
    if others:
        notes.append(
            f"the job records in {', '.join(others)} as well, which is left out: this answer is "
            f"about {used} only"
        )
    if dumps and not any(recorded.values()):
        notes.append(
            "no rank has recorded an operation: where the recorder is off, "
            "TORCH_FR_BUFFER_SIZE=2000 in the job's environment switches it on"
        )
    speechless = [r.rank for r in ranks if r.dumps and r.stacks and not r.stacks.threads]
    if speechless:
        notes.append(
            f"{named_ranks(speechless)} answered what was recorded but not its stacks, so the line "
            "of code that it is at is not known"
        )
    return Snapshot(
        trace=Trace(
            dumps=dumps,
            stacks={r.rank: r.stacks for r in ranks if r.stacks and r.stacks.threads},
            unread=tuple(
                Unread(found.source, found.unreadable, found.rank)
                for found in ranks
                if found.unreadable and not found.dumps
            ),
            expected_world_size=len(ranks),
            silences=silences,
        ),
        taken_ns=taken_ns,
        notes=tuple(notes),
        silent={r.rank: r.trouble for r in ranks if r.trouble and not r.dumps},
    )


# -- asking ---------------------------------------------------------------------------------


_QUESTIONS = (*RECORDERS, STACKS)


def _unasked(rank: int, address: Address | None, known: Answer) -> _Rank:
    """A rank that is not asked, since what would come of it is known."""
    return _read_rank(rank, address, dict.fromkeys(_QUESTIONS, known), time.time_ns())


async def _ask_rank(rank: int, address: Address, timeout_s: float) -> _Rank:
    """Ask one rank everything at once, and read it in a thread: others are being asked."""
    taken_ns = time.time_ns()
    asked = (
        ask(
            address,
            "POST",
            f"/handler/{name}",
            timeout_s=timeout_s,
            limit=MOST_STACKS if name == STACKS else MAX_ANSWER,
        )
        for name in _QUESTIONS
    )
    answers = dict(zip(_QUESTIONS, await asyncio.gather(*asked), strict=True))
    return await asyncio.to_thread(_read_rank, rank, address, answers, taken_ns)


async def _ask_ranks(
    addresses: Mapping[int, Address | None], timeout_s: float, silent: Mapping[int, Answer]
) -> list[_Rank]:
    """Ask all ranks, so many at once; waiting takes a few timeouts altogether at most."""
    late = Answer(Contact.UNREACHABLE, error="not asked: too many others did not answer")
    nowhere = Answer(Contact.UNREACHABLE, error="the job's store holds no address of it")
    ranks: list[_Rank] = []
    waiting = sorted(addresses)[::-1]
    running: set[asyncio.Task[_Rank]] = set()
    given_up = 0
    while waiting or running:
        while waiting and len(running) < AT_ONCE:
            rank = waiting.pop()
            address = addresses[rank]
            if address is None or rank in silent:
                ranks.append(_unasked(rank, address, silent.get(rank, nowhere)))
            elif given_up > MOST_SILENT:
                ranks.append(_unasked(rank, None, late))
            else:
                running.add(asyncio.create_task(_ask_rank(rank, address, timeout_s)))
        if running:
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            answered = [task.result() for task in done]
            ranks.extend(answered)
            given_up += sum(1 for found in answered if found.trouble)
    return sorted(ranks, key=lambda found: found.rank)


def collect_ranks(
    addresses: Mapping[int, Address | None],
    timeout_s: float,
    silent: Mapping[int, Answer] = NO_RANKS,
) -> Snapshot:
    """Ask every rank's worker for what it has recorded and for its stacks.

    Args:
        addresses: where each rank's worker listens; None where that is not known.
        timeout_s: seconds that each of them has to answer.
        silent: ranks that did not answer a moment ago and are not asked again.

    Returns:
        The snapshot. It takes a few times ``timeout_s`` at most, plus reading the answers.
    """
    taken_ns = time.time_ns()
    return _snapshot(run(_ask_ranks(addresses, timeout_s, silent)), taken_ns)


def _front_answer(server: Address, answer: Answer) -> Answer:
    """Let an answer of the front pass, or say why there is none."""
    start = f"http://{server}: "
    hint = (
        "start it in the job with start_debug_server(), or name the host and port of rank 0, "
        "where it runs"
    )
    if answer.contact in (Contact.SILENT, Contact.NO_CONNECTION):
        raise NoServerError(f"{start}{answer.error}; is rank 0's host up, and reached from here?")
    if answer.contact is not Contact.ANSWERED:
        raise NoServerError(
            f"{start}no debug server answers there ({answer.error}); {hint}",
            is_gone=answer.contact is Contact.GONE,
        )
    if answer.error:
        raise NoServerError(f"{start}is no debug server of torch: {answer.error}; {hint}")
    return answer


def _text(answer: Answer) -> str:
    return answer.body.decode("utf-8", errors="replace")


async def _find_ranks(
    server: Address, timeout_s: float, is_known: bool
) -> dict[int, Address | None]:
    """Learn from the front where the ranks' workers listen.

    ``is_known``: they are known from before, so that nothing need be asked that takes long.
    """
    found: dict[int, Address | None] = {}
    whole = True
    answer = _front_answer(server, await ask(server, "GET", "/tcpstore", timeout_s=timeout_s))
    for rank, _, host, port in _KEY.findall(_text(answer)) if answer.is_good else ():
        whole = whole and bool(host)  # the page cuts long values
        found[int(rank)] = Address(host, int(port)) if host else None
    if (not found or not whole) and not is_known:
        # A page that asks the ranks: it waits for silent ones.
        page = await ask(server, "GET", STACKS_PAGE, timeout_s=timeout_s + PAGE_S)
        text = _text(_front_answer(server, page))
        listed = {
            int(rank): Address(host, int(port)) for rank, host, port in _HEADING.findall(text)
        }
        found |= listed
    if not found:
        raise NoServerError(
            f"http://{server}: is no debug server of torch (/tcpstore: status {answer.status}, and "
            f"{STACKS_PAGE} names no rank); name the host and port of rank 0, where it runs"
        )
    highest = max(found)
    if highest >= 2 * len(found) + FEWEST_KNOWN:
        raise NoServerError(
            f"http://{server}: it names {len(found)} rank{'s' if len(found) != 1 else ''}, one of "
            f"them rank {highest}: no job that runs has so many ranks without an address"
        )
    size = min(max(found), MAX_RANK) + 1
    return {rank: found.get(rank) for rank in range(size)}


def page_answers(text: str) -> dict[int, Answer]:
    """Read one of the front's pages that hold one answer per rank.

    Args:
        text: the page. torch 2.13 puts answers into it as they are; escaped ones are read, too.

    Returns:
        What each rank answered to the front.
    """
    answers: dict[int, Answer] = {}
    headings = list(_HEADING.finditer(text))
    for at, heading in enumerate(headings):
        end = headings[at + 1].start() if at + 1 < len(headings) else len(text)
        section = text[heading.end() : end]
        # The ranks' text may hold such tags itself.
        content = section.partition("<pre>")[2].rpartition("</pre>")[0]
        failed = _FAILED.search(section)
        if failed:
            contact = Contact.SILENT if failed[1] == "408" else Contact.GONE
            known = contact if failed[1] in _FRONT_ERRORS else Contact.ANSWERED
            error = "" if known is Contact.ANSWERED else _FRONT_ERRORS[failed[1]]
            answers[int(heading[1])] = Answer(known, int(failed[1]), b"", error)
            continue
        if "<" not in content:
            content = html.unescape(content)
        answers[int(heading[1])] = Answer(Contact.ANSWERED, 200, content.encode())
    return answers


async def _ask_front(
    server: Address, addresses: Mapping[int, Address | None], timeout_s: float
) -> list[_Rank] | None:
    """Have the front ask the ranks; None where its pages do not help either."""
    taken_ns = time.time_ns()
    pages = {**RECORDERS, STACKS: STACKS_PAGE}
    asked = (ask(server, "GET", page, timeout_s=timeout_s + PAGE_S) for page in pages.values())
    answers = {}
    for name, answer in zip(pages, await asyncio.gather(*asked), strict=True):
        # A page fails with status 500 where any rank answered it with something else than JSON.
        answers[name] = page_answers(_text(answer)) if answer.is_good else {}
    none = Answer(Contact.ANSWERED, 404)
    ranks = [
        _read_rank(rank, address, {name: answers[name].get(rank, none) for name in pages}, taken_ns)
        for rank, address in addresses.items()
    ]
    for found in ranks:
        # That the front did not reach a rank has many reasons, and it tells none of them.
        found.shows_host = bool(found.dumps or (found.stacks and found.stacks.threads))
    return ranks if any(found.dumps for found in ranks) else None


class Job:
    """A running job, which can be asked again and again."""

    def __init__(self, url: str, timeout_s: float) -> None:
        """Take down where a job is asked; nothing is asked yet.

        Args:
            url: of the job's debug server, ``http://HOST:25999`` on rank 0's host.
            timeout_s: seconds that each rank has to answer.

        Raises:
            NoServerError: the URL is none.
        """
        self._server = parse_url(url)
        self._timeout_s = timeout_s
        self._addresses: dict[int, Address | None] = {}

    def take(self, silent: Mapping[int, Answer] = NO_RANKS) -> Snapshot:
        """Ask all ranks for what they have recorded and for their stacks.

        Where the debug server does not answer any more, the ranks are asked where it told before
        that they listen: its process may be stuck, or rank 0's host cut off, while the job runs.

        Args:
            silent: ranks that did not answer a moment ago and are not asked again.

        Returns:
            The snapshot. Ranks that do not answer are in its ``silent`` and ``notes``.

        Raises:
            NoServerError: no debug server answers there, and no rank that is known.
        """
        return run(self._take(silent))

    async def _take(self, silent: Mapping[int, Answer]) -> Snapshot:
        taken_ns = time.time_ns()
        try:
            addresses = await _find_ranks(self._server, self._timeout_s, bool(self._addresses))
        except NoServerError as error:
            # A server that refuses connections has ended, and the ranks do so one by one.
            if error.is_gone or not self._addresses:
                raise
            return await self._take_without_front(error, silent)
        known = {rank: told for rank, told in self._addresses.items() if rank in addresses}
        # What the page cut this time was found elsewhere before.
        addresses = {rank: told or known.get(rank) for rank, told in addresses.items()}
        self._addresses = addresses
        ranks = await _ask_ranks(addresses, self._timeout_s, silent)
        if not any(found.dumps or found.unreadable for found in ranks):
            passed_on = await _ask_front(self._server, addresses, self._timeout_s)
            if passed_on is not None:
                note = (
                    "no rank can be reached from here, so the debug server's own pages were read: "
                    "they hold no completed operations of NCCL and TorchComms"
                )
                snapshot = _snapshot(passed_on, taken_ns)
                return replace(snapshot, notes=(*snapshot.notes, note))
        return _snapshot(ranks, taken_ns)

    async def _take_without_front(
        self, error: NoServerError, silent: Mapping[int, Answer]
    ) -> Snapshot:
        taken_ns = time.time_ns()
        ranks = await _ask_ranks(self._addresses, self._timeout_s, silent)
        if not any(found.dumps or found.unreadable for found in ranks):
            raise NoServerError(f"{error}; no rank answers either") from None
        snapshot = _snapshot(ranks, taken_ns)
        note = f"{error}; the ranks were asked where it had told before that they listen"
        return replace(snapshot, notes=(note, *snapshot.notes), without_front=str(error))
