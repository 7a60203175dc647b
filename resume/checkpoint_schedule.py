"""When a checkpoint is due: seldom enough to cost nothing, often enough to lose little.

A checkpoint stops the loop for as long as it takes to copy the model (13 ms for 134 MB); the rest happens
behind. With an interval of that cost over 0.002, and never less than 4 s, all checkpoints together stop the
loop for at most 0.2 % of the time. Writing them takes at most 5 % of it: else 134 MB would be written every
7 s, 1.8 TB a day, whatever else the storage is there for. Pure: time is passed in.
"""

from __future__ import annotations

__all__ = ["COST_SHARE_MAX", "INTERVAL_MIN_S", "WRITE_SHARE_MAX", "CheckpointSchedule"]

INTERVAL_MIN_S = 4.0
COST_SHARE_MAX = 0.002
WRITE_SHARE_MAX = 0.05


class CheckpointSchedule:
    """Says when the next checkpoint is due. For one thread, but for `written`.

    Args:
        interval_s: Seconds from one checkpoint to the next, 0 or more; None: from the measured cost.
        now_s: The present, on a clock that never goes back.
    """

    def __init__(self, interval_s: float | None, *, now_s: float) -> None:
        if interval_s is not None and not 0 <= interval_s < float("inf"):
            raise ValueError(f"checkpoint interval {interval_s} s: it must be 0 or more, and finite")
        self._given_s = interval_s
        self._cost_s = self._write_s = 0.0
        self._last_s = now_s

    @property
    def interval_s(self) -> float:
        """Seconds from one checkpoint to the next, as things are."""
        if self._given_s is not None:
            return self._given_s
        return max(INTERVAL_MIN_S, self._cost_s / COST_SHARE_MAX, self._write_s / WRITE_SHARE_MAX)

    def is_due(self, now_s: float) -> bool:
        return now_s - self._last_s >= self.interval_s

    def taken(self, now_s: float, *, cost_s: float) -> None:
        """A checkpoint was taken now, and stopped the loop for `cost_s`.

        The worst of the last two costs counts: one lucky copy must not make checkpoints twice as many.
        """
        self._last_s = now_s
        self._cost_s = max(cost_s, self._cost_s / 2)

    def written(self, *, cost_s: float) -> None:
        """The last checkpoint took `cost_s` behind the loop, and counts; any thread.

        One that failed has no say: the longer the storage has kept a checkpoint waiting before it refused it,
        the later would be the next, though nothing since the last good one is safe.
        """
        self._write_s = max(cost_s, self._write_s / 2)
