"""Make a distributed job hang on purpose, and record the hang with Flight Recorder.

Run it with ``torchrun --nproc_per_node=2 verify_flight_recorder.py``.

Phase 1: every rank runs three ``all_reduce`` and one ``broadcast``. Phase 2: one rank is stuck in
host code while the others enter one more ``all_reduce`` and time out. Meanwhile the debug server
takes snapshots: in ``FR_DUMP_DIR``, ``per_rank/rank_<N>`` is the recorder of each rank,
``*fr_trace_<time>.txt`` are the recorders of all ranks as text, ``stacks_<time>.txt`` their Python
stacks. Then the stuck rank is released and the job ends.

It needs PyTorch 2.13 and what the debug server imports: ``pip install tabulate Jinja2 aiohttp``.
Environment variables, and their defaults:

* ``FR_DUMP_DIR`` (fr_dumps): a directory for the dumps, without those of an earlier run
* ``FR_DUMP_INTERVAL`` (2): seconds between snapshots
* ``COMM_TIMEOUT`` (15): seconds that a rank waits in a collective
* ``HANGING_RANK`` (1): the rank that gets stuck
* ``TEST_BACKEND`` (gloo): the backend; any other needs TorchComms
* ``TEST_DEVICE`` (cpu): cpu or cuda
* ``FR_COMMUNICATOR`` (auto): torchcomms, torch (torch.distributed) or auto
* ``DEBUG_PORT`` (25999): the debug server's port; a free one is used where it is taken
"""

import contextlib
import importlib.metadata
import json
import logging
import multiprocessing
import os
import pickle
import random
import socket
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

# The debug server of each rank warns that it starts and ends. Set before torch is imported.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

import torch
import torch.distributed as dist


def say(text):
    """Print a line with one write, so that the lines of several ranks do not mix."""
    print(f"[rank {RANK}] {text}\n", end="", flush=True)


def fail(message):
    """End the run with one line. Every rank finds the same fault; rank 0 speaks for all."""
    if os.environ.get("RANK", "0") != "0":
        time.sleep(60)  # torchrun ends this rank earlier: as soon as rank 0 has spoken and left
    sys.exit(f"verify_flight_recorder: {message}")


def setting(name, default, convert, is_valid, expected):
    """Read an environment variable."""
    text = os.environ.get(name, default)
    with contextlib.suppress(ValueError):
        if is_valid(convert(text)):
            return convert(text)
    return fail(f"{name}={text}: expected {expected}")


try:  # The server is young, and to extend it takes private modules.
    import aiohttp  # noqa: F401 (the server imports it when it is too late to complain)
    from torch._C._distributed_c10d import _dump_fr_trace, _register_handler
    from torch.distributed.debug import _debug_handlers as stock
    from torch.distributed.debug import start_debug_server, stop_debug_server
    from torch.distributed.debug._frontend import Response, fetch_all
except ImportError as error:
    fail(f"needs PyTorch 2.13, tabulate, Jinja2, aiohttp; in {torch.__version__}: {error}")
if "TORCHELASTIC_RUN_ID" not in os.environ:
    fail("start it with torchrun --nproc_per_node=2 verify_flight_recorder.py")

RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if WORLD_SIZE < 2:
    fail("one rank has nobody to wait for: start it with --nproc_per_node=2 or more")
FR_DUMP_DIR = Path(os.environ.get("FR_DUMP_DIR") or "fr_dumps")
PER_RANK = FR_DUMP_DIR / "per_rank"
COMM_TIMEOUT = setting("COMM_TIMEOUT", "15", float, lambda s: 1 <= s <= 3600, "1 to 3600 seconds")
few = f"seconds, from 0.1 to {COMM_TIMEOUT / 2:g} (half of COMM_TIMEOUT)"
FR_DUMP_INTERVAL = setting(
    "FR_DUMP_INTERVAL", "2", float, lambda s: 0.1 <= s <= COMM_TIMEOUT / 2, few
)
ranks = range(WORLD_SIZE)
HANGING_RANK = setting("HANGING_RANK", "1", int, ranks.__contains__, f"0 to {WORLD_SIZE - 1}")
TEST_BACKEND = os.environ.get("TEST_BACKEND", "gloo")
devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
TEST_DEVICE = setting("TEST_DEVICE", "cpu", str, devices.__contains__, " or ".join(devices))
gpu = RANK % torch.cuda.device_count() if TEST_DEVICE == "cuda" else None
DEVICE = torch.device(TEST_DEVICE, gpu)
kinds = ["auto", "torchcomms", "torch"]
FR_COMMUNICATOR = setting("FR_COMMUNICATOR", "auto", str, kinds.__contains__, " or ".join(kinds))
DEBUG_PORT = setting("DEBUG_PORT", "25999", int, range(1, 65536).__contains__, "1 to 65535")


class TorchComms:
    """TorchComms, recorded by its FlightRecorderHook."""

    text_dump = "torchcomms_fr_trace"  # the debug server's name for it

    def __init__(self):
        # Read at import or at first use: where a rank's dump goes, and how long a rank that has
        # timed out lingers before it raises.
        os.environ["TORCHCOMM_FR_DUMP_TEMP_FILE"] = str(PER_RANK / "rank_")
        os.environ["TORCHCOMM_HEALTH_CHECK_WAIT_MS"] = "1000"
        import torchcomms
        from torchcomms.hooks import FlightRecorderHook

        self.name = f"TorchComms {importlib.metadata.version('torchcomms')}"
        timeout = timedelta(seconds=COMM_TIMEOUT)
        self.comm = torchcomms.new_comm(TEST_BACKEND, DEVICE, name="main_comm", timeout=timeout)
        total = torchcomms.ReduceOp.SUM
        self.recorder = FlightRecorderHook()
        self.recorder.register_with_comm(self.comm)  # before the first operation, or it gets lost

        self.all_reduce = lambda tensor: self.comm.all_reduce(tensor, total, async_op=False)
        self.broadcast = lambda tensor, root: self.comm.broadcast(tensor, root, async_op=False)

    def has_pending(self):
        """Whether this rank is in an operation that is not over."""
        return bool(json.loads(self.recorder.dump_json(include_completed=False)).get("entries"))

    def write_dump(self):
        """Write per_rank/rank_<N>."""
        self.recorder.dump_file(RANK)

    def close(self):
        """Let go of the other ranks."""
        with contextlib.suppress(RuntimeError):  # after a timeout, it may be past a clean end
            self.comm.finalize()


class TorchDistributed:
    """torch.distributed on Gloo, recorded by the recorder inside PyTorch."""

    name = "torch.distributed"
    text_dump = "fr_trace"
    all_reduce = staticmethod(dist.all_reduce)
    broadcast = staticmethod(dist.broadcast)

    def __init__(self):
        if TEST_BACKEND != "gloo":
            fail(f"TEST_BACKEND={TEST_BACKEND}: expected gloo; others need TorchComms installed")
        os.environ["TORCH_FR_BUFFER_SIZE"] = "2000"  # entries; without it the recorder is off
        dist.init_process_group("gloo", timeout=timedelta(seconds=COMM_TIMEOUT))

    def has_pending(self):
        """Whether this rank is in an operation that is not over."""
        return any(not entry["retired"] for entry in self.dump()["entries"])

    def dump(self):
        """Return what this rank has recorded."""
        dump = _dump_fr_trace(includeCollectives=True, includeStackTraces=True, onlyActive=False)
        members = dist.get_process_group_ranks(dist.group.WORLD)
        return name_members(pickle.loads(dump), members)  # noqa: S301 (made by this process)

    def write_dump(self):
        """Write per_rank/rank_<N>."""
        dump = self.dump()
        if hangs_now():  # still, so it was taken during the hang
            unfinished = FR_DUMP_DIR / f".rank_{RANK}"
            unfinished.write_bytes(pickle.dumps(dump, protocol=2))
            unfinished.replace(PER_RANK / f"rank_{RANK}")  # no reader ever sees half a file

    def close(self):
        """Let go of the other ranks."""
        dist.destroy_process_group()


def choose_communicator():
    """Make the communicator asked for."""
    if FR_COMMUNICATOR != "torch":
        try:
            return TorchComms()
        except ImportError as error:  # the package of that name on PyPI raises it, too
            if FR_COMMUNICATOR == "torchcomms":
                fail(f"FR_COMMUNICATOR=torchcomms: it does not import: {one_line(error)}")
    return TorchDistributed()


def name_members(dump, members):
    """Fill in who belongs to a group: a dump of Gloo's lists only one group without a name.

    Entries name their group, and every tool looks that name up. This demo has one group.
    """
    dump["pg_config"].pop("", None)
    for entry in dump.get("entries", []):
        name, desc = entry["process_group"]
        group = {"name": name, "desc": desc, "ranks": str(members)}
        dump["pg_config"].setdefault(name, group)
    return dump


def one_line(error):
    """Shorten an error message, leaving out where in PyTorch it was raised."""
    return " ".join(str(error).split()).split("] ", 1)[-1].split(". ")[0]


# What the debug server asks of every rank. It calls from its own thread, while the main one hangs.

communicator = None
writing = threading.Lock()  # the server may ask again before it has had its answer
not_written = ""  # why the last dump could not be written
asked = threading.Event()  # set when the server first asks
hang_ends_at = 0.0  # when the first timeout may fire, on the clock of time.monotonic()


def hangs_now():
    """Whether the recorder shows the hang: once the timeout has fired, it no longer does.

    Gloo marks the operation that never happened as complete then.
    """
    waits = RANK != HANGING_RANK
    return communicator.has_pending() == waits and time.monotonic() < hang_ends_at


# A function of a module, not a method or a lambda: PyTorch holds it for longer than the interpreter
# lives, and would crash at exit if it were the only one to hold it.
def write_dump_in_hang(request, response):
    """Write the dump of this rank if it hangs; answer whether it does."""
    global not_written
    asked.set()
    with writing:
        hangs = hangs_now()
        if hangs:
            try:
                communicator.write_dump()
                not_written = ""
            except OSError as error:
                not_written, hangs = f"rank {RANK} cannot write its dump: {error.strerror}", False
    response.set_content(json.dumps(hangs), "application/json")
    response.set_status(200)


# What runs in the debug server's own process, a child of rank 0 that imports this file again.

if __name__ == "__mp_main__":
    logging.disable(logging.WARNING)  # it would repeat every snapshot in its log

    def end_with_rank_0():
        """Do not outlive a rank 0 that was killed: the port would stay taken."""
        rank_0 = os.getppid()
        while os.getppid() == rank_0:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=end_with_rank_0, daemon=True).start()


class DuringHang:
    """Keeps a snapshot only if all ranks hang before and after it; has them write their dumps."""

    def dump(self):
        """Return the text of a snapshot, or None for no file."""
        text = super().dump() if self.all_hang() else None
        return text if text and self.all_hang() else None

    def all_hang(self):
        """Ask every rank, which writes its dump if it hangs."""
        _, answers = fetch_all("write_dump_in_hang", timeout=self.fetch_timeout)
        return all(answer.status_code == 200 and answer.json() for answer in answers)


class Stacks(DuringHang, stock.StacksHandler):
    """The page and the snapshots of the Python stacks."""


class TorchCommsTrace(DuringHang, stock.TorchCommsFlightRecorderHandler):
    """The page and the snapshots of the TorchComms recorders."""


class Trace(DuringHang, stock.FlightRecorderHandler):
    """The page and the snapshots of the recorders in PyTorch, which choke on Gloo's dumps as is."""

    @staticmethod
    def _build_db(addrs, resps):
        ranks = list(range(WORLD_SIZE))
        for i, resp in enumerate(resps):
            if resp.status_code == 200:
                resps[i] = Response(200, json.dumps(name_members(resp.json(), ranks)))
        return stock.FlightRecorderHandler._build_db(addrs, resps)


def choose_port():
    """Return a port that the debug server will be able to use, and a claim on it.

    The server binds seconds later. The claim, the UDP port of the same number, tells another run
    of this demo to choose a different one. A free port is sought below 32768, where Linux does not
    take the ports for the connections between ranks.
    """
    for port in [DEBUG_PORT, *random.sample(range(20000, 32000), 50)]:
        probe = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        claim = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        with probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
            try:
                probe.bind(("::", port))
                claim.bind(("::", port))
            except OSError:
                continue
        if port != DEBUG_PORT:
            say(f"port {DEBUG_PORT} is taken: the debug server uses {port}")
        return port, claim
    return fail("no port for the debug server, which needs IPv6: is it switched off?")


def start_server():
    """Start the debug server, and return once it is at work: its process takes seconds to start."""
    _register_handler("write_dump_in_hang", write_dump_in_hang)
    ours = {page.dump_filename(): page for page in [Stacks(), Trace(), TorchCommsTrace()]}
    pages = [ours.get(page.dump_filename(), page) for page in stock.default_handlers()]
    with contextlib.suppress(ImportError):  # only where the analyzer is installed, too
        from fr_analysis.debug_server import AnalysisHandler

        pages.append(AnalysisHandler())
    port, claim = choose_port() if RANK == 0 else (DEBUG_PORT, None)
    start_debug_server(
        port=port,
        start_method="spawn",
        dump_dir=str(FR_DUMP_DIR),
        dump_interval=FR_DUMP_INTERVAL,
        enabled_dumps={"stacks", communicator.text_dump},
        handlers=pages,
        fetch_timeout=COMM_TIMEOUT,
    )
    give_up_at = time.monotonic() + 120
    while not asked.wait(0.5):
        if RANK == 0 and not multiprocessing.active_children():
            fail("the debug server has ended: see the lines above")
        if time.monotonic() > give_up_at:
            fail("the debug server has not asked for a snapshot in 120 s: see the lines above")
    if claim:
        claim.close()
        say(f"debug server: http://localhost:{port} (other hosts reach it: trusted networks only)")
        if any(route.path == "/fr_analysis" for page in pages for route in page.routes()):
            say(f"who is to blame, live: http://localhost:{port}/fr_analysis")


def stop_server():
    """Stop the debug server, even if its process has been stopped by a signal and cannot end."""
    killers = [threading.Timer(20, child.kill) for child in multiprocessing.active_children()]
    for killer in killers:
        killer.start()
    stop_debug_server()
    for killer in killers:
        killer.cancel()


def make_dump_dir():
    """Make the directories; they must not hold the dumps of another run, which would mix."""
    try:
        if any(FR_DUMP_DIR.glob("*_[0-9]*.txt")):
            raise FileExistsError
        PER_RANK.mkdir(parents=True)
    except FileExistsError:
        fail(f"{FR_DUMP_DIR} holds the dumps of another run: remove it, or set FR_DUMP_DIR")
    except OSError as error:
        fail(f"FR_DUMP_DIR={FR_DUMP_DIR}: expected a directory to write to ({error})")


def meet(store, where, patience=60):
    """Wait for every rank, in torchrun's store: it works when the communicator does not."""
    store.set(f"{where}/{RANK}", "here")
    ranks = [f"{where}/{rank}" for rank in range(WORLD_SIZE)]
    try:
        store.wait(ranks, timedelta(seconds=COMM_TIMEOUT + patience))
    except dist.DistStoreError:
        name_absent(store, where)


def name_absent(store, where):
    """End the run, since some ranks have not come so far."""
    absent = [rank for rank in range(WORLD_SIZE) if not store.check([f"{where}/{rank}"])]
    fail(f"waited in vain for '{where}' of {absent}: are these ranks stopped, or stuck elsewhere?")


def phase_1():
    """Run a few collectives, as a healthy job does."""
    for _ in range(3):
        tensor = torch.full((1024,), RANK + 1.0, device=DEVICE)
        communicator.all_reduce(tensor)
        total = WORLD_SIZE * (WORLD_SIZE + 1) / 2
        torch.testing.assert_close(tensor, torch.full_like(tensor, total))  # waits for a GPU, too
    tensor = torch.full((1024,), RANK + 1.0, device=DEVICE)
    communicator.broadcast(tensor, 0)
    torch.testing.assert_close(tensor, torch.ones_like(tensor))
    say("phase 1: 3 all_reduce and 1 broadcast gave what they should")


def phase_2(store):
    """Hang, and come back."""
    global hang_ends_at
    hang_ends_at = time.monotonic() + COMM_TIMEOUT
    if RANK == HANGING_RANK:
        say("phase 2: stuck in stuck_in_data_loader(), before the next all_reduce")
        stuck_in_data_loader(store)
        say("phase 2: released, as the others have timed out")
    else:
        say(f"phase 2: entering all_reduce, which times out after {COMM_TIMEOUT:g} s")
        wait_for_stuck_rank()
        store.set(f"timed out/{RANK}", "yes")


def stuck_in_data_loader(store):
    """Sleep, like a rank whose input does not come, until all others have timed out.

    A real hang does not end, and torchrun would wait for it for ever.
    """
    store.set(f"timed out/{RANK}", "nothing to wait for")
    ranks = [f"timed out/{rank}" for rank in range(WORLD_SIZE)]
    give_up_at = time.monotonic() + COMM_TIMEOUT + 60
    while not store.check(ranks):
        if time.monotonic() > give_up_at:
            name_absent(store, "timed out")
        time.sleep(0.5)


def wait_for_stuck_rank():
    """Enter a collective that one rank never joins."""
    tensor = torch.ones(1024, device=DEVICE)
    start = time.monotonic()
    try:
        communicator.all_reduce(tensor)
        if DEVICE.type == "cuda":
            torch.cuda.synchronize(DEVICE)
    except RuntimeError as error:
        say(f"phase 2: all_reduce failed after {time.monotonic() - start:.1f} s: {one_line(error)}")
    else:
        raise RuntimeError(f"all_reduce is complete, but rank {HANGING_RANK} never joined")


def report():
    """Say what the run has left, and how to look at it; or fail, if anything is missing."""
    patterns = [f"per_rank/rank_{rank}" for rank in range(WORLD_SIZE)]
    patterns += [f"{communicator.text_dump}_*.txt", "stacks_*.txt"]
    found = {pattern: sorted(FR_DUMP_DIR.glob(pattern)) for pattern in patterns}
    if missing := [pattern for pattern, paths in found.items() if not paths]:
        remedy = not_written or "try a longer COMM_TIMEOUT"
        fail(f"not taken during the hang: {', '.join(missing)}; {remedy}")
    say(f"{FR_DUMP_DIR} holds, all taken during the hang:")
    for pattern, paths in found.items():
        say(f"  {pattern}" if paths == [FR_DUMP_DIR / pattern] else f"  {len(paths)} {pattern}")
    say("look at them with:")
    say(f"  fr-analysis {FR_DUMP_DIR}")
    say(f"  torchfrtrace {PER_RANK} -p rank_")
    say(f"  cat {found['stacks_*.txt'][-1]}")


def main():
    """Run the two phases on this rank."""
    global communicator
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    store = dist.PrefixStore("verify_flight_recorder", store)
    meet(store, "start", 300)  # on a busy machine, ranks start seconds apart
    communicator = choose_communicator()
    if RANK == 0:
        make_dump_dir()
        say(f"{communicator.name}, PyTorch {torch.__version__}, {TEST_BACKEND}, {DEVICE.type}")
    start_server()
    phase_1()
    meet(store, "phase 2")
    phase_2(store)
    meet(store, "phase 2 is over")
    if not_written:
        say(f"phase 2: {not_written}")
    if RANK == 0:
        stop_server()
    meet(store, "the server has stopped")  # which asks the ranks until then
    communicator.close()
    if RANK == 0:
        report()


if __name__ == "__main__":
    try:
        main()
    except SystemExit as failure:
        # At a clean end, threads of the debug server that still answer would abort the process.
        print(failure, file=sys.stderr, flush=True)
        for server in multiprocessing.active_children():
            server.kill()
        os._exit(1)
