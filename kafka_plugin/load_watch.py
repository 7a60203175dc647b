"""Signs of life of a load: its newest progress record, committed or not.

Whether somebody else is loading a name is asked before its transactional id is taken (which would stop
them), and again when brokers refuse us (who has taken it?). Committed records don't answer that: what
another loader has written may be hidden behind anybody's open transaction. So this reads everything, and
believes nothing but that somebody wrote it. What is committed is dataset_catalog's to say.
"""

from __future__ import annotations

import time

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from dataset_catalog.catalog import LOADS_TOPIC
from dataset_catalog.committed_reader import read_failure
from dataset_catalog.errors import CatalogUnavailableError, CorruptProgressError
from dataset_catalog.progress import LoadProgress
from dataset_catalog.record_keys import parse_key
from kafka_connection import Connection
from kafka_connection.clients import confluent_consumer


def newest_sign_of_life(
    connection: Connection, name: str, version: int, *, timeout_s: float = 30.0
) -> LoadProgress | None:
    """The progress record of this load that was written last; None if it has none, or was forgotten.

    Raises:
        CatalogUnavailableError: The topic of loads could not be read within `timeout_s`.
    """
    consumer = confluent_consumer(
        connection,
        isolation_level="read_uncommitted",
        enable_partition_eof=True,
        fetch_wait_max_ms=10,
        fetch_queue_backoff_ms=5,
    )
    try:
        start, _ = consumer.get_watermark_offsets(TopicPartition(LOADS_TOPIC, 0), timeout=timeout_s)
        consumer.assign([TopicPartition(LOADS_TOPIC, 0, start)])
        return _newest(consumer, name, version, timeout_s)
    except KafkaException as error:
        raise read_failure(LOADS_TOPIC, error.args[0]) from error
    finally:
        consumer.close()


def _newest(consumer: Consumer, name: str, version: int, timeout_s: float) -> LoadProgress | None:
    newest: LoadProgress | None = None
    heard_s = time.monotonic()
    while time.monotonic() - heard_s < timeout_s:
        for message in consumer.consume(256, 0.1):
            heard_s = time.monotonic()
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                return newest
            if error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise read_failure(LOADS_TOPIC, error)
            if error is not None:
                continue
            key, value = message.key() or b"", message.value()
            parsed = parse_key(key)
            if parsed is None or (parsed.name, parsed.version) != (name, version):
                continue
            try:
                newest = LoadProgress.from_record(key, value) if value is not None else None
            except CorruptProgressError:
                continue  # no loader writes such a record, so it is no sign of one
    raise CatalogUnavailableError(f"reading topic {LOADS_TOPIC!r}", f"no answer for {timeout_s:.0f} s")
