"""How often each producer should ask for a topic's route, so that however many ask, a service can answer.

A service counts what it is asked, and says a longer or a shorter interval when that is too much or little. It
changes by factors of two, as each change is another answer for everybody, and not before producers that heard
of the change before have gone by it.

Pure: times come in.
"""

from __future__ import annotations

__all__ = ["Pace"]

_SHORTEST_S, _LONGEST_S = 1.0, 8.0  # well before shares expire


class Pace:
    """For one thread at a time.

    Args:
        asked_per_s: how many questions a second, of all who ask, are enough.

    Attributes:
        poll_s: how often each should ask for each of its topics.
    """

    def __init__(self, asked_per_s: float) -> None:
        self._most_per_s = asked_per_s
        self.poll_s = _SHORTEST_S
        self._num_asked = 0
        self._since_s: float | None = None

    def count(self) -> None:
        """Somebody has asked."""
        self._num_asked += 1

    def look(self, now_s: float) -> None:
        """Say another interval, if it is time."""
        if self._since_s is None:
            self._since_s, self._num_asked = now_s, 0
        passed_s = now_s - self._since_s
        if passed_s < 2 * self.poll_s:
            return
        per_s = self._num_asked / passed_s
        if per_s > self._most_per_s:
            self.poll_s = min(_LONGEST_S, 2 * self.poll_s)
        elif per_s < self._most_per_s / 4:
            self.poll_s = max(_SHORTEST_S, self.poll_s / 2)
        self._since_s, self._num_asked = now_s, 0
