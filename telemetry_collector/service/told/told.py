"""What others have told the service: bounded, and forgotten by itself.

The idea: whoever tells something may die without a word, so everything told has an end, and whoever is still
there tells it again. The same key replaces what it said before.

Pure: time comes in. `put`, `remove` and `expire` belong to one thread; `values` may be called from any. Read
next: collector_service.py.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

__all__ = ["Told"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Entry(NamedTuple, Generic[V]):
    value: V
    size_bytes: int
    ends_at_s: float


class Told(Generic[K, V]):
    """Values by key, each with an end, within a number and a sum of sizes.

    Args:
        max_items: how many may be kept.
        max_bytes: how large they may be together, as whoever puts them says.
    """

    def __init__(self, max_items: int, max_bytes: int) -> None:
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._entries: dict[K, _Entry[V]] = {}
        self._size_bytes = 0
        self.revision = 0  # another one whenever the values are others

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def put(self, key: K, value: V, *, size_bytes: int, now_s: float, lifetime_s: float) -> bool:
        """Keep a value for a time, in place of the key's earlier one. Returns whether there was room.

        An earlier value of the key stays where there is none for the new one.
        """
        earlier = self._entries.get(key)
        if not self._has_room(earlier, size_bytes):
            self.expire(now_s)
            earlier = self._entries.get(key)
            if not self._has_room(earlier, size_bytes):
                return False
        if earlier is None or earlier.value != value:
            self.revision += 1
        self._entries[key] = _Entry(value, size_bytes, now_s + lifetime_s)
        self._size_bytes += size_bytes - (earlier.size_bytes if earlier is not None else 0)
        return True

    def remove(self, key: K) -> None:
        """Forget a value, if it is there."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._size_bytes -= entry.size_bytes
            self.revision += 1

    def expire(self, now_s: float) -> list[K]:
        """Forget what has come to its end; which keys that were."""
        ended = [key for key, entry in self._entries.items() if entry.ends_at_s <= now_s]
        for key in ended:
            self.remove(key)
        return ended

    def get(self, key: K) -> V | None:
        """What the key said last; None when it isn't kept."""
        entry = self._entries.get(key)
        return entry.value if entry is not None else None

    def values(self, now_s: float) -> list[V]:
        """What is kept and has not come to its end."""
        # list() of a dictionary's view is one step for Python, so other threads see it whole.
        return [entry.value for entry in list(self._entries.values()) if entry.ends_at_s > now_s]

    def _has_room(self, earlier: _Entry[V] | None, size_bytes: int) -> bool:
        num_items = len(self._entries) + (earlier is None)
        total_bytes = self._size_bytes + size_bytes - (earlier.size_bytes if earlier is not None else 0)
        return num_items <= self._max_items and total_bytes <= self._max_bytes
