"""An object store for a test: a server that speaks S3 over HTTP, and whose answers a test can withhold."""

from __future__ import annotations

import socket
import threading
import urllib.request
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"

# Gets a request's method and path, and may wait; its answer is False where the server is to refuse it.
Allow = Callable[[str, str], bool]


class ObjectStore:
    """A bucket of a server in this process.

    Attributes:
        url: Of the bucket, as `--storage` takes it.
        allow: Asked before each request; one that it refuses gets status 503. Where it raises
            ConnectionError, the connection ends without an answer.
    """

    def __init__(self) -> None:
        self.allow: Allow = lambda method, path: True  # noqa: ARG005
        self._application = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=_Silent)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.endpoint = f"http://127.0.0.1:{self._server.port}"
        bucket = f"bucket-{uuid.uuid4().hex}"  # moto's buckets are those of all its servers in a process
        urllib.request.urlopen(urllib.request.Request(f"{self.endpoint}/{bucket}", method="PUT")).close()
        self.url = f"s3://{bucket}"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        try:
            is_allowed = self.allow(environ["REQUEST_METHOD"], environ["PATH_INFO"])
        except ConnectionError:
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            raise
        if is_allowed:
            answer: Iterable[bytes] = self._application(environ, start)
            return answer
        start("503 Slow Down", [("Content-Type", "application/xml"), ("Content-Length", str(len(SLOW_DOWN)))])
        return [SLOW_DOWN]


class _Silent(WSGIRequestHandler):
    def log(self, *_: Any) -> None:
        """A test's output is its own."""


@pytest.fixture
def object_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    """Found by the environment, as a user would have it found."""
    store = ObjectStore()
    monkeypatch.setenv("AWS_ENDPOINT_URL", store.endpoint)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "of-a-test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    yield store
    store.close()
