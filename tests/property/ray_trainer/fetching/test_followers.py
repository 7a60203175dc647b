"""Every range is given once and whole, whatever followers lack, refuse, damage or are named by leaders."""

from __future__ import annotations

import itertools
import random
import struct
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.consumer.fetch import FetchRequest, FetchResponse
from kafka.record.default_records import DefaultRecordBatchBuilder

from evenload.kafka_connection import Connection
from evenload.kafka_connection.broker_connection import BrokerLostError, BrokerRefusedError
from evenload.kafka_connection.fetch_messages import FETCH_VERSION
from evenload.kafka_connection.record_batches import StoredRecord
from evenload.kafka_connection.topic_leaders import BrokerAddress
from evenload.ray_trainer.errors import FetchTimeoutError, RecordsGoneError
from evenload.ray_trainer.fetching import broker_link, fetch, read_replicas
from evenload.ray_trainer.fetching.fetch import BlockRange, ExactRangeFetcher, FetchConfig, fetch_all

TOPIC_ID = uuid.UUID(int=7)
NUM_PARTITIONS, NUM_RECORDS, NUM_BROKERS = 4, 12, 3
OUT_OF_RANGE, NOT_LEADER_OR_FOLLOWER, NOT_AUTHORIZED, UNKNOWN = 1, 6, 29, 99


def stored(offset: int, value: bytes = b"") -> bytes:
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, 0, 0, 1 << 30)
    builder.append(0, timestamp=1, key=None, value=value or b"%d" % offset, headers=[])
    batch = bytearray(builder.build())
    struct.pack_into(">q", batch, 0, offset)
    return bytes(batch)


class Brokers:
    """Leaders give what they have; followers fail as they like, and leaders name any broker.

    Args:
        failing: of a follower's answers, which part is one of those that a leader never gives here.
        is_throttling: followers answer without a word now and then.
        num_readable: from this offset on, nobody gives a record, as too few replicas have it.
    """

    def __init__(
        self,
        rng: random.Random,
        failing: float,
        *,
        num_readable: int = NUM_RECORDS,
        is_throttling: bool = True,
    ) -> None:
        self.rngs = [random.Random(rng.random()) for _ in range(NUM_BROKERS)]  # each has a thread
        self.failing = failing
        self.num_readable = num_readable
        self.is_throttling = is_throttling

    def leader_of(self, partition: int) -> int:
        return partition % (NUM_BROKERS - 1)  # the last one leads nothing

    def answer(self, broker_id: int, asked: FetchRequest) -> FetchResponse:
        (wanted,) = asked.topics[0].partitions
        error, nearer, records = 0, -1, b""
        rng = self.rngs[broker_id]
        is_leader = broker_id == self.leader_of(wanted.partition)
        if is_leader and asked.rack_id and rng.random() < 0.9:
            nearer = rng.randrange(NUM_BROKERS + 1)  # itself, and one that isn't there, too
        elif not is_leader and rng.random() < self.failing:
            if self.is_throttling and rng.random() < 0.2:  # as who is throttled is answered
                return self._response([])
            error, records = self._failure(broker_id, wanted.fetch_offset)
        elif wanted.fetch_offset >= NUM_RECORDS:
            error = OUT_OF_RANGE
        else:
            last = min(wanted.fetch_offset + rng.randint(1, 3), self.num_readable)
            records = b"".join(map(stored, range(wanted.fetch_offset, last)))
        partition = FetchResponse.FetchableTopicResponse.PartitionData(
            partition_index=wanted.partition,
            error_code=error,
            high_watermark=NUM_RECORDS,
            last_stable_offset=NUM_RECORDS,
            log_start_offset=0,
            aborted_transactions=None,
            preferred_read_replica=nearer,
            records=records,
        )
        return self._response(
            [FetchResponse.FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[partition])]
        )

    def _response(self, topics: list[Any]) -> FetchResponse:
        return FetchResponse(
            throttle_time_ms=0, error_code=0, session_id=0, responses=topics, version=FETCH_VERSION
        )

    def _failure(self, broker_id: int, offset: int) -> tuple[int, bytes]:
        rng = self.rngs[broker_id]
        match rng.randrange(8):
            case 0:
                return 0, b""  # it isn't so far yet
            case 1:
                return 0, stored(offset)[:-1] + b"\x00"  # damaged
            case 2:
                return 0, stored(offset + 1)  # it lacks one
            case 3:
                raise BrokerLostError("it hangs")
            case 5:
                return 0, stored(offset, b"of another load")
            case 4 if broker_id == NUM_BROKERS - 1:  # or nobody could give what it leads
                raise BrokerRefusedError("its certificate is another's")
            case _:
                return rng.choice([OUT_OF_RANGE, NOT_LEADER_OR_FOLLOWER, NOT_AUTHORIZED, UNKNOWN]), b""


class Leaders:
    """As TopicLeaders."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._is_asked = False

    def refresh(self) -> None:
        self._is_asked = True

    def interrupt(self) -> None:
        """It never waits."""

    def leader_of(self, partition: int) -> BrokerAddress | None:
        return self.broker(self._brokers.leader_of(partition)) if self._is_asked else None

    def epoch_of(self, partition: int) -> int:
        return 5 if self.leader_of(partition) else -1

    def broker(self, broker_id: int) -> BrokerAddress | None:
        return BrokerAddress(broker_id, "there", broker_id) if broker_id < NUM_BROKERS else None


class Broker:
    """As BrokerConnection; the port is the broker's id."""

    is_expiring = False

    def __init__(self, brokers: Brokers, broker_id: int) -> None:
        self.address = f"there:{broker_id}"
        self._brokers = brokers
        self._broker_id = broker_id
        self._asked: list[FetchRequest] = []

    def open(self) -> None:
        """It is there."""

    close = interrupt = open

    def set_timeout(self, _: float) -> None:
        """It fails at once, or answers."""

    def send(self, requests: bytes) -> None:
        while requests:
            (size,) = struct.unpack_from(">i", requests)
            message, requests = requests[4 : 4 + size], requests[4 + size :]
            self._asked.append(FetchRequest.decode(message, version=FETCH_VERSION, header=True))

    def receive(self, _: Callable[[int], memoryview], *, more_to_come: bool) -> memoryview:
        assert more_to_come == (len(self._asked) > 1)
        asked = self._asked.pop(0)
        answer = self._brokers.answer(self._broker_id, asked)
        answer.with_header(correlation_id=asked.header.correlation_id)
        return memoryview(answer.encode(header=True))


@pytest.fixture(autouse=True)
def _without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    # What is known of followers ends while ranges are on their way.
    monkeypatch.setattr(read_replicas, "_NEARER_FOR_S", 2e-3)
    monkeypatch.setattr(read_replicas, "_LEADER_FOR_S", 5e-4)
    monkeypatch.setattr(read_replicas, "_WITHOUT_BROKER_MAX_S", 1e-3)
    monkeypatch.setattr(fetch, "_BACKOFF_FIRST_S", 1e-6)
    monkeypatch.setattr(fetch, "_BACKOFF_MAX_S", 1e-5)


def check(record: StoredRecord) -> str | None:
    return None if record.value == b"%d" % record.offset else "it is another's"


def open_fetcher(
    brokers: Brokers, patch: pytest.MonkeyPatch, rack: str, **limits: float
) -> ExactRangeFetcher:
    patch.setattr(fetch, "TopicLeaders", lambda *_, **__: Leaders(brokers))
    patch.setattr(broker_link, "BrokerConnection", lambda _, port, **__: Broker(brokers, port))
    connection = Connection(bootstrap_servers="there:1")
    config = FetchConfig(client_rack=rack, **limits)
    return ExactRangeFetcher(connection, "t", str(TOPIC_ID), check=check, config=config)


@settings(max_examples=50)
@given(seed=st.integers(0, 2**32), failing=st.sampled_from([0.0, 0.3, 1.0]), rack=st.sampled_from(["", "a"]))
def test_every_range_is_given_once_and_whole(seed: int, failing: float, rack: str) -> None:
    rng = random.Random(seed)
    wanted = []
    for partition in range(NUM_PARTITIONS):
        cuts = sorted({0, NUM_RECORDS, *rng.choices(range(NUM_RECORDS), k=4)})
        wanted += [
            BlockRange(partition, first, end - first, 10 * (end - first))
            for first, end in itertools.pairwise(cuts)
        ]
    with (
        pytest.MonkeyPatch.context() as patch,
        open_fetcher(Brokers(rng, failing), patch, rack) as fetcher,
    ):
        blocks = list(fetch_all(fetcher, wanted))
        num_of_follower = fetcher.wire_bytes_by_broker.get(NUM_BROKERS - 1, 0)
    if failing == 0:
        assert bool(num_of_follower) == bool(rack)
    assert sorted(block.wanted for block in blocks) == sorted(wanted)
    for block in blocks:
        offsets = range(block.wanted.first_offset, block.wanted.end_offset)
        assert [bytes(value) for value in block.values] == [b"%d" % offset for offset in offsets]


def test_what_a_follower_fails_at_is_asked_of_the_leader_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(20):
        brokers = Brokers(random.Random(seed), 1.0, is_throttling=False)
        with open_fetcher(brokers, monkeypatch, "a", retry_timeout_s=0) as fetcher:
            for partition in range(NUM_PARTITIONS):
                list(fetch_all(fetcher, [BlockRange(partition, 0, NUM_RECORDS, 100)]))


def test_what_is_read_again_and_again_up_to_where_nobody_gets_on_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    brokers = Brokers(random.Random(1), 0.5, num_readable=5)
    with (
        # Long enough for thousands of failures, whose backoff must not overflow.
        open_fetcher(brokers, monkeypatch, "a", retry_timeout_s=2.0) as fetcher,
        pytest.raises(FetchTimeoutError, match="could not be read"),
    ):
        list(fetch_all(fetcher, [BlockRange(0, 0, NUM_RECORDS, 100)]))


def test_what_the_leader_lacks_too_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_fetcher(Brokers(random.Random(1), 1.0), monkeypatch, "a") as fetcher:
        for offset in range(NUM_RECORDS - 1, NUM_RECORDS + 3):
            with pytest.raises(RecordsGoneError):
                list(fetch_all(fetcher, [BlockRange(0, offset, 2, 20)]))
