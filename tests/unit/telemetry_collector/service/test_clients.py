"""What clients of a collector service carry: tokens and the authorities they trust, over real sockets."""

from __future__ import annotations

import logging
import pickle
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from evenload.kafka_connection import Connection, resolve_connection
from evenload.kafka_connection.secrets import read_secret
from evenload.telemetry_collector import CollectorConfig
from evenload.telemetry_collector.reports import Intent, RouteReport
from evenload.telemetry_collector.service.client import RemoteCollector
from evenload.telemetry_collector.service.config import ServiceConfig
from evenload.telemetry_collector.service.testing import FakeService
from evenload.telemetry_collector.testing import FakeCluster, make_snapshot

WaitUntil = Callable[[Callable[[], bool]], None]

OFTEN = CollectorConfig(
    interval_s=0.05,
    full_interval_s=0.05,
    deadline_s=30.0,
    full_deadline_s=30.0,
    age_max_s=60.0,
    backoff_initial_s=0.05,
    backoff_max_s=0.1,
)
ALL_TOKENS = ServiceConfig(
    operate_token=SecretStr("to-operate"),
    ingest_token=SecretStr("to-ingest"),
    read_token=SecretStr("to-read"),
)
INTENT = Intent(load="l", topic="t", bytes_by_broker={1: 1})
REPORT = RouteReport(producer="p", topic="t", shares={0: 1.0})


def _cluster() -> FakeCluster:
    return FakeCluster(make_snapshot([100, 200], topics={"t": [(1,), (2,)]}))


def _remote(service: FakeService, **fields: Any) -> RemoteCollector:
    connection = Connection(bootstrap_servers="127.0.0.1:1", collector_url=service.url, **fields)
    return RemoteCollector(connection, OFTEN, ["t"], make_sources=_cluster().sources)


def _fault(collector: RemoteCollector, question: str = "collector_service") -> str:
    return collector.statistics.failures.get(question, "")


@pytest.fixture
def tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    return context


def test_a_client_shows_the_token_of_its_connection_and_tells_what_it_may(wait_until: WaitUntil) -> None:
    with FakeService(_cluster(), ALL_TOKENS) as service:
        with _remote(service, collector_token="to-ingest") as collector:
            assert collector.snapshot().brokers[2].used_bytes == 200
            collector.announce(INTENT)
            collector.report([REPORT])
            wait_until(lambda: bool(service.service.intents and service.service.reports))
            collector.withdraw("l")
        assert not service.service.intents  # its last words are heard too


def test_of_two_services_the_other_is_asked_when_one_is_gone(wait_until: WaitUntil) -> None:
    with FakeService(_cluster()) as first, FakeService(_cluster()) as second:
        url = f"{first.url}, {second.url}/"
        connection = Connection(bootstrap_servers="127.0.0.1:1", collector_url=url)
        assert connection.collector_urls == [first.url, second.url]
        with RemoteCollector(connection, OFTEN, ["t"], make_sources=_cluster().sources) as collector:
            collector.snapshot()
            assert (first.num_requests > 0, second.num_requests) == (True, 0)
            first.misbehave = FakeService.hang_up
            wait_until(lambda: second.num_requests > 2)
            collector.snapshot(max_age_s=0.0)
            assert collector.num_without_service == 0


def test_who_may_only_read_tells_nothing_and_is_told_why(wait_until: WaitUntil) -> None:
    with (
        FakeService(_cluster(), ALL_TOKENS) as service,
        _remote(service, collector_token="to-read") as collector,
    ):
        collector.snapshot()
        wait_until(lambda: not collector.is_without_service)
        collector.report([REPORT])
        wait_until(lambda: "--ingest-token-file" in _fault(collector, "collector_service: reports"))
        assert not service.service.reports


@pytest.mark.parametrize("fields", [{}, {"collector_token": "guess"}])
def test_a_client_without_the_token_goes_on_without_the_service_and_says_what_it_takes(
    fields: dict[str, str], wait_until: WaitUntil
) -> None:
    with FakeService(_cluster(), ALL_TOKENS) as service, _remote(service, **fields) as collector:
        wait_until(lambda: collector.is_without_service)
        assert _fault(collector).startswith("it answered with status 401: GET /v1/snapshot needs the header")
        assert "guess" not in _fault(collector)


def test_a_token_in_a_file_is_read_anew_when_it_is_replaced(tmp_path: Path, wait_until: WaitUntil) -> None:
    path = tmp_path / "token"
    with (
        FakeService(_cluster(), ALL_TOKENS) as service,
        _remote(service, collector_token_path=path) as collector,
    ):
        wait_until(lambda: "token can't be read: No such file or directory" in _fault(collector))
        path.write_text("an old one\n")
        wait_until(lambda: "a token consists of visible ASCII" in _fault(collector))
        path.write_text("old")
        wait_until(lambda: "status 401" in _fault(collector))
        path.write_text("to-ingest\n")
        wait_until(lambda: collector.cache.latest() is not None and not collector.is_without_service)


def test_over_tls_a_client_trusts_the_authorities_of_its_connection(
    certificate: Path, tls: ssl.SSLContext
) -> None:
    with FakeService(_cluster(), ALL_TOKENS, tls=tls) as service:
        fields = {"collector_token": "to-ingest", "collector_ca_path": certificate.with_name("ca.pem")}
        with _remote(service, **fields) as collector:
            assert collector.snapshot().brokers[2].used_bytes == 200


@pytest.mark.parametrize(
    ("ca", "sentence"),
    [
        (None, "its certificate isn't trusted"),
        ("absent.pem", "absent.pem can't be read: No such file"),
        ("token", "token can't be read"),
    ],
)
def test_over_tls_a_client_talks_to_nobody_it_can_not_trust(
    ca: str | None, sentence: str, tmp_path: Path, tls: ssl.SSLContext, wait_until: WaitUntil
) -> None:
    (tmp_path / "token").write_text("no certificate")
    path = None if ca is None else tmp_path / ca
    with FakeService(_cluster(), tls=tls) as service, _remote(service, collector_ca_path=path) as collector:
        wait_until(lambda: sentence in _fault(collector))
        assert service.num_requests == 0


def test_a_service_that_speaks_no_tls_is_said_to_be_so(wait_until: WaitUntil) -> None:
    with FakeService(_cluster()) as service:
        url = service.url.replace("http:", "https:")
        connection = Connection(bootstrap_servers="127.0.0.1:1", collector_url=url)
        with RemoteCollector(connection, OFTEN, ["t"], make_sources=_cluster().sources) as collector:
            wait_until(lambda: "SSL" in _fault(collector))


def test_a_token_is_not_sent_to_where_a_redirection_points(wait_until: WaitUntil) -> None:
    with FakeService(_cluster()) as service, _remote(service, collector_token="to-ingest") as collector:
        service.misbehave = FakeService.elsewhere
        wait_until(lambda: _fault(collector) == "it answered with status 302")


def test_a_token_shows_nowhere_and_goes_where_a_connection_goes() -> None:
    connection = Connection(bootstrap_servers="a:1", collector_url="http://b:2", collector_token="hush")
    assert "hush" not in f"{connection!r} {connection} {connection.model_dump_json()}"
    assert pickle.loads(pickle.dumps(connection)) == connection
    assert connection.has_secrets
    assert not Connection(bootstrap_servers="a:1", collector_url="http://b:2").has_secrets


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"collector_token": "hush"}, "collector_token would be ignored without collector_url"),
        ({"collector_url": "http://b:2", "collector_ca_path": "/ca"}, "ignored with http://b:2, which isn't"),
        (
            {"collector_url": "http://b:2", "collector_token": "hush", "collector_token_path": "/t"},
            "collector_token and collector_token_path say the same",
        ),
        ({"collector_url": "http://b:2", "collector_token": "hush hush"}, "visible ASCII"),
        ({"sasl_password": "hush"}, "sasl_password would be ignored"),
    ],
)
def test_what_does_not_fit_is_refused_without_a_word_of_the_secret(
    fields: dict[str, str], sentence: str
) -> None:
    with pytest.raises(ValidationError, match=sentence) as refused:
        Connection.model_validate({"bootstrap_servers": "a:1", **fields})
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"EVENLOAD_COLLECTOR_TOKEN": "x"}, {"collector_token": SecretStr("x")}),
        ({"EVENLOAD_COLLECTOR_TOKEN_FILE": "/t"}, {"collector_token_path": Path("/t")}),
        ({"EVENLOAD_COLLECTOR_CA": "/ca"}, {"collector_ca_path": Path("/ca")}),
    ],
)
def test_what_a_service_asks_for_comes_from_the_environment_where_a_service_is_used(
    environment: dict[str, str], expected: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    alone = resolve_connection("a:1")
    assert all(getattr(alone, field) is None for field in expected)
    path = tmp_path / "connection.json"
    path.write_text('{"bootstrap_servers": "a:1", "collector_url": "https://b:2"}')
    by_file = resolve_connection(connection_file=path)
    monkeypatch.setenv("EVENLOAD_COLLECTOR_URL", "https://b:2")
    for connection in (by_file, resolve_connection("a:1")):
        assert {field: getattr(connection, field) for field in expected} == expected


def test_the_token_of_a_connection_file_is_not_replaced_by_the_environments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVENLOAD_COLLECTOR_TOKEN", "theirs")
    path = tmp_path / "connection.json"
    path.write_text(
        '{"bootstrap_servers": "a:1", "collector_url": "http://b:2", "collector_token_path": "t"}'
    )
    connection = resolve_connection(connection_file=path)
    assert (connection.collector_token, connection.collector_token_path) == (None, Path("t"))


def test_a_secret_that_every_user_may_read_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "token"
    path.write_text("hush\n")
    path.chmod(0o600)
    assert read_secret(path).get_secret_value() == "hush"
    assert caplog.messages == []
    path.chmod(0o644)
    with caplog.at_level(logging.WARNING):
        read_secret(path)
        read_secret(path)
    (said,) = caplog.messages
    assert f"{path} holds a secret" in said
    assert "hush" not in said
