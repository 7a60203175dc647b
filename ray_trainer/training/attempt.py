"""How a session's attempt begins: by resume/beginning.py, with what only a run of ours knows.

That is how it finished, and what its books say.

Read next: running_attempt.py, what is done while it lasts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from evenload.ray_trainer.training.books.ledger import StepRange, read_parts
from evenload.ray_trainer.training.events import AttemptStarted, WorkerIdentity
from evenload.ray_trainer.training.run_context import RunContext
from evenload.ray_trainer.training.run_record import RunRecord, read_finished
from evenload.resume.attempts import list_attempts
from evenload.resume.beginning import Beginning, BeginningPlace, Evidence, write_beginning
from evenload.resume.checkpoint import CheckpointStore
from evenload.resume.peers import DataRank, Peers
from evenload.resume.storage import RunStorage

__all__ = ["RunPlace", "begin_attempt"]


@dataclass(frozen=True)
class RunPlace:
    """Where a session is: its run's folder, and the ranks that share it.

    Attributes:
        data_rank: Which part of the data this rank reads.
        has_books: Whether this rank keeps the books of that part, which several ranks may read.
    """

    context: RunContext
    peers: Peers
    storage: RunStorage
    record: RunRecord
    data_rank: DataRank
    has_books: bool

    @property
    def num_alike(self) -> int:
        """How many ranks read the same part."""
        return self.peers.world_size // self.data_rank.size

    @property
    def store(self) -> CheckpointStore:
        return self.beginning.store

    @cached_property
    def beginning(self) -> BeginningPlace:
        """The same, for who looks for the checkpoint to go on from."""
        return BeginningPlace(
            peers=self.peers,
            storage=self.storage,
            run_id=self.record.run_id,
            identity=self.record.identity,
            driver=self.context.claim,
            begin_anew=self.context.begin_anew,
            ask_evidence=lambda: _finish(self.storage),
            ask_last_written=lambda: _last_booked(self.storage),
        )


def begin_attempt(place: RunPlace, beginning: Beginning) -> AttemptStarted:
    """Write down what this life of the workers began with.

    Raises:
        StorageUnwritableError: It can't be written.
    """
    workers = tuple(place.peers.gather(WorkerIdentity.own(place.peers.rank)))
    origin = beginning.origin
    return AttemptStarted(
        attempt=write_beginning(
            place.beginning,
            beginning,
            num_parts=place.data_rank.size,
            pids=tuple(worker.pid for worker in workers),
            hosts=tuple(worker.host for worker in workers),
        ),
        workers=workers,
        step=origin.step if origin else 0,
        epoch=origin.epoch if origin else 0,
        samples_consumed=origin.samples_consumed if origin else 0,
    )


def _finish(storage: RunStorage) -> Evidence | None:
    finished = read_finished(storage)
    return None if finished is None else Evidence(finished.attempt, f"it finished {finished.epochs} epochs")


def _last_booked(storage: RunStorage) -> tuple[int, int]:
    for attempt in reversed(list_attempts(storage)):
        if parts := read_parts(storage, StepRange.all_of(attempt)):
            return attempt, max(part.last_step for part in parts)
    return 0, 0
