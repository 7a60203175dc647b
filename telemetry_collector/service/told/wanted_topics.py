"""Which topics are measured because somebody asks for them: so many, and nobody takes all the places.

A place is firm while its topic exists and somebody who may ingest (a producer, a load) asks for it. All
others are loose: names that no broker knows, and what those ask for who only read. When there are more names
than places, loose ones go, the oldest of whoever has most of them first. So whoever makes up names pushes out
their own, and neither a producer's topic nor the few that others look at.

Invariants, checked in tests/property/telemetry_collector/service/told/test_wanted_topics.py:
1. There are never more names than places.
2. A firm place is lost by not being asked for, and by nothing else.
3. A loose name goes only if nobody else has more loose names.

Pure: time comes in. Read next: collector_service.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container
from dataclasses import dataclass

__all__ = ["Asked", "WantedTopics"]


@dataclass(slots=True)
class _Place:
    holder: str
    asked_at_s: float
    firm_until_s: float  # if the topic exists


@dataclass(frozen=True, slots=True)
class Asked:
    """What came of asking.

    Attributes:
        added: names that have a place since now.
        removed: names that lost theirs.
        has_room: whether all that was asked for has a place.
    """

    added: tuple[str, ...]
    removed: tuple[str, ...]
    has_room: bool


class WantedTopics:
    """Names of topics, with who asked for them and when. Belongs to one thread.

    Args:
        max_topics: how many places there are.
        lifetime_s: how long a topic that exists keeps its place after somebody last asked for it.
        unknown_lifetime_s: likewise a name that no broker knows.
    """

    def __init__(self, max_topics: int, *, lifetime_s: float, unknown_lifetime_s: float) -> None:
        self._max_topics = max_topics
        self._lifetime_s = lifetime_s
        self._unknown_lifetime_s = unknown_lifetime_s
        self._places: dict[str, _Place] = {}

    def __contains__(self, topic: str) -> bool:
        return topic in self._places

    def __len__(self) -> int:
        return len(self._places)

    def ask(
        self, topics: Collection[str], *, by: str, may_ingest: bool, existing: Container[str], now_s: float
    ) -> Asked:
        """Somebody wants to know about topics.

        Args:
            topics: which.
            by: who; names are counted by that.
            may_ingest: whether topics of theirs that exist get firm places.
            existing: the topics that brokers know.
            now_s: monotonic seconds.
        """
        new = [topic for topic in topics if topic not in self._places]
        for topic in topics:
            place = self._places.setdefault(topic, _Place(by, now_s, now_s))
            place.asked_at_s = now_s
            if may_ingest:
                place.firm_until_s = now_s + self._lifetime_s
        removed = self._make_room(existing, now_s)
        return Asked(
            added=tuple(topic for topic in new if topic in self._places),
            removed=tuple(removed - set(new)),
            has_room=removed.isdisjoint(topics),
        )

    def expire(self, existing: Container[str], now_s: float) -> list[str]:
        """Forget what nobody has asked for lately; which names that were."""
        ended = [
            topic
            for topic, place in self._places.items()
            if now_s - place.asked_at_s
            >= (self._lifetime_s if topic in existing else self._unknown_lifetime_s)
        ]
        for topic in ended:
            del self._places[topic]
        return ended

    def _make_room(self, existing: Container[str], now_s: float) -> set[str]:
        num_too_many = len(self._places) - self._max_topics
        if num_too_many <= 0:
            return set()
        loose = [
            (topic, place)
            for topic, place in self._places.items()
            if topic not in existing or place.firm_until_s <= now_s
        ]
        # Each loose name is numbered among its holder's, the newest first. The highest numbers are then those
        # of whoever has most, and the oldest of theirs.
        loose.sort(key=lambda entry: -entry[1].asked_at_s)
        num_by_holder: Counter[str] = Counter()
        numbered = []
        for topic, place in loose:
            num_by_holder[place.holder] += 1
            numbered.append((num_by_holder[place.holder], topic))
        numbered.sort(key=lambda entry: -entry[0])
        removed = {topic for _, topic in numbered[:num_too_many]}
        for topic in removed:
            del self._places[topic]
        return removed
