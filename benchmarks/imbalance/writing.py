"""How many bytes have to be written until brokers that are 70/20/10 % full are level.

Three brokers hold that; a fourth is dead, and unknown to the topic. Data comes in at a steady rate. Half-way
to level, the fourth is started, and the topic gets partitions on it, as an operator would do it, and as the
route's notes advise. (Writing pauses meanwhile: some seconds, which would be nothing in a load of hours.)
evenload's producer goes on, and has to find out by itself. Other clients are made anew with the new
partitions: theirs would take up to five minutes (`topic.metadata.refresh.interval.ms`,
`metadata.max.age.ms`).

What counts is what log folders hold, so all bytes are stored bytes.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from benchmarks.layouts import Layout
from benchmarks.outcome import POINT, spread
from benchmarks.records import RandomRecords
from benchmarks.stage import CHANGE_TIMEOUT_S, Stage
from benchmarks.strategies import EVENLOAD
from benchmarks.writers import (
    MEMORY_BYTES,
    JavaClient,
    Librdkafka,
    Load,
    Writer,
    round_robin,
    weighted_by_capacity,
)
from evenload.kafka_connection import Connection
from evenload.kafka_connection.clients import confluent_producer, open_admin
from evenload.kafka_plugin.producer import BalancedProducer
from evenload.kafka_plugin.topics import wait_for_leaders
from evenload.local_cluster import LocalCluster
from evenload.router.config import RouterConfig

LEVEL = 1 * POINT
ADDED_BROKER = 4
ADDED_PARTITIONS = [(ADDED_BROKER,)] * 2
RECORD_BYTES = 64 << 10
LOOK_EACH_RECORDS = 32  # a hundredth of a broker
GIVE_UP_FACTOR = 2.5  # times the least possible
_POLL_S = 0.1

LAYOUT = Layout(
    name="70/20/10 % full, and a broker added",
    capacity_mib=(200, 200, 200, 200),
    assignment=[(1,), (2,), (3,)] * 2,
    held_mib={1: 140, 2: 40, 3: 20},
)
# A broker's capacity in 16 s: brokers are measured each 5 s, and what is written until the added one is
# noticed has to be a small part of what is needed, as it is where a broker takes hours.
RECORDS_PER_S = 200


@dataclass(frozen=True, slots=True)
class Contender:
    """A way of writing.

    Attributes:
        name: As in tables.
        open: Gets ready to write a load, until left.
        finds_partitions: Whether it goes on by itself when partitions are added; else it is made anew.
        look_each_records: After how many records brokers are looked at; None: only where it has to stop.
    """

    name: str
    open: Callable[[Load], AbstractContextManager[Writer]]
    finds_partitions: bool = False
    look_each_records: int | None = LOOK_EACH_RECORDS


@dataclass(frozen=True, slots=True)
class Standing:
    """How full brokers are after so many bytes of the load, and how many of these each has."""

    utilisation: Mapping[int, float]
    topic_bytes: Mapping[int, int]

    @property
    def written_bytes(self) -> int:
        """In all; one copy."""
        return sum(self.topic_bytes.values())

    @property
    def spread(self) -> float:
        """Highest less lowest."""
        return spread(self.utilisation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What became of it.

    Attributes:
        contender: Who wrote.
        least_bytes: What has to be written at least, whoever does it.
        added_bytes: What was written when the broker was added.
        standings: From the beginning to the end.
        found_s: From when the new partitions could be written until there was something on them, where
            whoever writes had to find them.
        num_partitions: Of the topic, by leader, at the end.
    """

    contender: str
    least_bytes: int
    added_bytes: int
    standings: Sequence[Standing]
    found_s: float | None
    num_partitions: Mapping[int, int]

    @property
    def leader_share_over_even(self) -> float:
        """The most that a leader got, times its even share: before the broker came, or since it got data."""
        old = {
            broker_id: count for broker_id, count in self.num_partitions.items() if broker_id != ADDED_BROKER
        }
        phases = (
            (old, [each for each in self.standings if each.written_bytes <= self.added_bytes]),
            (self.num_partitions, [each for each in self.standings if each.topic_bytes.get(ADDED_BROKER)]),
        )
        return max(
            (_over_even(phase[0], phase[-1], leading) for leading, phase in phases if len(phase) > 1),
            default=0.0,
        )

    @property
    def level_bytes(self) -> int | None:
        """Written when all four brokers were level; None if they never were."""
        found = (each for each in self.standings if each.written_bytes > self.added_bytes)
        return next((each.written_bytes for each in found if each.spread < LEVEL), None)

    @property
    def over_least(self) -> float | None:
        """How many times the least possible that is."""
        return None if self.level_bytes is None else self.level_bytes / self.least_bytes


def _over_even(begin: Standing, end: Standing, num_partitions: Mapping[int, int]) -> float:
    got = {b: end.topic_bytes.get(b, 0) - begin.topic_bytes.get(b, 0) for b in num_partitions}
    even = {b: count / sum(num_partitions.values()) for b, count in num_partitions.items()}
    return max(got[b] / sum(got.values()) / even[b] for b in got)


def least_bytes_to_write(held_bytes: Mapping[int, int], capacity_bytes: Mapping[int, int]) -> int:
    """What any writer has to add at least, with one copy, until the spread is below a point.

    Nothing that is there moves, so the fullest stays as full as it is at least, and all others have to come
    within a point of it; whoever puts anything on the fullest raises what the others need.
    """
    used = {broker_id: held / capacity_bytes[broker_id] for broker_id, held in held_bytes.items()}
    floor = max(used.values()) - LEVEL
    missing = {broker_id: max(0.0, floor - level) for broker_id, level in used.items()}
    return int(sum(part * capacity_bytes[broker_id] for broker_id, part in missing.items()))


@contextmanager
def balanced(load: Load, router_config: RouterConfig | None = None) -> Iterator[Writer]:
    """evenload's `BalancedProducer` as it is by default, not told how much will come: nobody knows."""
    settings = {**load.connection.confluent_config(), "queue.buffering.max.kbytes": MEMORY_BYTES >> 10}
    with BalancedProducer(settings, connection=load.connection, router_config=router_config) as producer:
        yield Librdkafka(load, producer=producer)


UNBOUNDED = "evenload, no bounds"
SHORT_SIGHTED = "evenload, no bounds, 1 % ahead"
CONTENDERS = (
    Contender(EVENLOAD, balanced, finds_partitions=True),
    Contender(
        UNBOUNDED,
        partial(balanced, router_config=RouterConfig(safe_streams=False)),
        finds_partitions=True,
    ),
    Contender(
        SHORT_SIGHTED,
        partial(balanced, router_config=RouterConfig(safe_streams=False, horizon_fraction=0.01)),
        finds_partitions=True,
    ),
    Contender("Java client", lambda load: closing(JavaClient(load)), look_each_records=None),
    Contender("librdkafka", lambda load: closing(Librdkafka(load))),
    Contender("round robin", lambda load: closing(round_robin(load))),
    Contender("static shares", lambda load: closing(weighted_by_capacity(load))),
)


def write_all(
    cluster: LocalCluster,
    layout: Layout,
    contenders: Sequence[Contender],
    *,
    records_per_s: float,
    started: Callable[[str], None],
) -> list[Written]:
    """Let each write until it is level; those after the first give up where the first had got there.

    Args:
        cluster: As many brokers as the layout has; the last one is killed and started.
        layout: What they hold; the last one nothing.
        contenders: evenload first.
        records_per_s: How fast data comes in.
        started: Told of each contender when it begins.
    """
    runs: list[Written] = []
    with Stage(cluster, layout) as stage:
        for contender in contenders:
            started(contender.name)
            limit_bytes = runs[0].level_bytes if runs and not contender.finds_partitions else None
            runs.append(_write(cluster, stage, contender, records_per_s, limit_bytes))
    return runs


def _write(
    cluster: LocalCluster,
    stage: Stage,
    contender: Contender,
    records_per_s: float,
    limit_bytes: int | None,
) -> Written:
    lose_broker(cluster, ADDED_BROKER)
    assignment = tuple(stage.layout.assignment)
    topic = stage.make_topic(assignment)
    capacity = stage.layout.capacity_bytes
    held = {broker_id: sum(found.values()) for broker_id, found in stage.measure().items()}
    least_bytes = least_bytes_to_write(held, capacity)
    limit_bytes = limit_bytes or int(GIVE_UP_FACTOR * least_bytes)
    before_bytes = least_bytes_to_write({b: held[b] for b in held if b != ADDED_BROKER}, capacity) // 2
    course = _Course(stage, topic, contender.look_each_records)
    load = Load(
        connection=stage.connection,
        topic=topic,
        assignment=assignment,
        num_records=limit_bytes // RECORD_BYTES,
        records=RandomRecords(RECORD_BYTES, seed=1),
        records_per_s=records_per_s,
    )
    with ExitStack() as opened:
        writer = opened.enter_context(contender.open(load))
        course.follow(writer, before_bytes)
        added_bytes = course.standings[-1].written_bytes
        cluster.restart_broker(ADDED_BROKER)
        add_partitions(stage.connection, topic, len(assignment), ADDED_PARTITIONS)
        course.begin_watching(ADDED_BROKER)
        if not contender.finds_partitions:
            assignment = (*assignment, *ADDED_PARTITIONS)
            writer = opened.enter_context(contender.open(replace(load, assignment=assignment)))
        course.follow(writer, limit_bytes)
    stage.delete_topics(topic)
    return Written(
        contender=contender.name,
        least_bytes=least_bytes,
        added_bytes=added_bytes,
        standings=course.standings,
        found_s=course.found_s if contender.finds_partitions else None,
        num_partitions=Counter(
            replica_ids[0] for replica_ids in (*stage.layout.assignment, *ADDED_PARTITIONS)
        ),
    )


def lose_broker(cluster: LocalCluster, broker_id: int) -> None:
    """Kills a broker, and waits until the others know."""
    cluster.kill_broker(broker_id)
    client = confluent_producer(cluster.connection)
    gives_up_s = time.monotonic() + CHANGE_TIMEOUT_S
    while broker_id in client.list_topics(timeout=CHANGE_TIMEOUT_S).brokers:
        if time.monotonic() > gives_up_s:
            raise TimeoutError(f"broker {broker_id} is dead, and still listed after {CHANGE_TIMEOUT_S:g} s")
        time.sleep(_POLL_S)


def add_partitions(
    connection: Connection, topic: str, num_before: int, assignments: Sequence[tuple[int, ...]]
) -> None:
    """Gives a topic more partitions on these brokers, and waits until they can be written."""
    num_partitions = num_before + len(assignments)
    with open_admin(connection) as admin:
        admin.create_partitions(
            {topic: {"count": num_partitions, "assignments": [list(a) for a in assignments]}}
        )
    wait_for_leaders(connection, topic, num_partitions, timeout_s=CHANGE_TIMEOUT_S)


@dataclass(slots=True)
class _Course:
    """Writes, and looks at what brokers hold in between."""

    stage: Stage
    topic: str
    look_each_records: int | None
    standings: list[Standing] = field(default_factory=list)
    found_s: float | None = None
    _watched: int | None = None
    _watched_since_s: float = 0.0

    def begin_watching(self, broker_id: int) -> None:
        """From now on it is looked for whether this broker gets something."""
        self._watched = broker_id
        self._watched_since_s = time.monotonic()

    def follow(self, writer: Writer, until_bytes: int) -> None:
        """Write until so many bytes are stored in all, or, once there is a broker to watch, all are level."""
        if not self.standings:
            self._look()
        while (left_bytes := until_bytes - self.standings[-1].written_bytes) > 0:
            num_records = -(-left_bytes // RECORD_BYTES)
            writer.write(min(num_records, self.look_each_records or num_records))
            self._look()
            if self._watched is not None and self.standings[-1].spread < LEVEL:
                return

    def _look(self) -> None:
        held = self.stage.measure()
        of_topic = {
            broker_id: size_bytes
            for broker_id, found in held.items()
            if (size_bytes := sum(size for at, size in found.items() if at.topic == self.topic))
        }
        if self._watched is not None and self.found_s is None and self._watched in of_topic:
            self.found_s = time.monotonic() - self._watched_since_s
        capacity = self.stage.layout.capacity_bytes
        utilisation = {b: sum(found.values()) / capacity[b] for b, found in held.items()}
        self.standings.append(Standing(utilisation, of_topic))
