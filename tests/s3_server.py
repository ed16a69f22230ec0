"""A real S3 server, moto's, that is slow and fails where a test wants it."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server


class S3Server:
    """The server, and what was asked of it."""

    def __init__(self) -> None:
        self._application = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.Lock()
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.environment = {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        self.calm()
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.client = boto3.client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id="key",
            aws_secret_access_key="secret",
            region_name="us-east-1",
        )

    def calm(self) -> None:
        """Answer everything at once again, and count anew."""
        self.before: Callable[[str, str], None] = lambda method, path: None
        self.requests: list[tuple[str, str]] = []
        self.most_at_once = 0
        self._now = 0

    def put(self, bucket: str, folder: str, files: Iterable[Path]) -> str:
        """Upload files; returns the folder's URL."""
        self.client.create_bucket(Bucket=bucket)
        for file in files:
            self.client.put_object(
                Bucket=bucket, Key=f"{folder}/{file.name}", Body=file.read_bytes()
            )
        self.calm()
        return f"s3://{bucket}/{folder}"

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        with self._lock:
            self.requests.append((method, path))
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
        try:
            self.before(method, path)
        finally:
            with self._lock:
                self._now -= 1
        answer: Iterable[bytes] = self._application(environ, start_response)
        return answer

    def slow(self, seconds: float) -> None:
        """Let every answer take so long."""
        self.before = lambda method, path: time.sleep(seconds)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """A server for as long as the context lasts."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = S3Server()
    try:
        yield server
    finally:
        server.close()
