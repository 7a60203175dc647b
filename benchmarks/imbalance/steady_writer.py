"""A plain producer that writes at a steady rate, in a process of its own, whatever else goes on.

A record's latency counts from when it was due until it was acknowledged (benchmarks/windows.py), so that a
producer that is held up can't hide it. In a process of its own, as the interpreter's lock would otherwise let
it wait for whoever measures. Partitions take turns of some records, so that what it writes adds to no skew.
Times are seconds of the system's monotonic clock, the same in all processes.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Collection
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from types import TracebackType
from typing import Any, Self

import numpy as np
from confluent_kafka import KafkaError, Message
from numpy.typing import NDArray

from evenload.kafka_connection import Connection
from evenload.kafka_connection.clients import confluent_producer

_NUMBER_BYTES = 8
_TURN_RECORDS = 16
_TICK_S = 0.001  # the shortest that librdkafka waits
_FLUSH_TIMEOUT_S = 60.0
_START_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Latencies:
    """For each record, when it was due, how many seconds later it was acknowledged, and its partition."""

    due_s: NDArray[np.float64]
    latency_s: NDArray[np.float64]
    partition: NDArray[np.int64]

    def between(self, begin_s: float, end_s: float, partitions: Collection[int]) -> NDArray[np.float64]:
        """The latencies of those of `partitions` that were due from `begin_s` until before `end_s`."""
        is_asked = np.isin(self.partition, list(partitions))
        return self.latency_s[is_asked & (self.due_s >= begin_s) & (self.due_s < end_s)]


class SteadyWriter:
    """Writes from when it is entered until `stop`; a context manager, which leaves no process.

    Args:
        connection: The cluster.
        topic: Ready to be written.
        records_per_s: How many are due in a second.
        record_bytes: Of each; at least 8, which hold its number.
    """

    def __init__(
        self, connection: Connection, topic: str, *, records_per_s: float, record_bytes: int
    ) -> None:
        context = multiprocessing.get_context("spawn")  # forks of a process with threads can hang
        self._pipe, its_end = context.Pipe()
        self._process = context.Process(
            target=_write_until_told,
            args=(its_end, connection, topic, records_per_s, record_bytes),
            daemon=True,
        )

    def __enter__(self) -> Self:
        self._process.start()
        self._hear(_START_TIMEOUT_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.join()

    def stop(self) -> Latencies:
        """End it, when all is acknowledged."""
        self._pipe.send(None)
        return Latencies(*self._hear(_FLUSH_TIMEOUT_S + _START_TIMEOUT_S))

    def _hear(self, timeout_s: float) -> Any:
        if not self._pipe.poll(timeout_s):
            raise TimeoutError(f"the steady writer said nothing for {timeout_s:g} s")
        try:
            return self._pipe.recv()
        except EOFError as error:
            raise RuntimeError("the steady writer has died; see above") from error


def _write_until_told(
    pipe: Pipe, connection: Connection, topic: str, records_per_s: float, record_bytes: int
) -> None:
    filling = bytes(record_bytes - _NUMBER_BYTES)
    acknowledged_s: list[float] = []
    clock = time.monotonic

    def told(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            raise RuntimeError(f"a record was not stored: {error.str()}")
        value: Any = message.value()
        acknowledged_s[int.from_bytes(value[:_NUMBER_BYTES], "little")] = clock()

    producer = confluent_producer(connection)
    num_partitions = len(producer.list_topics(topic, timeout=_START_TIMEOUT_S).topics[topic].partitions)
    pipe.send("ready")
    begun_s = clock()
    while not pipe.poll():
        num_due = 1 + int((clock() - begun_s) * records_per_s)
        for number in range(len(acknowledged_s), num_due):
            acknowledged_s.append(0.0)
            value = number.to_bytes(_NUMBER_BYTES, "little") + filling
            partition = number // _TURN_RECORDS % num_partitions
            producer.produce(topic, value, partition=partition, on_delivery=told)
        producer.poll(_TICK_S)
    if left := producer.flush(_FLUSH_TIMEOUT_S):
        raise TimeoutError(f"{left} records weren't acknowledged within {_FLUSH_TIMEOUT_S} s")
    numbers = np.arange(len(acknowledged_s))
    due_s = begun_s + numbers / records_per_s
    pipe.send((due_s, np.array(acknowledged_s) - due_s, numbers // _TURN_RECORDS % num_partitions))
