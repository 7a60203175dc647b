"""The thread that talks to one broker: sends requests, takes answers, says what can't be had.

Requests are answered in the order in which they are sent (Kafka promises that for a connection), so one
loop is enough: fill up what is in flight, take one answer, go on. The broker prepares the next answers
while this one is checked.

Read next: range_fetch.py (what moves through here), kafka_connection/broker_connection.py.
"""

from __future__ import annotations

import enum
import heapq
import threading
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from evenload.dataset_catalog.records.record_header import RECORD_HEADER
from evenload.kafka_connection.broker_connection import (
    CLIENT_ID,
    BrokerConnection,
    BrokerLostError,
    error_name,
)
from evenload.kafka_connection.fetch_messages import (
    NOT_ANSWERED,
    PASSING_ERRORS,
    FetchAnswer,
    FetchRequestWriter,
    correlation_id_of,
    read_fetch_answer,
)
from evenload.kafka_connection.record_batches import DamagedBatchError, StoredRecord, take_records
from evenload.kafka_connection.refusals import missing_permission
from evenload.kafka_connection.topic_leaders import BrokerAddress
from evenload.ray_trainer.errors import CorruptRecordError, FetchRefusedError, ReadError, RecordsGoneError
from evenload.ray_trainer.fetching.fetch_config import FetchConfig
from evenload.ray_trainer.fetching.range_fetch import FetchedBlock, RangeFetch, RecordCheck, first_samples_of
from evenload.ray_trainer.fetching.receive_buffers import BufferPool

_HEADER_KEY: Final = RECORD_HEADER.encode()
_OFFSET_OUT_OF_RANGE: Final = 1
# A batch that fails its CRC is asked for again: what broke may have been on the way and not on the disk.
_NUM_DAMAGED_MAX: Final = 3


class Blame(enum.Enum):
    """What trouble says of whom was asked, in case another replica may be asked instead."""

    NOBODY = enum.auto()
    PARTITION = enum.auto()  # the broker doesn't give this one
    BROKER = enum.auto()  # it can't be talked to


OnTrouble: TypeAlias = Callable[[list[RangeFetch], str, Blame], None]
OnNearer: TypeAlias = Callable[[RangeFetch, int], None]


class BrokerLink:
    """One broker's thread and connection; both begin with the first range.

    Any thread may call. `on_trouble` gets back the ranges that this broker can't give now, `on_nearer` those
    that it would have asked of another one; ranges that nobody will ever get end here, with an error.

    Args:
        rack: where the reader is; empty: leaders that go by racks name no other replica.
    """

    def __init__(
        self,
        address: BrokerAddress,
        *,
        topic: str,
        topic_id: uuid.UUID,
        kafka_config: Mapping[str, Any],
        config: FetchConfig,
        pool: BufferPool,
        check: RecordCheck | None,
        rack: str,
        on_trouble: OnTrouble,
        on_nearer: OnNearer,
    ) -> None:
        self.address = address
        self.num_wire_bytes = 0
        self._topic = topic
        self._kafka_config = kafka_config
        self._config = config
        self._pool = pool
        self._check = check
        self._on_trouble = on_trouble
        self._on_nearer = on_nearer
        self._writer, self._writer_with_rack = (
            FetchRequestWriter(
                topic_id=topic_id,
                client_id=CLIENT_ID,
                max_wait_ms=int(config.broker_wait_s * 1000),
                rack=asked_from,
            )
            for asked_from in ("", rack)
        )
        self._lock = threading.Condition()
        self._waiting: list[RangeFetch] = []  # a heap
        self._in_flight: deque[tuple[int, RangeFetch]] = deque()  # only this link's thread
        self._num_sent = 0
        self._connection: BrokerConnection | None = None
        self._is_closing = False
        self._thread = threading.Thread(
            target=self._run, name=f"fetch-broker-{address.broker_id}-{topic}", daemon=True
        )
        self._thread.start()

    def put(self, fetch: RangeFetch) -> None:
        """Take over a range."""
        with self._lock:
            heapq.heappush(self._waiting, fetch)
            self._lock.notify()

    def interrupt(self) -> None:
        """End soon, whatever is going on; ranges that are here go back as troubled."""
        with self._lock:
            self._is_closing = True
            if self._connection is not None:
                self._connection.interrupt()
            self._lock.notify()

    def join(self) -> None:
        """Wait for the end, after `interrupt`."""
        self._thread.join()

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                self._exchange_until_trouble()
        finally:
            self._drop("nobody asks this broker at this address any more", Blame.NOBODY)

    def _exchange_until_trouble(self) -> None:
        try:
            while self._wait_for_work():
                self._connect()
                self._send_waiting()
                self._take_answer()
        except BrokerLostError as error:
            self._drop(str(error), Blame.NOBODY if self._is_closing else Blame.BROKER)
        except Exception as error:  # noqa: BLE001 - whoever waits for these ranges has to hear of it
            # BrokerRefusedError; ValueError, when an answer makes no sense; and what nobody thought of.
            fetches = self._disconnect()
            refused = FetchRefusedError(topic=self._topic, reason=str(error) or repr(error))
            refused.__cause__ = error
            for fetch in fetches:
                self._fail(fetch, refused, Blame.BROKER)

    def _wait_for_work(self) -> bool:
        """False when it is time to end."""
        with self._lock:
            while not (self._waiting or self._in_flight or self._is_closing):
                self._lock.wait()
            return not self._is_closing

    def _connect(self) -> None:
        if self._connection is not None and not (self._connection.is_expiring and not self._in_flight):
            return
        if self._connection is not None:
            self._connection.close()
        connection = BrokerConnection(
            self.address.host,
            self.address.port,
            config=self._kafka_config,
            timeout_s=self._config.connect_timeout_s,
        )
        with self._lock:
            self._connection = connection
            if self._is_closing:
                connection.interrupt()
        connection.open()
        connection.set_timeout(self._config.request_timeout_s)

    def _send_waiting(self) -> None:
        """Fill up what is in flight, once half of it is answered: several requests in one system call."""
        assert self._connection is not None
        if len(self._in_flight) > self._config.num_in_flight_max // 2:
            return
        requests = []
        with self._lock:
            while self._waiting and self._may_send():
                fetch = heapq.heappop(self._waiting)
                self._num_sent = (self._num_sent + 1) & 0x7FFFFFFF
                self._in_flight.append((self._num_sent, fetch))
                assert fetch.source is not None, "it was dispatched"
                writer = self._writer_with_rack if fetch.source.takes_nearer else self._writer
                requests.append(
                    writer.write(
                        self._num_sent,
                        partition=fetch.wanted.partition,
                        offset=fetch.next_offset,
                        max_bytes=fetch.max_bytes,
                        leader_epoch=fetch.source.leader_epoch,
                    )
                )
        if requests:
            self._connection.send(b"".join(requests))

    def _may_send(self) -> bool:
        assert self._connection is not None
        return len(self._in_flight) < self._config.num_in_flight_max and not self._connection.is_expiring

    def _take_answer(self) -> None:
        assert self._connection is not None
        frame = self._connection.receive(self._pool.allocate, more_to_come=len(self._in_flight) > 1)
        self.num_wire_bytes += len(frame) + 4
        correlation_id, fetch = self._in_flight[0]
        if correlation_id_of(frame) != correlation_id:
            raise BrokerLostError(f"{self._connection.address} answered another request than was sent")
        answer = read_fetch_answer(frame)
        self._in_flight.popleft()
        try:
            self._take(fetch, answer)
        except Exception:
            # Whatever it is, it ends the connection, and with it all that is in flight: this one, too.
            self._in_flight.appendleft((correlation_id, fetch))
            raise

    def _take(self, fetch: RangeFetch, answer: FetchAnswer) -> None:
        if answer.error_code:
            self._take_error(fetch, answer.error_code)
            return
        if answer.preferred_replica >= 0 and not answer.records:
            self._take_nearer(fetch, answer.preferred_replica)
            return
        try:
            self._take_records(fetch, answer.records, answer.high_watermark)
        except DamagedBatchError as error:
            fetch.num_damaged += 1
            if fetch.num_damaged < _NUM_DAMAGED_MAX:
                self._on_trouble([fetch], str(error), Blame.PARTITION)
            else:
                self._fail(fetch, self._corrupt(fetch, fetch.next_offset, str(error)))

    def _take_nearer(self, fetch: RangeFetch, broker_id: int) -> None:
        if fetch.source is not None and fetch.source.takes_nearer:
            self._on_nearer(fetch, broker_id)
        else:  # or two brokers could send it to and fro without end
            said = f"broker {self.address.broker_id} names broker {broker_id}, for which it wasn't asked"
            self._on_trouble([fetch], said, Blame.PARTITION)

    def _fail(self, fetch: RangeFetch, error: ReadError, blame: Blame = Blame.PARTITION) -> None:
        """Nobody will ever get it, unless it is a follower that says so: its leader may know better."""
        if fetch.is_from_follower:
            self._on_trouble([fetch], str(error), blame)
        else:
            fetch.on_done(error)

    def _take_error(self, fetch: RangeFetch, error_code: int) -> None:
        if error_code == NOT_ANSWERED:
            said = f"broker {self.address.broker_id} holds its answers back; is the reader throttled?"
            self._on_trouble([fetch], said, Blame.NOBODY)
            return
        said = f"broker {self.address.broker_id} says {error_name(error_code)}"
        if permission := missing_permission(error_code, "READ"):
            said = f"{said}; {permission}"
        if error_code in PASSING_ERRORS:
            self._on_trouble([fetch], said, Blame.PARTITION)
        elif error_code == _OFFSET_OUT_OF_RANGE:
            self._fail(fetch, self._gone(fetch, fetch.next_offset, said))
        else:
            self._fail(fetch, FetchRefusedError(topic=self._topic, reason=said))

    def _take_records(self, fetch: RangeFetch, data: memoryview, high_watermark: int) -> None:
        wanted = fetch.wanted
        records: list[StoredRecord] = []
        next_offset = take_records(
            data,
            first_offset=fetch.next_offset,
            end_offset=wanted.end_offset,
            header_key=_HEADER_KEY,
            into=records,
        )
        fetch.records += records
        if next_offset >= wanted.end_offset:
            self._finish(fetch)
        elif next_offset > fetch.next_offset:
            fetch.note_progress(next_offset)
            self.put(fetch)
        else:
            said = f"offset {next_offset} can't be read yet (high watermark {high_watermark})"
            self._on_trouble([fetch], said, Blame.PARTITION)

    def _finish(self, fetch: RangeFetch) -> None:
        block = self._finished(fetch)
        if isinstance(block, FetchedBlock):
            fetch.on_done(block)
        else:
            self._fail(fetch, block)

    def _finished(self, fetch: RangeFetch) -> FetchedBlock | ReadError:
        values: list[memoryview] = []
        for record in fetch.records:
            if record.offset != fetch.wanted.first_offset + len(values):
                break
            reason = self._check(record) if self._check else None
            if record.value is None:
                reason = "it has no value"
            if reason or record.value is None:
                return self._corrupt(fetch, record.offset, reason or "")
            values.append(record.value)
        if len(values) < fetch.wanted.num_records:
            missing = fetch.wanted.first_offset + len(values)
            return self._gone(fetch, missing, "the log goes on without it")
        first_samples = first_samples_of(fetch.records) if self._check else None
        return FetchedBlock(fetch.wanted, values, first_samples)

    def _corrupt(self, fetch: RangeFetch, offset: int, reason: str) -> CorruptRecordError:
        return CorruptRecordError(
            topic=self._topic, partition=fetch.wanted.partition, offset=offset, reason=reason
        )

    def _gone(self, fetch: RangeFetch, offset: int, reason: str) -> RecordsGoneError:
        return RecordsGoneError(
            topic=self._topic, partition=fetch.wanted.partition, offset=offset, reason=reason
        )

    def _disconnect(self) -> list[RangeFetch]:
        """Close the connection; the ranges that were to come over it."""
        with self._lock:
            fetches = [fetch for _, fetch in self._in_flight] + self._waiting
            self._in_flight.clear()
            self._waiting = []
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        return fetches

    def _drop(self, reason: str, blame: Blame) -> None:
        fetches = self._disconnect()
        if fetches:
            self._on_trouble(fetches, reason, blame)
