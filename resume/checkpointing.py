"""One rank's checkpoints while an attempt lasts: when one is due, what is in it, and what became of it.

A loop asks after each step whether to wish for one (`wishes`), agrees on it with the other ranks, and takes
it (`take`). Everything else is done behind it.

Read next: checkpoint_writer.py, checkpoint_schedule.py, kept_state.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

import torch

from evenload.resume.attempts import attempt_folder
from evenload.resume.beginning import Beginning, BeginningPlace
from evenload.resume.checkpoint import CheckpointIndex, checkpoint_name
from evenload.resume.checkpoint_schedule import CheckpointSchedule
from evenload.resume.checkpoint_writer import CheckpointJob, CheckpointWriter, Outcome
from evenload.resume.errors import CheckpointWriteError, ShardedStateError, StateUnavailableError
from evenload.resume.fence import FenceWatch, require_newest
from evenload.resume.kept_state import KeptState
from evenload.resume.state_copy import StateCopy

__all__ = ["Checkpointing"]

_OUTCOME_S: Final = 60.0  # how long an outcome that some rank knows takes to the others, at most


class Checkpointing:
    """What an attempt that has begun does about checkpoints. Training thread only, but for what it is given.

    Args:
        place: Where the attempt began.
        beginning: With what.
        attempt: Its number.
        kept: What a checkpoint holds.
        interval_s: As `CheckpointSchedule` takes it.
        keep: Finished checkpoints to keep, at least 1.
        on_outcome: Called on the writer's thread after each.
    """

    def __init__(
        self,
        place: BeginningPlace,
        beginning: Beginning,
        attempt: int,
        kept: KeptState,
        *,
        interval_s: float | None,
        keep: int,
        on_outcome: Callable[[Outcome], None],
    ) -> None:
        def look() -> None:
            require_newest(place.storage, beginning.claim)

        self._place = place
        self._peers = place.peers
        self._attempt = attempt
        self._kept = kept
        self._on_outcome = on_outcome
        self._folder = attempt_folder(beginning.claim.driver.number)
        self._schedule = CheckpointSchedule(interval_s, now_s=time.monotonic())
        self._fence = FenceWatch(look) if self._peers.rank == 0 else None
        self._writer = CheckpointWriter(
            self._peers,
            place.storage,
            place.store,
            keep=keep,
            since=beginning.since,
            spare=beginning.passed_over,
            look=look,
            on_outcome=self._hear,
        )
        self._is_wished = False
        self._taken_step, self._num_taken = -1, 0

    @property
    def has_failed(self) -> bool:
        """A checkpoint ends the run, as far as this rank knows; the others know it soon."""
        return self._writer.has_failed

    def wishes(self) -> bool:
        """Whether the ranks are to take one soon; rank 0 says so once for each."""
        if self._peers.rank or self._is_wished or self._writer.is_busy:
            return False
        # A checkpoint of a run that was taken over doesn't count, which ends it on all ranks at one step.
        is_taken_over = self._fence is not None and self._fence.error is not None
        self._is_wished = is_taken_over or self._schedule.is_due(time.monotonic())
        return self._is_wished

    def take(
        self,
        position: Mapping[str, Any],
        *,
        step: int,
        epoch: int,
        samples_consumed: int,
        more: Mapping[str, Callable[[], Any]] | None = None,
        write_first: Callable[[], None] = lambda: None,
        describe: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        """Copy what is to be kept, and have it written; all ranks after the same step.

        Args:
            position: Where the data stands.
            step: Steps done since the run began.
            epoch: Under way.
            samples_consumed: Of that epoch, by all ranks; 0 where nobody knows.
            more: What else is to be kept, as `KeptState.copy` takes it.
            write_first: Behind the loop: writes what has to be on the storage before the checkpoint counts.
            describe: Behind the loop, on rank 0: the position in other words, for people.

        Raises:
            ShardedStateError, StateUnavailableError, TypeError: As `KeptState.copy`, of a rank that is alone.
                Where there are several, all have the error when they next look for one (`fail`, `wait`).
        """
        began_s = time.monotonic()
        # Of one step there may be several: before what a loop does at an epoch's end, after, and again where
        # one has failed. Counted, as all ranks have to call it the same, and hear of outcomes when they do.
        self._num_taken = self._num_taken + 1 if step == self._taken_step else 0
        self._taken_step = step
        state: StateCopy | Exception
        try:
            state = self._kept.copy(more, rank=self._peers.rank)
        except (ShardedStateError, StateUnavailableError, TypeError) as error:
            if self._peers.world_size == 1:
                raise
            state = error  # the other ranks have to hear of it
        index = CheckpointIndex(
            run_id=self._place.run_id,
            attempt=self._attempt,
            step=step,
            epoch=epoch,
            samples_consumed=samples_consumed,
            position=dict(position),
            identity=dict(self._place.identity),
            world_size=self._peers.world_size,
            torch_threads=torch.get_num_threads(),
            files={},
            created_at_s=time.time(),
        )
        name = checkpoint_name(self._attempt, step, again=self._num_taken)
        self._writer.submit(CheckpointJob(f"{self._folder}/{name}", state, index, write_first, describe))
        self._is_wished = False
        now_s = time.monotonic()
        self._schedule.taken(now_s, cost_s=now_s - began_s)

    def fail(self) -> NoReturn:
        """Raise what has ended the run; all ranks after the same step, as one of them has said `has_failed`.

        A rank that raised alone would leave the others waiting in the next step's gradients.

        Raises:
            CheckpointWriteError, RunTakenOverError, ShardedStateError, StateUnavailableError, TypeError: It.
        """
        self._writer.wait(_OUTCOME_S)
        reason = "the thread that writes them failed on another rank"
        raise CheckpointWriteError(self._place.storage.place(), reason)

    def wait(self, timeout_s: float | None = None) -> None:
        """As `CheckpointWriter.wait`."""
        self._writer.wait(timeout_s)

    def wait_until_saved(self, take: Callable[[], None]) -> None:
        """As `CheckpointWriter.wait_until_saved`."""
        self._writer.wait_until_saved(take)

    def close(self, *, patience_s: float = 5.0) -> bool:
        """End the threads; as `CheckpointWriter.close`."""
        if self._fence is not None:
            self._fence.close()
        return self._writer.close(patience_s=patience_s)

    def _hear(self, outcome: Outcome) -> None:
        if outcome.is_saved:
            self._schedule.written(cost_s=outcome.write_s)
        self._on_outcome(outcome)
