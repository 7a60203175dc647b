"""Where a dataset lies: by hand, in given parts, or as a strategy lays it into a situation."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from kafka import TopicPartition

from benchmarks.layouts import MIB, Layout
from benchmarks.log_folders import BytesByBroker
from benchmarks.stage import CHANGE_TIMEOUT_S, Stage
from evenload.dataset_catalog.catalog import Catalog
from evenload.dataset_catalog.manifest import DatasetManifest
from evenload.kafka_connection.clients import open_admin
from evenload.kafka_plugin.config import LoaderConfig, Strategy
from evenload.kafka_plugin.loading.loader import load_dataset
from evenload.router.config import RouterConfig

EMPTY, SKEWED = "empty", "60/20/20 % full"
BEST = "even, by hand"  # the best layout from any start: all links are used alike
DEFAULTS = "evenload"
DATASET_OF_CAPACITY: Final = 0.3
WEIGHTS: Final = (0.0, 0.25, 0.5, 0.75)  # of the goal dataset_spread; what is left of 1 is disk_usage's
_NUM_PARTITIONS: Final = 15
_NUM_BLOCKS: Final = 800
_POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Placing:
    """A way of laying a dataset.

    Attributes:
        name: As in tables.
        strategy: Who chooses partitions.
        router: What the strategy `balanced` levels by; None: by its defaults.
        parts: How many of 15 alike partitions lie on each broker, by hand; None: where they came to lie.
    """

    name: str
    strategy: Strategy = "round-robin"
    router: RouterConfig | None = None
    parts: Sequence[int] | None = None


def _weighing(dataset_spread: float) -> Placing:
    goals = {"disk_usage": 1 - dataset_spread, "dataset_spread": dataset_spread}
    return Placing(
        name=f"evenload, {1 - dataset_spread:.0%} disks, {dataset_spread:.0%} dataset",
        strategy="balanced",
        router=RouterConfig(goals=goals),
    )


_BY_HAND = (
    Placing(name=BEST, parts=(5, 5, 5)),
    Placing(name="60/20/20, by hand", parts=(9, 3, 3)),
    Placing(name="100/0/0, by hand", parts=(15, 0, 0)),
)
_BY_DEFAULT = Placing(name=DEFAULTS, strategy="balanced")
_BY_STRATEGY = (
    Placing(name="librdkafka", strategy="default"),
    Placing(name="round robin"),
)
PLACINGS: Final[Mapping[str, Sequence[Placing]]] = {
    # What is judged, and by what, follow each other.
    EMPTY: (_BY_HAND[0], _BY_DEFAULT, *_BY_HAND[1:], *_BY_STRATEGY),
    # By hand, it lies alike from any start.
    SKEWED: (_BY_HAND[0], _BY_DEFAULT, *_BY_STRATEGY, *map(_weighing, WEIGHTS)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A dataset that lies in Kafka.

    Attributes:
        manifest: Of it.
        dataset_parts: Which part of it each broker has, by broker id; 0 to 1.
        utilisation: How full each broker is with it; 0 to 1.
    """

    manifest: DatasetManifest
    dataset_parts: Mapping[int, float]
    utilisation: Mapping[int, float]


def situation(start: str, dataset_bytes: int) -> Layout:
    """Brokers of which a dataset of this size takes 0.3 of one's capacity, or less if it is below 10 MiB.

    Args:
        start: How full they are before.
    """
    tenth = max(1, math.ceil(dataset_bytes / DATASET_OF_CAPACITY / MIB / 10))
    held = {1: 6 * tenth, 2: 2 * tenth, 3: 2 * tenth} if start == SKEWED else {}
    return Layout(name=start, capacity_mib=(10 * tenth,) * 3, assignment=[], held_mib=held)


def place(stage: Stage, rows: pa.Table, placing: Placing, name: str) -> Placed:
    """Load a dataset, and move it by hand where the placing says so."""
    config = LoaderConfig(block_bytes=max(1, rows.nbytes // _NUM_BLOCKS))
    manifest = load_dataset(
        rows,
        name,
        connection=stage.connection,
        partitions=_NUM_PARTITIONS,
        strategy=placing.strategy,
        config=config,
        router_config=placing.router,
    )
    if placing.parts is not None:
        _move(stage, manifest.topic, placing.parts)
    held = _measure(stage, manifest)
    ours = {
        broker_id: sum(size for partition, size in of_broker.items() if partition.topic == manifest.topic)
        for broker_id, of_broker in held.items()
    }
    return Placed(
        manifest=manifest,
        dataset_parts={broker_id: size / sum(ours.values()) for broker_id, size in ours.items()},
        utilisation={
            broker_id: sum(of_broker.values()) / stage.layout.capacity_bytes[broker_id]
            for broker_id, of_broker in held.items()
        },
    )


def take_away(stage: Stage, placed: Placed) -> None:
    """Drop a dataset, and wait until its files are gone."""
    Catalog(stage.connection).drop(placed.manifest.name)
    stage.wait_until_gone(placed.manifest.topic)


def _measure(stage: Stage, manifest: DatasetManifest) -> BytesByBroker:
    """What brokers hold, once copies that were moved away are gone."""
    deadline_s = time.monotonic() + CHANGE_TIMEOUT_S
    while True:
        held = stage.measure()
        copies = Counter(
            each for of_broker in held.values() for each in of_broker if each.topic == manifest.topic
        )
        if max(copies.values()) == 1:
            return held
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"after {CHANGE_TIMEOUT_S:.0f} s, moved copies are left: {copies}")
        time.sleep(_POLL_S)


def _move(stage: Stage, topic: str, parts: Sequence[int]) -> None:
    brokers = [broker_id for broker_id, count in enumerate(parts, start=1) for _ in range(count)]
    wanted = {TopicPartition(topic, n): [broker_id] for n, broker_id in enumerate(brokers)}
    with open_admin(stage.connection, timeout_s=CHANGE_TIMEOUT_S) as admin:
        admin.alter_partition_reassignments(wanted)
    deadline_s = time.monotonic() + CHANGE_TIMEOUT_S
    while (led := stage.leaders(topic)) != dict(enumerate(brokers)):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"partitions of {topic} were to be led by {brokers}, and are by {led}")
        time.sleep(_POLL_S)
