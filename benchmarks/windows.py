"""Short windows of writing, as a schedule demands or as fast as can be.

A producer that is late with one record is late with the next: whoever times each send from when it was made
doesn't see how long the queue before it was ("coordinated omission"). So a window with a schedule times each
record from when it was due to when its report came, however late it was sent.

Times are in seconds, by the monotonic performance counter.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from confluent_kafka import KafkaError, Message, Producer
from numpy.typing import NDArray

FLUSH_TIMEOUT_S = 60.0
_NUMBER_BYTES = 8
_TICK_S = 0.001  # the shortest that librdkafka waits
_POLL_EACH = 64  # records
_BATCH_BYTES = 4 << 20
_BATCH_RECORDS = 1000


def scheduled_window(
    producer: Producer, topic: str, *, records_per_s: float, record_bytes: int, lead_s: float, window_s: float
) -> NDArray[np.float64]:
    """Write at a steady rate, whatever becomes of it.

    Args:
        producer: Whose.
        topic: Ready to be written.
        records_per_s: How many are due in a second.
        record_bytes: Of each; at least 8, which hold its number.
        lead_s: Records that are due in this time are sent, but don't count: queues are filling.
        window_s: The time after that.

    Returns:
        For each record that was due in the window, from then until it was acknowledged.
    """
    num_records = int(records_per_s * (lead_s + window_s))
    filling = bytes(record_bytes - _NUMBER_BYTES)
    reported_s = np.zeros(num_records)
    clock = time.perf_counter

    def told(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            raise RuntimeError(f"a record was not stored: {error.str()}")
        value: Any = message.value()
        reported_s[int.from_bytes(value[:_NUMBER_BYTES], "little")] = clock()

    begun_s = clock()
    sent = 0
    while sent < num_records:
        due = min(num_records, 1 + int((clock() - begun_s) * records_per_s))
        for number in range(sent, due):
            _send(producer, topic, number.to_bytes(_NUMBER_BYTES, "little") + filling, on_delivery=told)
            if number % _POLL_EACH == 0:
                producer.poll(0)
        sent = due
        producer.poll(_TICK_S)
    _flush(producer)
    due_s = begun_s + np.arange(num_records) / records_per_s
    return (reported_s - due_s)[int(records_per_s * lead_s) :]


def first_records(producer: Producer, topic: str, num_partitions: int) -> float:
    """Write one record to each partition, so that every broker is connected to; returns the seconds."""
    begun_s = time.perf_counter()
    for partition in range(num_partitions):
        producer.produce(topic, bytes(_NUMBER_BYTES), partition=partition)
    _flush(producer)
    return time.perf_counter() - begun_s


def fastest_window(
    producer: Producer, topic: str, *, num_records: int, record_bytes: int, told: Any = None
) -> float:
    """Write as fast as can be, record by record; returns the seconds until all are acknowledged.

    Args:
        producer: Whose.
        topic: Ready to be written.
        num_records: How many.
        record_bytes: Of each.
        told: Called with each report; None: the application wants none.
    """
    value, produce = bytes(record_bytes), producer.produce
    begun_s = time.perf_counter()
    for number in range(num_records):
        while True:
            try:
                if told is None:
                    produce(topic, value)
                else:
                    produce(topic, value, on_delivery=told)
                break
            except BufferError:  # the queue is full: librdkafka's way of asking for patience
                producer.poll(_TICK_S)
        if number % _POLL_EACH == 0:
            producer.poll(0)
    _flush(producer)
    return time.perf_counter() - begun_s


def fastest_batches(
    producer: Producer, topic: str, *, num_records: int, record_bytes: int, told: Any = None
) -> float:
    """As `fastest_window`, with `produce_batch`, some 4 MiB or 1,000 records at a time."""
    options = {} if told is None else {"on_delivery": told}
    begun_s = time.perf_counter()
    for messages in _batches(num_records, record_bytes):
        left = messages
        while left:
            num_queued = producer.produce_batch(topic, left, **options)
            left = [] if num_queued == len(left) else [{"value": m["value"]} for m in left if "_error" in m]
            producer.poll(_TICK_S if left else 0)
    _flush(producer)
    return time.perf_counter() - begun_s


def check_offset(error: KafkaError | None, message: Message) -> None:
    """What an application does at least that wants to know whether its records were stored."""
    if error is not None or message.offset() is None:
        raise RuntimeError("a record was not stored")


def _batches(num_records: int, record_bytes: int) -> Iterator[list[dict[str, Any]]]:
    value = bytes(record_bytes)
    size = min(_BATCH_RECORDS, max(1, _BATCH_BYTES // record_bytes))
    for first in range(0, num_records, size):
        yield [{"value": value} for _ in range(min(size, num_records - first))]


def _send(producer: Producer, topic: str, value: bytes, **options: Any) -> None:
    while True:
        try:
            producer.produce(topic, value, **options)
        except BufferError:  # the queue is full: librdkafka's way of asking for patience
            producer.poll(_TICK_S)
        else:
            return


def _flush(producer: Producer) -> None:
    if left := producer.flush(FLUSH_TIMEOUT_S):
        raise TimeoutError(f"{left} records weren't acknowledged within {FLUSH_TIMEOUT_S} s")
