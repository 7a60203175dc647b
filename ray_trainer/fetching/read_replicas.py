"""Which replica a partition is read from: its leader, or one in the reader's rack that the leader names.

Traffic between racks (availability zones) costs money, and leaders are where writers are too. So a reader
that says its rack is told by a leader with a `replica.selector.class` which replica in sync is nearer
(KIP-392, Kafka 2.4 and later), and asks that one from then on. What the leader named is believed for a few
minutes only, as replicas move; what fails at a follower is asked of the leader, which then names none
(docs/decisions/0085-a-leader-has-the-last-word.md).

Read next: fetch.py, which asks here for every range.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from evenload.kafka_connection.topic_leaders import BrokerAddress, TopicLeaders

_log = logging.getLogger(__name__)

_NEARER_FOR_S: Final = 300.0  # as long as Java's consumer: its metadata.max.age.ms
_LEADER_FOR_S: Final = 60.0


class ReadSource(NamedTuple):
    """Whom a range is asked of.

    Attributes:
        broker: where it listens.
        is_follower: it doesn't lead the partition.
        takes_nearer: it leads the partition, and may name a replica that is nearer.
    """

    broker: BrokerAddress
    is_follower: bool
    takes_nearer: bool


class ReadReplicas:
    """The replicas of one topic's partitions that are read from. One thread at a time.

    Args:
        leaders: of the topic.
        rack: where the reader is; empty: only leaders are read from.
    """

    def __init__(
        self, leaders: TopicLeaders, *, topic: str, rack: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._leaders = leaders
        self._topic = topic
        self._rack = rack
        self._clock = clock
        # By partition, the follower that is nearer, or None for the leader; and until when. Whose time is
        # over is asked of the leader anew.
        self._known: dict[int, tuple[int | None, float]] = {}
        self._said_until_s: dict[int, float] = {}

    def source_of(self, partition: int) -> ReadSource | None:
        """Whom to ask for the partition; None while it has no leader that anybody knows of."""
        leader = self._leaders.leader_of(partition)
        if leader is None:
            return None
        follower_id, until_s = self._known.get(partition, (None, 0.0))
        if self._clock() >= until_s:
            return ReadSource(leader, is_follower=False, takes_nearer=bool(self._rack))
        follower = None if follower_id is None else self._leaders.broker(follower_id)
        if follower is None or follower == leader:
            return ReadSource(leader, is_follower=False, takes_nearer=False)
        return ReadSource(follower, is_follower=True, takes_nearer=False)

    def note_nearer(self, partition: int, broker_id: int) -> None:
        """The partition's leader names a replica."""
        self._known[partition] = (broker_id, self._clock() + _NEARER_FOR_S)

    def leave(self, partition: int, follower_id: int, reason: str) -> None:
        """A follower doesn't give what it was asked for: the leader is asked for a while."""
        now_s = self._clock()
        if self._known.get(partition, (None, 0.0))[0] != follower_id:
            return  # it has been left, or another one named, since it was asked
        self._known[partition] = (None, now_s + _LEADER_FOR_S)
        if now_s >= self._said_until_s.get(follower_id, 0.0):
            self._said_until_s[follower_id] = now_s + _LEADER_FOR_S
            _log.warning(
                "topic %r is read from leaders for %.0f s where broker %d, in rack %r, was read from: %s",
                self._topic,
                _LEADER_FOR_S,
                follower_id,
                self._rack,
                reason,
            )
