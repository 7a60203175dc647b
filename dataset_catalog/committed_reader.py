"""Read the committed records of a topic, from one offset to another, and stop.

Markers of transactions and compaction leave gaps, so there may be no record at the last offset: a
partition is done when a record at or past the end arrives, or when the consumer says that it stands
there. Nothing waits for a record that may not exist, and nothing waits for ever: without any record
or end of partition for `timeout_s`, reading fails.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from dataset_catalog.errors import CatalogError, CatalogUnavailableError, failure
from kafka_connection import Connection
from kafka_connection.clients import confluent_consumer

_CONSUME_RECORDS = 256
_CONSUME_S = 0.01  # consume() waits this long for a full batch, also when some records are there


class OffsetRange(NamedTuple):
    """Offsets `start` .. `stop - 1`."""

    start: int
    stop: int


def read_committed(
    connection: Connection,
    topic: str,
    ranges: Mapping[int, OffsetRange],
    *,
    timeout_s: float,
    buffer_bytes: int = 64 << 20,
) -> Iterator[Message]:
    """All committed records in these ranges: by partition ascending offsets, partitions interleaved.

    Args:
        connection: The cluster.
        topic: The topic.
        ranges: By partition; `stop` at most the last stable offset, or it is waited for.
        timeout_s: Longest silence, in seconds.
        buffer_bytes: What the client may hold ahead of the caller, about.

    Raises:
        CatalogUnavailableError: Nothing came for `timeout_s`, or a broker can't give it.
        CatalogRefusedError: The account lacks READ on the topic.
    """
    left = {partition: each.stop for partition, each in ranges.items() if each.start < each.stop}
    if not left:
        return
    consumer = confluent_consumer(
        connection,
        enable_partition_eof=True,
        # At the end of a partition a fetch waits this long before the consumer says so.
        fetch_wait_max_ms=10,
        fetch_queue_backoff_ms=5,
        # Fetches of several records: below, a batch cut at the limit is sent twice.
        fetch_message_max_bytes=8 << 20,
        queued_max_messages_kbytes=max(1, buffer_bytes // 1024),
    )
    try:
        consumer.assign([TopicPartition(topic, p, ranges[p].start) for p in left])
        yield from _consume(consumer, topic, left, timeout_s)
    except KafkaException as error:
        raise read_failure(topic, error.args[0]) from error
    finally:
        consumer.close()


def _consume(consumer: Consumer, topic: str, left: dict[int, int], timeout_s: float) -> Iterator[Message]:
    heard_at_s, last_problem = time.monotonic(), "no answer"
    while left:
        heard = False
        for message in consumer.consume(_CONSUME_RECORDS, _CONSUME_S):
            problem = message.error()
            if problem is not None and problem.code() != KafkaError._PARTITION_EOF:
                last_problem = _tolerated(problem, topic)
                continue
            heard = True
            partition, offset = cast(int, message.partition()), cast(int, message.offset())
            stop = left.get(partition)
            if stop is None:
                continue
            if problem is None and offset < stop:
                yield message
                offset += 1
            if offset >= stop:
                del left[partition]
        if heard:
            heard_at_s = time.monotonic()
        elif time.monotonic() - heard_at_s > timeout_s:
            reason = f"nothing came for {timeout_s:.0f} s from partitions {sorted(left)} ({last_problem})"
            raise CatalogUnavailableError(f"reading topic {topic!r}", reason)


def _tolerated(problem: KafkaError, topic: str) -> str:
    """What the client reports and then mends itself, as words; all else is raised."""
    mended = (
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        # librdkafka looks for a coordinator that we never need: nobody joins that group, nor commits to it.
        KafkaError.GROUP_AUTHORIZATION_FAILED,
    )
    if problem.code() in mended or problem.retriable():
        return str(problem.str())
    raise read_failure(topic, problem)


def read_failure(topic: str, problem: KafkaError) -> CatalogError:
    """The error to raise when a topic can't be read."""
    return failure(f"reading topic {topic!r}", problem.str(), code=problem.code(), operation="READ")
