"""What `evenload ingest` and tables show."""

from __future__ import annotations

import json
from typing import Any

import pytest

from evenload.cli import data, main
from evenload.cli.edge import sentence
from evenload.cli.output import Output
from evenload.dataset_catalog.catalog import DATASETS_TOPIC, LOADS_TOPIC, Catalog, Listing
from evenload.dataset_catalog.logs.manifest_log import CatalogContents, manifest_records
from evenload.dataset_catalog.logs.progress_log import ProgressContents
from evenload.dataset_catalog.testing import make_batch, make_manifest
from evenload.kafka_connection import BrokersUnreachableError, KafkaConnectionError
from evenload.kafka_plugin.loading import loader
from evenload.telemetry_collector.errors import CollectorClosedError, CollectorError


def _raise(error: Exception) -> Any:
    raise error


@pytest.mark.parametrize("strategy", ["default", "round-robin"])
def test_a_goal_is_refused_where_it_has_no_say(strategy: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = ["--goal", "disk_usage", "--strategy", strategy, "--bootstrap-servers", "a:1"]
    with pytest.raises(SystemExit) as ended:
        main(["ingest", "flowers", "a.csv", *told])
    assert ended.value.code == 2
    assert f"doesn't choose with --strategy {strategy}" in capsys.readouterr().err


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


def test_what_a_topic_says_moves_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "a\x1b]0;owned\x07\r\x9b2J\u202eb"
    output = Output(as_json=False)
    output.table(["dataset"], [[hostile + "\nforged line"]])
    output.line(hostile)
    output.note(hostile)
    captured = capsys.readouterr()
    shown = captured.out + captured.err
    assert shown.replace("\n", "").isprintable()
    assert shown.count("\\x1b]0;owned\\x07\\r\\x9b2J\\u202e") == 3
    assert "\\nforged line" in shown
    assert sentence(ValueError(hostile)).isprintable()


def test_damaged_records_are_listed_and_cleared(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    records = dict(manifest_records(make_manifest(make_batch(0), []))) | {b"roses@1/0": b"what"}
    listing = Listing(CatalogContents(records), ProgressContents({b"daisies@2/0": b'{"format":2}'}))
    monkeypatch.setattr(Catalog, "listing", lambda _: listing)
    monkeypatch.setattr(Catalog, "drop_damaged", lambda _: listing.damaged())

    def run(*arguments: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["datasets", *arguments, "--bootstrap-servers", "a:1"])
        assert ended.value.code == 0
        return capsys.readouterr().out

    told = json.loads(run("--json"))
    assert [each["name"] for each in told["datasets"]] == ["flowers"]
    assert [(each["name"], each["topic"], each["reason"]) for each in told["damaged"]] == [
        ("roses@1", DATASETS_TOPIC, "it is no manifest part: 4 bytes that begin with b'what'"),
        ("daisies@2", LOADS_TOPIC, "its format is 2, this evenload reads 1"),
    ]
    assert "damaged: roses@1 in topic evenload.datasets: it is no manifest part: 4 bytes" in run()
    cleared = json.loads(run("drop", "--damaged", "--yes", "--json"))
    assert (cleared["dropped"], [each["name"] for each in cleared["kept"]]) == (["roses@1"], ["daisies@2"])
    assert "kept daisies@2" in run("drop", "--damaged", "--yes")


def test_drop_takes_a_name_or_what_is_damaged(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["flowers", "--damaged"]):
        with pytest.raises(SystemExit) as ended:
            main(["datasets", "drop", *arguments, "--bootstrap-servers", "a:1"])
        assert ended.value.code == 2
    assert capsys.readouterr().err.count("give either NAME or --damaged") == 2
