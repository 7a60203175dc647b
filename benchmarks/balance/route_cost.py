"""What it costs to ask where a record goes, beside a Python method that does nothing.

All are timed in short windows, in turn, many times over, and compared by their medians, so that whatever else
the machine does hits all alike. The loop that calls them is timed as well and taken off.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import repeat

from evenload.kafka_plugin.routing.topic_routing import TopicRouting
from evenload.router.route import Route

NUM_PARTITIONS = 24
BATCH_BYTES = 256 << 10
RECORD_BYTES = (100, 1 << 10, 16 << 10, 256 << 10)
JUDGED_RECORD_BYTES = 1 << 10
ALLOWED_RATIO = 5.0
_CALLS = 2000
_ROUNDS = 300


class _Nothing:
    def method(self, size_bytes: int) -> None:
        """Does nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteCost:
    """Medians of one call, in nanoseconds.

    Attributes:
        empty_ns: Of a method that does nothing.
        route_ns: Of `Route.partition_for`, by record size in bytes; with 256 KiB, each record ends a turn.
        producer_ns: Of the same with a producer's books of what it sent, for records of 1 KiB.
    """

    empty_ns: float
    route_ns: Mapping[int, float]
    producer_ns: float

    @property
    def ratio(self) -> float:
        """Of `partition_for`, for records of 1 KiB, to the empty method."""
        return self.route_ns[JUDGED_RECORD_BYTES] / self.empty_ns

    @property
    def is_cheap(self) -> bool:
        """The criterion: at most 5 times an empty method call."""
        return self.ratio <= ALLOWED_RATIO


def measure_route_cost(rounds: int = _ROUNDS) -> RouteCost:
    """Time them; about 4 s with 300 rounds.

    Args:
        rounds: How many windows each gets.
    """
    shares = {partition: 1.0 + partition % 5 for partition in range(NUM_PARTITIONS)}
    routing = TopicRouting("t", NUM_PARTITIONS, router=None, cache=None, batch_bytes=BATCH_BYTES)
    timed: dict[str, tuple[Callable[[int], object], int]] = {
        "empty": (_Nothing().method, JUDGED_RECORD_BYTES),
        "producer": (routing.partition_for, JUDGED_RECORD_BYTES),
    }
    for size_bytes in RECORD_BYTES:
        route = Route(shares, batch_bytes=BATCH_BYTES)
        timed[f"route {size_bytes}"] = (route.partition_for, size_bytes)
    spent: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(rounds):
        for name, (method, size_bytes) in timed.items():
            spent[name].append(_time_calls(method, size_bytes) - _time_loop())
    median = {name: statistics.median(windows) for name, windows in spent.items()}
    return RouteCost(
        empty_ns=median["empty"],
        route_ns={size_bytes: median[f"route {size_bytes}"] for size_bytes in RECORD_BYTES},
        producer_ns=median["producer"],
    )


def _time_calls(method: Callable[[int], object], size_bytes: int) -> float:
    begun_ns = time.perf_counter_ns()
    for _ in repeat(None, _CALLS):
        method(size_bytes)
    return (time.perf_counter_ns() - begun_ns) / _CALLS


def _time_loop() -> float:
    begun_ns = time.perf_counter_ns()
    for _ in repeat(None, _CALLS):
        pass
    return (time.perf_counter_ns() - begun_ns) / _CALLS
