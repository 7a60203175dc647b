"""When to ask next: together while all is well, later and later for a broker that doesn't answer.

All questions of one collector share their ticks, so that a snapshot's figures are of one instant; the ticks
themselves vary, so that a thousand producers don't all ask in the same millisecond. Pure: time and chance
are passed in (tests/unit/telemetry_collector/test_schedule.py).
"""

from __future__ import annotations

import random

__all__ = ["Ticks", "backoff_s"]


class Ticks:
    """Instants about `interval_s` apart; each distance varies by up to the share `jitter` of it."""

    def __init__(self, interval_s: float, *, jitter: float, rng: random.Random) -> None:
        self._interval_s = interval_s
        self._jitter = jitter
        self._rng = rng
        self._next_s: float | None = None

    def next_after(self, now_s: float) -> float:
        """The first tick after `now_s`: the same one for all who ask before it."""
        if self._next_s is None or self._next_s <= now_s:
            self._next_s = now_s + self._interval_s * self._rng.uniform(1 - self._jitter, 1 + self._jitter)
        return self._next_s


def backoff_s(num_failures: int, *, initial_s: float, max_s: float, rng: random.Random) -> float:
    """How long to wait after the `num_failures`-th failure in a row (1, 2, ...): doubling, then random.

    Between half and all of `min(max_s, initial_s * 2 ** (num_failures - 1))` ("equal jitter" of
    https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/): brokers that fell silent
    together are not asked together.
    """
    assert num_failures >= 1
    # The exponent is bounded as a float would overflow after some 1,000 failures in a row.
    wait_s = min(max_s, initial_s * 2.0 ** min(num_failures - 1, 60))
    return wait_s * rng.uniform(0.5, 1.0)
