"""A cluster made to look like a layout: bytes held before, topics placed as it says, another load half-way.

Embedded brokers don't enforce capacities, so one cluster plays every layout with its number of brokers: a
capacity is what `connection` says it is. What brokers hold besides the topic under test is real, in topics of
one partition a broker.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from kafka.errors import KafkaError

from benchmarks.layouts import MIB, Layout
from benchmarks.log_folders import BytesByBroker, settled_bytes, wait_until_gone
from evenload.kafka_connection.clients import confluent_producer, open_admin
from evenload.kafka_plugin.topics import create_topic
from evenload.local_cluster import LocalCluster

# A broker frees what was deleted after a minute, and looks for it first after half a minute: too late here.
BROKER_PROPERTIES = {"log.segment.delete.delay.ms": "20", "log.initial.task.delay.ms": "500"}
# For processes of Java's: compile fully, as in production. This variable is read last, after our own flags.
FULL_COMPILER = {"_JAVA_OPTIONS": "-XX:TieredStopAtLevel=4"}
CHANGE_TIMEOUT_S = 60.0
_RECORD_BYTES = 256 << 10
_RECORDS = tuple(random.Random(number).randbytes(_RECORD_BYTES) for number in range(4))
_topic_numbers = itertools.count(1)


class Stage:
    """One layout on a running cluster; a context manager, after which the cluster holds what it held before.

    Args:
        cluster: As many brokers as the layout has.
        layout: What it should look like.
    """

    def __init__(self, cluster: LocalCluster, layout: Layout) -> None:
        self.layout = layout
        self.connection = cluster.connection.model_copy(
            update={"capacity_bytes_by_broker": layout.capacity_bytes}
        )
        self._folders = {broker_id: cluster.data_path(broker_id) for broker_id in cluster.broker_ids}
        if set(self._folders) != set(layout.capacity_bytes):
            raise ValueError(f"layout {layout.name!r} needs brokers {list(layout.capacity_bytes)}")
        self._topics: list[str] = []

    def __enter__(self) -> Self:
        self._fill("held", self.layout.held_mib)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:  # after one, the cluster goes as well, and what went wrong should be told, not this
            self.delete_topics(*self._topics)

    def make_topic(self, assignment: Sequence[tuple[int, ...]], name: str = "load") -> str:
        """A new topic with these replicas of each partition, ready to be written; its name."""
        topic = f"{name}-{next(_topic_numbers)}"
        create_topic(
            self.connection,
            topic,
            num_partitions=len(assignment),
            replication=None,
            assignments=assignment,
            configs={},
            timeout_s=CHANGE_TIMEOUT_S,
        )
        self._topics.append(topic)
        return topic

    def delete_topics(self, *topics: str) -> None:
        """Delete topics that this stage made, and wait until their files are gone."""
        if not topics:
            return
        with open_admin(self.connection) as admin:
            admin.delete_topics(list(topics))
        for topic in topics:
            self.wait_until_gone(topic)
            self._topics.remove(topic)

    def wait_until_gone(self, topic: str) -> None:
        """Wait until no broker holds files of a topic that was deleted."""
        wait_until_gone(self._folders, topic, CHANGE_TIMEOUT_S)

    def intrude(self) -> str | None:
        """Let another load come, as the layout says; the name of its topic, None when there is none."""
        return self._fill("intrusion", self.layout.intrusion_mib)

    def measure(self) -> BytesByBroker:
        """What each broker holds of each partition, once all copies are alike."""
        return settled_bytes(self._folders, CHANGE_TIMEOUT_S)

    def leaders(self, topic: str) -> dict[int, int]:
        """Who leads each partition of a topic now."""
        with open_admin(self.connection) as admin:
            (found,) = admin.describe_topics([topic])
        if found["error_code"]:
            raise KafkaError(f"topic {topic!r} can't be described: error {found['error_code']}")
        return {placed["partition_index"]: placed["leader_id"] for placed in found["partitions"]}

    def _fill(self, name: str, mib_by_broker: Mapping[int, int]) -> str | None:
        """Write so much to each of these brokers, in one partition each."""
        if not mib_by_broker:
            return None
        topic = self.make_topic([(broker_id,) for broker_id in mib_by_broker], name)
        producer = confluent_producer(self.connection, queue_buffering_max_kbytes=1 << 20)
        for partition, mib in enumerate(mib_by_broker.values()):
            for number in range(mib * MIB // _RECORD_BYTES):
                producer.produce(topic, _RECORDS[number % len(_RECORDS)], partition=partition)
        if left := producer.flush(CHANGE_TIMEOUT_S):
            raise TimeoutError(f"{left} records of {topic!r} weren't acknowledged in {CHANGE_TIMEOUT_S} s")
        return topic
