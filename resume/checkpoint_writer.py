"""Checkpoints are written behind the loop, by a thread on every rank that goes in step with the others.

At a checkpoint the training thread copies what is to be kept and goes on. Behind it, in this order:

1. every rank writes what the caller wants on the storage first (books), and rank 0 all state that isn't
   sharded;
2. all ranks meet, and say whether what they had to write is on the storage; then they write what is sharded,
   and meet again (sharded_files.py);
3. rank 0 looks whether the run is still this attempt's (fence.py), and writes the index: the checkpoint
   counts;
4. rank 0 has it written down, once, that the attempt has had a checkpoint;
5. rank 0 looks again, and deletes old checkpoints.

So what belongs to a valid checkpoint is complete, whoever is killed when, and once another driver has taken
the run over, nothing is made valid or deleted any more.

A failure to write is told, and tried again at the next checkpoint. It ends the run when at least
`FAILURES_MAX` in a row have failed and the storage's patience has passed since the first of them: three
quick ones may all be of one short outage. What ends the run is decided on rank 0 and is part of the outcome,
so that every rank has the same error.

Read next: checkpoint_schedule.py (when one is due).
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from evenload.resume.attempts import mark_saved
from evenload.resume.checkpoint import STATE_NAME, Checkpoint, CheckpointIndex, CheckpointStore
from evenload.resume.errors import CheckpointWriteError, RunTakenOverError
from evenload.resume.peers import Peers
from evenload.resume.state_copy import StateCopy
from evenload.resume.storage import FileRecord, HashingWriter, RunStorage

__all__ = ["FAILURES_MAX", "CheckpointJob", "CheckpointWriter", "Outcome"]

FAILURES_MAX: Final = 3
_RETRY_MIN_S: Final = 0.1
_RETRY_MAX_S: Final = 3.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CheckpointJob:
    """What one rank has to write for one checkpoint.

    Attributes:
        folder: Where, relative to the run.
        state: What this rank keeps of the state. An error: it could not be copied, which ends the run on
            every rank.
        index: All of the index but the files.
        write_first: Called behind the loop: writes what has to be on the storage before it counts.
        describe: Called behind the loop, on rank 0: the position in other words, for people.
    """

    folder: str
    state: StateCopy | Exception
    index: CheckpointIndex
    write_first: Callable[[], None]
    describe: Callable[[], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a job, the same on every rank.

    Attributes:
        error: Ends the run: it was taken over, or writing has failed too often for too long, or what is to be
            kept could not be copied. None: it goes on.
        write_s: How long rank 0 was busy with it, behind the loop.
    """

    index: CheckpointIndex
    folder: str
    is_saved: bool
    reason: str
    error: Exception | None = None
    write_s: float = 0.0


class CheckpointWriter:
    """Writes jobs in order, on a thread of its own. `submit`, `wait` and the properties: training thread.

    Args:
        keep: Finished checkpoints to keep, at least 1.
        since: Those of earlier attempts are not deleted.
        spare: Nor are these folders.
        look: Called on rank 0; raises RunTakenOverError when the run is another's.
        on_outcome: Called on the writer's thread after each job.
    """

    def __init__(
        self,
        peers: Peers,
        storage: RunStorage,
        store: CheckpointStore,
        *,
        keep: int,
        since: int,
        spare: Collection[str],
        look: Callable[[], None],
        on_outcome: Callable[[Outcome], None],
    ) -> None:
        self._peers = peers
        self._storage = storage
        self._store = store
        self._keep = keep
        self._since = since
        self._spare = spare
        self._look = look
        self._is_marked = False
        self._on_outcome = on_outcome
        self._jobs: queue.SimpleQueue[CheckpointJob | None] = queue.SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        self._count_lock = threading.Lock()
        self._num_open = 0  # jobs handed over and not yet done
        self._failures = 0
        self._failing_since_s = 0.0
        self._error: BaseException | None = None
        self.last_outcome: Outcome | None = None
        self._thread = threading.Thread(target=self._work, name="checkpoint-writer", daemon=True)
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        return not self._idle.is_set()

    def submit(self, job: CheckpointJob) -> None:
        """Hand over a job; the one before should be done, or it waits behind it."""
        self._count(1)
        self._jobs.put(job)

    @property
    def has_failed(self) -> bool:
        """Something ends the run, as far as this rank knows; the others know it soon."""
        return self._error is not None

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until all jobs are done.

        Raises:
            CheckpointWriteError: They are not done in time; or writing has failed several times in a row, for
                longer than the storage's patience.
            RunTakenOverError: Another driver goes on with this run.
            ShardedStateError, StateUnavailableError, TypeError: What is to be kept could not be copied.
        """
        if not self._idle.wait(timeout_s):
            raise CheckpointWriteError(self._storage.place(), f"not written within {timeout_s} s")
        if self._error is not None:
            raise self._error

    def wait_until_saved(self, take: Callable[[], None]) -> None:
        """As `wait`, at a run's end: no later checkpoint would make up for a last one that fails.

        Args:
            take: Submits another job.
        """
        self.wait()
        wait_s = _RETRY_MIN_S
        # Every rank has the same outcome, so all take the next one, or none.
        while (last := self.last_outcome) is not None and not last.is_saved:
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, _RETRY_MAX_S)
            take()
            self.wait()

    def close(self, *, patience_s: float = 5.0) -> bool:
        """Stop the thread after what it has to do; does not wait for peers that are gone.

        Args:
            patience_s: How long to wait where it is busy.

        Returns:
            Whether it has ended; else it still waits for a peer.
        """
        self._jobs.put(None)
        self._thread.join(timeout=patience_s if self.is_busy else None)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                self._settle(self._write(job))
            except BaseException as error:  # reaches the loop through has_failed and wait
                logger.debug("the checkpoint writer failed", exc_info=True)
                self._error = self._error or error
            finally:
                self._count(-1)

    def _count(self, change: int) -> None:
        """Jobs are counted, as "the queue is empty" may be old by the time one says "idle"."""
        with self._count_lock:
            self._num_open += change
            if self._num_open:
                self._idle.clear()
            else:
                self._idle.set()

    def _write(self, job: CheckpointJob) -> Outcome:
        began_s = time.monotonic()
        files, reason = self._write_own(job)
        # A barrier: were the index written before the last rank's books, a rank killed in between would leave
        # a checkpoint that counts, with steps that nobody wrote down, and the audit would miss samples.
        error = job.state if isinstance(job.state, Exception) else None
        shards = [] if isinstance(job.state, Exception) else job.state.same_on_every_rank
        told = self._peers.gather_in_background((reason, error, shards))
        reason = next((each for each, _, _ in told if each), "")
        error = next((each for _, each, _ in told if each), None)
        if not reason and any(each != shards for _, _, each in told):
            reason = _difference([each for _, _, each in told])
        if not reason and isinstance(job.state, StateCopy) and job.state.shards:
            # Here, as torch's part of it takes a second to import, and most runs have nothing sharded.
            from evenload.resume.sharded_files import write_shards

            try:
                files |= write_shards(self._store, job.folder, job.state.shards, self._peers)
            except OSError as caught:  # on all ranks
                reason = str(caught)
        if reason and self._peers.rank == 0:
            logger.warning("checkpoint %s: %s", job.folder, reason)
            self._store.discard(job.folder)
        outcome = None
        if self._peers.rank == 0:
            outcome = Outcome(job.index, job.folder, is_saved=False, reason=reason, error=error)
            outcome = outcome if reason else self._finish(job, files, outcome)
            outcome = self._judged(replace(outcome, write_s=time.monotonic() - began_s))
        settled = self._peers.broadcast_in_background(outcome)
        assert settled is not None
        return settled

    def _write_own(self, job: CheckpointJob) -> tuple[dict[str, FileRecord], str]:
        """What this rank writes by itself; and why it couldn't, if it couldn't."""
        try:
            job.write_first()
            if isinstance(job.state, Exception):
                raise job.state
            whole = job.state.whole
            if whole is None:
                return {}, ""
            record = self._store.write_file(job.folder, STATE_NAME, lambda sink: _save(whole, sink))
        except Exception as error:  # noqa: BLE001 -- whatever it is: the others wait for this rank's word
            return {}, f"rank {self._peers.rank}: {str(error) or type(error).__name__}"
        return {STATE_NAME: record}, ""

    def _finish(self, job: CheckpointJob, files: dict[str, FileRecord], outcome: Outcome) -> Outcome:
        try:
            update = {"files": files, "told": dict(job.describe()), "created_at_s": time.time()}
            # A driver that took the run over goes on from what it has found; it must not find another, newer
            # checkpoint later. (Whoever claims between this look and the write: see fence.py.)
            self._look()
            finished: Checkpoint = self._store.finish(job.folder, job.index.model_copy(update=update))
        except RunTakenOverError as error:
            return replace(outcome, error=error, reason=f"attempt {error.newer_attempt} took over")
        except Exception as error:  # noqa: BLE001 -- the others wait for the outcome
            return replace(outcome, reason=str(error) or type(error).__name__)
        saved = replace(outcome, index=finished.index, is_saved=True)
        try:
            self._clean_up(finished)
        except RunTakenOverError as error:
            return replace(saved, error=error)
        except Exception as error:  # noqa: BLE001 -- the new one counts all the same
            logger.warning("old checkpoints of %s stay: %s", self._storage.place(), error)
        return saved

    def _clean_up(self, finished: Checkpoint) -> None:
        if not self._is_marked:
            mark_saved(self._storage, finished.index.attempt, finished.index.step)
            self._is_marked = True
        # A driver that has claimed the run since the last look may be reading what would be deleted now.
        self._look()
        self._store.delete_old(keep=self._keep, since=self._since, spare=self._spare)

    def _judged(self, outcome: Outcome) -> Outcome:
        """On rank 0: a failure ends the run when it is one too many, and they have lasted too long."""
        now_s = time.monotonic()
        if outcome.is_saved:
            self._failures = 0
            return outcome
        if not self._failures:
            self._failing_since_s = now_s
        self._failures += 1
        lasted_s = now_s - self._failing_since_s
        if outcome.error or self._failures < FAILURES_MAX or lasted_s < self._storage.patience_s:
            return outcome
        return replace(
            outcome, error=CheckpointWriteError(self._storage.place(outcome.folder), outcome.reason)
        )

    def _settle(self, outcome: Outcome) -> None:
        self.last_outcome = outcome
        self._error = self._error or outcome.error
        self._on_outcome(outcome)


def _difference(shards_by_rank: list[list[tuple[str, str, str]]]) -> str:
    first = set(shards_by_rank[0])
    odd = sorted({path for shards in shards_by_rank for path, _, _ in first ^ set(shards)})
    return f"{odd[0]} isn't the same on every rank, and nothing says which part of it each has"


def _save(state: Mapping[str, Any], sink: HashingWriter) -> None:
    file_like: Any = sink  # has what torch.save calls: write and flush
    torch.save(state, file_like)
