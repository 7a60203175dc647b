"""A snapshot as the service answers it: JSON, exact, small enough for 100,000 partitions.

The idea: what is the same for many is said once. A partition's sizes stand in the order of its replicas, so
no size names its topic, partition or broker; in-sync replicas are left away where all are in sync; fields
that hold their default are left away. A cluster of 1,000 brokers and 100,000 partitions of 3 replicas is
6.5 MB, 2.7 MB compressed; encoding and decoding take about 0.6 s each (measured on one core). Of decoding,
parsing is a single step of 0.25 s in which no other thread of the process gets a turn, so producers ask for
their own topics (one of 1,000 partitions in that cluster: 0.2 MB, 10 ms). What loads have announced is told
as a sum, for the same reason.

    {"age_s": 0.8, "schema_version": 1, "weights": {...}, "announced": {"1": 1000},
     "cluster_id": "...", "taken_at_s": 1.7e9,
     "brokers": [{"broker_id": 1, "used_bytes": 5, ...}],
     "topics": {"clicks": {"partitions": [[NUMBER, LEADER, [REPLICA...], [IN SYNC...] or null,
                                           [BYTES or null...] or null]],
                           "partition_max_bytes": 1000000, "max_age_s": 604800, "min_in_sync": 2, ...}}}

A reader ignores fields that it doesn't know, so that newer collectors can add some; what would change the
meaning of one is another `schema_version`, which is refused.

Invariants, checked in tests/property/telemetry_collector/service/test_wire.py:
1. Decoding what was encoded gives an equal snapshot, restricted to the topics asked for.
2. Whatever is decoded, there is an answer or a `ServiceUnusableError`.

Pure. Read next: answers.py, which keeps encoded snapshots, and client.py, which reads them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, asdict, fields
from typing import Annotated, Any, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from evenload.telemetry_collector.errors import ServiceUnusableError
from evenload.telemetry_collector.snapshot import (
    BrokerSnapshot,
    ClusterSnapshot,
    LogDirSnapshot,
    PartitionSnapshot,
    TopicConfig,
    TopicPartition,
)
from evenload.telemetry_collector.weights import Weights

__all__ = [
    "ALL_TOPICS",
    "CLIENT_HEADER",
    "SCHEMA_VERSION",
    "SnapshotAnswer",
    "decode_answer",
    "encode_age",
    "encode_snapshot",
    "encode_told",
]

SCHEMA_VERSION: Final = 1
ALL_TOPICS = "*"  # in place of names, which can't hold it
CLIENT_HEADER = "Evenload-Client"  # who asks
_REASON_MAX_CHARS = 300
_COMPACT = (",", ":")


class SnapshotAnswer(NamedTuple):
    """What one answer of `/v1/snapshot` says.

    Attributes:
        snapshot: restricted to the topics asked for; its times are those of the service's clock.
        age_s: seconds from the measurement to the arrival of the request, by the service's clock; below 0
            when it was measured while the request waited.
        weights: what an operator has put in force, or None.
        announced: by broker id, the stored bytes that loads will still write there, without those loads that
            the question left out.
    """

    snapshot: ClusterSnapshot
    age_s: float
    weights: Weights | None
    announced: Mapping[int, int]


def encode_age(age_s: float) -> bytes:
    """The beginning of an answer, which differs from request to request; `encode_told`'s follows."""
    return b'{"age_s":%s,' % json.dumps(round(age_s, 6), allow_nan=False).encode()


def encode_told(weights: Weights | None, announced: Mapping[int, int]) -> bytes:
    """What operators and loads have said; `encode_snapshot`'s follows."""
    told = {
        "schema_version": SCHEMA_VERSION,
        "weights": None if weights is None else weights.model_dump(exclude_defaults=True),
        "announced": announced,
    }
    return json.dumps(told, separators=_COMPACT, allow_nan=False)[1:-1].encode() + b","


def encode_snapshot(snapshot: ClusterSnapshot, topics: Collection[str] | None) -> Iterator[bytes]:
    """The part that depends on the snapshot alone, up to the answer's end; in pieces of a topic each.

    Pieces, because the encoder gives no other thread a turn while it is at one.

    Args:
        snapshot: what to say.
        topics: whose layout and sizes; None: of all that it holds.
    """
    topics = None if topics is None else frozenset(topics)
    wanted = snapshot.topics.keys() if topics is None else snapshot.topics.keys() & topics
    # What is held by brokers that are replicas of the partition is said there; this is the rest.
    elsewhere: dict[int, dict[str, dict[int, int]]] = {}
    for broker_id, broker in snapshot.brokers.items():
        for (topic, number), size_bytes in broker.bytes_by_topic_partition.items():
            if topics is not None and topic not in topics:
                continue
            placed = snapshot.topics.get(topic, {}).get(number)
            if placed is None or broker_id not in placed.replica_ids:
                elsewhere.setdefault(broker_id, {}).setdefault(topic, {})[number] = size_bytes
    yield b'"cluster_id":%s,"taken_at_s":%s,"brokers":[' % (
        json.dumps(snapshot.cluster_id).encode(),
        json.dumps(snapshot.taken_at_s).encode(),
    )
    for place, broker in enumerate(snapshot.brokers.values()):
        document = _broker(broker, topics, elsewhere.get(broker.broker_id))
        yield (b"," if place else b"") + json.dumps(document, separators=_COMPACT).encode()
    yield b'],"topics":{'
    for place, topic in enumerate(sorted(wanted)):
        rows = [_row(snapshot, topic, number, placed) for number, placed in snapshot.topics[topic].items()]
        config = asdict(snapshot.config_of(topic))
        said = {"partitions": rows} | {name: value for name, value in config.items() if value is not None}
        text = f"{json.dumps(topic)}:{json.dumps(said, separators=_COMPACT)}"
        yield (b"," if place else b"") + text.encode()
    yield b"}}"


def decode_answer(body: bytes) -> SnapshotAnswer:
    """What an answer says.

    Raises:
        ServiceUnusableError: it is not an answer, or one of another schema version.
    """
    try:
        answer = _Answer.model_validate_json(body)
        return SnapshotAnswer(
            snapshot=_snapshot(answer),
            age_s=answer.age_s,
            weights=None if answer.weights is None else Weights(**dict(answer.weights)),
            announced=answer.announced,
        )
    except ValidationError as error:
        raise ServiceUnusableError(_reason(error)) from error
    except ValueError as error:  # what a snapshot itself refuses
        raise ServiceUnusableError(f"its snapshot can't be: {error}"[:_REASON_MAX_CHARS]) from error


# Encoding.

_SAID_ELSEWHERE = {"broker_id", "bytes_by_topic_partition", "log_dirs"}
_DEFAULTS = {
    field.name: field.default
    for field in fields(BrokerSnapshot)
    if field.default is not MISSING and field.name not in _SAID_ELSEWHERE
}


def _broker(
    broker: BrokerSnapshot,
    topics: Collection[str] | None,
    elsewhere: Mapping[str, Mapping[int, int]] | None,
) -> dict[str, Any]:
    document: dict[str, Any] = {"broker_id": broker.broker_id}
    for name, default in _DEFAULTS.items():
        value = getattr(broker, name)
        if value != default and not (isinstance(value, float) and not math.isfinite(value)):
            document[name] = value
    if broker.log_dirs:
        document["log_dirs"] = {path: _log_dir(log_dir, topics) for path, log_dir in broker.log_dirs.items()}
    if elsewhere:
        document["elsewhere_bytes"] = elsewhere
    return document


def _log_dir(log_dir: LogDirSnapshot, topics: Collection[str] | None) -> dict[str, Any]:
    partitions: dict[str, list[int]] = {}
    for topic, number in sorted(log_dir.topic_partitions):
        if topics is None or topic in topics:
            partitions.setdefault(topic, []).append(number)
    return {
        "capacity_bytes": log_dir.capacity_bytes,
        "used_bytes": log_dir.used_bytes,
        "partitions": partitions,
    }


def _row(snapshot: ClusterSnapshot, topic: str, number: int, placed: PartitionSnapshot) -> list[Any]:
    key = TopicPartition(topic, number)
    sizes = [
        None
        if (broker := snapshot.brokers.get(broker_id)) is None
        else broker.bytes_by_topic_partition.get(key)
        for broker_id in placed.replica_ids
    ]
    return [
        number,
        placed.leader_id,
        placed.replica_ids,
        None if placed.isr_ids == placed.replica_ids else placed.isr_ids,
        sizes if any(size is not None for size in sizes) else None,
    ]


# Decoding. Strict: nothing is turned into something else, so what comes out is what was said.

# Sums of what Kafka calls "without limit": a retention of 2**63 - 1 bytes and a segment, volumes of a network
# file system that reports 2**63 each.
_Bytes = Annotated[int, Field(ge=0, lt=2**80)]
_Id = Annotated[int, Field(ge=-(2**31), lt=2**31)]


class _Said(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


class _LogDir(_Said):
    capacity_bytes: _Bytes
    used_bytes: _Bytes
    partitions: dict[str, list[_Id]] = {}


class _Broker(_Said):
    broker_id: _Id
    rack: str | None = None
    capacity_bytes: _Bytes | None = None
    used_bytes: _Bytes = 0
    usable_bytes: _Bytes | None = None
    unreachable_since_s: float | None = None
    latency_s: float | None = None
    ingest_bytes_per_s: float | None = None
    request_latency_s: float | None = None
    is_cordoned: bool = False
    announced_bytes: _Bytes = 0
    log_dirs: dict[str, _LogDir] = {}
    elsewhere_bytes: dict[str, dict[_Id, _Bytes]] = {}


class _Topic(_Said):
    partitions: list[
        tuple[_Id, _Id | None, tuple[_Id, ...], tuple[_Id, ...] | None, list[_Bytes | None] | None]
    ]
    partition_max_bytes: _Bytes | None = None
    max_age_s: float | None = None
    segment_bytes: _Bytes | None = None
    min_in_sync: _Id | None = None


class _Weights(_Said):
    goals: dict[str, float] | None = None
    score_functions: dict[str, float] | None = None
    brokers: dict[_Id, float] = {}


class _Answer(_Said):
    schema_version: Annotated[int, Field(ge=SCHEMA_VERSION, le=SCHEMA_VERSION)]
    age_s: float
    weights: _Weights | None = None
    announced: dict[_Id, _Bytes] = {}
    cluster_id: str
    taken_at_s: float
    brokers: list[_Broker]
    topics: dict[str, _Topic]


def _snapshot(answer: _Answer) -> ClusterSnapshot:
    held: dict[int, dict[TopicPartition, int]] = {broker.broker_id: {} for broker in answer.brokers}
    topics: dict[str, dict[int, PartitionSnapshot]] = {}
    for topic, said in answer.topics.items():
        layout = topics[topic] = {}
        for number, leader_id, replica_ids, isr_ids, sizes in said.partitions:
            layout[number] = PartitionSnapshot(
                leader_id=leader_id,
                replica_ids=replica_ids,
                isr_ids=replica_ids if isr_ids is None else isr_ids,
            )
            if sizes is not None:
                if len(sizes) != len(replica_ids):
                    raise ValueError(
                        f"partition {number} of topic {topic[:50]!r} has {len(replica_ids)} replicas "
                        f"and {len(sizes)} sizes"
                    )
                key = TopicPartition(topic, number)
                for broker_id, size_bytes in zip(replica_ids, sizes, strict=True):
                    if size_bytes is not None and broker_id in held:
                        held[broker_id][key] = size_bytes
    for broker in answer.brokers:
        for topic, sizes_by_number in broker.elsewhere_bytes.items():
            for number, size_bytes in sizes_by_number.items():
                held[broker.broker_id][TopicPartition(topic, number)] = size_bytes
    return ClusterSnapshot(
        cluster_id=answer.cluster_id,
        taken_at_s=answer.taken_at_s,
        brokers={broker.broker_id: _broker_snapshot(broker, held) for broker in answer.brokers},
        topics=topics,
        topic_configs={
            topic: config
            for topic, said in answer.topics.items()
            if (config := TopicConfig(**said.model_dump(exclude={"partitions"}))) != TopicConfig()
        },
    )


def _broker_snapshot(said: _Broker, held: Mapping[int, Mapping[TopicPartition, int]]) -> BrokerSnapshot:
    return BrokerSnapshot(
        broker_id=said.broker_id,
        bytes_by_topic_partition=held[said.broker_id],
        log_dirs={
            path: LogDirSnapshot(
                capacity_bytes=log_dir.capacity_bytes,
                used_bytes=log_dir.used_bytes,
                topic_partitions=frozenset(
                    TopicPartition(topic, number)
                    for topic, numbers in log_dir.partitions.items()
                    for number in numbers
                ),
            )
            for path, log_dir in said.log_dirs.items()
        },
        **{name: getattr(said, name) for name in _DEFAULTS},
    )


def _reason(error: ValidationError) -> str:
    errors = error.errors(include_url=False)
    version = next((e for e in errors if e["loc"] == ("schema_version",)), None)
    if version is not None and isinstance(version["input"], int):
        return (
            f"it speaks schema version {str(version['input'])[:20]}, and this program {SCHEMA_VERSION}; "
            "use the same version of evenload on both sides"
        )
    where = ".".join(str(part) for part in (version or errors[0])["loc"])[:100]
    what = (version or errors[0])["msg"]
    reason = f"its answer can't be read: {where + ': ' if where else ''}{what}"
    return reason[:_REASON_MAX_CHARS]
