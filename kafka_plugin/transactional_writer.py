"""One loader's transactions: records and the progress that speaks of them, committed or aborted together.

A transaction goes through `begin`, `write` (many), `settle` (each record has its offset) and `commit` (they
count). Nothing is committed before each record has a delivery report with an offset: on topics made a
moment ago, confluent-kafka 2.16 loses records, with a report that has neither error nor offset, and commits
without them (tests/fault/kafka_plugin/test_new_topics.py). And nothing is begun after the end of a
transaction, be it commit or abort, before each of its partitions knows of it (transaction_markers.py).

What can pass becomes one of two exceptions, so that the loader has two ways to go on:
`TransactionFailedError` (abort, take the id anew, and do it again) and `ProducerFencedError` (somebody else
holds our transactional id by now, or the coordinator gave up on us; loader.py finds out which).

A transaction is given up before brokers would abort it by themselves (`transaction.timeout.ms`), because
librdkafka reports that the same way as being fenced.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import cast

import numpy as np
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from kafka import TopicPartition

from evenload.dataset_catalog.catalog import LOADS_TOPIC
from evenload.dataset_catalog.manifest import Encoding, Extent, extents_of_records
from evenload.dataset_catalog.progress import LoadState
from evenload.dataset_catalog.records.encoding import RECORD_HEADER
from evenload.kafka_connection import Connection
from evenload.kafka_connection.clients import confluent_producer
from evenload.kafka_connection.refusals import missing_permission
from evenload.kafka_plugin.config import LoaderConfig
from evenload.kafka_plugin.errors import (
    LoadError,
    RecordRefusedError,
    TransactionFailedError,
    WriteNotAllowedError,
)
from evenload.kafka_plugin.transaction_markers import ALL_PARTITIONS, TransactionMarkers

LIBRDKAFKA_CHOOSES = ALL_PARTITIONS  # RD_KAFKA_PARTITION_UA; it may write to any of them
_POLL_S = 0.1
_RATE_WINDOW_S = 3.0
# With a sample a record: far longer than it takes to hand over a block. See `begin_block`.
_BLOCK_LINGER_MS = 1000
_BATCH_RECORDS_MAX = 1_000_000  # librdkafka takes no more
_FIRST_IN_FLIGHT_BYTES = 16 << 20
_LEAST_IN_FLIGHT_BYTES = 4 << 20
_USABLE_FRACTION = 0.7  # of the transaction's timeout
_MARKERS_S = 10.0  # how long all partitions may take to hear of a commit; then the id is taken anew
_WHY_S = 3.0  # how long we ask why the end of a transaction has no answer
_FENCED = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
_REFUSED = (
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_RECORD,
    KafkaError.POLICY_VIOLATION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,  # librdkafka has waited for it for half a minute by then
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
)


class ProducerFencedError(LoadError):
    """Brokers don't take anything from this producer any more."""


RecordWatcher = Callable[[int, int, bool], None]


class _Attempt:
    """What became of the records of one transaction; a late report of an earlier one goes to its own."""

    def __init__(self, watcher: RecordWatcher | None) -> None:
        self._watcher = watcher
        self.partitions: set[TopicPartition] = set()  # where its records may be
        self.offsets: dict[int, list[int]] = {}
        self.num_samples: dict[int, list[int]] = {}
        self.num_written: dict[int, int] = {}  # to each partition
        self.blocks: dict[int, list[int]] = {}  # how many records were written to a partition before each
        self.num_waiting = 0
        self.waiting_bytes = 0
        self.problem: LoadError | None = None
        self.is_given_up = False  # by the client, which then says no more of a record than that
        self._reporters: dict[int, Callable[[KafkaError | None, Message], None]] = {}

    def reporter(self, num_samples: int) -> Callable[[KafkaError | None, Message], None]:
        """The callback for a record of so many samples."""
        if num_samples not in self._reporters:

            def report(error: KafkaError | None, message: Message) -> None:
                self.num_waiting -= 1
                self.waiting_bytes -= len(message)
                partition, offset = cast(int, message.partition()), message.offset()
                is_stored = error is None and offset is not None and offset >= 0
                if error is not None:
                    self.is_given_up = self.is_given_up or error.code() == KafkaError._PURGE_QUEUE
                    self.problem = self.problem or _problem(error, message.topic())
                elif not is_stored:
                    lost = TransactionFailedError("a record was acknowledged without an offset")
                    self.problem = self.problem or lost
                elif num_samples:
                    self.offsets.setdefault(partition, []).append(cast(int, offset))
                    self.num_samples.setdefault(partition, []).append(num_samples)
                if self._watcher is not None and num_samples:
                    self._watcher(partition, len(message), is_stored)

            self._reporters[num_samples] = report
        return self._reporters[num_samples]

    def extents(self) -> dict[int, tuple[Extent, ...]]:
        """By partition; no extent goes from one block into another, so that readers can tell them apart."""
        return {p: self._extents_in(p) for p in sorted(self.offsets)}

    def _extents_in(self, partition: int) -> tuple[Extent, ...]:
        offsets, num_samples = np.array(self.offsets[partition]), np.array(self.num_samples[partition])
        order = np.argsort(offsets, kind="stable")  # brokers keep the order of writing
        starts = [start for start in self.blocks.get(partition, []) if 0 < start < len(order)]
        blocks = np.split(order, starts)
        return tuple(extent for at in blocks for extent in extents_of_records(offsets[at], num_samples[at]))


class TransactionalWriter:
    """Holds a transactional id. For one thread.

    Args:
        connection: The cluster.
        transactional_id: Fixed for the dataset's name: who holds it last, fences all others.
        encoding: With `packed`, each record is a producer batch of its own; with `record`, each block is one.
        config: Limits.
        watcher: Told of each record with samples: its partition, its bytes, and whether it was stored.
        log_topic: Where every holder of the id writes.
    """

    def __init__(
        self,
        connection: Connection,
        transactional_id: str,
        encoding: Encoding,
        config: LoaderConfig,
        *,
        watcher: RecordWatcher | None = None,
        log_topic: str = LOADS_TOPIC,
    ) -> None:
        self._connection = connection
        self._log_topic = log_topic
        self._config = config
        self._transactional_id = transactional_id
        self._encoding = encoding
        self._producer: Producer | None = None
        self._watcher = watcher
        self._attempt = _Attempt(watcher)
        self._begun_s = 0.0
        self._limit_bytes = min(_FIRST_IN_FLIGHT_BYTES, config.in_flight_bytes)
        self._markers = TransactionMarkers(connection, transactional_id)
        # Of `record`, how many make a block; set before `open`.
        self.records_per_block = 10_000

    def open(self, topic: str | None, timeout_s: float) -> None:
        """Take the transactional id: ends what a dead holder left open, and fences one that is alive.

        Args:
            topic: Where an earlier holder may have written, beside `log_topic`; nobody else may.
            timeout_s: How long each step may take, in seconds.

        Raises:
            TransactionFailedError: The brokers did not answer in time.
            MarkerRefusedError: What an earlier holder left can't be ended.
        """
        self.close()
        is_packed = self._encoding == "packed"
        queue_bytes = max(self._config.in_flight_bytes, 2 * self._config.max_record_bytes)
        self._producer = confluent_producer(
            self._connection,
            client_id="evenload-loader",
            transactional_id=self._transactional_id,
            transaction_timeout_ms=int(self._config.transaction_timeout_s * 1000),
            message_timeout_ms=int(self._config.transaction_timeout_s * 1000),
            message_max_bytes=self._config.max_record_bytes,
            queue_buffering_max_kbytes=2 * queue_bytes // 1024,
            compression_type=self._config.compression,
            linger_ms=0 if is_packed else _BLOCK_LINGER_MS,
            batch_num_messages=1 if is_packed else min(self.records_per_block, _BATCH_RECORDS_MAX),
            batch_size=self._config.max_record_bytes,
        )
        written = [TopicPartition(self._log_topic, ALL_PARTITIONS)]
        if topic is not None:
            written.append(TopicPartition(topic, ALL_PARTITIONS))
        # Before the id is taken: taking it makes the coordinator forget how the last transaction ended.
        self._markers.end_earlier(written, timeout_s)
        self._retried(self._producer.init_transactions, timeout_s)

    def end_forgotten(self, topic: str, state: LoadState | None, timeout_s: float) -> None:
        """After `open`, before `begin`: end what is still open in a topic where only this id writes.

        Args:
            topic: As `open` takes it.
            state: What is committed of the load, read after `open`; None if nothing is.
            timeout_s: How long that may take, in seconds.

        Raises:
            TransactionFailedError: The brokers did not answer in time.
            MarkerRefusedError, UndecidedTransactionError: It can't be ended.
        """
        committed: dict[int, tuple[Extent, ...]] = {}
        if state is not None and state.last.topic == topic:
            committed = {each.partition: each.extents for each in state.partitions}
        self._markers.end_forgotten(topic, committed, timeout_s)

    def close(self) -> None:
        """Give up what is open. The transactional id stays ours until somebody else takes it.

        Not with `Producer.close()`: that waits for ever for brokers that are gone. Letting go of the last
        reference ends its threads within milliseconds.
        """
        if self._producer is not None:
            self._producer.purge()
            self._producer = None
        self._markers.close()

    def begin(self) -> None:
        """Start a transaction."""
        self._attempt = _Attempt(self._watcher)
        self._begun_s = time.monotonic()
        try:
            self._open_producer().begin_transaction()
        except KafkaException as error:
            raise _translated(error) from error

    @property
    def age_s(self) -> float:
        """Seconds since `begin`."""
        return time.monotonic() - self._begun_s

    def begin_block(self, partition: int, size_bytes: int) -> None:
        """The next `records_per_block` records with samples go to this partition, and are one producer batch.

        A broker gives whole batches only, so a block that begins or ends within one would have its readers
        fetch neighbours that they don't want, up to ten times over. The client closes a batch when it has as
        many records, and not before, unless handing them over takes longer than `_BLOCK_LINGER_MS`. So there
        is a wait for room here, and none within a block. (The last block of a load may have fewer records;
        `settle` sends it off.)

        Args:
            size_bytes: Payload of the whole block.

        Raises:
            TransactionFailedError, ProducerFencedError: As `write`.
        """
        self._wait_for_room(size_bytes)
        attempt = self._attempt
        attempt.blocks.setdefault(partition, []).append(attempt.num_written.get(partition, 0))

    def _wait_for_room(self, size_bytes: int) -> None:
        while self._attempt.num_waiting and self._attempt.waiting_bytes + size_bytes > self._limit_bytes:
            self._poll(_POLL_S)

    def write(
        self,
        topic: str,
        value: bytes | None,
        *,
        partition: int,
        num_samples: int,
        key: bytes | None = None,
        header: bytes | None = None,
    ) -> None:
        """Send a record, waiting while too much is on its way.

        Args:
            value: None for a tombstone.
            partition: Where to; LIBRDKAFKA_CHOOSES for its own partitioner.
            num_samples: What the record counts for in `settle`; 0 for one that is in no extent.

        Raises:
            TransactionFailedError: A record before it was not stored, or brokers take too long.
            ProducerFencedError: See the class.
        """
        producer, attempt = self._open_producer(), self._attempt
        headers: dict[str, str | bytes | None] = {} if header is None else {RECORD_HEADER: header}
        size_bytes = len(value) if value is not None else 0
        self._wait_for_room(size_bytes)
        while True:
            try:
                producer.produce(
                    topic,
                    value,
                    key,
                    partition=partition,
                    headers=headers,
                    on_delivery=attempt.reporter(num_samples),
                )
                break
            except BufferError:
                self._poll(_POLL_S)
            except KafkaException as error:
                raise _translated(error, topic) from error
        attempt.partitions.add(TopicPartition(topic, partition))
        attempt.num_waiting += 1
        attempt.waiting_bytes += size_bytes
        if num_samples:
            attempt.num_written[partition] = attempt.num_written.get(partition, 0) + 1
        self._poll(0)

    def settle(self) -> dict[int, tuple[Extent, ...]]:
        """Wait until each record that was written has an offset.

        Returns:
            Where the records of this transaction are, by partition.

        Raises:
            TransactionFailedError, ProducerFencedError: As `write`.
        """
        while self._attempt.num_waiting:
            self._poll(_POLL_S, is_flushing=True)
        self._check_attempt()
        return self._attempt.extents()

    def commit(self, *, num_bytes: int) -> None:
        """Wait until each record has an offset, and make all of them count, everywhere.

        Args:
            num_bytes: Payload of the transaction, for the pace of the next.

        Raises:
            TransactionFailedError, ProducerFencedError: As `write`.
        """
        self.settle()
        left_s = self._config.transaction_timeout_s * _USABLE_FRACTION - self.age_s
        self._end(self._open_producer().commit_transaction, max(1.0, left_s), is_committed=True)
        self._markers.complete(self._attempt.partitions, _MARKERS_S, is_committed=True)
        pace = num_bytes / max(0.01, self.age_s)
        wanted = int(pace * _RATE_WINDOW_S)
        self._limit_bytes = max(_LEAST_IN_FLIGHT_BYTES, min(self._config.in_flight_bytes, wanted))

    def abort(self, timeout_s: float) -> None:
        """End the transaction, if there is one, so that nobody ever sees its records.

        The id has to be taken anew (`open`) before the next: the client may number its next record like one
        that brokers have stored and it never heard of, and they would take it for that one (decision 0053).

        Raises:
            TransactionFailedError: It can't be said that it is ended.
            ProducerFencedError: See the class.
        """
        if self._producer is None:
            return
        self._limit_bytes = max(_LEAST_IN_FLIGHT_BYTES, self._limit_bytes // 2)
        self._end(self._open_producer().abort_transaction, timeout_s, is_committed=False)
        if self._attempt.partitions:
            self._markers.complete(self._attempt.partitions, timeout_s, is_committed=False)
        self.close()

    def _end(self, call: Callable[[float], None], timeout_s: float, *, is_committed: bool) -> None:
        try:
            self._retried(call, timeout_s)
        except TransactionFailedError as error:
            if _is_unanswered(error) and self._attempt.partitions:
                # Kafka 3 does not answer while a partition has no leader: which one says more.
                self._markers.complete(self._attempt.partitions, _WHY_S, is_committed=is_committed)
            raise

    def _open_producer(self) -> Producer:
        assert self._producer is not None, "open() comes first"
        return self._producer

    def _poll(self, timeout_s: float, *, is_flushing: bool = False) -> None:
        """Hear what became of records; flushing, also send what waits for its batch to be full."""
        producer = self._open_producer()
        try:
            (producer.flush if is_flushing else producer.poll)(timeout_s)
        except KafkaException as error:
            raise _translated(error) from error
        except SystemError as error:
            # After a fatal error, confluent-kafka calls delivery callbacks with the exception already set.
            raise self._fatal_error() from error
        self._check_attempt()

    def _fatal_error(self) -> LoadError:
        try:
            self._open_producer().abort_transaction(_POLL_S)
        except KafkaException as error:
            return _translated(error)
        return TransactionFailedError("the Kafka client failed without saying why")

    def _check_attempt(self) -> None:
        attempt = self._attempt
        if attempt.problem is not None:
            raise (self._why_given_up() if attempt.is_given_up else None) or attempt.problem
        limit_s = self._config.transaction_timeout_s * _USABLE_FRACTION
        if self.age_s > limit_s:
            waiting = f"{attempt.num_waiting} records were not acknowledged"
            raise TransactionFailedError(f"{waiting} within {limit_s:.0f} s")

    def _why_given_up(self) -> LoadError | None:
        try:
            # Refused with the reason, and without any effect: nothing begins within a transaction.
            self._open_producer().begin_transaction()
        except KafkaException as error:
            if error.args[0].code() == KafkaError._STATE:
                return None
            problem = _translated(error)
            if isinstance(problem, WriteNotAllowedError):  # it isn't said where
                topics = sorted({at.topic for at in self._attempt.partitions})
                return WriteNotAllowedError(f"to {' or '.join(map(repr, topics))}", problem.permission)
            return problem
        return None

    def _retried(self, call: Callable[[float], None], timeout_s: float) -> None:
        """A call of the transactional API: again while it may be called again, up to a deadline."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            left_s = deadline_s - time.monotonic()
            try:
                # In short turns, so that Ctrl-C is heard.
                call(max(_POLL_S, min(1.0, left_s)))
                return
            except KafkaException as error:
                if left_s <= 0 or not error.args[0].retriable():
                    raise _translated(error) from error


def _translated(error: KafkaException, topic: str | None = None) -> LoadError:
    return _problem(error.args[0], topic)


def _is_unanswered(error: TransactionFailedError) -> bool:
    cause = error.__cause__
    return isinstance(cause, KafkaException) and cause.args[0].code() == KafkaError._TIMED_OUT


def _problem(fault: KafkaError, topic: str | None) -> LoadError:
    if fault.code() in _FENCED:
        return ProducerFencedError(fault.str())
    permission = missing_permission(fault.code(), "WRITE")
    if permission is not None:
        what = f"to topic {topic!r}" if topic is not None else "in transactions"
        return WriteNotAllowedError(what, permission)
    if fault.code() in _REFUSED and topic is not None:
        return RecordRefusedError(topic, fault.str())
    return TransactionFailedError(fault.str())
