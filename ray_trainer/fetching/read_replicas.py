"""Which replica a partition is read from: its leader, or one in the reader's rack that the leader names.

Traffic between racks (availability zones) costs money, and leaders are where writers are too. So a reader
that says its rack is told by a leader with a `replica.selector.class` which replica in sync is nearer
(KIP-392, Kafka 2.4 and later), and asks that one from then on. What the leader named is believed for a few
minutes only, as replicas move. What fails at a follower is asked of the leader
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
# A broker that this machine can't reach may be in sync for ever: each try costs a time-out.
_WITHOUT_BROKER_MAX_S: Final = 900.0


class ReadSource(NamedTuple):
    """Whom a range is asked of.

    Attributes:
        broker: where it listens.
        is_follower: it doesn't lead the partition.
        takes_nearer: it leads the partition, and may name a replica that is nearer.
        leader_epoch: which of the partition's leaders in turn it is; -1 for a follower.
    """

    broker: BrokerAddress
    is_follower: bool = False
    takes_nearer: bool = False
    leader_epoch: int = -1


class _Absence(NamedTuple):
    """How long a broker isn't asked as a follower."""

    until_s: float
    term_s: float


class ReadReplicas:
    """The replicas of one topic's partitions that are read from. One thread at a time.

    Args:
        leaders: of the topic.
        topic: its name.
        clock: monotonic seconds.
    """

    def __init__(
        self, leaders: TopicLeaders, *, topic: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._leaders = leaders
        self._topic = topic
        self._clock = clock
        # By partition, the follower that is nearer, or None for the leader; and until when. Whose time is
        # over is asked of the leader anew.
        self._known: dict[int, tuple[int | None, float]] = {}
        self._absent: dict[int, _Absence] = {}
        self._said_until_s: dict[int, float] = {}

    def source_of(self, partition: int) -> ReadSource | None:
        """Whom to ask for the partition; None while it has no leader that anybody knows of."""
        leader = self._leaders.leader_of(partition)
        if leader is None:
            return None
        epoch = self._leaders.epoch_of(partition)
        follower_id, until_s = self._known.get(partition, (None, 0.0))
        if self._clock() >= until_s:
            return ReadSource(leader, takes_nearer=True, leader_epoch=epoch)
        follower = (
            None if follower_id is None or self._is_absent(follower_id) else self._leaders.broker(follower_id)
        )
        if follower is None or follower.broker_id == leader.broker_id:
            return ReadSource(leader, leader_epoch=epoch)
        return ReadSource(follower, is_follower=True)

    def note_nearer(self, partition: int, broker_id: int) -> bool:
        """The partition's leader names a replica.

        Returns:
            Whether it is known where that listens, or doesn't matter.
        """
        named, until_s = self._known.get(partition, (None, 0.0))
        if named is None and self._clock() < until_s:
            return True  # said in answer to what was asked before a follower was left
        is_known = self._leaders.broker(broker_id) is not None
        self._known[partition] = (broker_id, self._clock() + (_NEARER_FOR_S if is_known else _LEADER_FOR_S))
        return is_known

    def leave(self, partition: int, follower_id: int, reason: str) -> None:
        """A follower doesn't give what it was asked for: the partition's leader is asked for a while."""
        if self._known.get(partition, (None, 0.0))[0] != follower_id:
            return  # it has been left, or another one named, since it was asked
        self._known[partition] = (None, self._clock() + _LEADER_FOR_S)
        self._say(follower_id, f"partition {partition}", _LEADER_FOR_S, reason)

    def leave_broker(self, follower_id: int, reason: str) -> None:
        """A broker can't be talked to: for a while, leaders are asked for all that it was named for."""
        now_s = self._clock()
        absence = self._absent.get(follower_id, _Absence(0.0, _LEADER_FOR_S / 2))
        if now_s < absence.until_s:
            return
        # The sooner it fails again, the longer it is left alone.
        is_again = now_s < absence.until_s + absence.term_s
        term_s = min(_WITHOUT_BROKER_MAX_S, 2 * absence.term_s) if is_again else _LEADER_FOR_S
        self._absent[follower_id] = _Absence(now_s + term_s, term_s)
        self._say(follower_id, "what it was read for", term_s, reason)

    def _is_absent(self, broker_id: int) -> bool:
        absence = self._absent.get(broker_id)
        return absence is not None and self._clock() < absence.until_s

    def _say(self, follower_id: int, what: str, term_s: float, reason: str) -> None:
        """Once for each follower and term."""
        now_s = self._clock()
        if now_s >= self._said_until_s.get(follower_id, 0.0):
            self._said_until_s[follower_id] = now_s + term_s
            _log.warning(
                "topic %r: broker %d was nearer, but %s is read from leaders for %.0f s: %s",
                self._topic,
                follower_id,
                what,
                term_s,
                reason,
            )
