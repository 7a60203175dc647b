"""Who held how many slots in the last hour, in bounded memory.

Time is cut into steps; a step keeps the last that was added in it, and one in which nothing changed keeps
nothing. Seconds are of a clock that only grows.

Invariants, checked in tests/property/governor/service/page/test_slot_history.py:
1. At each moment of the span that a point stands for, it says what was held then.
2. There are never more points than steps in the span, and two more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple


class HeldSlots(NamedTuple):
    """From a moment on, until the next.

    Attributes:
        at_s: When it began; of the first, also before the span.
        num_slots: That there were.
        by_job: Those that each job held; who held none isn't there.
    """

    at_s: float
    num_slots: int
    by_job: Mapping[str, int]


class SlotHistory:
    """Remembers for a while. One thread adds, any thread reads.

    Args:
        span_s: How far it goes back.
        step_s: At most one point in so many seconds.
    """

    def __init__(self, *, span_s: float = 3600.0, step_s: float = 2.0) -> None:
        self.span_s, self._step_s = span_s, step_s
        self._points: deque[HeldSlots] = deque()

    def add(self, now_s: float, num_slots: int, by_job: Mapping[str, int]) -> None:
        """What is held from now on."""
        held = {job_id: size for job_id, size in by_job.items() if size}
        points = self._points.copy()
        last = points[-1] if points else None
        if last is None or (last.num_slots, last.by_job) != (num_slots, held):
            is_same_step = last is not None and last.at_s // self._step_s == now_s // self._step_s
            if is_same_step and last is not None:
                points.pop()
            points.append(HeldSlots(last.at_s if is_same_step and last else now_s, num_slots, held))
        while len(points) > 1 and points[1].at_s <= now_s - self.span_s:
            points.popleft()
        self._points = points  # swapped as one, for those who read

    def read(self) -> tuple[HeldSlots, ...]:
        """Oldest first; the first says what was held as the span began, if that is known."""
        return tuple(self._points)


def slot_seconds(points: tuple[HeldSlots, ...], now_s: float) -> dict[str, float]:
    """Used by each job in these points, up to now."""
    used: dict[str, float] = {}
    ends = (*(after.at_s for _, after in pairwise(points)), now_s)
    for point, end_s in zip(points, ends, strict=False):
        for job_id, size in point.by_job.items():
            used[job_id] = used.get(job_id, 0.0) + size * max(0.0, end_s - point.at_s)
    return used
