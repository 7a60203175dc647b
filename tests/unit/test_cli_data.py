"""What `evenload ingest` and tables show."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dataset_catalog.testing import make_batch, make_manifest
from evenload.cli import data, main
from evenload.cli.output import Output
from kafka_connection import BrokersUnreachableError, KafkaConnectionError
from kafka_plugin import loader
from telemetry_collector.errors import CollectorClosedError, CollectorError


def _raise(error: Exception) -> Any:
    raise error


@pytest.mark.parametrize(
    "error", [CollectorClosedError("it was closed"), BrokersUnreachableError("a:1", "refused")]
)
def test_brokers_that_cant_be_measured_are_no_failure_of_a_load(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: CollectorError | KafkaConnectionError,
) -> None:
    manifest = make_manifest(make_batch(0), [])
    monkeypatch.setattr(loader, "load_dataset", lambda *_, **__: manifest)
    monkeypatch.setattr(data, "sample_once", lambda _: _raise(error))
    for options in (["--json"], []):
        with pytest.raises(SystemExit) as ended:
            main(["ingest", "flowers", "a.csv", "--bootstrap-servers", "a:1", *options])
        assert ended.value.code == 0
    said = capsys.readouterr()
    document, _ = json.JSONDecoder().raw_decode(said.out)
    assert document["name"] == "flowers"
    assert (document["brokers"], document["utilisation_spread"]) == ([], None)
    assert said.err.count("the dataset is loaded, but the brokers can't be measured") == 2


def test_brackets_in_a_table_are_text(capsys: pytest.CaptureFixture[str]) -> None:
    Output(as_json=False).table(["[b]column[/b]", "type"], [["[/INST]", "timestamp[ns]"]])
    said = capsys.readouterr().out
    assert all(text in said for text in ("[b]column[/b]", "[/INST]", "timestamp[ns]"))
