"""Fetch requests and answers are those of kafka-python's generated classes, byte for byte."""

from __future__ import annotations

import uuid

import pytest
from kafka.protocol.consumer.fetch import FetchRequest, FetchResponse

from evenload.kafka_connection.fetch_messages import (
    FETCH_VERSION,
    FetchRequestWriter,
    correlation_id_of,
    read_fetch_answer,
)

TOPIC_ID = uuid.UUID("01234567-89ab-cdef-0123-456789abcdef")
Topic = FetchResponse.FetchableTopicResponse
Partition = Topic.PartitionData


def answer(partitions: list[Partition], *, error_code: int = 0, **fields: object) -> memoryview:
    response = FetchResponse(
        throttle_time_ms=0,
        error_code=error_code,
        session_id=0,
        responses=[Topic(topic_id=TOPIC_ID, partitions=partitions)] if partitions else [],
        version=FETCH_VERSION,
        **fields,
    )
    response.with_header(correlation_id=77)
    return memoryview(response.encode(header=True))


def partition(**fields: object) -> Partition:
    defaults = {
        "partition_index": 3,
        "error_code": 0,
        "high_watermark": 1000,
        "last_stable_offset": 990,
        "log_start_offset": 5,
        "aborted_transactions": None,
        "preferred_read_replica": -1,
        "records": b"records",
    }
    return Partition(**(defaults | fields))


@pytest.mark.parametrize(
    ("offset", "max_bytes", "committed_only", "rack"),
    [(0, 1, False, ""), (2**40, 2**30, False, "zone-ä"), (7, 1, True, "r" * 300)],
)
def test_a_request_is_what_kafka_python_encodes(
    offset: int, max_bytes: int, committed_only: bool, rack: str
) -> None:
    writer = FetchRequestWriter(
        topic_id=TOPIC_ID,
        client_id="evenload-reader",
        max_wait_ms=500,
        committed_only=committed_only,
        rack=rack,
    )
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=0x7FFFFFFF,
        isolation_level=int(committed_only),
        session_id=0,
        session_epoch=-1,
        topics=[
            FetchRequest.FetchTopic(
                topic_id=TOPIC_ID,
                partitions=[
                    FetchRequest.FetchTopic.FetchPartition(
                        partition=4,
                        current_leader_epoch=3,
                        fetch_offset=offset,
                        last_fetched_epoch=-1,
                        log_start_offset=-1,
                        partition_max_bytes=max_bytes,
                    )
                ],
            )
        ],
        forgotten_topics_data=[],
        rack_id=rack,
        version=FETCH_VERSION,
    )
    request.with_header(correlation_id=12, client_id="evenload-reader")
    expected = request.encode(version=FETCH_VERSION, header=True, framed=True)
    assert writer.write(12, partition=4, offset=offset, max_bytes=max_bytes, leader_epoch=3) == expected


@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 300_000])
def test_an_answers_records_are_found_whatever_their_size(size: int) -> None:
    frame = answer([partition(records=b"r" * size)])
    assert correlation_id_of(frame) == 77
    read = read_fetch_answer(frame)
    assert (read.error_code, read.high_watermark, read.last_stable_offset) == (0, 1000, 990)
    assert bytes(read.records) == b"r" * size


def test_aborted_transactions_are_told_in_order_and_tagged_fields_passed_over() -> None:
    aborted = [Partition.AbortedTransaction(producer_id=9 - n, first_offset=70 + n) for n in (2, 0, 1)]
    leader = Partition.LeaderIdAndEpoch(leader_id=2, leader_epoch=9)
    read = read_fetch_answer(answer([partition(aborted_transactions=aborted, current_leader=leader)]))
    assert bytes(read.records) == b"records"
    assert read.aborted == ((70, 9), (71, 8), (72, 7))


def test_a_leader_that_names_another_replica_is_heard() -> None:
    assert read_fetch_answer(answer([partition()])).preferred_replica == -1
    read = read_fetch_answer(answer([partition(preferred_read_replica=1 << 30, records=b"")]))
    assert (read.preferred_replica, bytes(read.records)) == (1 << 30, b"")


def test_an_answer_without_records_is_empty() -> None:
    assert bytes(read_fetch_answer(answer([partition(records=None)])).records) == b""


def test_errors_of_the_partition_and_of_the_request_are_given() -> None:
    assert read_fetch_answer(answer([partition(error_code=6, records=None)])).error_code == 6
    assert read_fetch_answer(answer([], error_code=70)).error_code == 70


def test_a_frame_that_is_cut_off_is_refused_at_every_length() -> None:
    frame = answer([partition()])
    end_of_records = bytes(frame).index(b"records") + len(b"records")
    for length in range(4, end_of_records):
        with pytest.raises(ValueError, match="fetch answer"):
            read_fetch_answer(frame[:length])
