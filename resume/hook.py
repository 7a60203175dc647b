"""A training loop of one's own that goes on where it stood: two lines in the loop, nothing else around it.

    hook = CheckpointHook(model=model, optimizer=optimizer, schedule=schedule)  # whatever has state_dict
    loader = hook.loader(dataset, batch_size=64, seed=7)                        # or a loader of your own
    for epoch in hook.epochs(31):                                               # those that are left
        for batch in hook.steps(loader):                                        # the rest of this epoch
            ...

A step is done when the loop asks for the next batch (or says `end_step` and leaves); checkpoints are taken
only there, copied on the loop's thread and written behind it. Killed at any moment, the same program goes on
from its newest valid checkpoint. Asked to end (SIGTERM), it saves at the step's end and raises
`StoppedError`.

It works in a plain process and under torchrun, with any number of ranks each time: then every rank makes a
hook, once torch.distributed is set up, and all take the same steps. It needs neither Kafka nor Ray.

Invariants, checked in tests/unit/resume/test_hook.py and tests/fault/resume/test_hook_killed.py:
1. A checkpoint holds everything after exactly the steps that it says.
2. On CPU, with the same number of ranks and PyTorch threads, an interrupted run's parameters equal an
   uninterrupted one's bit for bit, also when the loop or what makes batches in its process draws random
   numbers. (DistributedDataParallel with three ranks or more: only with `find_unused_parameters=True`, see
   docs/decisions/0022.)

Read next: hook_data.py (loaders), beginning.py, checkpointing.py.
"""

from __future__ import annotations

import json
import logging
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

import torch
from torch.utils.data import DataLoader

from evenload.home import evenload_home
from evenload.resume.agreement import Agreement, Wishes
from evenload.resume.beginning import BeginningPlace, find_beginning, write_beginning
from evenload.resume.checkpoint_writer import Outcome
from evenload.resume.checkpointing import Checkpointing
from evenload.resume.epoch_sampler import EpochSampler
from evenload.resume.errors import (
    CheckpointMismatchError,
    CheckpointWriteError,
    StoppedError,
)
from evenload.resume.hook_data import HookData, data_of
from evenload.resume.kept_state import KeptState
from evenload.resume.peers import Peers
from evenload.resume.random_state import Purpose, seed_step
from evenload.resume.stop_signal import stop_on_signal
from evenload.resume.storage import RunStorage, checksum_of

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["CheckpointHook"]

RUN_VARIABLE: Final = "EVENLOAD_RUN"
_STOP_S: Final = 4.0  # what a stop may take from the step's end on
_SLOW_WRITE_S: Final = 3.0  # a write that took so long is not begun once more by then
_LOADER: Final = "loader"  # no name that something to keep can have
_END: Final = object()

logger = logging.getLogger(__name__)


class CheckpointHook:
    """Keeps what a training loop needs to go on. Every method is for the thread that trains.

    Args:
        run: The run's name; None: what `EVENLOAD_RUN` says.
        storage: Where runs are: a folder, or a URI of a file system that pyarrow knows; None:
            `EVENLOAD_HOME`/runs.
        every: Checkpoints are taken only after a multiple of so many steps of the run, as gradients are
            accumulated over as many, and at an epoch's end; at least 1.
        checkpoint_interval_s: Seconds between checkpoints, 0 or more; None: at least 4, and so many that
            copying and writing take a small share of the time (checkpoint_schedule.py).
        keep_checkpoints: How many to keep, at least 2, as the newest may be the one that is damaged.
        begin_anew: Begin at step 0 although the run has had checkpoints; they stay, but don't count any more.
            For one start: a program that is repeated with it begins anew each time.
        seed: Of the random state that is set for each step.
        data_parallel: The axis of a device mesh along which ranks have different samples; None: all ranks
            have. With tensor parallelism `mesh["dp"]`: ranks that share a layer have the same samples.
        state: What to keep, by name: model, optimizer, and anything else with `state_dict` and
            `load_state_dict`. The same names each time the run goes on. They are loaded here.

    Raises:
        ValueError: No run is named, or a number is out of its range.
        RuntimeError: There are several ranks, and torch.distributed isn't set up yet.
        TypeError: Something to keep has no `state_dict`, or a state that can't be loaded again safely.
        ShardedStateError, StateUnavailableError, RanksDifferError: What is to be kept can't be.
        CheckpointMismatchError: The checkpoint holds other names, shapes or dtypes.
        NoCheckpointLeftError: There were checkpoints, none is valid, and begin_anew is not asked for.
        RunTakenOverError: Another process goes on with this run.
        CheckpointUnreadableError, StorageUnreadableError, StorageUnwritableError: The storage doesn't answer.
    """

    def __init__(
        self,
        *,
        run: str | None = None,
        storage: str | Path | None = None,
        every: int = 1,
        checkpoint_interval_s: float | None = None,
        keep_checkpoints: int = 3,
        begin_anew: bool = False,
        seed: int = 0,
        data_parallel: DeviceMesh | None = None,
        **state: Any,
    ) -> None:
        name = run or os.environ.get(RUN_VARIABLE)
        if not name:
            raise ValueError(f"the run has no name: say CheckpointHook(run=...), or set {RUN_VARIABLE}")
        if every < 1 or keep_checkpoints < 2:
            raise ValueError(
                f"every={every} has to be at least 1, keep_checkpoints={keep_checkpoints} at least 2"
            )
        self._every = every
        self._seed = seed
        self._storage = RunStorage(storage or evenload_home() / "runs", name)
        for part, value in state.items():
            if value is None:
                raise TypeError(f"{part} is None, of which nothing can be kept; leave it out")
        parts = dict(state)
        model, optimizer, scheduler = (parts.pop(each, None) for each in ("model", "optimizer", "scheduler"))
        self._kept = KeptState(model, optimizer, scheduler, parts)
        self._peers = Peers()
        if self._peers.world_size == 1 and int(os.environ.get("WORLD_SIZE") or 1) > 1:
            raise RuntimeError(
                f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, but torch.distributed isn't set up: each rank "
                "would take the run over from the others; make the hook after init_process_group()"
            )
        self.rank, self.world_size = self._peers.rank, self._peers.world_size
        try:
            self._kept.require_data_parallel(data_parallel, self.world_size)
            self._data_rank = self._peers.data_rank(data_parallel)
            self._begin(name, begin_anew=begin_anew, interval_s=checkpoint_interval_s, keep=keep_checkpoints)
        except BaseException:
            self._peers.close()
            raise

    def _begin(self, run: str, *, begin_anew: bool, interval_s: float | None, keep: int) -> None:
        self._kept.check(self._peers)
        self._peers.from_rank_zero(self._storage.require_writable)
        place = BeginningPlace(
            peers=self._peers,
            storage=self._storage,
            run_id=checksum_of(json.dumps(["hook", run]).encode()).checksum,
            identity={},
            begin_anew=begin_anew,
        )
        beginning, saved = find_beginning(place)
        for note in beginning.notes:
            logger.warning("run %s: %s", run, note)
        self._step = self._epoch = 0
        self._position: Mapping[str, Any] = {}  # of the loader, while there is none
        self._loader_state: Any = None
        if beginning.checkpoint is not None and saved is not None:
            index = beginning.checkpoint.index
            self._loader_state = saved.whole.pop(_LOADER, None)
            self._kept.load(saved, self._peers)
            self._step, self._epoch, self._position = index.step, index.epoch, index.position
            if index.world_size == self.world_size:  # sums depend on it in their last bits
                torch.set_num_threads(index.torch_threads)
            logger.info("run %s goes on after step %d, in epoch %d", run, self._step, self._epoch)
        self._came_from = "" if beginning.checkpoint is None else beginning.checkpoint.folder
        self._checkpoints = Checkpointing(
            place,
            beginning,
            write_beginning(place, beginning, num_parts=self._data_rank.size),
            self._kept,
            interval_s=interval_s,
            keep=keep,
            on_outcome=self._on_outcome,
        )
        self._agreement = Agreement(self._peers)
        self._data: HookData | None = None
        self._is_epoch_over = self._is_closed = self._stop_asked = False
        self._is_open = False  # the loop has a batch
        self._is_due = self._is_stopping = False
        self._taken = (self._step, self._epoch)
        self._saved_step = None if beginning.checkpoint is None else self._step
        self._last_write_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abandon()

    @property
    def step(self) -> int:
        """Steps done since the run began."""
        return self._step

    @property
    def epoch(self) -> int:
        """The epoch under way, from 0."""
        return self._epoch

    def loader(
        self, dataset: Any, *, batch_size: int, seed: int | None = None, **options: Any
    ) -> DataLoader[Any]:
        """A loader of a map-style dataset that begins anywhere, and that ranks share.

        Args:
            dataset: Has `__len__` and `__getitem__`.
            batch_size: Samples of a batch of one rank.
            seed: Of the orders of its epochs; None: the hook's.
            options: As `torch.utils.data.DataLoader` takes them, but for what says the order.

        Raises:
            TypeError: An option says the order, too.
        """
        if of_order := {"shuffle", "sampler", "batch_sampler", "drop_last"} & options.keys():
            raise TypeError(f"the hook decides the order: leave {', '.join(sorted(of_order))} out")
        sampler = EpochSampler(
            len(dataset),
            batch_size,
            seed=self._seed if seed is None else seed,
            rank=self._data_rank.rank,
            world_size=self._data_rank.size,
        )
        return DataLoader(dataset, batch_sampler=sampler, **options)

    def epochs(self, num_epochs: int) -> Iterator[int]:
        """The numbers of the epochs that are left, the one under way first; then the run is closed.

        A loop that leaves it early closes the hook (`with CheckpointHook(...) as hook` does). While it lasts,
        in the main thread and unless the program handles SIGTERM itself, that ends the run after a checkpoint
        (`StoppedError`, raised here or by `steps`); a second one interrupts.

        Raises:
            StoppedError: As above.
            CheckpointWriteError, RunTakenOverError: As `close`.
        """
        with stop_on_signal(self._ask_stop, signal.SIGTERM):
            while self._epoch < num_epochs:
                if any(
                    self._peers.gather(self._stop_asked)
                ):  # between epochs, or in what follows their steps
                    self._stop()
                seed_step(self._seed, self._epoch, self._data_rank.rank, purpose=Purpose.EPOCH)
                yield self._epoch
                self._end_epoch()
            self.close()

    def steps(self, loader: Any) -> Iterator[Any]:
        """The batches that are left of this epoch; after its end, the next one's.

        The random state is set from (seed, step, place in the data) twice: before a batch is made, for what
        is drawn on the way in this process, and before it is handed out, for what the loop draws.

        Raises:
            CheckpointMismatchError: The loader has other data than the checkpoint was taken with.
            TypeError: It is no loader, or one that ranks can't share.
            StoppedError: The process was asked to end; a checkpoint holds what was done.
            CheckpointWriteError, RunTakenOverError, ShardedStateError, StateUnavailableError: Some checkpoint
                ended the run; on every rank, at the same step.
        """
        if self._is_closed:
            raise RuntimeError("this hook is closed: make another one to go on")
        if self._is_epoch_over:
            self._end_epoch()
        if self._data is not None:  # the loop has left this epoch's steps, and comes back
            if self._is_open and not self._data.can_give_again:
                raise RuntimeError("the loop has left with a batch: say end_step() if it is done with it")
            self._position, self._loader_state = self._data.position(), self._data.state()
            self._is_open = False
        data = data_of(loader, world_size=self._data_rank.size)
        batches = self._begin_loader(data)
        self._data = data
        while True:
            number = self._step + 1
            seed_step(self._seed, number, self._data_rank.rank, purpose=Purpose.BATCH)
            batch = next(batches, _END)
            if batch is _END:
                break
            seed_step(self._seed, number, self._data_rank.rank, purpose=Purpose.LOOP)
            self._is_open = True
            yield batch
            if self._is_open:
                self.end_step()
        self._is_epoch_over = True

    def close(self) -> None:
        """Write the last checkpoint, if anything was done since, and wait until it counts.

        A batch that the loop has left with, without `end_step`, is neither done nor undone: then the run goes
        on from the checkpoint before, which is logged.

        Raises:
            CheckpointWriteError: It can't be written, though it was tried for as long as the storage's
                patience.
            RunTakenOverError: Another process goes on with this run.
        """
        if self._is_closed:
            return
        try:
            self._agreement.decide()  # a sum under way would keep the group from ending
            if self._is_epoch_over:
                self._end_epoch()
            if self._is_open:
                logger.warning(
                    "run %s was left in the middle of a step, and goes on from its checkpoint before",
                    self._storage.run,
                )
            elif self._taken != (self._step, self._epoch) and self._is_whole:
                self._take()
            self._checkpoints.wait_until_saved(self._take)
        finally:
            self.abandon()

    def abandon(self, *, patience_s: float = 5.0) -> None:
        """End the hook's threads, whatever was done since the last checkpoint.

        Args:
            patience_s: How long to wait for a checkpoint that is being written.
        """
        if self._is_closed:
            return
        self._is_closed = True
        # After an error a peer may never make the call that this rank waits in: then it is left to the end.
        if self._checkpoints.close(patience_s=patience_s) and not self._agreement.is_pending:
            self._peers.close()

    def end_step(self) -> None:
        """The loop is done with its batch, and leaves (`break`): asking for the next one says so by itself.

        Raises:
            As `steps`.
        """
        if not self._is_open or self._data is None:
            raise RuntimeError("there is no step under way")
        self._is_open = False
        self._end_step(self._data)

    # -- a step ------------------------------------------------------------------------------------

    def _begin_loader(self, data: HookData) -> Iterator[Any]:
        at, came_from = self._position, self._came_from
        if came_from and at:
            self._came_from = ""
            now, then = data.facts(), at["facts"]
            names = [*then, *(name for name in now if name not in then)]
            odd = {n: (then.get(n), now.get(n)) for n in names if then.get(n) != now.get(n)}
            for differences in self._peers.gather(odd):
                if differences:
                    raise CheckpointMismatchError(self._storage.place(came_from), differences)
        # Loaders draw when they begin: an order, or their worker processes' seeds.
        seed_step(self._seed, self._epoch, self._data_rank.rank, purpose=Purpose.LOADER)
        return data.begin(self._epoch, at.get("batches", 0), at.get("samples", 0), self._loader_state)

    def _end_epoch(self) -> None:
        if self._data is not None:
            self._position = self._data.position()
        self._position = {**self._position, "batches": 0, "samples": 0} if self._position else {}
        self._data = self._loader_state = None
        self._epoch += 1
        self._is_epoch_over = self._is_open = False

    def _ask_stop(self) -> None:
        self._stop_asked = True

    @property
    def _is_whole(self) -> bool:
        """Whether gradients are nowhere in the middle of being accumulated."""
        return self._step % self._every == 0 or self._data is None

    def _end_step(self, data: HookData) -> None:
        if self._is_closed:
            raise RuntimeError("this hook is closed: make another one to go on")
        data.got()
        self._step += 1
        # What all ranks wished at the step before; one alone needn't wait for that.
        decision = self._wishes() if self.world_size == 1 else self._agreement.decide()
        if decision.failed:
            self._checkpoints.fail()
        self._is_due |= decision.checkpoint
        self._is_stopping |= decision.stop
        if self._step % self._every == 0:
            if self._is_stopping:
                self._stop()
            if self._is_due:
                self._is_due = False
                self._take()
        if self.world_size > 1:
            self._agreement.wish(self._wishes())

    def _wishes(self) -> Wishes:
        return Wishes(
            checkpoint=self._checkpoints.wishes(),
            stop=self._stop_asked,
            failed=self._checkpoints.has_failed,
        )

    def _stop(self) -> NoReturn:
        """Save, within a few seconds, and end the loop; all ranks at the same step."""
        self._agreement.decide()  # as in close()
        is_new = self._taken != (self._step, self._epoch)
        # Rank 0 says, as each hears of an outcome in a moment of its own.
        if is_new and self._peers.broadcast(self._last_write_s <= _SLOW_WRITE_S):
            self._take()
        try:
            self._checkpoints.wait(_STOP_S)
        except CheckpointWriteError as error:
            logger.warning("run %s stops without its last checkpoint: %s", self._storage.run, error.reason)
        self.abandon(patience_s=0.0)
        raise StoppedError(self._storage.place(), step=self._step, saved_step=self._saved_step)

    def _take(self) -> None:
        position = self._position if self._data is None else self._data.position()
        self._checkpoints.take(
            position,
            step=self._step,
            epoch=self._epoch,
            samples_consumed=position.get("samples", 0),
            more={_LOADER: self._data.state} if self._data is not None and self._data.has_state else {},
        )
        self._taken = (self._step, self._epoch)

    def _on_outcome(self, outcome: Outcome) -> None:
        """On the writer's thread."""
        if outcome.is_saved:
            self._saved_step = outcome.index.step
            self._last_write_s = outcome.write_s
        elif self.rank == 0:
            logger.warning("checkpoint of step %d was not written: %s", outcome.index.step, outcome.reason)
