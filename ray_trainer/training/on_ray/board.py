"""Where workers and driver meet while a run goes on: an actor's state, without Ray in it.

Workers say how far they are and what happened; the driver reads it and says when to stop. The board
outlives workers (and is started again should it die: board_line.py), so it is what knows, after a worker was
killed, which process that was, how far the others had come, and whether starting them again does any good.

Read next: worker_link.py (the workers' side), trainer.py (the driver's).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from evenload.ray_trainer.training.events import (
    AttemptStarted,
    CheckpointSaved,
    Event,
    Recovered,
    StepDone,
    WorkerIdentity,
    WorkersLost,
)

__all__ = ["Board", "WorkerFailure"]


@dataclass(frozen=True, slots=True)
class WorkerFailure:
    """An error that ended a worker's loop.

    Attributes:
        error: Itself, when it is one of ours (they pickle); None otherwise.
        reason: One line.
        is_retriable: Whether starting again can help.
    """

    rank: int
    step: int
    error: Exception | None
    reason: str
    trace: str
    is_retriable: bool


class Board:
    """For one driver's life. Called by one caller at a time, as Ray does with an actor.

    Args:
        fruitless_max: Attempts in a row whose loop may fail by itself without a new checkpoint.
    """

    def __init__(self, *, fruitless_max: int) -> None:
        self._fruitless_max = fruitless_max
        self._events: list[Event] = []
        self._workers: dict[int, WorkerIdentity] = {}
        self._attempt: AttemptStarted | None = None
        self._latest: StepDone | None = None
        self._failures: list[WorkerFailure] = []
        self._fatal: WorkerFailure | None = None
        self._is_lost = False
        self._lost_step = 0
        self._lost_at_s: float | None = None
        self._num_fruitless = 0
        self._has_saved = False
        self._stop = False
        self._num_restarts = 0

    # -- said by workers ---------------------------------------------------------------------------

    def arrived(self, worker: WorkerIdentity) -> None:
        """A worker process has begun; the first of its group ends what was known of the last."""
        if self._is_lost:
            self._is_lost = self._has_saved = False
            self._workers, self._attempt, self._latest, self._failures = {}, None, None, []
        self._workers[worker.rank] = worker

    def started(self, event: AttemptStarted) -> None:
        """All workers are up and have resumed; said by rank 0."""
        self._attempt = event
        self._events.append(event)
        if self._lost_at_s is not None:
            again = max(0, self._lost_step - event.step)
            seconds = time.monotonic() - self._lost_at_s
            self._events.append(Recovered(event.attempt, event.step, again, seconds))
        self._lost_at_s, self._lost_step = None, 0

    def beat(self, latest: StepDone | None, worker: WorkerIdentity | None = None) -> bool:
        """How far a worker is. Returns whether the run is asked to stop.

        Args:
            worker: Who says it; a board that was started again has missed its arrival.
        """
        if worker is not None and not self._is_lost:
            self._workers.setdefault(worker.rank, worker)
        if latest is not None and (self._latest is None or latest.step > self._latest.step):
            self._latest = latest
        return self._stop

    def tell(self, event: Event) -> None:
        self._has_saved |= isinstance(event, CheckpointSaved)
        self._events.append(event)

    def failed(self, failure: WorkerFailure) -> None:
        """A worker's loop ended with an error; said before the worker does."""
        self._failures.append(failure)
        if not failure.is_retriable and self._fatal is None:
            self._fatal = failure

    # -- said by Ray's controller ------------------------------------------------------------------

    def workers_lost(self, reasons: Mapping[int, str], dead_ranks: list[int]) -> WorkerFailure | None:
        """Workers failed; may be said several times of the same ones.

        Returns:
            Why starting them again would be of no use, if so.
        """
        if not self._is_lost:
            self._is_lost = True
            self._note_loss(reasons, dead_ranks)
        return self._fatal

    def _note_loss(self, reasons: Mapping[int, str], dead_ranks: list[int]) -> None:
        known = self._attempt or self._latest
        said = [failure.reason for failure in self._failures] or list(reasons.values())
        lost = WorkersLost(
            attempt=known.attempt if known is not None else 0,
            dead=tuple(self._workers[rank] for rank in dead_ranks if rank in self._workers),
            step=self._last_step(),
            reason=said[0] if said else "unknown",
        )
        self._events.append(lost)
        self._lost_step = max(self._lost_step, lost.step)
        self._lost_at_s = time.monotonic() if self._lost_at_s is None else self._lost_at_s
        if self._has_saved:
            self._num_fruitless = 0
        elif not lost.dead:  # a killed process says nothing about the loop; Ray bounds the restarts
            self._num_fruitless += 1
        if self._fatal is None and self._num_fruitless >= self._fruitless_max:
            reason = (
                f"{self._num_fruitless} attempts in a row failed before a checkpoint; the last: {lost.reason}"
            )
            trace = self._failures[0].trace if self._failures else ""
            self._fatal = WorkerFailure(0, lost.step, None, reason, trace, is_retriable=False)
        if self._fatal is None:
            self._num_restarts += 1

    def _last_step(self) -> int:
        steps = [failure.step for failure in self._failures]
        if self._latest is not None:
            steps.append(self._latest.step)
        if self._attempt is not None:
            steps.append(self._attempt.step)
        return max(steps, default=0)

    # -- said and asked by the driver --------------------------------------------------------------

    def ask_stop(self) -> None:
        self._stop = True

    def take(self) -> tuple[list[Event], StepDone | None]:
        """What happened since the last call, in order, and how far the workers are."""
        events, self._events = self._events, []
        return events, self._latest

    def why_fatal(self) -> WorkerFailure | None:
        """Why the run failed for good, or the last that a worker said when it failed otherwise."""
        if self._fatal is not None:
            return self._fatal
        return self._failures[0] if self._failures else None

    def get_num_restarts(self) -> int:
        """How often workers were started again after a failure."""
        return self._num_restarts
