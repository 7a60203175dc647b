from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from evenload.home import evenload_home
from evenload.kafka_connection import (
    BadConnectionFileError,
    NoClusterError,
    resolve_connection,
)


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (
        "EVENLOAD_BOOTSTRAP_SERVERS",
        "EVENLOAD_CONNECTION",
        "EVENLOAD_HOME",
        "EVENLOAD_COLLECTOR_URL",
        "EVENLOAD_WEIGHTS",
        "EVENLOAD_SASL_PASSWORD",
        "EVENLOAD_SASL_PASSWORD_FILE",
        "EVENLOAD_SSL_KEY_PASSWORD",
        "EVENLOAD_SSL_KEY_PASSWORD_FILE",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def connection_file(tmp_path: Path) -> Path:
    path = tmp_path / "connection.json"
    path.write_text(
        json.dumps({"bootstrap_servers": "file:9093", "security_protocol": "SSL", "ssl_ca_path": "/ca.pem"})
    )
    return path


@pytest.fixture
def listening_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def _write_cluster_file(home: Path, port: int) -> None:
    (home / "cluster").mkdir(parents=True)
    (home / "cluster" / "cluster.json").write_text(
        json.dumps(
            {"bootstrap_servers": f"127.0.0.1:{port}", "capacity_bytes_by_broker": {"1": 5}, "more": 1}
        )
    )


def test_an_address_that_is_passed_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENLOAD_BOOTSTRAP_SERVERS", "environment:9092")

    assert resolve_connection("passed:9092").bootstrap_servers == "passed:9092"


def test_a_file_that_is_passed_comes_before_the_environment(
    monkeypatch: pytest.MonkeyPatch, connection_file: Path
) -> None:
    monkeypatch.setenv("EVENLOAD_BOOTSTRAP_SERVERS", "environment:9092")

    assert resolve_connection(connection_file=connection_file).bootstrap_servers == "file:9093"


def test_with_an_address_and_a_file_the_address_says_where_and_the_file_how(connection_file: Path) -> None:
    connection = resolve_connection("passed:9092", connection_file)

    assert connection.bootstrap_servers == "passed:9092"
    assert connection.security_protocol == "SSL"


def test_the_environment_comes_before_the_embedded_cluster(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, listening_port: int
) -> None:
    _write_cluster_file(tmp_path, listening_port)
    monkeypatch.setenv("EVENLOAD_BOOTSTRAP_SERVERS", "environment:9092")

    assert resolve_connection(home=tmp_path).bootstrap_servers == "environment:9092"


def test_the_environment_may_name_a_file(monkeypatch: pytest.MonkeyPatch, connection_file: Path) -> None:
    monkeypatch.setenv("EVENLOAD_CONNECTION", str(connection_file))

    assert resolve_connection().bootstrap_servers == "file:9093"


def test_a_running_embedded_cluster_is_the_default_with_its_capacities(
    tmp_path: Path, listening_port: int
) -> None:
    _write_cluster_file(tmp_path, listening_port)

    connection = resolve_connection(home=tmp_path)

    assert connection.bootstrap_servers == f"127.0.0.1:{listening_port}"
    assert connection.capacity_bytes_by_broker == {1: 5}


def test_an_embedded_cluster_that_is_down_is_no_cluster(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    _write_cluster_file(tmp_path, port)

    with pytest.raises(NoClusterError, match=r"embedded cluster doesn't run .*; run `evenload up`"):
        resolve_connection(home=tmp_path)


def test_without_any_cluster_the_sentence_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NoClusterError, match="run `evenload up`, or pass --bootstrap-servers") as caught:
        resolve_connection()

    assert caught.value.home == tmp_path / ".evenload"


def test_home_is_absolute_and_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert evenload_home() == tmp_path / ".evenload"
    monkeypatch.setenv("EVENLOAD_HOME", "elsewhere")
    assert evenload_home() == tmp_path / "elsewhere"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is not JSON"),
        ("[]", "holds a JSON list, not an object"),
        ("{}", "bootstrap_servers: Field required"),
        ('{"bootstrap_servers": "kafka"}', "bootstrap_servers: 'kafka' is not host:port"),
        ('{"bootstrap_servers": "kafka:1", "sasl_password": "hush"}', "sasl_password would be ignored"),
    ],
)
def test_a_bad_connection_file_is_refused_by_name_and_reason(
    tmp_path: Path, text: str, sentence: str
) -> None:
    path = tmp_path / "connection.json"
    path.write_text(text)

    with pytest.raises(BadConnectionFileError, match=sentence) as caught:
        resolve_connection(connection_file=path)

    assert str(path) in str(caught.value)
    assert "hush" not in str(caught.value)


def test_a_missing_connection_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(BadConnectionFileError, match=r"absent\.json: can't be read"):
        resolve_connection(connection_file=tmp_path / "absent.json")


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="bootstrap_servers: 'nonsense' is not host:port"):
        resolve_connection("nonsense")


def test_a_collector_service_is_added_to_whatever_cluster_is_meant(
    monkeypatch: pytest.MonkeyPatch, connection_file: Path
) -> None:
    monkeypatch.setenv("EVENLOAD_COLLECTOR_URL", "http://collector:9405/")
    monkeypatch.setenv("EVENLOAD_WEIGHTS", "/weights.json")  # the service's count where there is one

    for connection in (resolve_connection("a:1"), resolve_connection(connection_file=connection_file)):
        assert connection.collector_url == "http://collector:9405"
        assert connection.weights_path is None


def test_what_a_connection_file_says_about_telemetry_stays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EVENLOAD_COLLECTOR_URL", "http://elsewhere:1")
    path = tmp_path / "with-collector.json"
    path.write_text(
        '{"bootstrap_servers": "a:1", "collector_url": "http://here:2", "without_collector": "even"}'
    )

    connection = resolve_connection(connection_file=path)

    assert (connection.collector_url, connection.without_collector) == ("http://here:2", "even")


def test_a_service_of_the_environment_is_refused_where_the_file_says_to_measure_without_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EVENLOAD_COLLECTOR_URL", "http://collector:9405")
    path = tmp_path / "sampling.json"
    path.write_text('{"bootstrap_servers": "a:1", "without_collector": "sample"}')

    with pytest.raises(ValueError, match="EVENLOAD_COLLECTOR_URL: without_collector 'sample' can't be used"):
        resolve_connection(connection_file=path)


SASL = {
    "bootstrap_servers": "a:1",
    "security_protocol": "SASL_SSL",
    "sasl_mechanism": "PLAIN",
    "sasl_username": "me",
}


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.touch(0o600)
    path.write_text("of the file")
    return path


def _password_of(path: Path, **fields: object) -> str:
    path.touch(0o600)
    path.write_text(json.dumps({**SASL, **fields}))
    return str(resolve_connection(connection_file=path).kafka_python_config()["sasl_plain_password"])


def test_a_password_is_of_the_connection_file_then_of_a_variable_then_of_a_file_that_one_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, secret: Path
) -> None:
    path = tmp_path / "sasl.json"
    with pytest.raises(BadConnectionFileError, match="SASL_SSL needs sasl_password"):
        _password_of(path)
    monkeypatch.setenv("EVENLOAD_SASL_PASSWORD_FILE", str(secret))
    assert _password_of(path) == "of the file"
    monkeypatch.setenv("EVENLOAD_SASL_PASSWORD", "of the variable")
    assert _password_of(path) == "of the variable"
    assert _password_of(path, sasl_password=None) == "of the variable"
    assert _password_of(path, sasl_password="its own") == "its own"
    assert _password_of(path, sasl_password_path=str(secret)) == "of the file"
    with pytest.raises(BadConnectionFileError, match="sasl_password and sasl_password_path say the same"):
        _password_of(path, sasl_password="its own", sasl_password_path=str(secret))


def test_passwords_of_the_environment_are_for_who_needs_one(
    monkeypatch: pytest.MonkeyPatch, connection_file: Path, tmp_path: Path
) -> None:
    monkeypatch.setenv("EVENLOAD_SASL_PASSWORD", "hush")
    monkeypatch.setenv("EVENLOAD_SSL_KEY_PASSWORD", "key hush")
    assert not resolve_connection("a:1").has_secrets
    assert not resolve_connection(connection_file=connection_file).has_secrets
    fields = {"bootstrap_servers": "a:1", "security_protocol": "SSL"}
    path = tmp_path / "tls.json"
    path.write_text(json.dumps({**fields, "ssl_certificate_path": "/me.pem", "ssl_key_path": "/me.key"}))
    assert resolve_connection(connection_file=path).confluent_config()["ssl.key.password"] == "key hush"


@pytest.mark.parametrize(
    ("fields", "mode", "is_said"),
    [
        ({"sasl_password": "hush"}, 0o644, True),
        ({"sasl_password": "hush"}, 0o640, False),
        ({"sasl_password_path": "/elsewhere"}, 0o644, False),
        ({}, 0o644, False),  # of the environment
    ],
)
def test_a_connection_file_with_a_secret_that_everybody_can_read_is_warned_of(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    fields: dict[str, str],
    mode: int,
    is_said: bool,
) -> None:
    monkeypatch.setenv("EVENLOAD_SASL_PASSWORD", "hush")
    path = tmp_path / "sasl.json"
    path.write_text(json.dumps({**SASL, **fields}))
    path.chmod(mode)
    resolve_connection(connection_file=path)
    assert (f"{path} holds a secret, and every user of this machine may read it" in caplog.text) == is_said
    assert "hush" not in caplog.text


def test_a_file_of_weights_is_for_producers_without_a_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENLOAD_WEIGHTS", "/weights.json")

    assert resolve_connection("a:1").weights_path == Path("/weights.json")


def test_a_collector_url_that_is_none_is_refused_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENLOAD_COLLECTOR_URL", "collector:9405")

    with pytest.raises(
        ValueError, match=r"EVENLOAD_COLLECTOR_URL: .*'collector:9405' is not http://host:port"
    ):
        resolve_connection("a:1")
