"""Datasets of all kinds go into a real Kafka, whole, and come out again as they were."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kafka.admin import ConfigResource, ConfigResourceType

from evenload.dataset_catalog.catalog import LOADS_TOPIC, Catalog
from evenload.dataset_catalog.errors import DatasetExistsError, LoadInProgressError, UnknownDatasetError
from evenload.dataset_catalog.logs.committed_reader import OffsetRange, read_committed
from evenload.dataset_catalog.manifest import DatasetManifest
from evenload.dataset_catalog.records.encoding import decode_value, parse_record_header
from evenload.dataset_catalog.testing import make_progress
from evenload.dataset_catalog.verify import verify
from evenload.kafka_connection import Connection
from evenload.kafka_connection.clients import confluent_producer, open_admin
from evenload.kafka_plugin.config import LoaderConfig
from evenload.kafka_plugin.errors import (
    MalformedSourceError,
    PluginConfigError,
    RecordRefusedError,
    SampleTooLargeError,
    SourceChangedError,
    TopicError,
)
from evenload.kafka_plugin.loading.loader import load_dataset
from evenload.kafka_plugin.loading.watch import newest_sign_of_life
from evenload.kafka_plugin.sources.source import Source, open_source


@pytest.fixture
def name(topic_name: str) -> str:
    """A dataset name that no other test has."""
    return topic_name.lower()


@pytest.fixture
def catalog(connection: Connection) -> Catalog:
    return Catalog(connection)


def samples_in(connection: Connection, manifest: DatasetManifest) -> list[dict[str, Any]]:
    """All samples of a dataset, in written order, as the records' headers say it."""
    ranges = {extents.partition: OffsetRange(0, extents.end_offset) for extents in manifest.partitions}
    found: dict[int, list[dict[str, Any]]] = {}
    for record in read_committed(connection, manifest.topic, ranges, timeout_s=60):
        header = parse_record_header(record.stamp)
        assert header is not None
        assert header.first_sample not in found
        batch = decode_value(record.value or b"", manifest.arrow_schema, manifest.value_format)
        found[header.first_sample] = batch.to_pylist()
    return [row for first in sorted(found) for row in found[first]]


def topics_of(connection: Connection, name: str) -> list[str]:
    with open_admin(connection) as admin:
        return [topic for topic in admin.list_topics() if topic.startswith(name)]


def test_cola_is_loaded_whole(
    connection: Connection, catalog: Catalog, name: str, shared_test_data: Path
) -> None:
    told: list[tuple[int, int, int]] = []
    manifest = load_dataset(
        shared_test_data / "cola" / "train.tsv",
        name,
        connection=connection,
        columns=["source", "label", "mark", "sentence"],
        progress=lambda *numbers: told.append(numbers),
    )
    assert manifest.num_samples == 8551
    assert manifest.features == {
        "source": "string",
        "label": "int64",
        "mark": "string",
        "sentence": "string",
    }
    assert manifest == catalog.get(name)
    assert verify(connection, manifest).is_clean
    assert told == sorted(told)
    assert told[-1] == (8551, 8551, manifest.num_bytes)
    assert manifest.num_records >= 20  # small as it is, in pieces enough for many partitions
    assert not [load for load in catalog.unfinished() if load.last.name == name]


@pytest.mark.parametrize("strategy", ["balanced", "default", "round-robin"])
def test_images_are_loaded_whole_by_every_strategy(
    connection: Connection, name: str, shared_test_data: Path, strategy: Any
) -> None:
    manifest = load_dataset(
        shared_test_data / "cifar10" / "test.parquet", name, connection=connection, strategy=strategy
    )
    assert (manifest.num_samples, manifest.features["image"]) == (4000, "image")
    assert verify(connection, manifest).is_clean


@pytest.mark.parametrize(
    ("encoding", "value_format"), [("packed", "arrow"), ("record", "arrow"), ("record", "json")]
)
def test_samples_come_out_as_they_went_in(
    connection: Connection, name: str, tmp_path: Path, encoding: Any, value_format: Any
) -> None:
    texts = ["", "ü ☃", 'say "hi",\nthen go', "x" * (1 << 20), "NA", " "]
    path = tmp_path / "odd.csv"
    rows = ["text,label", *(f'"{text.replace(chr(34), chr(34) * 2)}",{n}' for n, text in enumerate(texts))]
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    manifest = load_dataset(
        path, name, connection=connection, encoding=encoding, value_format=value_format, seed=None
    )
    expected = [{"text": text, "label": n} for n, text in enumerate(texts)]
    assert samples_in(connection, manifest) == expected
    assert verify(connection, manifest).is_clean


def test_raw_records_are_the_bytes_themselves(connection: Connection, name: str) -> None:
    contents = [b"", b"\x00\xff", b"abc" * 1000]
    manifest = load_dataset(
        {"content": contents}, name, connection=connection, encoding="record", value_format="raw", seed=None
    )
    assert [row["content"] for row in samples_in(connection, manifest)] == contents


def test_arrays_keep_their_shape(connection: Connection, name: str) -> None:
    pixels = np.arange(20 * 4 * 4 * 3, dtype=np.uint8).reshape(20, 4, 4, 3)
    manifest = load_dataset(
        {"pixels": pixels, "label": np.arange(20)}, name, connection=connection, seed=None
    )
    assert manifest.features["pixels"] == "uint8[4, 4, 3]"
    rows = samples_in(connection, manifest)
    assert [np.reshape(row["pixels"], (4, 4, 3)).tolist() for row in rows] == pixels.tolist()


def test_one_sample_is_a_dataset(connection: Connection, name: str) -> None:
    manifest = load_dataset({"x": [7]}, name, connection=connection)
    assert (manifest.num_samples, manifest.num_records, manifest.num_bytes > 0) == (1, 1, True)
    assert samples_in(connection, manifest) == [{"x": 7}]


def test_fewer_samples_than_partitions_are_a_dataset(connection: Connection, name: str) -> None:
    manifest = load_dataset({"x": list(range(5))}, name, connection=connection, partitions=12)
    assert sorted(row["x"] for row in samples_in(connection, manifest)) == list(range(5))
    assert verify(connection, manifest).is_clean


def test_samples_are_shuffled_once_by_seed(connection: Connection, name: str) -> None:
    source = open_source({"x": np.arange(100)})
    orders = []
    for number, seed in enumerate((0, 0, 1, None)):
        manifest = load_dataset(source, f"{name}-{number}", connection=connection, seed=seed)
        assert manifest.shuffle_seed == seed
        orders.append([row["x"] for row in samples_in(connection, manifest)])
    assert orders[0] == orders[1] != orders[2]
    assert orders[3] == list(range(100)) == sorted(orders[0]) == sorted(orders[2])


def test_many_transactions_make_one_dataset(connection: Connection, name: str) -> None:
    config = LoaderConfig(transaction_bytes=4_000, block_bytes=1_000)
    source = {"x": np.arange(2_000), "text": [f"sample {n}" for n in range(2_000)]}
    for encoding in ("packed", "record"):
        manifest = load_dataset(
            source, f"{name}-{encoding}", connection=connection, encoding=encoding, config=config
        )
        assert sum(extents.num_extents for extents in manifest.partitions) > 20  # every commit ends one
        assert verify(connection, manifest).is_clean


def test_a_taken_name_is_refused_and_a_new_version_is_another_topic(
    connection: Connection, catalog: Catalog, name: str
) -> None:
    first = load_dataset({"x": [1, 2]}, name, connection=connection)
    with pytest.raises(DatasetExistsError, match="exists already"):
        load_dataset({"x": [3]}, name, connection=connection)
    second = load_dataset({"x": [3]}, name, connection=connection, new_version=True)
    assert (first.version, second.version) == (1, 2)
    assert first.topic != second.topic
    assert catalog.get(name) == second
    assert catalog.get(f"{name}@1") == first
    assert samples_in(connection, first) != samples_in(connection, second)
    catalog.drop(name)
    assert load_dataset({"x": [4]}, name, connection=connection).version == 1


def test_the_topic_keeps_its_records_for_ever_and_takes_large_ones(connection: Connection, name: str) -> None:
    manifest = load_dataset({"x": [1]}, name, connection=connection, replication=3, partitions=4)
    with open_admin(connection) as admin:
        found = admin.describe_configs(
            [ConfigResource(ConfigResourceType.TOPIC, manifest.topic)], config_filter="all"
        )
        (described,) = admin.describe_topics([manifest.topic])
    settings = {key: entry["value"] for key, entry in found["topic"][manifest.topic].items()}
    assert settings["retention.ms"] == settings["retention.bytes"] == "-1"
    assert settings["min.insync.replicas"] == "2"
    assert settings["cleanup.policy"] == "delete"
    assert int(settings["max.message.bytes"]) == 32 << 20
    assert [len(p["replica_nodes"]) for p in described["partitions"]] == [3] * 4


@pytest.fixture
def vanishing_images(tmp_path: Path) -> Path:
    """A folder of images of which one is gone by the time it is read."""
    folder = tmp_path / "pets"
    for label in ("cat", "dog"):
        (folder / label).mkdir(parents=True)
        for number in range(40):
            (folder / label / f"{number}.png").write_bytes(b"not really an image, but bytes")
    return folder


def test_a_load_that_fails_before_its_first_commit_leaves_nothing(
    connection: Connection, catalog: Catalog, name: str, vanishing_images: Path
) -> None:
    source = open_source(vanishing_images)
    (vanishing_images / "dog" / "7.png").unlink()
    with pytest.raises(MalformedSourceError, match=r"7\.png': the image can't be read"):
        load_dataset(source, name, connection=connection)
    with pytest.raises(SampleTooLargeError, match="at most"):
        load_dataset(
            {"x": ["y" * 9000]}, name, connection=connection, config=LoaderConfig(max_record_bytes=4096)
        )
    with pytest.raises(TopicError, match="replication"):
        load_dataset({"x": [1]}, name, connection=connection, replication=9, strategy="default")
    with pytest.raises(PluginConfigError, match="packed records are Arrow"):
        load_dataset({"x": ["y"]}, name, connection=connection, value_format="json")
    with pytest.raises(UnknownDatasetError):
        catalog.get(name)
    assert topics_of(connection, name) == []
    assert not [load for load in catalog.unfinished() if load.last.name == name]
    assert load_dataset({"x": [1]}, name, connection=connection).num_samples == 1


def test_a_load_that_fails_later_can_be_gone_on_with_but_not_with_something_else(
    connection: Connection, catalog: Catalog, name: str, vanishing_images: Path
) -> None:
    config = LoaderConfig(transaction_bytes=1, block_bytes=100, read_ahead_bytes=1)
    source = open_source(vanishing_images)
    path = vanishing_images / "dog" / "7.png"
    content = path.read_bytes()

    def remove_it_late(samples_done: int, *_: int) -> None:
        if samples_done == 40:
            path.unlink()

    with pytest.raises(MalformedSourceError, match=r"7\.png"):
        load_dataset(source, name, connection=connection, config=config, seed=None, progress=remove_it_late)
    (load,) = [load for load in catalog.unfinished() if load.last.name == name]
    assert 40 <= load.last.num_samples < 80
    path.write_bytes(content)

    with pytest.raises(SourceChangedError, match=r"begun with seed None, but now it is 0; .* drop it first"):
        load_dataset(source, name, connection=connection, config=config)
    with pytest.raises(SourceChangedError, match="begun with encoding packed, but now it is record"):
        load_dataset(source, name, connection=connection, config=config, seed=None, encoding="record")
    with pytest.raises(SourceChangedError, match="begun with source"):
        load_dataset({"x": [1]}, name, connection=connection, seed=None)

    manifest = load_dataset(source, name, connection=connection, config=config, seed=None)
    assert manifest.load_id == load.last.load_id
    assert manifest.num_samples == 80
    assert verify(connection, manifest).is_clean


def test_a_record_that_brokers_will_never_take_ends_the_load_at_once(
    connection: Connection, catalog: Catalog, name: str
) -> None:
    def allow_less(samples_done: int, *_: int) -> None:
        if samples_done == 10:
            (topic,) = topics_of(connection, name)
            change = ConfigResource(ConfigResourceType.TOPIC, topic, {"max.message.bytes": "300"})
            with open_admin(connection) as admin:
                admin.alter_configs([change])

    source = {"text": ["x"] * 20 + ["x" * 2000] * 20}
    config = LoaderConfig(transaction_bytes=1, block_bytes=1, read_ahead_bytes=1)
    with pytest.raises(RecordRefusedError, match=r"Brokers refuse records .*: .*too large") as caught:
        load_dataset(source, name, connection=connection, config=config, seed=None, progress=allow_less)
    (load,) = [load for load in catalog.unfinished() if load.last.name == name]
    assert caught.value.topic == load.last.topic
    assert 10 <= load.last.num_samples <= 20


def test_an_unfinished_load_whose_topic_is_gone_says_what_to_do(
    connection: Connection, name: str, vanishing_images: Path
) -> None:
    config = LoaderConfig(transaction_bytes=1, block_bytes=100, read_ahead_bytes=1)
    path = vanishing_images / "dog" / "7.png"
    source = open_source(vanishing_images)
    with pytest.raises(MalformedSourceError):
        load_dataset(
            source,
            name,
            connection=connection,
            config=config,
            seed=None,
            progress=lambda done, *_: path.unlink() if done == 40 else None,
        )
    (topic,) = topics_of(connection, name)
    with open_admin(connection) as admin:
        admin.delete_topics([topic])
    with pytest.raises(TopicError, match="is gone; drop that load"):
        load_dataset(source, name, connection=connection, config=config, seed=None)


def tell_progress(connection: Connection, name: str, *, host: str, age_s: float) -> None:
    """What a loader on another host would have written a while ago."""
    catalog = Catalog(connection)
    catalog.ensure_internal_topics()
    told = make_progress(name=name, topic="nowhere", host=host, pid=4321, updated_at_s=time.time() - age_s)
    producer = confluent_producer(connection)
    key, value = told.to_record()
    producer.produce(LOADS_TOPIC, value, key, partition=0)
    assert producer.flush(60) == 0


def test_a_second_loader_refuses_while_the_first_was_heard_of(connection: Connection, name: str) -> None:
    tell_progress(connection, name, host="elsewhere", age_s=3)
    with pytest.raises(
        LoadInProgressError, match=r"process 4321 on elsewhere, last heard of \d+ s ago"
    ) as caught:
        load_dataset({"x": [1]}, name, connection=connection)
    assert (caught.value.host, caught.value.pid) == ("elsewhere", 4321)


def test_a_silent_loader_is_gone_on_from(connection: Connection, name: str) -> None:
    tell_progress(connection, name, host="elsewhere", age_s=31)
    with pytest.raises(SourceChangedError):  # it would go on, but that load was of something else
        load_dataset({"x": [1]}, name, connection=connection)


def test_a_loader_whose_source_is_slow_still_says_that_it_is_alive(
    connection: Connection, name: str, wait_until: Callable[[Callable[[], bool]], None]
) -> None:
    told: dict[int, int] = {}  # samples by number of the sign of life

    def has_told_thrice() -> bool:
        last = newest_sign_of_life(connection, name, 1)
        assert last is not None
        told[last.sequence] = last.num_samples
        return last.sequence >= min(told) + 3

    class SlowSource(Source):
        def batches(self, *args: Any, **kwargs: Any) -> Iterator[pa.RecordBatch]:
            for number, batch in enumerate(super().batches(*args, **kwargs)):
                if number == 1:
                    wait_until(has_told_thrice)
                yield batch

    quick = open_source({"x": np.arange(4)})
    slow = SlowSource(**{field.name: getattr(quick, field.name) for field in dataclasses.fields(quick)})
    config = LoaderConfig(transaction_s=0.2, block_bytes=20)  # two samples a record
    manifest = load_dataset(slow, name, connection=connection, config=config, seed=None)
    assert manifest.num_samples == 4
    assert told
    assert max(told.values()) < 4  # no sample of what was waited for


def test_the_source_is_described_in_the_manifest(connection: Connection, name: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps({"n": n, "list": [n, n]}) for n in range(10)))
    manifest = load_dataset(str(path), name, connection=connection)
    assert manifest.source["paths"] == [str(path)]
    assert manifest.source["fingerprint"] == open_source(path).fingerprint
    assert manifest.arrow_schema.field("list").type == pa.list_(pa.int64())
