"""`evenload collector` before it measures: what it refuses, each in a sentence, and whom it lets in."""

from __future__ import annotations

import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from pydantic import SecretStr, ValidationError

from evenload.cli import collector, main
from evenload.kafka_connection import Connection
from evenload.telemetry_collector.config import CollectorConfig
from evenload.telemetry_collector.service import running
from evenload.telemetry_collector.service.config import ServiceConfig

StartCollector = Callable[..., Any]


def _end(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["collector", "--bootstrap-servers", "a:1", *arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["1", "localhost:7071"], "'localhost:7071' is not http://HOST:PORT/PATH, nor https"),
        (["1", "http://user:swordfish@a/metrics"], "an address with a user or password in it can't be used"),
        (["1", "http://a/metrics", "--metrics-url", "1", "http://b/metrics"], "broker 1 is named twice"),
    ],
)
def test_an_address_of_metrics_that_cant_be_used_is_a_sentence_without_a_secret(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _end(["--metrics-url", *arguments]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert "swordfish" not in said
    assert "pydantic" not in said


def test_a_configuration_that_is_refused_quotes_no_password() -> None:
    with pytest.raises(ValidationError, match="with a user or password in it") as raised:
        CollectorConfig(metrics_url_by_broker={1: "http://user:swordfish@a/metrics"})
    assert "swordfish" not in str(raised.value)


def test_pushing_without_its_package_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def serve(*_: Any, **__: Any) -> None:
        raise ModuleNotFoundError("No module named 'opentelemetry.exporter'", name="opentelemetry.exporter")

    monkeypatch.setattr(running, "serve", serve)
    assert _end(["--otlp-endpoint", "http://a:4318/v1/metrics"]) == 1
    assert "pip install 'evenload[collector]'" in capsys.readouterr().err


# Who may ask, from files and the environment. No broker is needed: the port opens first.

NOWHERE = Connection(bootstrap_servers="127.0.0.1:1")


def _status(
    url: str, token: str | None, *, method: str = "GET", cafile: Path | None = None, host: str | None = None
) -> int:
    request = urllib.request.Request(url, method=method, data=b"{}" if method == "PUT" else None)
    if host is not None:
        request.add_header("Host", host)
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    context = None if cafile is None else ssl.create_default_context(cafile=cafile)
    try:
        with urllib.request.urlopen(request, timeout=60, context=context) as response:
            status: int = response.status
            return status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_tokens_come_from_files_and_the_environment(
    tmp_path: Path, start_collector: StartCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "read").write_text("to-read\n")
    (tmp_path / "ingest").write_text("to-ingest\n")
    monkeypatch.setenv("EVENLOAD_COLLECTOR_OPERATE_TOKEN", "to-operate")
    monkeypatch.setenv("EVENLOAD_COLLECTOR_INGEST_TOKEN_FILE", str(tmp_path / "ingest"))
    url = start_collector(NOWHERE, "--read-token-file", str(tmp_path / "read")).url
    assert _status(f"{url}/healthz", None) == 200
    assert [_status(f"{url}/metrics", token) for token in (None, "to-read", "to-operate")] == [401, 200, 200]
    tokens = ("to-read", "to-ingest", "to-operate")
    reported = [_status(f"{url}/v1/reports", token, method="PUT") for token in tokens]
    assert reported == [401, 400, 400]  # what is told is nonsense, and they may say it
    changed = [_status(f"{url}/v1/weights", token, method="PUT") for token in tokens]
    assert changed == [401, 401, 200]


def test_it_is_reached_by_tls_and_by_names_that_it_is_told(
    start_collector: StartCollector, certificate: Path
) -> None:
    ca = certificate.with_name("ca.pem")
    url = start_collector(
        NOWHERE, "--tls-certificate", str(certificate), "--allowed-host", "Collector.example"
    ).url
    assert url.startswith("https://127.0.0.1:")
    assert _status(f"{url}/healthz", None, cafile=ca) == 200
    for host, status in (("collector.example:1", 200), (socket.gethostname(), 200), ("evil.example", 421)):
        assert _status(f"{url}/healthz", None, cafile=ca, host=host) == status


@pytest.mark.parametrize(
    ("host", "tokens", "is_tls", "dangers"),
    [
        ("localhost", [], False, []),
        ("127.0.0.5", [], False, []),
        ("::1", [], False, []),
        ("0.0.0.0", [], False, ["may change everything", "may read all"]),
        ("::", [], True, ["may change everything", "may read all"]),
        ("collector.example", ["ingest"], False, ["may read all", "unencrypted"]),
        ("10.1.2.3", ["read"], False, ["unencrypted"]),
        ("10.1.2.3", ["operate"], False, ["may change everything", "may read all", "unencrypted"]),
        ("10.1.2.3", ["read"], True, []),
    ],
)
def test_whoever_lets_strangers_in_should_know(
    host: str, tokens: list[str], is_tls: bool, dangers: list[str]
) -> None:
    config = ServiceConfig(**{f"{right}_token": SecretStr("secret") for right in tokens})
    warnings = list(collector._dangers(host, config, is_tls=is_tls))
    assert len(warnings) == len(dangers), warnings
    for warning, danger in zip(warnings, dangers, strict=True):
        assert danger in warning


def test_it_is_called_as_its_machine_is_unless_no_client_could(monkeypatch: pytest.MonkeyPatch) -> None:
    for hostname, names in (("kafka-tools", ["kafka-tools", "a.example"]), ("_odd name", ["a.example"])):
        monkeypatch.setattr(socket, "gethostname", lambda hostname=hostname: hostname)
        assert collector._own_names("a.example") == names


def test_what_an_operator_should_know_is_said_loudly(start_collector: StartCollector) -> None:
    log = start_collector(NOWHERE, "--host", "0.0.0.0").log
    assert [line.split(":")[0] for line in log.splitlines()] == ["WARNING", "WARNING"]
    assert "whoever reaches 0.0.0.0 may change everything" in log
    assert start_collector(NOWHERE).log == ""


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--read-token-file", "EMPTY"], "EMPTY is empty"),
        (["--read-token-file", "WORDS"], "read_token: a token consists of visible ASCII"),
        (["--operate-token-file", "BINARY"], "BINARY holds no text"),
        (["--tls-key", "EMPTY"], "--tls-key needs --tls-certificate"),
        (["--tls-certificate", "EMPTY"], "no TLS with"),
        (["--tls-certificate", "ABSENT"], "ABSENT: No such file or directory"),
        (["--tls-certificate", "ENCRYPTED"], "not encrypted"),
        (["--allowed-host", "http://collector"], "allowed_hosts"),
    ],
)
def test_what_can_not_be_used_is_a_sentence_without_a_secret(
    options: list[str],
    sentence: str,
    tmp_path: Path,
    certificate: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "EMPTY").write_text("")
    (tmp_path / "WORDS").write_text("sword fish")
    (tmp_path / "BINARY").write_bytes(b"swordfish\xff")
    key = serialization.load_pem_private_key(certificate.read_bytes(), None)
    encrypted = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"swordfish"),
    )
    (tmp_path / "ENCRYPTED").write_bytes(encrypted + certificate.read_bytes())
    given = [str(tmp_path / option) if option.isupper() else option for option in options]
    assert _end([*given, "--port", "0"]) in (1, 2)
    said = capsys.readouterr().err
    assert sentence in said
    assert "fish" not in said
    assert "unexpected" not in said
