"""What `evenload collector` refuses before it serves, each in a sentence."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from evenload.cli import main
from telemetry_collector.config import CollectorConfig
from telemetry_collector.service import running


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
