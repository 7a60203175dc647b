"""What a worker's loop calls: resume, steps, parts, backward, end_step. The loop stays the user's.

    session = Session(model, optimizer, scheduler, reader)
    session.resume()                                 # the newest valid checkpoint, if there is one
    for epoch in range(reader.epoch, config["epochs"]):
        for batch in session.steps():                # reseeds for each step
            for part in session.parts(batch, 32):    # the same number on every rank
                loss = F.cross_entropy(model(part["x"]), part["label"], reduction="sum")
                session.backward(loss)               # scaling
            optimizer.step(); scheduler.step(); optimizer.zero_grad()
            if session.end_step(batch):              # checkpoint when due; True: asked to stop
                return

What else has a `state_dict` (a gradient scaler, averaged parameters, counters) is kept with the model:
`Session(..., state={"scaler": scaler})`, and `session.backward(loss, scale=scaler)`.

It works in a worker of `train`, under torchrun, and in a plain process of one rank. Whatever ranks have to
do together (checkpoint, stop) is agreed on while the next step runs (resume/agreement.py); writing happens
behind (resume/checkpoint_writer.py). So the loop pays for copying the model, and for nothing else.

Invariants, checked in tests/unit/ray_trainer/training/test_session.py and
tests/fault/ray_trainer/test_training_resume.py:
1. A checkpoint holds the model after exactly the samples that its cursor and the books say.
2. Gradients are those of one worker with the whole step, for models without batch statistics.
3. On CPU, with the same world size and `prepare_model(bit_equal=True)`, a resumed run's losses and
   parameters equal an uninterrupted one's bit for bit, also when a transform draws random numbers.

Read next: resume/kept_state.py (what a checkpoint holds), resume/beginning.py (how an attempt begins),
running_attempt.py (what is done beside the training).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import nn

from evenload.ray_trainer.training.attempt import RunPlace, begin_attempt
from evenload.ray_trainer.training.books.step_books import OpenStep
from evenload.ray_trainer.training.errors import ReaderRankError
from evenload.ray_trainer.training.evaluations import read_evaluations, write_evaluation
from evenload.ray_trainer.training.events import Evaluated, Note
from evenload.ray_trainer.training.model import has_batch_norm, model_device, set_gradient_sync
from evenload.ray_trainer.training.run_context import NoLink, RunContext, current_run
from evenload.ray_trainer.training.run_record import RunRecord, check_same_run, create_run, new_run
from evenload.ray_trainer.training.running_attempt import RunningAttempt
from evenload.resume.beginning import Beginning, begin_from_nothing, find_beginning
from evenload.resume.checkpoint import CheckpointIndex
from evenload.resume.errors import StorageUnwritableError
from evenload.resume.kept_state import KeptState
from evenload.resume.peers import DataRank, Peers
from evenload.resume.random_state import Purpose, seed_step
from evenload.resume.stop_signal import stop_on_signal
from evenload.resume.storage import RunStorage

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["Session"]


class Session:
    """One rank's part in a run, from resuming to the last step. Every rank makes one, in the same order.

    Every method is for the thread that trains. Closing it (as a context manager, or by `close`; done by
    `train` when the loop returns) writes the last checkpoint and waits until it counts.

    Args:
        model: As `prepare_model` gave it, or any module.
        optimizer: Anything with `state_dict` and `load_state_dict`.
        scheduler: The same; None: there is none.
        reader: A `DatasetReader`.
        state: Whatever else a checkpoint is to keep, by name: a gradient scaler, averaged parameters, another
            optimizer, counters. Anything with `state_dict` and `load_state_dict`; rank 0's is kept, and every
            rank loads it. The same names on every rank and each time the run goes on.
        run: The run's name. In a worker of `train` this and the next four are the configuration's
            (`TrainConfig`): leave them out.
        storage: Where its folder is: a path, or a URI of a file system that pyarrow knows.
        checkpoint_interval_s: Seconds between checkpoints, 0 or more; None: at least 4, and so many that
            copying and writing take a small share of the time (resume/checkpoint_schedule.py).
        keep_checkpoints: How many to keep, at least 2, as the newest may be the one that is damaged; None: 3.
        begin_anew: Begin at step 0 although the run has had checkpoints; they stay, but don't count any more.
            At a restart of torchrun after a failure a run that has once begun anew goes on instead.
        seed: Of the random state that is set for each step; None: the reader's.
        data_parallel: The axis of a device mesh along which ranks have different samples; None: all ranks
            have. With tensor parallelism `mesh["dp"]`: ranks that share a layer read the same samples, so
            make the reader with `rank=mesh["dp"].get_local_rank(), world_size=mesh["dp"].size()`.

    Raises:
        ValueError: No run or storage is known, or they are `train`'s to say; or a name in `state` is not to
            be used.
        TypeError: Something to keep has no `state_dict`, or a state that can't be loaded again safely.
        ShardedStateError: Some state is spread over ranks in a way that can't be kept.
        StateUnavailableError: A state_dict() failed on some rank.
        RanksDifferError: It has other names, shapes or dtypes on another rank.
        StorageUnwritableError: The run's folder can't be written.
        RunMismatchError: The run exists, with another dataset or plan.
        ReaderRankError: The reader reads another rank's part than this process has in torch.distributed.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any,
        scheduler: Any,
        reader: Any,
        *,
        state: Mapping[str, Any] | None = None,
        run: str | None = None,
        storage: str | Path | None = None,
        checkpoint_interval_s: float | None = None,
        keep_checkpoints: int | None = None,
        begin_anew: bool = False,
        seed: int | None = None,
        data_parallel: DeviceMesh | None = None,
    ) -> None:
        context = _context(run, storage, checkpoint_interval_s, keep_checkpoints, begin_anew=begin_anew)
        self.model = model
        self.reader = reader
        self._kept = KeptState(model, optimizer, scheduler, state)
        self._seed: int = reader.seed if seed is None else seed
        self._place = self._join(context, data_parallel)
        self.rank, self.world_size = self._place.peers.rank, self._place.peers.world_size
        if threads := context.torch_threads or context.default_threads:
            torch.set_num_threads(threads)
        self._attempt: RunningAttempt | None = None
        self._open: OpenStep | None = None
        self._metrics: dict[int, dict[str, float]] = {}
        self._is_closed = False
        self._stop_asked = False
        context.sessions.append(self)

    def _join(self, context: RunContext, data_parallel: DeviceMesh | None) -> RunPlace:
        """The run's folder and record, when all ranks are there and keep the same."""
        peers = Peers()
        try:
            self._kept.require_data_parallel(data_parallel, peers.world_size)
            data_ranks = peers.gather(peers.data_rank(data_parallel))
            _require_own_part(peers, data_ranks, self.reader)
            self._kept.check(peers)
            folder = context.open_storage()
            record = peers.from_rank_zero(lambda: _open_run(folder, self.reader))
            self.reader.adopt_plan(record.plan_facts)
            check_same_run(context.run, record, _run_of(context.run, self.reader))
        except BaseException:
            peers.close()
            raise
        own = data_ranks[peers.rank]
        return RunPlace(
            context, peers, folder, record, data_rank=own, has_books=data_ranks.index(own) == peers.rank
        )

    @property
    def step(self) -> int:
        """Steps done since the run began."""
        return self._attempt.step if self._attempt is not None else 0

    @property
    def attempt(self) -> int:
        """This attempt's number; 0 before it began."""
        return self._attempt.number if self._attempt is not None else 0

    @property
    def epochs_done(self) -> int:
        """Epochs whose every sample was handed out."""
        cursor = self.reader.cursor
        return int(cursor.epoch) + int(cursor.samples_consumed >= self.reader.num_samples)

    @property
    def is_stopped(self) -> bool:
        """The run was asked to stop, and has: there are no more steps."""
        return self._attempt is not None and self._attempt.is_stopped

    @property
    def samples_per_s(self) -> float:
        """Samples of all ranks over the seconds spent in steps, since this attempt began."""
        return self._attempt.samples_per_s if self._attempt is not None else 0.0

    # -- beginning ---------------------------------------------------------------------------------

    def resume(self) -> bool:
        """Load the newest valid checkpoint into model, optimizer, scheduler, other state and reader.

        What was passed over on the way (missing, truncated, foreign) is told. Call it on every rank, before
        `steps`; a loop that doesn't can only begin a run, not go on with one.

        Returns:
            Whether there was one.

        Raises:
            CheckpointMismatchError: It was taken with another dataset version or plan, or of other names,
                shapes or dtypes than are to be loaded.
            ShardedStateError, RanksDifferError, StateUnavailableError: As when the session was made.
            CheckpointUnreadableError: Some rank can't read it.
            NoCheckpointLeftError: There were checkpoints, none is valid, and begin_anew is not asked for.
            RunTakenOverError: Another driver goes on with this run.
            StorageUnreadableError: The storage doesn't say what there is.
        """
        if self._attempt is not None:
            raise RuntimeError("resume() comes first, once")
        self._kept.check(self._place.peers)
        beginning, saved = find_beginning(self._place.beginning)
        for note in beginning.notes:
            self._tell_note(note)
        checkpoint = beginning.checkpoint
        if checkpoint is not None and saved is not None:
            self._kept.load(saved, self._place.peers)
            self.reader.load_state_dict(checkpoint.index.position)
            self._restore_threads(checkpoint.index)
            at = checkpoint.index
            self._metrics = self._place.peers.from_rank_zero(
                lambda: read_evaluations(self._place.storage, attempt=at.attempt, step=at.step)
            )
        self._begin(beginning)
        return checkpoint is not None

    def _begin_without_resuming(self) -> RunningAttempt:
        self._kept.check(self._place.peers)
        return self._begin(begin_from_nothing(self._place.beginning))

    def _begin(self, beginning: Beginning) -> RunningAttempt:
        began = begin_attempt(self._place, beginning)
        self._attempt = RunningAttempt(self._place, beginning, began, reader=self.reader, kept=self._kept)
        self._attempt.stop_asked = self._stop_asked
        num_sharing = self._place.data_rank.size
        if has_batch_norm(self.model) and num_sharing > self.reader.global_batch_size / 4:
            self._tell_note(
                f"{num_sharing} workers share {self.reader.global_batch_size} samples a step, so some "
                "normalise over fewer than 4 (batch normalisation); use fewer workers, or a larger batch"
            )
        return self._attempt

    # -- a step ------------------------------------------------------------------------------------

    def steps(self) -> Iterator[Any]:
        """The batches of the rest of this epoch; the next call gives the next epoch's.

        The random state is set from (seed, step, the reader's rank) twice: before a batch is made, for what
        the reader's transform draws, and before it is handed out, for what the loop draws. Nothing comes
        after a stop.
        """
        attempt = self._attempt or self._begin_without_resuming()
        if attempt.is_stopped:
            return
        device = model_device(self.model)
        with self._hearing_signals():
            attempt.resume_clock()
            batches = iter(self.reader)
            while not self._ended_for_good():
                number = attempt.step + 1
                # A transform runs while the batch is handed out, on this thread. What the reader itself
                # may draw on the way (a retry's delay) must not move what the loop draws, so that is
                # seeded by itself.
                seed_step(self._seed, number, self._place.data_rank.rank, purpose=Purpose.BATCH)
                batch = next(batches, None)
                if batch is None:
                    return
                self._open = OpenStep(batch, number=number, device=device)
                seed_step(self._seed, number, self._place.data_rank.rank, purpose=Purpose.LOOP)
                yield batch

    def parts(self, batch: Any, max_size: int, *, num_tokens: int | None = None) -> Iterator[Any]:
        """The batch in microbatches of at most `max_size` samples, as many on every rank, on the device.

        Gradients are shared between ranks in the backward pass of the last one only.

        Args:
            num_tokens: This rank's label tokens in the whole batch, when the loss is a sum over tokens and
                not over samples; every rank gives its own, also when it is 0.
        """
        step = self._require_open(batch)
        if num_tokens is not None:
            step.count = self._place.peers.start_sum([num_tokens / self._place.num_alike]).wait()[0]
        parts = batch.split(max_size)
        try:
            for number, part in enumerate(parts, 1):
                set_gradient_sync(self.model, is_on=number == len(parts))
                yield part if step.device.type == "cpu" else part.to(step.device)
        finally:
            set_gradient_sync(self.model, is_on=True)

    def backward(self, loss: torch.Tensor, *, scale: Any = None) -> None:
        """Add a part's gradients to the parameters'.

        Args:
            loss: The sum (not the mean) over this part's samples or label tokens; a scalar. Not scaled. Ranks
                that read the same samples give the same.
            scale: A `torch.amp.GradScaler`, or what else has `scale(tensor)`: gradients are scaled by it, the
                loss in the books is not. Keep it in the session's `state`.
        """
        if self._open is None:
            raise RuntimeError("backward() belongs between steps() and end_step()")
        step = self._open
        # DDP and FSDP take the mean over ranks with different samples; times their number over the global
        # count, that is the step's mean.
        part = loss * (self._place.data_rank.size / max(step.count, 1.0))
        (part if scale is None else scale.scale(part)).backward()
        step.add_loss(loss)

    def end_step(self, batch: Any) -> bool:
        """Say that the optimizer has done this batch's step.

        Returns:
            True when the run is to stop: return from the loop. Its checkpoint is being written.

        Raises:
            CheckpointWriteError: Checkpoints can't be written any more.
            RunTakenOverError: Another driver goes on with this run.
            ShardedStateError, StateUnavailableError, TypeError: Some rank's state could not be copied for a
                checkpoint. (Each of these on every rank, after the same step.)
        """
        step = self._require_open(batch)
        assert self._attempt is not None
        self._open = None
        return self._attempt.end_step(step)

    def stop(self) -> None:
        """Ask the run to stop after a checkpoint. Any rank, any thread."""
        self._stop_asked = True
        if self._attempt is not None:
            self._attempt.stop_asked = True

    # -- what else a loop may want -----------------------------------------------------------------

    @property
    def metrics(self) -> Mapping[int, Mapping[str, float]]:
        """What `evaluate` found, by epoch from 0, of the model as it is now; also before a restart."""
        return self._metrics

    def evaluate(
        self, epoch: int, measure: Callable[[Callable[[], bool]], Mapping[str, float] | None]
    ) -> Mapping[str, float] | None:
        """Measure the model after an epoch, unless that is known; what is found is told and kept.

        A stop is heard while it is measured: then the run stops here, and the epoch is measured when it goes
        on. Every rank calls it after the same step. So call it for the epoch before as an epoch begins:

            for epoch in range(reader.epoch, epochs):
                if epoch and session.evaluate(epoch - 1, measure) is None:
                    return

        Args:
            epoch: Whose last step was the last that was done, from 0; of any other, only what is known is
                given.
            measure: Gets a function that says whether this rank has heard of a stop, to be asked after each
                batch. Gives the metrics, the same on every rank; None on every rank if any has given up.

        Returns:
            The metrics, empty when the model has gone on unmeasured; None: the run is to stop, so return from
            the loop.
        """
        attempt = self._attempt or self._begin_without_resuming()
        if epoch in self._metrics or not self._is_after(epoch):
            return self._metrics.get(epoch, {})
        link = self._place.context.link
        with self._hearing_signals():
            found = measure(lambda: self._stop_asked or link.stop_asked)
        if found is None:
            attempt.is_stopped = True
            return None
        self._metrics[epoch] = dict(found)
        self.tell_metrics(epoch, found)
        return self._metrics[epoch]

    def tell_metrics(self, epoch: int, metrics: Mapping[str, float]) -> None:
        """Tell how the model did on an evaluation dataset, and keep it; rank 0 does it for all."""
        if self.rank or self._attempt is None:
            return
        self._place.context.link.tell(Evaluated(epoch, dict(metrics)))
        attempt, step = self._attempt.last_step
        try:
            write_evaluation(self._place.storage, metrics, epoch=epoch, attempt=attempt, step=step)
        except StorageUnwritableError as error:
            self._tell_note(f"the metrics of epoch {epoch} could not be kept: {error.reason}")

    # -- ending ------------------------------------------------------------------------------------

    def close(self) -> None:
        """Write the last checkpoint, if there was a step since, and wait until it counts.

        Every rank has to call it after the same step. Doing it twice is nothing.

        Raises:
            CheckpointWriteError: It can't be written.
        """
        if self._is_closed:
            return
        self._require_ended()
        self._is_closed = True
        if self._attempt is not None:
            self._attempt.close()
        else:
            self._place.peers.close()

    def abandon(self) -> None:
        """Let go of everything without another checkpoint, after an error."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._attempt is not None:
            self._attempt.abandon()
        else:
            self._place.peers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abandon()

    # -- leaves ------------------------------------------------------------------------------------

    def _tell_note(self, text: str) -> None:
        if self.rank == 0:
            self._place.context.link.tell(Note(text))

    def _restore_threads(self, index: CheckpointIndex) -> None:
        if index.world_size != self.world_size or self._place.context.torch_threads is not None:
            return
        if index.torch_threads != torch.get_num_threads():
            self._tell_note(
                f"torch uses {index.torch_threads} threads, as when the checkpoint was taken, "
                f"instead of {torch.get_num_threads()}"
            )
            torch.set_num_threads(index.torch_threads)

    def _hearing_signals(self) -> AbstractContextManager[None]:
        """Nobody started this process who would hear a Ctrl-C for it."""
        has_driver = not isinstance(self._place.context.link, NoLink)
        return nullcontext() if has_driver else stop_on_signal(self.stop)

    def _is_after(self, epoch: int) -> bool:
        """Whether the last step that was done is an epoch's last."""
        cursor = self.reader.cursor
        return self.epochs_done == epoch + 1 and cursor.samples_consumed in (0, self.reader.num_samples)

    def _ended_for_good(self) -> bool:
        self._require_ended()
        return self.is_stopped

    def _require_ended(self) -> None:
        if self._open is not None:
            raise RuntimeError(f"end_step was not called for step {self._open.number}")

    def _require_open(self, batch: Any) -> OpenStep:
        if self._open is None or self._open.batch is not batch:
            raise RuntimeError("this batch is not the one that steps() gave last, or its step has ended")
        return self._open


def _context(
    run: str | None,
    storage: str | Path | None,
    interval_s: float | None,
    keep_checkpoints: int | None,
    *,
    begin_anew: bool,
) -> RunContext:
    context = current_run()
    if context is not None:
        context.refuse_another(
            run=run,
            storage=storage,
            checkpoint_interval_s=interval_s,
            keep_checkpoints=keep_checkpoints,
            begin_anew=begin_anew or None,
        )
        return context
    if run is None or storage is None:
        raise ValueError(
            "which run is this? Start the loop with evenload's train, or give Session a run and a storage"
        )
    if keep_checkpoints is not None and keep_checkpoints < 2:
        raise ValueError(f"keep_checkpoints is {keep_checkpoints}; it must be at least 2")
    context = RunContext(run=run, storage=storage, checkpoint_interval_s=interval_s, begin_anew=begin_anew)
    context.keep_checkpoints = keep_checkpoints or context.keep_checkpoints
    return context


def _require_own_part(peers: Peers, data_ranks: list[DataRank], reader: Any) -> None:
    """Else ranks would train on each other's samples, or on all of them, and only the audit would notice."""
    places = peers.gather((reader.rank, reader.world_size))
    for place, own in zip(places, data_ranks, strict=True):
        if place != own:  # on every rank, so that none waits for one that has left
            raise ReaderRankError(reader=place, session=own)


def _open_run(storage: RunStorage, reader: Any) -> RunRecord:
    storage.require_writable()
    return create_run(storage, _run_of(storage.run, reader))


def _run_of(run: str, reader: Any) -> RunRecord:
    return new_run(
        run,
        dataset=reader.dataset.id,
        dataset_fingerprint=reader.dataset.fingerprint,
        num_samples=reader.num_samples,
        plan_fingerprint=reader.plan_fingerprint,
        plan_facts=reader.state_dict()["plan"],
    )
