"""However a service answers, there is a route or a sentence within the time given."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from evenload.kafka_connection import Connection
from evenload.route_service.client import RouteClient
from evenload.route_service.route_answer import RouteAnswer, encode_route
from evenload.telemetry_collector.errors import ServiceUnusableError

ANSWER = RouteAnswer(
    cluster_id="c",
    topic="t",
    version=1,
    shares=(0.5, 0.5),
    expires_s=30.0,
    turn_max_bytes=1,
    poll_s=1.0,
    report_bytes=1,
)
BODY = encode_route(ANSWER)


def head(length: int = len(BODY), status: str = "200 OK", more: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {length}\r\nEvenload-Age: 1.5\r\n{more}\r\n".encode()


class Server:
    """Takes connections one after the other, and gives each to what a test says."""

    def __init__(self, serve: Callable[[socket.socket], None]) -> None:
        self._serve = serve
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.num_taken = 0
        self.is_over = threading.Event()
        self._thread = threading.Thread(target=self._take)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listening.getsockname()[1]}"

    def _take(self) -> None:
        while True:
            try:
                taken, _ = self._listening.accept()
            except OSError:
                return
            self.num_taken += 1
            with taken:
                try:
                    self._serve(taken)
                except OSError:
                    continue

    def close(self) -> None:
        self.is_over.set()
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()


Serve = Callable[[Callable[[socket.socket], None]], Server]


@pytest.fixture
def serve() -> Iterator[Serve]:
    made: list[Server] = []

    def serve_one(how: Callable[[socket.socket], None]) -> Server:
        made.append(Server(how))
        return made[-1]

    yield serve_one
    for each in made:
        each.close()


def client(url: str, *, timeout_s: float = 60.0, ca: Path | None = None) -> RouteClient:
    connection = Connection(bootstrap_servers="a:1", collector_url=url, collector_ca_path=ca)
    return RouteClient(url, connection, name="test", timeout_s=timeout_s)


def answering(*parts: bytes) -> Callable[[socket.socket], None]:
    def answer(taken: socket.socket) -> None:
        taken.recv(1 << 16)
        for part in parts:
            taken.sendall(part)

    return answer


def reason(url: str, *, timeout_s: float = 60.0, ca: Path | None = None) -> str:
    """Why there is no route."""
    asking = client(url, timeout_s=timeout_s, ca=ca)
    with closing(asking), pytest.raises(ServiceUnusableError) as refused:
        asking.ask("t")
    return refused.value.reason


def test_a_route_is_as_old_as_the_service_says_and_the_way_took(serve: Serve) -> None:
    times = iter([100.0, 100.0, 100.0, 100.0, 100.5, 100.5, 100.5])
    url = serve(answering(head(), BODY)).url
    connection = Connection(bootstrap_servers="a:1", collector_url=url)
    asking = RouteClient(url, connection, name="test", clock=lambda: next(times, 101.0))
    with closing(asking):
        heard = asking.ask("t")
    assert (heard.answer, heard.measured_at_s) == (ANSWER, 98.5)


def test_a_connection_is_kept_and_one_that_was_closed_is_opened_again(serve: Serve) -> None:
    def twice(taken: socket.socket) -> None:
        for _ in range(2):
            taken.recv(1 << 16)
            taken.sendall(head() + BODY)

    server = serve(twice)
    with closing(client(server.url)) as asking:
        for num_connections in (1, 1, 2, 2, 3):
            asking.ask("t")
            assert server.num_taken == num_connections


def test_nobody_there() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    assert reason(f"http://127.0.0.1:{port}") == "connection refused"
    assert reason("http://no-such-host.invalid:1").startswith("its host name can't be looked up")


def test_whoever_is_silent_is_given_up(serve: Serve) -> None:
    server = serve(lambda taken: server_is_over(taken))

    def server_is_over(_: socket.socket) -> None:
        server.is_over.wait(60)

    assert reason(server.url, timeout_s=0.1) == "no answer within 0.1 s"


@pytest.mark.parametrize("prefix", [b"", b"HTTP/1.1 200 OK\r\nX: ", head(1 << 19)])
def test_whoever_sends_a_byte_now_and_then_is_given_up(serve: Serve, prefix: bytes) -> None:
    def drip(taken: socket.socket) -> None:
        taken.recv(1 << 16)
        taken.sendall(prefix)
        while not server.is_over.wait(0.02):
            taken.sendall(b"H" if not prefix else b"x")

    server = serve(drip)
    assert reason(server.url, timeout_s=0.3) == "no answer within 0.3 s"


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ((b"",), "it closed the connection without an answer"),
        ((b"hello\r\n\r\n",), "its answer can't be read: hello"),
        ((head(), BODY[:50]), "its route can't be read"),
        ((head(2), b"[]"), "its route can't be read"),
        ((head(3 << 20), b"x" * (2 << 20)), "its answer is larger than 1048576 bytes"),
        ((head(21, "401 No"), b'{"error": "no token"}'), "it answered with status 401: no token"),
        ((head(2, "500 Oh"), b"[]"), "it answered with status 500"),
        ((head(0, "302 Found", "Location: http://elsewhere/\r\n"),), "it answered with status 302"),
        ((head(0, "304 Not Modified"),), "its route can't be read"),
    ],
)
def test_what_is_no_route_is_refused_with_a_sentence(
    serve: Serve, parts: tuple[bytes, ...], sentence: str
) -> None:
    assert reason(serve(answering(*parts)).url).startswith(sentence)


def test_over_tls_one_talks_to_nobody_one_can_not_trust(serve: Serve, certificate: Path) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)

    def secured(taken: socket.socket) -> None:
        with context.wrap_socket(taken, server_side=True) as secure:
            answering(head(), BODY)(secure)

    url = serve(secured).url.replace("http:", "https:")
    with closing(client(url, ca=certificate.with_name("ca.pem"))) as asking:
        assert asking.ask("t").answer == ANSWER
    assert reason(url).startswith("its certificate isn't trusted")
    assert reason(url, ca=certificate.with_name("absent.pem")).endswith("No such file or directory")


def test_a_handshake_that_never_ends_is_given_up(serve: Serve) -> None:
    def drip(taken: socket.socket) -> None:
        taken.recv(1 << 16)
        taken.sendall(b"\x16\x03\x03\x40\x00")  # the head of a long record
        while not server.is_over.wait(0.02):
            taken.sendall(b"x")

    server = serve(drip)
    assert reason(server.url.replace("http:", "https:"), timeout_s=0.3) == "no answer within 0.3 s"
