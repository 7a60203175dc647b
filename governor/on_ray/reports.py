"""How far stints are, as their drivers say every few seconds, and how fast.

Speed is measured from a while after the first report: a stint's beginning is slow for reasons of its own.
For any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from evenload.governor.governing.engine import StintId
from evenload.governor.on_ray.gpu_state import NodeGpus

SETTLED_S: Final = 20.0  # from the first report: from then on speed is measured,
MEASURED_S: Final = 10.0  # over at least so long
_KEPT_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class Progress:
    """What is known of a stint that lives."""

    samples_done: float  # by the job, in all its stints
    samples_per_s: float | None  # None: not measured yet


@dataclass(slots=True)
class _Heard:
    first_s: float
    samples_done: float
    heard_s: float
    settled_s: float | None = None
    settled_with: float = 0.0
    gpus: tuple[NodeGpus, ...] = ()

    @property
    def progress(self) -> Progress:
        if self.settled_s is None or self.heard_s - self.settled_s < MEASURED_S:
            return Progress(self.samples_done, None)
        speed = (self.samples_done - self.settled_with) / (self.heard_s - self.settled_s)
        return Progress(self.samples_done, speed if speed > 0 else None)


class Reports:
    """What drivers have said.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._heard: dict[StintId, _Heard] = {}
        self._lock = threading.Lock()

    def hear(self, stint_id: StintId, samples_done: float, gpus: tuple[NodeGpus, ...] = ()) -> None:
        """A driver says how many samples its job has read in all, and which GPUs it has."""
        now_s = self._clock()
        with self._lock:
            heard = self._heard.pop(stint_id, None)
            if heard is None:
                heard = _Heard(now_s, samples_done, now_s)
                while len(self._heard) >= _KEPT_MAX:
                    del self._heard[next(iter(self._heard))]
            elif samples_done < heard.samples_done:
                # Its workers died and went on from a checkpoint: what was measured before says nothing now.
                heard = _Heard(now_s, samples_done, now_s)
            self._heard[stint_id] = heard
            heard.samples_done, heard.heard_s, heard.gpus = samples_done, now_s, gpus
            if heard.settled_s is None and now_s - heard.first_s >= SETTLED_S:
                heard.settled_s, heard.settled_with = now_s, samples_done

    def progress(self, stint_id: StintId) -> Progress | None:
        """What is known of a stint; None: it has said nothing."""
        with self._lock:
            heard = self._heard.get(stint_id)
            return heard.progress if heard else None

    def gpus(self, stint_id: StintId) -> tuple[NodeGpus, ...]:
        """Which GPUs a stint has, as far as it has said."""
        with self._lock:
            heard = self._heard.get(stint_id)
            return heard.gpus if heard else ()

    def forget(self, stint_id: StintId) -> None:
        """A stint that has ended."""
        with self._lock:
            self._heard.pop(stint_id, None)
