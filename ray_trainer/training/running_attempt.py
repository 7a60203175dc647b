"""What is done beside the training while an attempt lasts: books, checkpoints, and word to the driver.

After each step every rank acts on what was wished at the step before (resume/agreement.py): it copies its
state for a checkpoint and hands it to the writer, or queues a call to Ray. Nothing here waits, but at the
end.

Read next: resume/checkpointing.py, resume/agreement.py, run_context.py (the link to the driver).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from evenload.ray_trainer.planning.cursor import Cursor, kafka_view
from evenload.ray_trainer.planning.plan import EpochPlan
from evenload.ray_trainer.training.attempt import RunPlace
from evenload.ray_trainer.training.books.step_books import OpenStep, StepBooks
from evenload.ray_trainer.training.events import AttemptStarted, CheckpointSaved, Note, StepDone
from evenload.ray_trainer.training.group_progress import GroupProgress, group_of
from evenload.resume.agreement import Agreement, Decision, Wishes
from evenload.resume.beginning import Beginning
from evenload.resume.checkpoint_writer import Outcome
from evenload.resume.checkpointing import Checkpointing
from evenload.resume.kept_state import KeptState

__all__ = ["RunningAttempt"]

_PREEMPTION_POLL_S: Final = 5.0  # as often as Ray's own watcher looks
_FLUSH_S: Final = 15.0


class RunningAttempt:
    """One rank's part in an attempt that has begun. Training thread only, but for what the writer calls.

    Args:
        reader: Its state is read at each checkpoint.
        kept: What a checkpoint holds.
    """

    def __init__(
        self,
        place: RunPlace,
        beginning: Beginning,
        began: AttemptStarted,
        *,
        reader: Any,
        kept: KeptState,
    ) -> None:
        self._place = place
        self._link = place.context.link
        self._rank = place.peers.rank
        self._reader = reader
        self.number = began.attempt
        self.step = began.step
        origin = beginning.checkpoint.index if beginning.checkpoint is not None else None
        self.last_step = (origin.attempt, origin.step) if origin is not None else (began.attempt, 0)
        self.is_stopped = False
        self.stop_asked = False
        self._books = StepBooks(
            place.storage,
            attempt=began.attempt,
            rank=place.data_rank.rank,
            world_size=place.data_rank.size,
            is_kept=place.has_books,
        )
        self._agreement = Agreement(place.peers)
        self._checkpoints = Checkpointing(
            place.beginning,
            beginning,
            began.attempt,
            kept,
            interval_s=place.context.checkpoint_interval_s,
            keep=place.context.keep_checkpoints,
            on_outcome=self._on_outcome,
        )
        self._group = self._open_group()
        self._group_offset: Mapping[int, int] = {}
        self._taken_step = self._reported_step = began.step
        self._saved: CheckpointSaved | None = None
        self._last: OpenStep | None = None
        self._last_poll_s = time.monotonic()
        self._samples, self._train_s, self._mark_s = 0, 0.0, time.monotonic()
        if self._rank == 0:
            self._link.started(began)

    @property
    def samples_per_s(self) -> float:
        """Samples of all ranks over the seconds spent in steps."""
        return self._samples / self._train_s if self._train_s else 0.0

    def resume_clock(self) -> None:
        """Steps begin (again): what came since the last was no training."""
        self._mark_s = time.monotonic()

    def end_step(self, step: OpenStep) -> bool:
        """Enter a step into the books, and do what was agreed on.

        Returns:
            Whether the run stops here.

        Raises:
            CheckpointWriteError, RunTakenOverError, ShardedStateError, StateUnavailableError, TypeError: Some
                checkpoint ended the run; on every rank, at the same step.
        """
        self.step = step.number
        self.last_step = (self.number, self.step)
        num_samples = step.stop - step.start
        self._books.add(step)
        now_s = time.monotonic()
        self._samples += num_samples
        self._train_s += now_s - self._mark_s
        self._mark_s = now_s
        decision = self._agreement.decide()
        if decision.failed:
            self._checkpoints.fail()
        self._tell_step(step, decision)
        self._act(decision)
        self._agreement.wish(self._wishes(time.monotonic()))
        self._last = step
        return self.is_stopped

    def close(self) -> None:
        """Take the last checkpoint, if there was a step since, and wait until it counts.

        Raises:
            CheckpointWriteError: It can't be written, though it was tried for as long as the storage's
                patience.
        """
        try:
            # Of the last step. The answer is of no use, but a sum under way would keep the group from ending.
            self._agreement.decide()
            if self.step > self._taken_step:
                self._take_checkpoint()
            self._checkpoints.wait_until_saved(self._take_checkpoint)
            if self._place.peers.broadcast(self._has_unreported):
                self._report()
            self._link.flush(_FLUSH_S)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """End the threads, and the groups of ranks where nothing waits in them any more."""
        # After an error a peer may never make the call that this rank waits in, and ending a group waits for
        # it, up to half an hour. Then the group is left to the end of the process.
        if self._checkpoints.close() and not self._agreement.is_pending:
            self._place.peers.close()
        if self._group is not None:
            self._group.close()

    def _wishes(self, now_s: float) -> Wishes:
        is_first = self._rank == 0
        return Wishes(
            checkpoint=self._checkpoints.wishes(),
            failed=self._checkpoints.has_failed,
            stop=self.stop_asked or self._link.stop_asked,
            preempted=self._link.is_preempted,
            poll=is_first and now_s - self._last_poll_s >= _PREEMPTION_POLL_S,
            report=is_first and self._has_unreported and self._link.can_report,
            mean_loss=None if self._last is None else self._last.mean_loss() / self._place.num_alike,
        )

    def _act(self, decision: Decision) -> None:
        if decision.preempted:  # before the copy: a notice that comes while it is taken is another one
            self._link.preemption_seen()
        if decision.checkpoint or decision.stop or decision.preempted:
            self._take_checkpoint()
        if decision.report:
            self._report()
        if decision.poll:
            self._last_poll_s = time.monotonic()
            self._link.poll_preemption()
        self.is_stopped |= decision.stop

    def _take_checkpoint(self) -> None:
        position, plan, cursor = self._reader.state_dict(), self._reader.plan, self._reader.cursor
        self._checkpoints.take(
            position,
            step=self.step,
            epoch=position["cursor"]["epoch"],
            samples_consumed=position["cursor"]["samples_consumed"],
            write_first=self._books.take(),
            describe=lambda: self._describe(plan, cursor),
        )
        self._taken_step = self.step

    def _describe(self, plan: EpochPlan, cursor: Cursor) -> Mapping[str, Any]:
        """In Kafka's words; on the writer's thread, as is `_on_outcome`."""
        view = kafka_view(plan, cursor)
        self._group_offset = view.group_offset
        return view.to_dict()

    def _report(self) -> None:
        """All ranks report, as Ray wants it; rank 0 says what, and keeps the account of it."""
        saved = self._saved if self._rank == 0 else None
        if saved is not None:
            self._reported_step = saved.step
        self._link.report(saved, {"step": saved.step, "epoch": saved.epoch} if saved else {})

    @property
    def _has_unreported(self) -> bool:
        return self._saved is not None and self._saved.step > self._reported_step

    def _on_outcome(self, outcome: Outcome) -> None:
        """On the writer's thread."""
        index = outcome.index
        if outcome.is_saved:
            self._saved = CheckpointSaved(
                index.attempt, index.step, index.epoch, index.samples_consumed, outcome.folder
            )
            if self._rank == 0:
                self._link.tell(self._saved)
            if self._group is not None:
                self._group.submit(self._group_offset)
            # Only now: joining files takes time, and nothing should keep a checkpoint from counting.
            self._books.join()
        elif self._rank == 0:
            self._link.tell(Note(f"checkpoint of step {index.step} was not written: {outcome.reason}"))

    def _tell_step(self, step: OpenStep, decision: Decision) -> None:
        self._link.step_done(
            StepDone(
                attempt=self.number,
                step=self.step,
                epoch=step.epoch,
                samples_consumed=step.stop,
                num_samples=self._place.record.num_samples,
                loss=decision.mean_loss,
                samples_per_s=self.samples_per_s,
            )
        )

    def _open_group(self) -> GroupProgress | None:
        """On rank 0, and where the dataset is in Kafka (a test's need not be)."""
        connection, topic = (
            getattr(self._reader, "connection", None),
            getattr(self._reader.dataset, "topic", None),
        )
        if self._rank or connection is None or topic is None:
            return None
        return GroupProgress(connection, group=group_of(self._place.context.run), topic=topic)
