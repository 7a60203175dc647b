"""What loads have announced, summed up by broker.

The idea: each load says anew every few seconds what it will still write, so the sum is kept and only what
changed is counted anew. 200 loads on 1,000 brokers would otherwise be 200,000 numbers to add, and to tell to
each producer, for each word of one of them.

Invariant, checked in tests/property/telemetry_collector/service/told/test_announced.py: the sum is that of
the intents counted last, without those that are left out.

Pure. Read next: collector_service.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from evenload.telemetry_collector.reports import Intent
from evenload.telemetry_collector.snapshot import BrokerSnapshot

__all__ = ["AnnouncedBytes", "believable"]

_BYTES_MAX = 1 << 50  # for a broker whose capacity isn't known: more than any holds


def believable(intent: Intent, brokers: Mapping[int, BrokerSnapshot]) -> Intent:
    """What a load can mean: bytes for brokers that are there, and no more than one of them holds.

    Raises:
        ValueError: it can't; why, as a clause.
    """
    for broker_id, size_bytes in intent.bytes_by_broker.items():
        if not 0 <= broker_id < 1 << 31:
            raise ValueError(f"bytes_by_broker: {str(broker_id)[:20]} can't be a broker's id")
        broker = brokers.get(broker_id)
        capacity_bytes = broker.capacity_bytes if broker is not None else None
        max_bytes = _BYTES_MAX if capacity_bytes is None else capacity_bytes
        if size_bytes > max_bytes:
            raise ValueError(
                f"bytes_by_broker: broker {broker_id} holds at most {max_bytes} bytes, so no load "
                f"can write {str(size_bytes)[:30]} there"
            )
    known = {broker_id: size for broker_id, size in intent.bytes_by_broker.items() if broker_id in brokers}
    return intent.model_copy(update={"bytes_by_broker": known})


class AnnouncedBytes:
    """Stored bytes to come, by broker id. Belongs to one thread."""

    def __init__(self) -> None:
        self._counted: dict[str, Intent] = {}
        self._bytes_by_broker: dict[int, int] = {}

    def count(self, intents: Iterable[Intent]) -> None:
        """Count these from now on, one of each load, and no others."""
        now = {intent.load: intent for intent in intents}
        for load in self._counted.keys() - now.keys():
            _add(self._bytes_by_broker, self._counted.pop(load), -1)
        for load, intent in now.items():
            earlier = self._counted.get(load)
            if earlier is not intent:
                if earlier is not None:
                    _add(self._bytes_by_broker, earlier, -1)
                _add(self._bytes_by_broker, intent, 1)
                self._counted[load] = intent

    def without(self, loads: Collection[str]) -> Mapping[int, int]:
        """The sum of all loads but these, where it is above 0."""
        left = dict(self._bytes_by_broker)
        for load in self._counted.keys() & set(loads):
            _add(left, self._counted[load], -1)
        return left


def _add(bytes_by_broker: dict[int, int], intent: Intent, sign: int) -> None:
    """Add or take away; what comes to 0 is forgotten."""
    for broker_id, size_bytes in intent.bytes_by_broker.items():
        total = bytes_by_broker.get(broker_id, 0) + sign * size_bytes
        if total:
            bytes_by_broker[broker_id] = total
        else:
            bytes_by_broker.pop(broker_id, None)
