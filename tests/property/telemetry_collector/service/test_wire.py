"""A snapshot survives its trip as JSON exactly; whatever else arrives is one error of ours."""

from __future__ import annotations

import contextlib
import copy
import functools
import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.telemetry_collector import (
    BrokerSnapshot,
    ClusterSnapshot,
    PartitionSnapshot,
    ServiceUnusableError,
    TopicPartition,
)
from evenload.telemetry_collector.service.compressed import Part, gzip_of
from evenload.telemetry_collector.service.wire import (
    SnapshotAnswer,
    decode_answer,
    encode_age,
    encode_snapshot,
    encode_told,
)
from evenload.telemetry_collector.snapshot import LogDirSnapshot, TopicConfig
from evenload.telemetry_collector.testing import make_snapshot
from evenload.telemetry_collector.weights import Weights

IDS = st.integers(0, 6)
NUMBERS = st.integers(0, 4)
TOPICS = st.sampled_from(["clicks", "ünï", 'a"b', "c,d"])
BYTES = st.integers(0, 2**63 - 1)
TIMES = st.floats(0, 4e9)
MAYBE_SECONDS = st.none() | st.floats(0, 1e6)
KEYS = st.builds(TopicPartition, TOPICS, NUMBERS)
PARTITIONS = st.builds(
    PartitionSnapshot,
    leader_id=st.none() | IDS,
    replica_ids=st.lists(IDS, max_size=4, unique=True).map(tuple),
    isr_ids=st.lists(IDS, max_size=4, unique=True).map(tuple),
)
LOG_DIRS = st.builds(
    LogDirSnapshot,
    capacity_bytes=BYTES,
    used_bytes=BYTES,
    topic_partitions=st.frozensets(KEYS, max_size=4),
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
# Every field is given a value of its own, so that one that wire.py forgets is seen.
BROKERS = st.builds(
    BrokerSnapshot,
    broker_id=IDS,
    rack=st.none() | TEXT,
    capacity_bytes=st.none() | BYTES,
    used_bytes=BYTES,
    usable_bytes=st.none() | BYTES,
    bytes_by_topic_partition=st.dictionaries(KEYS, BYTES, max_size=6),
    unreachable_since_s=st.none() | TIMES,
    latency_s=MAYBE_SECONDS,
    ingest_bytes_per_s=MAYBE_SECONDS,
    request_latency_s=MAYBE_SECONDS,
    is_cordoned=st.booleans(),
    announced_bytes=BYTES,
    log_dirs=st.dictionaries(TEXT, LOG_DIRS, max_size=2),
)


def _only_of_known_topics(snapshot: ClusterSnapshot) -> ClusterSnapshot:
    configs = {topic: said for topic, said in snapshot.topic_configs.items() if topic in snapshot.topics}
    return replace(snapshot, topic_configs=configs)


CONFIGS = st.builds(
    TopicConfig,
    partition_max_bytes=st.none() | BYTES,
    max_age_s=MAYBE_SECONDS,
    segment_bytes=st.none() | BYTES,
    min_in_sync=st.none() | st.integers(1, 5),
).filter(lambda config: config != TopicConfig())
SNAPSHOTS = st.builds(
    ClusterSnapshot,
    cluster_id=TEXT,
    taken_at_s=TIMES,
    brokers=st.lists(BROKERS, max_size=5, unique_by=lambda b: b.broker_id).map(
        lambda brokers: {b.broker_id: b for b in brokers}
    ),
    topics=st.dictionaries(TOPICS, st.dictionaries(NUMBERS, PARTITIONS, max_size=4), max_size=3),
    topic_configs=st.dictionaries(TOPICS, CONFIGS, max_size=3),
).map(_only_of_known_topics)
PART = st.floats(0, 1)
WEIGHTS = st.none() | st.builds(
    Weights,
    goals=st.none() | st.dictionaries(TEXT, st.floats(0, 1e9), max_size=3),
    score_functions=st.none() | st.dictionaries(TEXT, st.floats(0, 1e9), max_size=3),
    brokers=st.dictionaries(IDS, PART, max_size=3),
)
ANNOUNCED = st.dictionaries(IDS, BYTES, max_size=3)


def _body(
    snapshot: ClusterSnapshot,
    *,
    topics: frozenset[str] | None = None,
    age_s: float = 0.5,
    weights: Weights | None = None,
    announced: dict[int, int] | None = None,
) -> bytes:
    head = encode_age(age_s) + encode_told(weights, announced or {})
    return head + b"".join(encode_snapshot(snapshot, topics))


def _restricted(snapshot: ClusterSnapshot, topics: frozenset[str]) -> ClusterSnapshot:
    brokers = {}
    for broker_id, broker in snapshot.brokers.items():
        fields = {name: getattr(broker, name) for name in BrokerSnapshot.__dataclass_fields__}
        fields["bytes_by_topic_partition"] = {
            key: size for key, size in broker.bytes_by_topic_partition.items() if key.topic in topics
        }
        fields["log_dirs"] = {
            path: LogDirSnapshot(
                capacity_bytes=log_dir.capacity_bytes,
                used_bytes=log_dir.used_bytes,
                topic_partitions=frozenset(k for k in log_dir.topic_partitions if k.topic in topics),
            )
            for path, log_dir in broker.log_dirs.items()
        }
        brokers[broker_id] = BrokerSnapshot(**fields)
    return ClusterSnapshot(
        cluster_id=snapshot.cluster_id,
        taken_at_s=snapshot.taken_at_s,
        brokers=brokers,
        topics={topic: layout for topic, layout in snapshot.topics.items() if topic in topics},
        topic_configs={t: said for t, said in snapshot.topic_configs.items() if t in topics},
    )


@given(SNAPSHOTS, WEIGHTS, ANNOUNCED, st.floats(-10, 1e6))
def test_what_was_encoded_is_decoded_exactly(
    snapshot: ClusterSnapshot, weights: Weights | None, announced: dict[int, int], age_s: float
) -> None:
    answer = decode_answer(_body(snapshot, age_s=age_s, weights=weights, announced=announced))
    assert answer == SnapshotAnswer(snapshot, round(age_s, 6), weights, announced)


@given(SNAPSHOTS, st.frozensets(TOPICS))
def test_only_what_belongs_to_the_topics_asked_for_is_said(
    snapshot: ClusterSnapshot, topics: frozenset[str]
) -> None:
    assert decode_answer(_body(snapshot, topics=topics)).snapshot == _restricted(snapshot, topics)


@given(st.lists(st.lists(st.binary(max_size=200), max_size=3), max_size=4))
def test_parts_that_were_compressed_apart_are_one_gzip_body(parts: list[list[bytes]]) -> None:
    body = gzip_of(Part.of(pieces) for pieces in parts)
    assert gzip.decompress(body) == b"".join(b"".join(pieces) for pieces in parts)


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_an_error_of_ours(body: bytes) -> None:
    with pytest.raises(ServiceUnusableError):
        decode_answer(body)


def _answer_or_refusal(body: bytes) -> SnapshotAnswer | ServiceUnusableError:
    try:
        return decode_answer(body)
    except ServiceUnusableError as error:
        return error


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


WHOLE = json.loads(
    _body(
        make_snapshot([1, 2], topics={"t": [(1, 2)]}, stored_bytes={("t", 0): 5}, unreachable=[2]),
        weights=Weights(goals={"g": 1.0}, brokers={1: 0.5}),
        announced={1: 2},
    )
)


def _places(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a document."""
    if path:
        yield path
    if isinstance(document, dict | list):
        for key in document if isinstance(document, dict) else range(len(document)):
            yield from _places(document[key], (*path, key))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(list(_places(WHOLE))), st.sampled_from(["replace", "drop", "repeat"]), JSON
        ),
        min_size=1,
        max_size=3,
    )
)
def test_an_answer_with_some_values_changed_is_an_answer_or_an_error_of_ours(
    changes: list[tuple[tuple[Any, ...], str, Any]],
) -> None:
    document = copy.deepcopy(WHOLE)
    for (*path, key), change, value in changes:
        with contextlib.suppress(LookupError, TypeError):  # an earlier change has taken the place away
            inside = functools.reduce(lambda at, step: at[step], path, document)
            if change == "drop":
                del inside[key]
            elif change == "repeat" and isinstance(inside, list):
                inside.insert(key, inside[key])
            else:
                inside[key] = value
    answer = _answer_or_refusal(json.dumps(document).encode())
    assert isinstance(answer, SnapshotAnswer) or len(str(answer)) < 500


@given(SNAPSHOTS, st.data())
def test_an_answer_cut_short_or_with_a_byte_changed_is_an_answer_or_an_error_of_ours(
    snapshot: ClusterSnapshot, data: st.DataObject
) -> None:
    body = bytearray(_body(snapshot))
    place = data.draw(st.integers(0, len(body) - 1))
    if data.draw(st.booleans()):
        with pytest.raises(ServiceUnusableError):
            decode_answer(bytes(body[:place]))
    body[place] = data.draw(st.integers(0, 255))
    _answer_or_refusal(bytes(body))
