"""What is done beside the training while an attempt lasts: books, checkpoints, and word to the driver.

After each step every rank acts on what was wished at the step before (resume/agreement.py): it copies its
state for a checkpoint and hands it to the writer, or queues a call to Ray. Nothing here waits, but at the
end.

Read next: resume/checkpoint_writer.py, resume/agreement.py, run_context.py (the link to the driver).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final, NoReturn

import torch

from evenload.ray_trainer.planning.cursor import Cursor, kafka_view
from evenload.ray_trainer.planning.plan import EpochPlan
from evenload.ray_trainer.training.attempt import RunPlace
from evenload.ray_trainer.training.books.step_books import OpenStep, StepBooks
from evenload.ray_trainer.training.events import AttemptStarted, CheckpointSaved, Note, StepDone
from evenload.ray_trainer.training.group_progress import GroupProgress, group_of
from evenload.resume.agreement import Agreement, Decision, Wishes
from evenload.resume.attempts import attempt_folder
from evenload.resume.beginning import Beginning
from evenload.resume.checkpoint import CheckpointIndex, checkpoint_name
from evenload.resume.checkpoint_schedule import CheckpointSchedule
from evenload.resume.checkpoint_writer import CheckpointJob, CheckpointWriter, Outcome
from evenload.resume.errors import (
    CheckpointWriteError,
    ShardedStateError,
    StateUnavailableError,
)
from evenload.resume.fence import FenceWatch, require_newest
from evenload.resume.kept_state import KeptState

__all__ = ["RunningAttempt"]

_PREEMPTION_POLL_S: Final = 5.0  # as often as Ray's own watcher looks
_FLUSH_S: Final = 15.0
_OUTCOME_S: Final = 60.0  # how long an outcome that some rank knows takes to the others, at most


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
        self._kept = kept
        self.number = began.attempt
        self.step = began.step
        origin = beginning.checkpoint.index if beginning.checkpoint is not None else None
        self.last_step = (origin.attempt, origin.step) if origin is not None else (began.attempt, 0)
        self.is_stopped = False
        self.stop_asked = False
        self._folder = attempt_folder(beginning.claim.driver.number)
        self._books = StepBooks(
            place.storage, attempt=began.attempt, rank=self._rank, world_size=place.peers.world_size
        )
        self._agreement = Agreement(place.peers)
        self._schedule = CheckpointSchedule(place.context.checkpoint_interval_s, now_s=time.monotonic())

        def look() -> None:
            require_newest(place.storage, beginning.claim)

        self._fence = FenceWatch(look) if self._rank == 0 else None
        self._writer = CheckpointWriter(
            place.peers,
            place.storage,
            place.store,
            keep=place.context.keep_checkpoints,
            since=beginning.since,
            spare=beginning.passed_over,
            look=look,
            mark_saved=self._books.files.mark_saved,
            on_outcome=self._on_outcome,
        )
        self._group = self._open_group()
        self._group_offset: Mapping[int, int] = {}
        self._taken_step = self._reported_step = began.step
        self._saved: CheckpointSaved | None = None
        self._last: OpenStep | None = None
        self._wished_checkpoint = False
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
            self._raise_failure()
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
            self._writer.wait_until_saved(self._take_checkpoint)
            if self._place.peers.broadcast(self._has_unreported):
                self._report()
            self._link.flush(_FLUSH_S)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """End the threads, and the groups of ranks where nothing waits in them any more."""
        if self._fence is not None:
            self._fence.close()
        # After an error a peer may never make the call that this rank waits in, and ending a group waits for
        # it, up to half an hour. Then the group is left to the end of the process.
        if self._writer.close() and not self._agreement.is_pending:
            self._place.peers.close()
        if self._group is not None:
            self._group.close()

    def _raise_failure(self) -> NoReturn:
        """A rank that raised alone would leave the others waiting in the next step's gradients."""
        self._writer.wait(_OUTCOME_S)
        place = self._place.storage.place()
        raise CheckpointWriteError(place, "the thread that writes them failed on another rank")

    def _wishes(self, now_s: float) -> Wishes:
        is_first = self._rank == 0
        due = is_first and not (self._writer.is_busy or self._wished_checkpoint)
        # A checkpoint of a run that was taken over doesn't count, which stops all ranks at the same step.
        due = due and (self._schedule.is_due(now_s) or self._is_taken_over)
        self._wished_checkpoint |= due
        return Wishes(
            checkpoint=due,
            failed=self._writer.has_failed,
            stop=self.stop_asked or self._link.stop_asked,
            preempted=self._link.is_preempted,
            poll=is_first and now_s - self._last_poll_s >= _PREEMPTION_POLL_S,
            report=is_first and self._has_unreported and self._link.can_report,
            mean_loss=self._last.mean_loss() if self._last is not None else None,
        )

    @property
    def _is_taken_over(self) -> bool:
        return self._fence is not None and self._fence.error is not None

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
        began_s = time.monotonic()
        position, plan, cursor = self._reader.state_dict(), self._reader.plan, self._reader.cursor
        state: Mapping[str, Any] | Exception | None = None
        if self._rank == 0:
            try:
                state = self._kept.copy()
            except (ShardedStateError, StateUnavailableError, TypeError) as error:
                if self._place.peers.world_size == 1:
                    raise
                state = error  # the other ranks, which copy nothing, have to hear of it
        job = CheckpointJob(
            folder=f"{self._folder}/{checkpoint_name(self.number, self.step)}",
            state=state,
            index=self._index(position),
            write_first=self._books.take(),
            describe=lambda: self._describe(plan, cursor),
        )
        self._writer.submit(job)
        self._taken_step = self.step
        self._wished_checkpoint = False
        now_s = time.monotonic()
        self._schedule.taken(now_s, cost_s=now_s - began_s)

    def _index(self, position: Mapping[str, Any]) -> CheckpointIndex:
        record = self._place.record
        return CheckpointIndex(
            run_id=record.run_id,
            attempt=self.number,
            step=self.step,
            epoch=position["cursor"]["epoch"],
            samples_consumed=position["cursor"]["samples_consumed"],
            position=dict(position),
            identity=record.identity,
            world_size=self._place.peers.world_size,
            torch_threads=torch.get_num_threads(),
            files={},
            created_at_s=time.time(),
        )

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
            self._schedule.written(cost_s=outcome.write_s)
            self._saved = CheckpointSaved(
                index.attempt, index.step, index.epoch, index.samples_consumed, outcome.folder
            )
            if self._rank == 0:
                self._link.tell(self._saved)
            if self._group is not None:
                self._group.submit(self._group_offset)
            # Only now: joining files takes time, and nothing should keep a checkpoint from counting.
            self._books.files.join()
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
