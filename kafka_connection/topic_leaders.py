"""Which broker leads each partition of one topic, as last heard.

Leaders move when brokers die, restart or are levelled, so this is a cache that is refreshed when a broker
turns out not to lead; the topic's id must stay what it was, because under another id the same offsets hold
other data. Any thread may ask; one thread refreshes.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from evenload.kafka_connection.broker_connection import BrokerConnection, BrokerLostError
from evenload.kafka_connection.kafka_python_internals import MetadataRequest

_METADATA_VERSION: Final = 12


class BrokerAddress(NamedTuple):
    """Where one broker listens."""

    broker_id: int
    host: str
    port: int


class TopicReplacedError(Exception):
    """The topic's name now belongs to another topic. Internal: who reads says it."""


class TopicLeaders:
    """The leaders of one topic's partitions.

    Args:
        config: the cluster's description in kafka-python's words.
        topic_id: what the topic's id has to be; None: what it is at first.
        timeout_s: how long to wait for one broker, in seconds.
    """

    def __init__(
        self, topic: str, topic_id: uuid.UUID | None, *, config: Mapping[str, Any], timeout_s: float
    ) -> None:
        self._topic = topic
        self.topic_id = topic_id
        self._config = config
        self._timeout_s = timeout_s
        self._leaders: Mapping[int, BrokerAddress] = {}
        self._epochs: Mapping[int, int] = {}
        self._brokers: Mapping[int, BrokerAddress] = {}
        self._known: tuple[tuple[str, int], ...] = ()
        self._asked: BrokerConnection | None = None
        self._is_interrupted = False

    def leader_of(self, partition: int) -> BrokerAddress | None:
        """The partition's leader; None while nobody knows of one."""
        return self._leaders.get(partition)

    def epoch_of(self, partition: int) -> int:
        """Which of the partition's leaders in turn that is; -1 while nobody knows."""
        return self._epochs.get(partition, -1)

    def broker(self, broker_id: int) -> BrokerAddress | None:
        """Where a broker listens; None: it wasn't there when the leaders were asked for."""
        return self._brokers.get(broker_id)

    def interrupt(self) -> None:
        """End a refresh in another thread, and all later ones, at once."""
        self._is_interrupted = True
        asked = self._asked
        if asked is not None:
            asked.interrupt()

    def refresh(self) -> None:
        """Ask the brokers one after the other, until one answers.

        Raises:
            BrokerLostError: none answers.
            BrokerRefusedError: one answers that we can't talk to.
            TopicReplacedError: the topic was deleted and made again.
        """
        lost: BrokerLostError | None = None
        for host, port in self._addresses():
            try:
                self._refresh_from(host, port)
                return
            except BrokerLostError as error:
                lost = error
        raise lost or BrokerLostError("no broker's address is known")

    def _addresses(self) -> Iterator[tuple[str, int]]:
        """Brokers that were there last, then those the user named: one of both still may be."""
        given = [
            address.strip().rpartition(":") for address in str(self._config["bootstrap_servers"]).split(",")
        ]
        yield from dict.fromkeys([*self._known, *((host.strip("[]"), int(port)) for host, _, port in given)])

    def _refresh_from(self, host: str, port: int) -> None:
        connection = BrokerConnection(host, port, config=self._config, timeout_s=self._timeout_s)
        self._asked = connection
        if self._is_interrupted:
            raise BrokerLostError("the reader is closing")
        try:
            connection.open()
            wanted = MetadataRequest.MetadataRequestTopic(name=self._topic)
            answer = connection.request(
                MetadataRequest(version=_METADATA_VERSION, topics=[wanted], allow_auto_topic_creation=False)
            )
        finally:
            connection.close()
        topic = answer.topics[0]
        self.topic_id = self.topic_id or topic.topic_id
        if topic.topic_id not in (None, self.topic_id):
            raise TopicReplacedError(
                f"topic {self._topic!r} was deleted and made again: its id was {self.topic_id}, "
                f"and is {topic.topic_id} now"
            )
        brokers = {b.node_id: BrokerAddress(b.node_id, b.host, b.port) for b in answer.brokers}
        self._known = tuple((broker.host, broker.port) for broker in brokers.values())
        self._brokers = brokers
        self._epochs = {p.partition_index: p.leader_epoch for p in topic.partitions}
        self._leaders = {
            p.partition_index: brokers[p.leader_id] for p in topic.partitions if p.leader_id in brokers
        }
