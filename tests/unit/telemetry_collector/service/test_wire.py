"""What answers of other versions look like, and how large an answer is."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from evenload.telemetry_collector import PartitionSnapshot, ServiceUnusableError, TopicPartition
from evenload.telemetry_collector.service.wire import decode_answer, encode_age, encode_snapshot, encode_told
from evenload.telemetry_collector.snapshot import BrokerSnapshot, ClusterSnapshot, TopicConfig
from evenload.telemetry_collector.testing import make_snapshot

SNAPSHOT = make_snapshot([100, 200], topics={"t": [(1, 2)]}, stored_bytes={("t", 0): 5})


def _document() -> dict[str, Any]:
    body = encode_age(1.0) + encode_told(None, {}) + b"".join(encode_snapshot(SNAPSHOT, None))
    document: dict[str, Any] = json.loads(body)
    return document


def _decoded(document: Any) -> Any:
    return decode_answer(json.dumps(document).encode())


def test_fields_of_newer_collectors_are_ignored() -> None:
    document = _document()
    document["more"] = 1
    document["brokers"][0]["more"] = {"a": [1]}
    document["topics"]["t"]["more"] = None
    document["weights"] = {"goals": {"disk_usage": 1.0}, "more": 2}
    answer = _decoded(document)
    assert answer.snapshot == SNAPSHOT
    assert answer.weights.goals == {"disk_usage": 1.0}


@pytest.mark.parametrize("version", [0, 2, 10**100])
def test_another_schema_version_is_refused_by_its_number(version: int) -> None:
    with pytest.raises(ServiceUnusableError, match=r"schema version \d+, and this program 1; use the same"):
        _decoded({"schema_version": version, "brokers": "elsewhere"})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"schema_version": None}, "schema_version"),
        ({"taken_at_s": "now"}, "taken_at_s: Input should be a valid number"),
        ({"brokers": [{"broker_id": 1, "used_bytes": -1}]}, r"brokers\.0\.used_bytes"),
        (
            {"topics": {"t": {"partitions": [[0, 1, [1, 2], None, [5]]]}}},
            "partition 0 of topic 't' has 2 replicas and 1 sizes",
        ),
        ({"weights": {"goals": {"disk_usage": -1.0}}}, "goals"),
        ({"age_s": 1e999}, "age_s"),
    ],
)
def test_what_is_wrong_with_an_answer_is_said(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ServiceUnusableError, match=reason):
        _decoded(_document() | change)


def test_a_sum_of_sizes_without_limit_is_read() -> None:
    without_limit = 2**63 - 1
    snapshot = make_snapshot([0], 2 * without_limit, topics={"t": [(1,)]})
    snapshot = replace(
        snapshot, topic_configs={"t": TopicConfig(partition_max_bytes=without_limit + (1 << 30))}
    )
    body = encode_age(1.0) + encode_told(None, {}) + b"".join(encode_snapshot(snapshot, None))
    assert decode_answer(body).snapshot == snapshot


def test_a_figure_that_is_no_number_is_left_away() -> None:
    broker = BrokerSnapshot(broker_id=1, latency_s=float("nan"), ingest_bytes_per_s=float("inf"))
    snapshot = ClusterSnapshot(cluster_id="c", taken_at_s=1.0, brokers={1: broker}, topics={})
    body = encode_age(1.0) + encode_told(None, {}) + b"".join(encode_snapshot(snapshot, None))
    assert decode_answer(body).snapshot.brokers[1] == BrokerSnapshot(broker_id=1)


def test_a_partition_of_three_replicas_takes_less_than_80_bytes() -> None:
    num_partitions = 2000
    layout = {
        n: PartitionSnapshot(leader_id=b, replica_ids=(b, b + 1, b + 2), isr_ids=(b, b + 1, b + 2))
        for n in range(num_partitions)
        for b in [100 + n % 800]
    }
    brokers = {
        b: BrokerSnapshot(
            broker_id=b,
            bytes_by_topic_partition={
                TopicPartition("topic", n): 10**10 + n
                for n, placed in layout.items()
                if b in placed.replica_ids
            },
        )
        for b in range(100, 902)
    }
    snapshot = ClusterSnapshot(cluster_id="c", taken_at_s=1.0, brokers=brokers, topics={"topic": layout})
    body = b"".join(encode_snapshot(snapshot, None))
    without = b"".join(encode_snapshot(snapshot, ()))
    assert len(body) - len(without) < 80 * num_partitions
