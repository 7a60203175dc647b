"""How a broker is talked to before anything is fetched: versions, SASL, and answers that make no sense."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.metadata import ApiVersionsResponse
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslAuthenticateResponse, SaslHandshakeResponse

from evenload.kafka_connection import Connection, OAuth
from evenload.kafka_connection.broker_connection import BrokerConnection, BrokerLostError, BrokerRefusedError

SASL = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_plain_username": "ada",
    "sasl_plain_password": "secret",
}
PLAINTEXT = {"security_protocol": "PLAINTEXT"}
Answer = Callable[[int, bytes], ApiMessage | bytes | None]


class FakeBroker:
    """Answers the requests of one connection, in a thread."""

    def __init__(self, answer: Answer) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.server.getsockname()[1]
        self._answer = answer
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        client, _ = self.server.accept()
        with client, client.makefile("rb") as requests:
            while len(length := requests.read(4)) == 4:
                request = requests.read(*struct.unpack(">i", length))
                api_key, _, correlation_id = struct.unpack_from(">hhi", request)
                answer = self._answer(api_key, request)
                if answer is None:
                    return
                if isinstance(answer, bytes):
                    client.sendall(answer)
                    continue
                answer.with_header(correlation_id=correlation_id)
                client.sendall(answer.encode(header=True, framed=True))


@contextmanager
def connected_to(answer: Answer, config: dict[str, Any]) -> Iterator[BrokerConnection]:
    broker = FakeBroker(answer)
    connection = BrokerConnection("127.0.0.1", broker.port, config=config, timeout_s=60)
    try:
        yield connection
    finally:
        connection.close()
        broker.thread.join()
        broker.server.close()


def versions(fetch_max: int = 18) -> ApiMessage:
    keys = [ApiVersionsResponse.ApiVersion(api_key=1, min_version=4, max_version=fetch_max)]
    return ApiVersionsResponse(version=3, error_code=0, api_keys=keys, throttle_time_ms=0)


def sasl_broker(password: str, *, mechanisms: list[str], lifetime_ms: int = 0) -> Answer:
    def answer(api_key: int, request: bytes) -> ApiMessage:
        if api_key == 18:
            return versions()
        if api_key == 17:
            is_known = b"PLAIN" in request and "PLAIN" in mechanisms
            return SaslHandshakeResponse(version=1, error_code=0 if is_known else 33, mechanisms=mechanisms)
        assert api_key == SaslAuthenticateRequest.API_KEY
        is_right = b"\x00ada\x00" + password.encode() in request
        return SaslAuthenticateResponse(
            version=2,
            error_code=0 if is_right else 58,
            error_message=None if is_right else "Invalid username or password",
            auth_bytes=b"",
            session_lifetime_ms=lifetime_ms,
        )

    return answer


def test_credentials_are_given_and_accepted() -> None:
    with connected_to(sasl_broker("secret", mechanisms=["PLAIN"]), SASL) as connection:
        connection.open()
        assert not connection.is_expiring


def test_a_session_that_ends_soon_is_said_to_expire() -> None:
    with connected_to(sasl_broker("secret", mechanisms=["PLAIN"], lifetime_ms=1), SASL) as connection:
        connection.open()
        while not connection.is_expiring:
            pass


def test_wrong_credentials_are_refused_in_the_brokers_words() -> None:
    with (
        connected_to(sasl_broker("other", mechanisms=["PLAIN"]), SASL) as connection,
        pytest.raises(BrokerRefusedError, match="Invalid username or password"),
    ):
        connection.open()


def oauth_broker(token: str) -> Answer:
    """As Kafka answers a token that it doesn't take: with its reason, and an error once that is read."""

    def answer(api_key: int, request: bytes) -> ApiMessage:
        if api_key == 18:
            return versions()
        if api_key == 17:
            return SaslHandshakeResponse(version=1, error_code=0, mechanisms=["OAUTHBEARER"])
        is_right = b"auth=Bearer " + token.encode() in request
        is_acknowledged = request.endswith(b"\x02\x01\x00")
        return SaslAuthenticateResponse(
            version=2,
            error_code=58 if is_acknowledged else 0,
            error_message="the token is none of ours" if is_acknowledged else None,
            auth_bytes=b"" if is_right else b'{"status":"invalid_token"}',
            session_lifetime_ms=0,
        )

    return answer


def _by_token(path: Path) -> dict[str, Any]:
    connection = Connection(
        bootstrap_servers="127.0.0.1:1",
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth=OAuth(token_path=path),
    )
    return connection.kafka_python_config()


def test_a_token_is_given_as_its_file_says_by_then(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.touch(0o600)
    config = _by_token(path)
    for token in ("first", "second"):
        path.write_text(token)
        with connected_to(oauth_broker(token), config) as connection:
            connection.open()


def test_a_token_that_is_refused_is_so_in_the_brokers_words(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_text("mine")
    with (
        connected_to(oauth_broker("another"), _by_token(path)) as connection,
        pytest.raises(BrokerRefusedError, match="the token is none of ours"),
    ):
        connection.open()


def test_without_a_token_it_is_tried_again_later_and_the_reason_is_said(tmp_path: Path) -> None:
    with (
        connected_to(oauth_broker("any"), _by_token(tmp_path / "absent")) as connection,
        pytest.raises(BrokerLostError, match=r"a token for the brokers can't be had: .*absent can't be read"),
    ):
        connection.open()


def test_a_mechanism_that_is_not_offered_is_named_with_those_that_are() -> None:
    with (
        connected_to(sasl_broker("secret", mechanisms=["SCRAM-SHA-256"]), SASL) as connection,
        pytest.raises(BrokerRefusedError, match="does not offer SASL PLAIN, only SCRAM-SHA-256"),
    ):
        connection.open()


def test_a_broker_that_is_too_old_is_refused_with_its_versions() -> None:
    with (
        connected_to(lambda *_: versions(fetch_max=11), PLAINTEXT) as connection,
        pytest.raises(BrokerRefusedError, match=r"versions 4 to 11 of Fetch.*Kafka 3\.1"),
    ):
        connection.open()


def test_a_broker_that_hangs_up_is_lost() -> None:
    with (
        connected_to(lambda *_: None, PLAINTEXT) as connection,
        pytest.raises(BrokerLostError, match="closed the connection"),
    ):
        connection.open()


def test_a_broker_that_does_not_answer_is_lost_after_the_time_allowed() -> None:
    with connected_to(lambda api_key, _: versions() if api_key == 18 else b"", PLAINTEXT) as connection:
        connection.open()
        connection.set_timeout(0.05)
        connection.send(struct.pack(">ihhi", 8, 1, 13, 1))
        with pytest.raises(BrokerLostError, match="did not answer in time"):
            connection.receive(lambda size: memoryview(bytearray(size)), more_to_come=False)


@pytest.mark.parametrize("length", [b"\x15\x03\x03\x00", b"\xff\xff\xff\xff", b"\x00\x00\x00\x01"])
def test_a_length_that_kafka_would_not_send_is_refused(length: bytes) -> None:
    with connected_to(lambda api_key, _: versions() if api_key == 18 else length, PLAINTEXT) as connection:
        connection.open()
        connection.send(struct.pack(">ihhi", 8, 1, 13, 1))
        with pytest.raises(BrokerRefusedError, match="is it a Kafka broker"):
            connection.receive(lambda size: memoryview(bytearray(size)), more_to_come=False)


def test_interrupting_ends_a_receive_at_once() -> None:
    with connected_to(lambda api_key, _: versions() if api_key == 18 else b"", PLAINTEXT) as connection:
        connection.open()
        timer = threading.Timer(0.05, connection.interrupt)
        timer.start()
        with pytest.raises(BrokerLostError):
            connection.receive(lambda size: memoryview(bytearray(size)), more_to_come=False)
        timer.join()


def test_frames_are_told_apart_however_they_are_received() -> None:
    frames = [bytes([n]) * (4 + n * 1000) for n in range(5)]
    wire = b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)
    with connected_to(lambda api_key, _: versions() if api_key == 18 else wire, PLAINTEXT) as connection:
        connection.open()
        connection.send(struct.pack(">ihhi", 8, 1, 13, 1))
        received = [
            bytes(connection.receive(lambda size: memoryview(bytearray(size)), more_to_come=n in (0, 1, 3)))
            for n in range(5)
        ]
    assert received == frames


def test_an_address_of_ipv6_is_named_as_it_is_given() -> None:
    nobody = BrokerConnection("::1", 1, config=PLAINTEXT, timeout_s=1)
    with pytest.raises(BrokerLostError, match=r"connecting to \[::1\]:1 failed"):
        nobody.open()
