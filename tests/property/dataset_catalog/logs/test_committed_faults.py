"""Each committed record is read once, whatever brokers lose, refuse for the moment or damage on the way."""

from __future__ import annotations

import random
import struct
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import NamedTuple

import crc32c
import pytest
import stamina
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer.fetch import FetchRequest, FetchResponse
from kafka.record.default_records import DefaultRecordBatchBuilder

from evenload.dataset_catalog.logs import committed_reader
from evenload.dataset_catalog.logs.committed_reader import OffsetRange, read_committed
from evenload.kafka_connection import Connection
from evenload.kafka_connection.broker_connection import BrokerLostError
from evenload.kafka_connection.fetch_messages import FETCH_VERSION
from evenload.kafka_connection.topic_leaders import BrokerAddress

TOPIC_ID = uuid.UUID(int=7)
PASSING = [6, 74, 78, 100]  # not the leader, another epoch, not readable yet, no such topic known yet
TRANSACTIONAL, CONTROL = 0x10, 0x20
CRC_START = 21
Topic = FetchResponse.FetchableTopicResponse
Partition = Topic.PartitionData


class Batch(NamedTuple):
    start: int
    stop: int
    stored: bytes


def make_batch(start: int, num_records: int, producer: int = -1, attributes: int = 0) -> Batch:
    builder = DefaultRecordBatchBuilder(2, 0, 0, producer, 0, 0, 1 << 30)
    for number in range(num_records):
        builder.append(number, timestamp=1, key=None, value=b"%d" % (start + number), headers=[])
    stored = bytearray(builder.build())
    struct.pack_into(">q", stored, 0, start)
    struct.pack_into(">h", stored, CRC_START, attributes)
    struct.pack_into(">I", stored, CRC_START - 4, crc32c.crc32c(bytes(stored[CRC_START:])))
    return Batch(start, start + num_records, bytes(stored))


class Log:
    """What producers wrote in transactions, among each other, and beside them."""

    def __init__(self, rng: random.Random) -> None:
        self.batches: list[Batch] = []
        self.aborted: list[tuple[int, int, int]] = []  # first offset, producer, offset of the marker
        self.committed: set[int] = set()
        under_way: dict[int, list[Batch]] = {}
        for _ in range(rng.randint(1, 60)):
            producer = rng.randrange(4)  # the first needs no transactions
            if producer and producer in under_way and rng.random() < 0.4:
                self._end(producer, under_way.pop(producer), is_aborted=rng.random() < 0.5)
                continue
            written = self._append(rng.randint(1, 4), producer, TRANSACTIONAL if producer else 0)
            if producer:
                under_way.setdefault(producer, []).append(written)
            else:
                self.committed.update(range(written.start, written.stop))
        self.stable = min((begun[0].start for begun in under_way.values()), default=self._end_offset)

    @property
    def _end_offset(self) -> int:
        return self.batches[-1].stop if self.batches else 0

    def _append(self, num_records: int, producer: int, attributes: int) -> Batch:
        self.batches.append(make_batch(self._end_offset, num_records, producer, attributes))
        return self.batches[-1]

    def _end(self, producer: int, batches: list[Batch], *, is_aborted: bool) -> None:
        marker = self._append(1, producer, TRANSACTIONAL | CONTROL)
        if is_aborted:
            self.aborted.append((batches[0].start, producer, marker.start))
        else:
            self.committed.update(offset for each in batches for offset in range(each.start, each.stop))


class Brokers:
    """Two that lead by turns, and fail as they like."""

    def __init__(self, rng: random.Random, log: Log) -> None:
        self.rng = rng
        self.log = log
        self.open: set[Broker] = set()

    def fails(self) -> bool:
        return self.rng.random() < 0.08

    def answer(self, offset: int) -> FetchResponse:
        if self.fails():  # what who is throttled is told
            return self._response([])
        error = self.rng.choice(PASSING) if self.fails() else 0
        stable = offset if self.fails() else self.log.stable  # a leader that doesn't know better yet
        rest = [each for each in self.log.batches if offset < each.stop <= stable and not error]
        sent = rest[: self.rng.randint(1, 5)]
        stored = bytearray(b"".join(each.stored for each in sent))
        if sent and self.fails():
            stored[self.rng.randrange(CRC_START, len(sent[0].stored))] ^= 1
        if rest[len(sent) :]:
            stored += rest[len(sent)].stored[: self.rng.randrange(61)]  # the next, cut off
        aborted = [
            Partition.AbortedTransaction(producer_id=producer, first_offset=first)
            for first, producer, marker in self.log.aborted
            if sent and first < sent[-1].stop and marker >= offset
        ]
        partition = Partition(
            partition_index=0,
            error_code=error,
            high_watermark=stable,
            last_stable_offset=stable,
            log_start_offset=0,
            aborted_transactions=aborted,
            preferred_read_replica=-1,
            records=bytes(stored),
        )
        return self._response([Topic(topic_id=TOPIC_ID, partitions=[partition])])

    def _response(self, topics: list[Topic]) -> FetchResponse:
        return FetchResponse(
            throttle_time_ms=0, error_code=0, session_id=0, responses=topics, version=FETCH_VERSION
        )


class Leaders:
    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self.topic_id: uuid.UUID | None = None

    def refresh(self) -> None:
        if self._brokers.fails():
            raise BrokerLostError("none answers")
        self.topic_id = TOPIC_ID

    def leader_of(self, _: int) -> BrokerAddress | None:
        if self._brokers.fails():
            return None
        return BrokerAddress(1, "there", self._brokers.rng.randrange(2))


class Broker:
    """As BrokerConnection."""

    address = "there:1"

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._asked: list[tuple[int, int]] = []
        self._is_lost = False

    def open(self) -> None:
        self._brokers.open.add(self)
        self._may_be_lost()

    def _may_be_lost(self) -> None:
        assert not self._is_lost, "after an error it can only be closed"
        self._is_lost = self._brokers.fails()
        if self._is_lost:
            raise BrokerLostError("gone")

    def close(self) -> None:
        self._brokers.open.discard(self)

    def set_timeout(self, _: float) -> None:
        """It fails at once, or answers."""

    @property
    def is_expiring(self) -> bool:
        return self._brokers.fails()

    def send(self, request: bytes) -> None:
        self._may_be_lost()
        asked = FetchRequest.decode(request[4:], version=FETCH_VERSION, header=True)
        (partition,) = asked.topics[0].partitions
        self._asked.append((asked.header.correlation_id, partition.fetch_offset))

    def receive(self, _: Callable[[int], memoryview], *, more_to_come: bool) -> memoryview:
        assert not more_to_come
        self._may_be_lost()
        correlation_id, offset = self._asked.pop(0)
        answer = self._brokers.answer(offset)
        answer.with_header(correlation_id=correlation_id)
        return memoryview(answer.encode(header=True))


@pytest.fixture(autouse=True)
def _without_waiting() -> Iterator[None]:
    with stamina.set_testing(True, attempts=1000):
        yield


@given(seed=st.integers(0, 1 << 32))
def test_each_committed_record_is_read_once_whatever_brokers_do(seed: int) -> None:
    rng = random.Random(seed)
    log = Log(rng)
    brokers = Brokers(rng, log)
    start = rng.randint(0, log.stable)
    wanted = OffsetRange(start, rng.randint(start, log.stable))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(committed_reader, "TopicLeaders", lambda *_, **__: Leaders(brokers))
        patch.setattr(committed_reader, "BrokerConnection", lambda *_, **__: Broker(brokers))
        anywhere = Connection(bootstrap_servers="127.0.0.1:1")
        records = read_committed(anywhere, "topic", {0: wanted}, timeout_s=60)
        with closing(records):  # type: ignore[type-var]
            read = [(record.offset, record.value) for record in records]

    assert read == [(each, b"%d" % each) for each in sorted(log.committed) if each in range(*wanted)]
    assert not brokers.open, "connections are left open"
