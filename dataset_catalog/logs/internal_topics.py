"""The two compacted topics in which the catalog keeps what it knows, and how they are read and written.

`evenload.datasets` holds manifests as plain records, never inside a transaction: a reader of it is never
held up by a loader that died. `evenload.loads` holds progress records, inside the loaders' transactions,
which can hide what comes after them until they end. Each has one partition, so the log's order is the
order of events.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from tempfile import SpooledTemporaryFile

from confluent_kafka import KafkaError, KafkaException, Message

from evenload.dataset_catalog.errors import CatalogError, CrowdedTopicError, OpenTransactionError, failure
from evenload.dataset_catalog.logs.committed_reader import OffsetRange, read_committed
from evenload.dataset_catalog.topic_admin import TopicAdmin
from evenload.kafka_connection import Connection
from evenload.kafka_connection.clients import confluent_producer

DATASETS_TOPIC = "evenload.datasets"
LOADS_TOPIC = "evenload.loads"
PARTITION = 0  # the only one

_POLL_S = 0.05
_IN_MEMORY_BYTES = 16 << 20
_RECORD_BYTES_MAX = 128 << 20  # no batch that unpacks to more is read
# What keys may take in memory: whoever may write to the topic decides how many there are, and how long.
# Half a million of ours find room.
_KEYS_BYTES_MAX = 128 << 20
_BYTES_PER_KEY = 220  # beside its own, measured


def ensure_internal_topics(
    connection: Connection,
    *,
    timeout_s: float,
    topics: Sequence[str] = (DATASETS_TOPIC, LOADS_TOPIC),
    kept_days: int | None = None,
) -> None:
    """Makes the topics where they don't exist, and waits until all can be written.

    Three replicas where there are three brokers, of which two must have a record before it counts.

    Args:
        kept_days: How long new topics keep their records; None: the newest of each key for ever.

    Raises:
        CatalogUnavailableError: The cluster doesn't make them, or their leaders don't answer.
    """
    with TopicAdmin(connection, timeout_s=timeout_s) as admin:
        for topic in topics:
            if admin.describe(topic) is None:
                replication = min(3, admin.num_brokers())
                min_in_sync = "2" if replication >= 3 else "1"
                configs = {"cleanup.policy": "compact", "min.insync.replicas": min_in_sync}
                if kept_days is not None:
                    configs |= {"cleanup.policy": "delete", "retention.ms": str(kept_days * 86_400_000)}
                admin.create(topic, replication=replication, configs=configs)
            # Someone else may have made it a moment ago, so this is not only for our own.
            admin.wait_for_leader(topic, PARTITION)


def latest_records(
    connection: Connection,
    topic: str,
    *,
    timeout_s: float,
    stop_offset: int | None = None,
    wanted: Callable[[bytes], bool] | None = None,
) -> LatestRecords:
    """The records that stand now, as compaction would leave them, in the order of the log.

    Args:
        stop_offset: Read up to here, where the last stable offset allows it; None: up to that.
        wanted: Whether the value of a key is wanted; of others, only the key is kept. None: all.

    Returns:
        Nothing while the topic doesn't exist.

    Raises:
        CatalogUnavailableError: Brokers don't answer.
        CrowdedTopicError: There are more keys than memory has room for.
    """
    latest = LatestRecords()
    with TopicAdmin(connection, timeout_s=timeout_s) as admin:
        if admin.describe(topic) is None:
            return latest
        start = admin.offsets(topic, [PARTITION], "log start")[PARTITION]
        # Not the log's end: what lies beyond a dead loader's open transaction can't be read before brokers
        # end that, and whoever asks would wait as long.
        stop = admin.offsets(topic, [PARTITION], "last stable")[PARTITION]
    ranges = {PARTITION: OffsetRange(start, stop if stop_offset is None else min(stop, stop_offset))}
    for record in read_committed(connection, topic, ranges, timeout_s=timeout_s):
        if record.problem is None:
            key, value = record.key or b"", record.value
            latest.put(key, b"" if value and wanted is not None and not wanted(key) else value)
            if latest.num_key_bytes > _KEYS_BYTES_MAX:
                raise CrowdedTopicError(topic, len(latest))
    return latest


class LatestRecords(Mapping[bytes, bytes]):
    """Keys and their latest values, in the order of the log.

    Values are in a temporary file once they are many: whoever may write to the topic decides how many.

    Attributes:
        num_key_bytes: What the keys take in memory, about.
    """

    def __init__(self) -> None:
        self._places: dict[bytes, tuple[int, int]] = {}  # where a key's value begins, and its length
        self._end = 0
        self._file = SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES)  # noqa: SIM115 - closed with this object
        self.num_key_bytes = 0
        weakref.finalize(self, self._file.close)

    def put(self, key: bytes, value: bytes | None) -> None:
        """The next record of the log; None takes the key away."""
        if self._places.pop(key, None) is not None:  # a dict keeps the place of the first writing
            self.num_key_bytes -= len(key) + _BYTES_PER_KEY
        if value is not None:
            self.num_key_bytes += len(key) + _BYTES_PER_KEY
            self._places[key] = (self._end, len(value))
            self._file.seek(self._end)
            self._end += self._file.write(value)

    def __getitem__(self, key: bytes) -> bytes:
        start, length = self._places[key]
        self._file.seek(start)
        return self._file.read(length)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def wait_for_stable_end(connection: Connection, topic: str, *, timeout_s: float, wait_s: float) -> int:
    """The log's end at the time of the call, as soon as everything before it can be read.

    Raises:
        OpenTransactionError: A transaction still hides some of it after `wait_s`.
        CatalogUnavailableError: Brokers don't answer.
    """
    begun_s = time.monotonic()
    with TopicAdmin(connection, timeout_s=timeout_s) as admin:
        if admin.describe(topic) is None:
            return 0
        # A loader that goes on after another waits here until its predecessor's last transaction has ended.
        # If it read the progress before, a commit under way would be missing, and its samples written twice.
        end = admin.offsets(topic, [PARTITION], "log end")[PARTITION]
        while (stable := admin.offsets(topic, [PARTITION], "last stable")[PARTITION]) < end:
            waited_s = time.monotonic() - begun_s
            if waited_s > wait_s:
                whose = admin.open_transactions(topic, PARTITION)
                raise OpenTransactionError(topic, stable, end, waited_s, whose)
            time.sleep(_POLL_S)
    return end


def write_plain(
    connection: Connection, topic: str, records: Sequence[tuple[bytes, bytes | None]], *, timeout_s: float
) -> None:
    """Writes records outside of any transaction; returns when each has its offset on enough replicas.

    Raises:
        CatalogUnavailableError: Some have not; which of them were written is not known.
    """
    if not records:
        return
    problems: list[KafkaError | None] = []
    acknowledged: list[int] = []

    def report(error: KafkaError | None, message: Message) -> None:
        # On a new topic, a report can come without an error and without an offset: the record is lost.
        offset = message.offset()
        if error is not None or offset is None or offset < 0:
            problems.append(error)
        else:
            acknowledged.append(offset)

    try:
        # A key that somebody has got in packed, however long it is, can be taken away packed as well.
        producing = confluent_producer(
            connection,
            message_timeout_ms=int(timeout_s * 1000),
            message_max_bytes=_RECORD_BYTES_MAX,
            compression_type="zstd",
        )
        with closing(producing) as producer:
            for key, value in records:
                producer.produce(topic, value, key, partition=PARTITION, on_delivery=report)
            producer.flush(timeout_s + 1)
    except (KafkaException, BufferError, SystemError) as error:
        # confluent-kafka 2.16 calls delivery callbacks with a fatal error already set: a SystemError.
        told = error.__cause__ if isinstance(error, SystemError) else error
        if not isinstance(told, (KafkaException, BufferError)):
            raise
        raise _not_written(topic, str(told), _fault(told)) from error
    if len(acknowledged) != len(records):
        fault = problems[0] if problems else None
        said = "acknowledged without an offset" if problems else f"no answer for {timeout_s:.0f} s"
        raise _not_written(topic, fault.str() if fault is not None else said, fault)


def _fault(error: Exception) -> KafkaError | None:
    return error.args[0] if isinstance(error, KafkaException) else None


def _not_written(topic: str, reason: str, fault: KafkaError | None) -> CatalogError:
    code = fault.code() if fault is not None else None
    return failure(f"writing to topic {topic!r}", reason, code=code, operation="WRITE")
