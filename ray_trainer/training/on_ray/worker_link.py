"""A worker's line to its driver and to Ray: two threads, so that no step ever waits for either.

One thread says every fifth of a second how far this rank is, and hears whether to stop. The other makes the
calls of Ray Train that are collectives (`report`, `get_preemption_info`): each waits for all ranks, so they
have to come in the same order everywhere, and the session sees to that. A `report` back to back costs as
much as the controller's polling interval, so they are at least twice that apart, one at a time, and only
with a checkpoint.

Read next: board.py, run_context.py.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import ray
import ray.train
from ray.train import Checkpoint, CheckpointUploadMode

from evenload.ray_trainer.training.events import (
    AttemptStarted,
    CheckpointSaved,
    Event,
    StepDone,
    WorkerIdentity,
)
from evenload.ray_trainer.training.on_ray.board import WorkerFailure
from evenload.resume.storage import RunStorage

__all__ = ["RayLink"]

_BEAT_S: Final = 0.2
_BEAT_OTHERS_S: Final = 1.0  # ranks but 0: only their stop flag and liveness matter
_ANSWER_S: Final = 10.0
_START_S: Final = 60.0  # the board may still be starting itself

logger = logging.getLogger(__name__)


class RayLink:
    """One worker's `Link`. Made when the worker begins, closed when its loop has ended.

    Args:
        board: Handle of the board's actor.
        storage: Of the run; reported checkpoints lie there.
        report_gap_s: Least time between two reports.
    """

    def __init__(self, board: Any, storage: RunStorage, *, rank: int, report_gap_s: float) -> None:
        self._board = board
        self._storage = storage
        self._rank = rank
        self._worker = WorkerIdentity.own(rank)
        self._report_gap_s = report_gap_s
        self._latest: StepDone | None = None
        self._stop_asked = False
        self._preempted = False
        self._noticed: frozenset[str] = frozenset()  # machines that Ray said will be taken away
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._num_open_calls = 0
        self._lock = threading.Condition()
        self._reported_at_s = float("-inf")
        self._closing = threading.Event()
        self.num_failed_calls = 0
        for name, target in (("driver-link", self._beat), ("ray-calls", self._make_calls)):
            threading.Thread(target=target, name=name, daemon=True).start()

    @property
    def stop_asked(self) -> bool:
        return self._stop_asked

    @property
    def is_preempted(self) -> bool:
        return self._preempted

    @property
    def can_report(self) -> bool:
        return not self._num_open_calls and time.monotonic() - self._reported_at_s >= self._report_gap_s

    @property
    def latest(self) -> StepDone | None:
        return self._latest

    def arrived(self) -> None:
        """Say that this process has begun, and wait until it is heard: who is killed next has to be known."""
        try:
            ray.get(self._board.arrived.remote(self._worker), timeout=_START_S)
        except ray.exceptions.RayError as error:  # the next beat says it, too
            logger.warning("the driver could not be told that this worker has begun: %s", error)

    def started(self, event: AttemptStarted) -> None:
        self._latest = None
        self._send("started", event)

    def step_done(self, event: StepDone) -> None:
        self._latest = event

    def tell(self, event: Event) -> None:
        self._send("tell", event)

    def failed(self, failure: WorkerFailure) -> None:
        """Say that the loop ended with an error, and wait until it is heard."""
        try:
            ray.get(self._board.failed.remote(failure), timeout=_ANSWER_S)
        except (ray.exceptions.RayError, TypeError) as error:
            logger.warning("the driver could not be told of a failure: %s", error)

    def report(self, checkpoint: CheckpointSaved | None, metrics: Mapping[str, float]) -> None:
        self._reported_at_s = time.monotonic()
        self._call(lambda: self._report(checkpoint, metrics))

    def poll_preemption(self) -> None:
        self._call(self._poll_preemption)

    def preemption_seen(self) -> None:
        self._preempted = False

    def flush(self, timeout_s: float) -> None:
        if not self.flush_calls(timeout_s):
            logger.warning("Ray did not take the last report within %s s", timeout_s)
        self._tell_progress()

    def flush_calls(self, timeout_s: float) -> bool:
        """Wait until Ray has answered all calls, at most so long. Returns whether it has."""
        with self._lock:
            return self._lock.wait_for(lambda: not self._num_open_calls, timeout_s)

    def close(self) -> None:
        self._closing.set()
        self._calls.put(None)

    def _report(self, checkpoint: CheckpointSaved | None, metrics: Mapping[str, float]) -> None:
        reported = None
        if checkpoint is not None:
            path = self._storage.path(checkpoint.folder)
            reported = Checkpoint(path, filesystem=self._storage.filesystem)
        # The folder is where Ray would put it, and complete: nothing is to be copied.
        ray.train.report(
            dict(metrics), checkpoint=reported, checkpoint_upload_mode=CheckpointUploadMode.NO_UPLOAD
        )

    def _poll_preemption(self) -> None:
        notice = ray.train.get_preemption_info()
        nodes = frozenset(notice.preempted_node_ids if notice is not None else ())
        # Ray repeats a notice until the machine is gone; only one that it has not named before is news.
        if nodes - self._noticed:
            self._preempted = True
        self._noticed = nodes

    def _call(self, call: Callable[[], None]) -> None:
        with self._lock:
            self._num_open_calls += 1
        self._calls.put(call)

    def _make_calls(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except Exception as error:  # noqa: BLE001 -- telling Ray must never harm a training
                self.num_failed_calls += 1
                logger.warning("Ray Train refused a call: %s", error)
            finally:
                with self._lock:
                    self._num_open_calls -= 1
                    self._lock.notify_all()

    def _beat(self) -> None:
        while not self._closing.wait(_BEAT_S if self._rank == 0 else _BEAT_OTHERS_S):
            self._tell_progress()

    def _tell_progress(self) -> None:
        try:
            self._stop_asked |= ray.get(
                self._board.beat.remote(self._latest, self._worker), timeout=_ANSWER_S
            )
        except ray.exceptions.RayError as error:
            logger.debug("the driver does not answer: %s", error)

    def _send(self, method: str, event: Event) -> None:
        getattr(self._board, method).remote(event)
