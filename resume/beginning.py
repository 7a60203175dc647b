"""With what an attempt begins: one checkpoint for all ranks, loaded everywhere, and a record that says so.

Rank 0 claims the run (fence.py), looks for the newest valid checkpoint and tells the others; each rank
reads it once from the storage that they share, verifying it as it loads (of what is sharded, its own part).
A rank that can't is an error, not a reason to begin anew: else a storage folder that only one machine has
would silently throw the training away. For the same reason a run that is known to have had a checkpoint
doesn't begin anew unless it is told to.

Invariants, checked in tests/property/ray_trainer/training/test_storage_faults.py:
1. Whatever the storage refuses while an attempt begins, for a moment or for good: it goes on from the newest
   valid checkpoint or ends with a sentence; it never begins anew, and deletes nothing.

Read next: attempts.py, checkpoint.py.
"""

from __future__ import annotations

import os
import pickle
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import torch

from evenload.resume.attempts import (
    AttemptStart,
    ResumedFrom,
    began_anew_at,
    read_starts,
    saved_attempts,
    write_start,
)
from evenload.resume.checkpoint import STATE_NAME, Checkpoint, CheckpointSearch, CheckpointStore
from evenload.resume.errors import (
    CheckpointUnreadableError,
    InvalidCheckpointError,
    NoCheckpointLeftError,
    StorageUnreadableError,
)
from evenload.resume.fence import AttemptClaim, DriverClaim, claim_attempt, claim_run, require_newest
from evenload.resume.kept_state import SavedState
from evenload.resume.peers import Peers
from evenload.resume.shard_index import SHARD_INDEX_NAME, PiecewiseTensor, ShardIndex
from evenload.resume.storage import RunStorage

__all__ = [
    "Beginning",
    "BeginningPlace",
    "Evidence",
    "begin_from_nothing",
    "find_beginning",
    "write_beginning",
]


_READ_BY_EACH: Final = (STATE_NAME, SHARD_INDEX_NAME)


@dataclass(frozen=True, slots=True)
class Evidence:
    """Something that an attempt has done, which shows that the run has had a checkpoint: a sentence's end."""

    attempt: int
    text: str


@dataclass(frozen=True, kw_only=True)
class BeginningPlace:
    """Where an attempt begins: a run's folder, and the ranks that share it.

    Attributes:
        run_id: Whose checkpoints count.
        identity: What a checkpoint has to have been taken under (`CheckpointIndex.identity`).
        driver: Whose workers these are; None: nobody's, and rank 0 claims the run by itself.
        begin_anew: At step 0, although the run has trained before.
        ask_evidence: What else than the run's own files shows that it has had a checkpoint; on rank 0.
        ask_last_written: (attempt, step) up to which something was written, (0, 0): nothing; on rank 0.
    """

    peers: Peers
    storage: RunStorage
    run_id: str
    identity: Mapping[str, str]
    driver: DriverClaim | None = None
    begin_anew: bool = False
    ask_evidence: Callable[[], Evidence | None] = lambda: None
    ask_last_written: Callable[[], tuple[int, int]] = lambda: (0, 0)

    @property
    def store(self) -> CheckpointStore:
        return CheckpointStore(self.storage, self.run_id)


@dataclass(frozen=True)
class Beginning:
    """What an attempt begins with, the same on every rank.

    Attributes:
        checkpoint: None: it begins at step 0.
        began_anew: It was told to, though there may be checkpoints.
        since: Checkpoints of earlier attempts don't count: the run began anew after them.
        passed_over: Folders of newer checkpoints that are not valid, or of a run begun anew, of all.
        notes: Sentences about that.
    """

    claim: AttemptClaim
    checkpoint: Checkpoint | None
    began_anew: bool = False
    since: int = 0
    passed_over: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()

    @property
    def origin(self) -> ResumedFrom | None:
        """The checkpoint, as the attempt's record says it."""
        if self.checkpoint is None:
            return None
        index = self.checkpoint.index
        return ResumedFrom(
            folder=self.checkpoint.folder,
            attempt=index.attempt,
            step=index.step,
            epoch=index.epoch,
            samples_consumed=index.samples_consumed,
        )


@dataclass
class _State:
    """A checkpoint's state, as this rank has read it: all but the pieces of what is sharded."""

    parts: dict[str, Any] = field(default_factory=dict)
    shards: Mapping[str, PiecewiseTensor] = field(default_factory=dict)
    trouble: str = ""

    def load(self, store: CheckpointStore, checkpoint: Checkpoint) -> None:
        """Raises:
        InvalidCheckpointError: It is not what its index lists.
        StorageUnreadableError: The storage does not say.
        """
        self.parts, self.shards, self.trouble = {}, {}, ""
        with store.open_file(checkpoint, STATE_NAME) as path:
            try:
                # Not mapped: what the optimizer keeps of it would die with the file when that is deleted.
                self.parts = torch.load(path, map_location="cpu", weights_only=True)
            except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
                self.trouble = f"its {STATE_NAME} can't be loaded: {str(error).splitlines()[0]}"
        if SHARD_INDEX_NAME in checkpoint.index.files:
            with store.open_file(checkpoint, SHARD_INDEX_NAME) as path:
                try:
                    self.shards = ShardIndex.from_json(path.read_bytes(), checkpoint.index.files).tensors
                except ValueError as error:
                    self.trouble = f"its {SHARD_INDEX_NAME} is not one of evenload's: {error}"


def find_beginning(place: BeginningPlace) -> tuple[Beginning, SavedState | None]:
    """Claim the run and find the checkpoint to go on from; all ranks together.

    Returns:
        What the attempt begins with; and the checkpoint's state, read by every rank once. None: there is no
        checkpoint.

    Raises:
        CheckpointMismatchError: It was taken with other data.
        CheckpointUnreadableError: A rank can't read it, or what it holds can't be loaded.
        NoCheckpointLeftError: There were checkpoints, none is valid, and nobody asked to begin anew.
        RunTakenOverError: Another driver goes on with this run.
        StorageUnreadableError, StorageUnwritableError: The storage does not answer.
    """
    state = _State()
    # On any rank: torchrun counts on each machine by itself, and only where a worker failed.
    is_restart = any(place.peers.gather(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") not in ("0", "")))
    # The claim comes first: from here on no older attempt deletes what is found.
    claim = place.peers.from_rank_zero(lambda: _claim(place))
    damaged: dict[str, str] = {}
    while True:
        beginning = place.peers.from_rank_zero(
            lambda: _find(place, claim, state, damaged, is_restart=is_restart)
        )
        checkpoint = beginning.checkpoint
        if checkpoint is None:
            return beginning, None
        if not (reason := _damage(place, checkpoint)):
            break
        damaged[checkpoint.folder] = reason
    place.store.require_identity(checkpoint, place.identity)
    if place.peers.rank:
        try:
            state.load(place.store, checkpoint)
        except (InvalidCheckpointError, StorageUnreadableError) as error:
            state.trouble = error.reason
        except OSError as error:  # no room for a copy: told to the others, who wait for this rank's word
            state.trouble = f"no temporary copy of it can be made: {error}"
    folder = place.storage.place(checkpoint.folder)
    for rank, (host, trouble) in enumerate(place.peers.gather((socket.gethostname(), state.trouble))):
        if trouble:
            raise CheckpointUnreadableError(folder, rank=rank, host=host, reason=trouble)
    return beginning, SavedState(
        folder, state.parts, state.shards, partial(_read_shards, place, checkpoint, state.shards)
    )


def begin_from_nothing(place: BeginningPlace) -> Beginning:
    """Claim the run for a loop that does not resume; all ranks together.

    Raises:
        RuntimeError: The run has had checkpoints, and nobody asked to begin anew.
        RunTakenOverError, StorageUnreadableError, StorageUnwritableError: As `find_beginning`.
    """

    def ask() -> Beginning:
        claim = _claim(place)
        starts, _ = read_starts(place.storage)
        if _shall_begin_anew(place, starts):
            return _anew(place, claim)
        since = began_anew_at(starts)
        if evidence := _evidence(place, starts, since):
            raise RuntimeError(
                f"run {place.storage.place()!r} has trained before ({evidence}): call session.resume() "
                "before session.steps(), or give Session begin_anew=True"
            )
        return Beginning(claim, None, since=since)

    return place.peers.from_rank_zero(ask)


def write_beginning(
    place: BeginningPlace,
    beginning: Beginning,
    *,
    num_parts: int,
    pids: tuple[int, ...] = (),
    hosts: tuple[str, ...] = (),
) -> int:
    """Write down with what this life of the workers began; all ranks together. Returns the attempt's number.

    Args:
        num_parts: Into how many parts the ranks divide the data.
        pids: The process of each rank.
        hosts: The machine of each.

    Raises:
        StorageUnwritableError: It can't be written.
    """

    def write() -> int:
        start = AttemptStart(
            run_id=place.run_id,
            attempt=beginning.claim.number,
            resumed_from=beginning.origin,
            began_anew=beginning.began_anew,
            world_size=place.peers.world_size,
            num_parts=num_parts,
            pids=pids,
            hosts=hosts,
            started_at_s=time.time(),
        )
        write_start(place.storage, start)
        return start.attempt

    return place.peers.from_rank_zero(write)


def _find(
    place: BeginningPlace,
    claim: AttemptClaim,
    state: _State,
    damaged: Mapping[str, str],
    *,
    is_restart: bool,
) -> Beginning:
    """On rank 0: the newest checkpoint but for those that are known to be damaged, by folder."""
    storage, store = place.storage, place.store
    starts, _ = read_starts(storage)
    since = began_anew_at(starts)
    # A restart of torchrun runs the same line again, which meant the first start. (Where the run has never
    # begun anew, that one failed before it could.)
    is_done = is_restart and since > 0 and place.driver is None
    if _shall_begin_anew(place, starts) and not is_done:
        return _anew(place, claim)

    def verify(checkpoint: Checkpoint) -> None:
        if checkpoint.folder in damaged:
            raise InvalidCheckpointError(store.place(checkpoint.folder), damaged[checkpoint.folder])
        store.verify_sizes(checkpoint, besides=_READ_BY_EACH)
        state.load(store, checkpoint)

    search = store.newest_valid(since=since, verify=verify)
    if search.checkpoint is None and (evidence := _evidence(place, starts, since)):
        # Who has taken the run over since deletes old checkpoints, those that were listed here among them.
        require_newest(storage, claim)
        reasons = [f"{rejected.folder}: {rejected.reason}" for rejected in search.rejected]
        raise NoCheckpointLeftError(storage.place(), evidence=evidence, reasons=reasons)
    passed_over = frozenset(rejected.folder for rejected in search.rejected)
    notes = tuple(_describe(place, search))
    if is_done and place.begin_anew:
        notes = ("torchrun has started the workers again: the run goes on, begin_anew or not", *notes)
    return Beginning(claim, search.checkpoint, since=since, passed_over=passed_over, notes=notes)


def _damage(place: BeginningPlace, checkpoint: Checkpoint) -> str:
    """What is wrong with the files of shards, of which each rank reads some; empty: nothing. All ranks.

    Raises:
        CheckpointUnreadableError: A rank can't read what it has to.
    """
    peers, store = place.peers, place.store
    names = sorted(checkpoint.index.files.keys() - set(_READ_BY_EACH))
    damage = trouble = ""
    for name in names[peers.rank :: peers.world_size]:
        try:
            store.verify_file(checkpoint, name)
        except InvalidCheckpointError as error:
            damage = damage or error.reason
        except StorageUnreadableError as error:
            trouble = trouble or error.reason
    told = peers.gather((damage, trouble, socket.gethostname()))
    for rank, (_, trouble, host) in enumerate(told):
        if trouble:
            folder = store.place(checkpoint.folder)
            raise CheckpointUnreadableError(folder, rank=rank, host=host, reason=trouble)
    return next((damage for damage, _, _ in told if damage), "")


def _read_shards(
    place: BeginningPlace,
    checkpoint: Checkpoint,
    shards: Mapping[str, PiecewiseTensor],
    targets: Mapping[str, torch.Tensor],
) -> None:
    # Here, as torch's part of it takes a second to import, and most runs have nothing sharded.
    from evenload.resume.sharded_files import read_shards

    read_shards(place.store, checkpoint, shards, targets, place.peers)


def _claim(place: BeginningPlace) -> AttemptClaim:
    return claim_attempt(place.storage, place.driver or claim_run(place.storage))


def _shall_begin_anew(place: BeginningPlace, starts: Mapping[int, AttemptStart]) -> bool:
    """Once in a driver's life: when its workers fail after that, they go on."""
    driver = place.driver
    return place.begin_anew and (driver is None or began_anew_at(starts) < driver.number)


def _anew(place: BeginningPlace, claim: AttemptClaim) -> Beginning:
    folders = frozenset(folder.name for folder in place.store.folders())
    notes = ("the run begins anew, as it was told to; its earlier checkpoints stay",) if folders else ()
    return Beginning(claim, None, began_anew=True, since=claim.number, passed_over=folders, notes=notes)


def _evidence(place: BeginningPlace, starts: Mapping[int, AttemptStart], since: int) -> str:
    """How it is known that the run has had a checkpoint; empty when it has had none, as far as is known.

    An attempt alone is no evidence, nor are its books: killed before its first checkpoint counted, a run has
    nothing to go on from and loses nothing by beginning at step 0.
    """
    told = place.ask_evidence()
    if told is not None and told.attempt >= since:
        return told.text
    for attempt, start in sorted(starts.items(), reverse=True):
        if start.resumed_from is not None and attempt > since:
            return f"attempt {attempt} went on from a checkpoint of step {start.resumed_from.step}"
    for attempt in reversed(saved_attempts(place.storage)):
        if attempt >= since:
            return f"attempt {attempt} has had a checkpoint"
    if place.store.has_finished_any(since=since):
        return "it has a checkpoint that is damaged or foreign"
    return ""


def _describe(place: BeginningPlace, search: CheckpointSearch) -> list[str]:
    storage = place.storage
    notes = [f"checkpoint {storage.place(r.folder)} is passed over: {r.reason}" for r in search.rejected]
    found = (search.checkpoint.index.attempt, search.checkpoint.index.step) if search.checkpoint else (0, 0)
    last = place.ask_last_written()
    if last > found and not notes:
        # A checkpoint's books are written before it counts: either it was never finished, or it is gone.
        notes.append(
            f"the books of attempt {last[0]} go to step {last[1]}, but a checkpoint of that step is missing"
        )
    if search.checkpoint is None and notes:
        notes.append("the run has had no finished checkpoint yet, so it begins at step 0")
    elif notes:
        notes.append(f"the run goes on from the checkpoint of step {found[1]}")
    return notes
