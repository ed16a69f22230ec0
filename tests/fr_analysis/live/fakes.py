"""HTTP servers that answer what they are told, for what no real job does on demand."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextlib.contextmanager
def answering(pages: Mapping[str, tuple[int, bytes]]) -> Iterator[int]:
    """Serve these answers by path, 404 for others; yields the port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = pages.get(self.path.split("?")[0], (404, b"no such page"))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *arguments: object) -> None:
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        request_queue_size = 1024

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def raw(first: bytes, then: bytes = b"", every_s: float = 0.05) -> Iterator[int]:
    """Take connections, send some bytes, then others again and again; yields the port."""
    ended = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))

    def talk(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.recv(4096)
            connection.sendall(first)
            while then and not ended.is_set():
                connection.sendall(then)
                time.sleep(every_s)
            if not first:
                ended.wait(30)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=talk, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        ended.set()
        listener.close()


@contextlib.contextmanager
def full(host: str = "127.0.0.1") -> Iterator[int]:
    """Take no connection, and refuse none, as what is behind a cut link; yields the port."""
    with contextlib.ExitStack() as held:
        listener = held.enter_context(socket.create_server((host, 0), backlog=0))
        address = listener.getsockname()
        for _ in range(2):
            filler = held.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(address)
        yield address[1]


def store_page(workers: Mapping[int, str]) -> bytes:
    """The page ``/tcpstore`` as torch 2.13 writes it, of a job whose ranks' workers are these."""
    keys = "\n".join(f"    debug_server/rank{rank}: b'{url}'" for rank, url in workers.items())
    return f"<h1>TCPStore Keys</h1>\n    <pre>\n{keys}\n    other: b'x'\n    </pre>".encode()
