"""How an attempt begins: one checkpoint for all ranks, loaded everywhere, and a record that says so.

Rank 0 looks for the newest valid checkpoint and tells the others; each rank then reads it from the storage
that they share. A rank that can't is an error, not a reason to begin anew: else a storage folder that only
one machine has would silently throw the training away.

Read next: running_attempt.py, what is done while it lasts.
"""

from __future__ import annotations

import io
import os
import pickle
import socket
import time
from dataclasses import dataclass
from typing import Any

import torch

from ray_trainer.errors import CheckpointMismatchError, CheckpointUnreadableError, InvalidCheckpointError
from ray_trainer.training.checkpoint import STATE_NAME, Checkpoint, CheckpointSearch, CheckpointStore
from ray_trainer.training.events import AttemptStarted, WorkerIdentity
from ray_trainer.training.ledger import (
    AttemptStart,
    ResumedFrom,
    Segment,
    list_attempts,
    next_attempt,
    read_parts,
    write_start,
)
from ray_trainer.training.peers import Peers
from ray_trainer.training.run_context import RunContext
from ray_trainer.training.run_record import RunRecord
from ray_trainer.training.storage import RunStorage

__all__ = ["RunPlace", "begin_attempt", "find_checkpoint", "load_checkpoint"]


@dataclass(frozen=True)
class RunPlace:
    """Where a session is: its run's folder, and the ranks that share it."""

    context: RunContext
    peers: Peers
    storage: RunStorage
    record: RunRecord

    @property
    def store(self) -> CheckpointStore:
        return CheckpointStore(self.storage, self.record.run_id)


def find_checkpoint(place: RunPlace) -> tuple[Checkpoint | None, list[str]]:
    """The checkpoint to go on from, the same on every rank, and sentences about what was passed over.

    Raises:
        CheckpointMismatchError: It was taken with another dataset version or plan.
    """
    search = place.peers.from_rank_zero(place.store.newest_valid)
    notes = place.peers.from_rank_zero(lambda: _describe(place.storage, search))
    if search.checkpoint is not None:
        _check_match(place.storage, search.checkpoint, place.record)
    return search.checkpoint, notes


def load_checkpoint(place: RunPlace, checkpoint: Checkpoint) -> dict[str, Any]:
    """The checkpoint's state, read by every rank.

    Raises:
        CheckpointUnreadableError: A rank can't read it, or what it holds can't be loaded.
    """
    state: dict[str, Any] = {}
    reason = ""
    try:
        content = place.store.read_file(checkpoint, STATE_NAME)
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except InvalidCheckpointError as error:
        reason = error.reason
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        reason = f"its {STATE_NAME} can't be loaded: {str(error).splitlines()[0]}"
    folder = place.storage.place(checkpoint.folder)
    for rank, (host, trouble) in enumerate(place.peers.gather((socket.gethostname(), reason))):
        if trouble:
            raise CheckpointUnreadableError(folder, rank=rank, host=host, reason=trouble)
    return state


def begin_attempt(place: RunPlace, checkpoint: Checkpoint | None) -> AttemptStarted:
    """Give this life of the workers its number, and write down what it began with.

    Raises:
        OSError: It can't be written.
    """
    own = (os.getpid(), socket.gethostname())
    workers = tuple(WorkerIdentity(rank, *identity) for rank, identity in enumerate(place.peers.gather(own)))
    origin = None
    if checkpoint is not None:
        index = checkpoint.index
        origin = ResumedFrom(
            folder=checkpoint.folder,
            attempt=index.attempt,
            step=index.step,
            epoch=index.epoch,
            samples_consumed=index.samples_consumed,
        )

    def write() -> int:
        attempt = next_attempt(place.storage, at_least=place.context.driver_attempt or 1)
        start = AttemptStart(
            run_id=place.record.run_id,
            attempt=attempt,
            resumed_from=origin,
            world_size=place.peers.world_size,
            pids=tuple(worker.pid for worker in workers),
            hosts=tuple(worker.host for worker in workers),
            started_at_s=time.time(),
        )
        write_start(place.storage, start)
        return attempt

    return AttemptStarted(
        attempt=place.peers.from_rank_zero(write),
        workers=workers,
        step=origin.step if origin else 0,
        epoch=origin.epoch if origin else 0,
        samples_consumed=origin.samples_consumed if origin else 0,
    )


def _describe(storage: RunStorage, search: CheckpointSearch) -> list[str]:
    notes = [f"checkpoint {storage.place(r.folder)} is passed over: {r.reason}" for r in search.rejected]
    found = (search.checkpoint.index.attempt, search.checkpoint.index.step) if search.checkpoint else (0, 0)
    last = _last_booked(storage)
    if last > found and not notes:
        # A checkpoint's books are written before it counts: either it was never finished, or it is gone.
        notes.append(
            f"the books of attempt {last[0]} go to step {last[1]}, but a checkpoint of that step is missing"
        )
    if search.checkpoint is None and notes:
        notes.append("no valid checkpoint is left, so the run begins anew")
    elif notes:
        notes.append(f"the run goes on from the checkpoint of step {found[1]}")
    return notes


def _last_booked(storage: RunStorage) -> tuple[int, int]:
    for attempt in reversed(list_attempts(storage)):
        if parts := read_parts(storage, Segment.whole(attempt)):
            return attempt, max(part.last_step for part in parts)
    return 0, 0


def _check_match(storage: RunStorage, checkpoint: Checkpoint, record: RunRecord) -> None:
    index = checkpoint.index
    pairs = {
        "dataset": (index.dataset, record.dataset),
        "dataset fingerprint": (index.dataset_fingerprint, record.dataset_fingerprint),
        "plan": (index.plan_fingerprint, record.plan_fingerprint),
    }
    differences = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    if differences:
        raise CheckpointMismatchError(storage.place(checkpoint.folder), differences)
