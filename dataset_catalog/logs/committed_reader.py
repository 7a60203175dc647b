"""Read the committed records of a topic, from one offset to another, and stop.

Whoever may write to a topic decides what stands there, and brokers take batches that Kafka's own compression
packs a thousand times. Client libraries unpack such a batch whole, whatever it holds. So this sends Fetch
requests itself: what a batch unpacks to is bounded (kafka_connection/record_batches.py), and its records come
one by one. A batch that can't be read hides its own records only.

Markers of transactions and compaction leave gaps, so there may be no record at the last offset: a partition
is done when a batch reaches past the end, or when the broker has nothing more to give before it. Nothing
waits for a record that may not exist, and nothing waits for ever: without any progress for `timeout_s`,
reading fails (later by up to `_CONNECT_S` for each broker that is asked who leads, and says nothing).

Invariants, checked in tests/integration/dataset_catalog/logs/test_committed_reader.py and
tests/property/dataset_catalog/logs/test_committed_faults.py:
1. What is read is what Kafka's own client reads, wherever brokers cut their answers.
2. Whatever a broker loses, refuses for the moment or damages on the way, each record comes once.

Read next: internal_topics.py and verify.py, which read so.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Final, NamedTuple

import stamina

from evenload.dataset_catalog.errors import CatalogUnavailableError, failure
from evenload.dataset_catalog.records.record_header import RECORD_HEADER
from evenload.kafka_connection import Connection
from evenload.kafka_connection.broker_connection import (
    CLIENT_ID,
    BrokerConnection,
    BrokerLostError,
    BrokerRefusedError,
    error_name,
)
from evenload.kafka_connection.fetch_messages import (
    PASSING_ERRORS,
    FetchAnswer,
    FetchRequestWriter,
    correlation_id_of,
    read_fetch_answer,
)
from evenload.kafka_connection.record_batches import DamagedBatchError, RecordBatch, batches_in, records_in
from evenload.kafka_connection.topic_leaders import BrokerAddress, TopicLeaders, TopicReplacedError

_log = logging.getLogger(__name__)
# Or Python prints the names of stamina's events on stderr, where nobody has configured logging.
logging.getLogger("stamina").addHandler(logging.NullHandler())

_HEADER_KEY: Final = RECORD_HEADER.encode()
# Of several batches: a batch that is cut off at the limit is sent twice.
_FETCH_BYTES: Final = 8 << 20
_BROKER_WAIT_MS: Final = 100  # for an offset that can't be read yet
_CONNECT_S: Final = 5.0
_ANSWER_S: Final = 10.0  # a broker that says nothing for so long may have lost the lead
_RETRY_FIRST_S: Final = 0.02
_RETRY_MAX_S: Final = 0.5
_OFFSET_OUT_OF_RANGE: Final = 1


class OffsetRange(NamedTuple):
    """Offsets `start` .. `stop - 1`."""

    start: int
    stop: int


class CommittedRecord(NamedTuple):
    """A record, or what stands for all that can't be read of a batch.

    Attributes:
        stamp: The value of the header named RECORD_HEADER; None without one.
        problem: Why the records from this offset to the end of its batch can't be read; None for a record.
    """

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    stamp: bytes | None
    problem: str | None = None


def read_committed(
    connection: Connection,
    topic: str,
    ranges: Mapping[int, OffsetRange],
    *,
    timeout_s: float,
    uncommitted_too: bool = False,
) -> Iterator[CommittedRecord]:
    """All committed records in these ranges, one partition after the other, by ascending offsets.

    Args:
        connection: The cluster.
        topic: The topic.
        ranges: By partition; `stop` at most the last stable offset, or it is waited for.
        timeout_s: Longest time without progress, in seconds.
        uncommitted_too: Also what open and aborted transactions wrote; `stop` then is at most the log's end.

    Raises:
        CatalogUnavailableError: Nothing came for `timeout_s`, or a broker can't give it.
        CatalogRefusedError: The account lacks READ on the topic.
    """
    wanted = {partition: each for partition, each in ranges.items() if each.start < each.stop}
    if not wanted:
        return
    num_unread, first_unread = 0, ""
    with closing(_Log(connection, topic, timeout_s=timeout_s, committed_only=not uncommitted_too)) as log:
        for partition, each in wanted.items():
            for batch in log.batches(partition, each):
                for record in _records(batch, partition, each):
                    if record.problem is not None:
                        at = f"partition {partition}, offset {record.offset}"
                        first_unread = first_unread or f"{record.problem} ({at})"
                        num_unread += 1
                    yield record
    if num_unread:
        _log.warning(
            "in topic %r, batches can't be read (%d); the first: %s", topic, num_unread, first_unread
        )


def _records(batch: RecordBatch, partition: int, wanted: OffsetRange) -> Iterator[CommittedRecord]:
    next_offset = max(wanted.start, batch.base_offset)
    due = (next_offset, min(wanted.stop, batch.next_offset))
    try:
        for record in records_in(batch, due, _HEADER_KEY, least_offset=next_offset):
            # Copies: a view would keep all of its batch in memory.
            key, value, stamp = (
                None if each is None else bytes(each) for each in (record.key, record.value, record.stamp)
            )
            yield CommittedRecord(partition, record.offset, key, value, stamp)
            next_offset = record.offset + 1
    except DamagedBatchError as error:
        yield CommittedRecord(partition, next_offset, None, None, None, str(error))


class _NotNowError(Exception):
    """What may be over when it is asked for again."""


class _Log:
    """The batches of a topic, from whichever brokers lead its partitions. For one thread.

    While the caller works on an answer, the request for what follows is under way.
    """

    def __init__(self, connection: Connection, topic: str, *, timeout_s: float, committed_only: bool) -> None:
        self._topic = topic
        self._timeout_s = timeout_s
        self._committed_only = committed_only
        self._config = connection.kafka_python_config()
        self._leaders = TopicLeaders(topic, None, config=self._config, timeout_s=min(timeout_s, _CONNECT_S))
        self._writer: FetchRequestWriter | None = None
        self._brokers: dict[BrokerAddress, BrokerConnection] = {}
        self._num_sent = 0
        self._under_way: tuple[BrokerConnection, int, int] | None = None  # with its partition and offset

    def close(self) -> None:
        """Close all connections; what is under way is lost."""
        self._under_way = None
        while self._brokers:
            self._brokers.popitem()[1].close()

    def batches(self, partition: int, wanted: OffsetRange) -> Iterator[RecordBatch]:
        """Those of records within this range, of committed ones if that was asked for."""
        next_offset = wanted.start
        while next_offset < wanted.stop:
            answer, batches = self._fetch(partition, OffsetRange(next_offset, wanted.stop))
            if not batches:
                return
            next_offset = batches[-1].next_offset
            if next_offset < wanted.stop:
                self._ask_ahead(partition, next_offset)
            for batch in _not_aborted(batches, answer.aborted):
                if batch.base_offset < wanted.stop:
                    yield batch

    def _fetch(self, partition: int, wanted: OffsetRange) -> tuple[FetchAnswer, list[RecordBatch]]:
        """What comes next, at least one batch; none where the log has no more before the end."""
        doing = f"reading topic {self._topic!r}"
        try:
            for attempt in stamina.retry_context(
                on=_NotNowError,
                attempts=None,
                timeout=self._timeout_s,
                wait_initial=_RETRY_FIRST_S,
                wait_max=_RETRY_MAX_S,
                wait_jitter=_RETRY_FIRST_S,
            ):
                with attempt:
                    return self._fetch_once(partition, wanted)
        except _NotNowError as error:
            reason = f"nothing came for {self._timeout_s:.0f} s from partition {partition} ({error})"
            raise CatalogUnavailableError(doing, reason) from error
        except (BrokerRefusedError, TopicReplacedError, ValueError) as error:
            raise CatalogUnavailableError(doing, str(error)) from error
        raise AssertionError("stamina raises what the last attempt raised")

    def _fetch_once(self, partition: int, wanted: OffsetRange) -> tuple[FetchAnswer, list[RecordBatch]]:
        try:
            answer = self._answer(partition, wanted.start)
            if answer.error_code:
                raise self._refusal(answer.error_code, partition, wanted.start)
            batches = list(batches_in(answer.records))
        except (BrokerLostError, DamagedBatchError, _NotNowError) as error:
            # A batch that fails its CRC may have been damaged on its way.
            self.close()
            self._writer = None  # and the leaders are asked for again
            raise _NotNowError(str(error)) from error
        # An open transaction holds the last stable offset back. What lies beyond is there, but nobody knows
        # yet whether it counts; so an empty answer is the end only where all that was asked for lies before.
        end = answer.last_stable_offset if self._committed_only else answer.high_watermark
        if batches and batches[-1].next_offset > wanted.start:
            return answer, batches
        if not answer.records and end >= wanted.stop:
            return answer, []
        raise _NotNowError(f"offset {wanted.start} can't be read yet, only those before {end}")

    def _answer(self, partition: int, offset: int) -> FetchAnswer:
        if self._under_way is None or self._under_way[1:] != (partition, offset):
            self._send(partition, offset)
        assert self._under_way is not None
        broker, self._under_way = self._under_way[0], None
        frame = broker.receive(lambda size: memoryview(bytearray(size)), more_to_come=False)
        if correlation_id_of(frame) != self._num_sent:
            raise BrokerLostError(f"{broker.address} answered another request than was sent")
        return read_fetch_answer(frame)

    def _ask_ahead(self, partition: int, offset: int) -> None:
        try:
            self._send(partition, offset)
        except (BrokerLostError, BrokerRefusedError, _NotNowError):
            self.close()  # and is asked for again when its turn comes, which then tells why not

    def _send(self, partition: int, offset: int) -> None:
        if self._writer is None:
            self._leaders.refresh()
            if self._leaders.topic_id is None:
                raise _NotNowError("no broker knows the topic")
            self._writer = FetchRequestWriter(
                topic_id=self._leaders.topic_id,
                client_id=CLIENT_ID,
                max_wait_ms=_BROKER_WAIT_MS,
                committed_only=self._committed_only,
            )
        leader = self._leaders.leader_of(partition)
        if leader is None:
            self._writer = None
            raise _NotNowError("the partition has no leader at the moment")
        broker = self._connected(leader)
        self._num_sent += 1
        broker.send(
            self._writer.write(self._num_sent, partition=partition, offset=offset, max_bytes=_FETCH_BYTES)
        )
        self._under_way = (broker, partition, offset)

    def _connected(self, leader: BrokerAddress) -> BrokerConnection:
        broker = self._brokers.get(leader)
        if broker is not None and broker.is_expiring:
            self._brokers.pop(leader).close()
            broker = None
        if broker is None:
            connect_s = min(self._timeout_s, _CONNECT_S)
            broker = BrokerConnection(leader.host, leader.port, config=self._config, timeout_s=connect_s)
            self._brokers[leader] = broker
            broker.open()
            broker.set_timeout(min(self._timeout_s, _ANSWER_S))
        return broker

    def _refusal(self, error_code: int, partition: int, offset: int) -> Exception:
        said = f"a broker says {error_name(error_code)}"
        if error_code in PASSING_ERRORS:
            return _NotNowError(said)
        if error_code == _OFFSET_OUT_OF_RANGE:
            said = f"offset {offset} of partition {partition} isn't there any more ({said})"
        return failure(f"reading topic {self._topic!r}", said, code=error_code, operation="READ")


def _not_aborted(batches: Sequence[RecordBatch], aborted: Sequence[tuple[int, int]]) -> Iterator[RecordBatch]:
    """Batches of records but those of aborted transactions; each of these ends with its producer's marker.

    Args:
        aborted: First offset and producer of each, by first offset.
    """
    # A broker sends aborted records too, and says where each aborted transaction begins. From there on its
    # producer's batches don't count, up to that producer's marker; what follows is its next transaction.
    to_come, aborting = deque(aborted), set[int]()
    for batch in batches:
        while to_come and to_come[0][0] < batch.next_offset:
            aborting.add(to_come.popleft()[1])
        if batch.is_control:
            aborting.discard(batch.producer_id)
        elif not (batch.is_transactional and batch.producer_id in aborting):
            yield batch
