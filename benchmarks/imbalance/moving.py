"""What it takes to level the same skew by moves (`evenload balance`), and what that costs a producer.

Four brokers, 70/20/10/0 % full, in many small partitions; the moves are planned and carried out as
`evenload balance --execute` does it, throttled and as good as not, in turn (A B B A). All the while a plain
producer writes steadily to partitions of its own, two copies each, on all brokers. Its latencies while copies
are on their way stand beside those of the quiet seconds right before: in partitions that stay, and in those
that the plan moves as well, which are another matter.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.imbalance.steady_writer import SteadyWriter
from benchmarks.imbalance.writing import LEVEL
from benchmarks.layouts import MIB, Layout
from benchmarks.stage import CHANGE_TIMEOUT_S, Stage
from evenload.kafka_connection import Connection
from evenload.kafka_connection.clients import confluent_producer
from evenload.kafka_plugin.balancing.balance import BalanceProgress, execute_balance
from evenload.kafka_plugin.balancing.config import BalanceConfig
from evenload.local_cluster import LocalCluster

CAPACITY_MIB = 400
HELD_PERCENT = {1: 70, 2: 20, 3: 10}  # a partition for each percent
STEADY_RECORDS_PER_S = 1000
STEADY_RECORD_BYTES = 1 << 10
THROTTLE_BYTES_PER_S = 12 * MIB
UNTHROTTLED_BYTES_PER_S = 1 << 40
THROTTLED, UNTHROTTLED = "throttled", "unthrottled"
RATES = {THROTTLED: THROTTLE_BYTES_PER_S, UNTHROTTLED: UNTHROTTLED_BYTES_PER_S}
SETTLING_S = 1.0
QUIET_S = 4.0
_RECORD = np.random.default_rng(1).bytes(256 << 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """One balance.

    Attributes:
        kind: Throttled, or as good as not.
        held_bytes: What brokers held.
        moved_bytes: What was copied to other brokers.
        least_bytes: What any moves to the spread that was planned take at least.
        spread_before: Before it.
        spread_after: After it.
        took_s: From when the moves were ordered until they were complete.
        quiet_s: The producer's latencies before it.
        staying_s: Those while copies were on their way, in partitions that stayed where they were.
        moving_s: The same, in partitions of the producer's that were themselves among the moves.
    """

    kind: str
    held_bytes: int
    moved_bytes: int
    least_bytes: int
    spread_before: float
    spread_after: float
    took_s: float
    quiet_s: NDArray[np.float64]
    staying_s: NDArray[np.float64]
    moving_s: NDArray[np.float64]


def measure_moves(
    cluster: LocalCluster, kinds: Sequence[str], *, capacity_mib: int, started: Callable[[str], None]
) -> list[Moved]:
    """Make the skew and level it again, once for each of `kinds`.

    Args:
        cluster: Four brokers, all alive, that hold nothing.
        kinds: Throttled or not, in the order wanted.
        capacity_mib: Of each broker, a multiple of 100.
        started: Told of each balance when it begins.
    """
    brokers = cluster.broker_ids
    layout = Layout(
        name="70/20/10/0 % full",
        capacity_mib=[capacity_mib] * len(brokers),
        assignment=[(broker_id, broker_id % len(brokers) + 1) for broker_id in brokers],
    )
    moved = []
    with Stage(cluster, layout) as stage:
        for kind in kinds:
            started(kind)
            moved.append(_level_once(stage, kind, capacity_mib // 100))
    return moved


def _level_once(stage: Stage, kind: str, percent_mib: int) -> Moved:
    leaders = [broker_id for broker_id, percent in HELD_PERCENT.items() for _ in range(percent)]
    held = stage.make_topic([(leader,) for leader in leaders], "held")
    _fill(stage.connection, held, len(leaders), percent_mib)
    steady = stage.make_topic(stage.layout.assignment, "steady")
    heard_s: list[float] = []

    def heard(progress: BalanceProgress) -> None:
        if progress.planned_bytes:  # before that, it looks for what an earlier one has left
            heard_s.append(time.monotonic())

    with SteadyWriter(
        stage.connection, steady, records_per_s=STEADY_RECORDS_PER_S, record_bytes=STEADY_RECORD_BYTES
    ) as writer:
        time.sleep(SETTLING_S)
        quiet_from_s = time.monotonic()
        time.sleep(QUIET_S)
        quiet_until_s = time.monotonic()
        outcome = execute_balance(stage.connection, config=_config(kind), progress=heard)
        latencies = writer.stop()
    assert outcome.after is not None, "there was something to carry out"
    stage.delete_topics(held, steady)
    own = (move.topic_partition for move in outcome.plan.moves if move.topic_partition.topic == steady)
    moving = {at.partition for at in own}
    staying = set(range(len(stage.layout.assignment))) - moving
    return Moved(
        kind=kind,
        held_bytes=sum(broker.used_bytes for broker in outcome.before.brokers.values()),
        moved_bytes=outcome.moved_bytes,
        least_bytes=outcome.plan.least_bytes,
        spread_before=outcome.plan.spread_before,
        spread_after=outcome.after.utilisation_spread,
        took_s=heard_s[-1] - heard_s[0],
        quiet_s=latencies.between(quiet_from_s, quiet_until_s, moving | staying),
        staying_s=latencies.between(heard_s[0], heard_s[-1], staying),
        moving_s=latencies.between(heard_s[0], heard_s[-1], moving),
    )


def _config(kind: str) -> BalanceConfig:
    return BalanceConfig(throttle_bytes_per_s=RATES[kind], spread_goal=LEVEL, poll_s=0.1)


def _fill(connection: Connection, topic: str, num_partitions: int, mib_each: int) -> None:
    producer = confluent_producer(connection, queue_buffering_max_kbytes=1 << 20)
    for partition in range(num_partitions):
        for _ in range(mib_each * MIB // len(_RECORD)):
            producer.produce(topic, _RECORD, partition=partition)
    if left := producer.flush(CHANGE_TIMEOUT_S):
        raise TimeoutError(f"{left} records of {topic!r} weren't acknowledged in {CHANGE_TIMEOUT_S} s")
