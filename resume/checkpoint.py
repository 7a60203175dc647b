"""Which checkpoint counts: our own index, in the checkpoint itself.

A checkpoint is a folder. It is valid when its `evenload.json` is there, says so itself (it holds its
own checksum), and every file that it lists has the size and checksum listed. It is written last: a
folder without it was never finished, whatever else is in it. Nothing outside the folder has a say, so
nothing outside can be lost or disagree: Ray 2.60's own index kills its controller at start when the
newest checkpoint or the index is gone, and does not know checkpoints that are complete but were never
reported (tests/fault/ray_trainer/test_training_ray.py).

The newest is the one of the latest attempt, then of the highest step: after falling back from a bad
checkpoint, what was done since is newer than it, though its step is lower.

Invariants, checked in tests/unit/resume/test_checkpoint.py:
1. A folder that was cut off after any of its bytes is not valid.
2. `newest_valid` never raises for what lies in the folder; it says what it passed over, and why. A storage
   that doesn't answer is raised, always: that says nothing about the checkpoint.
3. Deleting old checkpoints never deletes the newest valid one, what is not ours, or what was passed over.

Read next: checkpoint_writer.py (who writes them, and when they count), kept_state.py (what is in them),
sharded_files.py (in which files, where it is sharded).
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from evenload.resume.attempts import attempt_number
from evenload.resume.errors import CheckpointMismatchError, InvalidCheckpointError
from evenload.resume.storage import FileRecord, HashingWriter, RunStorage, checksum_of

__all__ = [
    "INDEX_NAME",
    "STATE_NAME",
    "Checkpoint",
    "CheckpointFolder",
    "CheckpointIndex",
    "CheckpointSearch",
    "CheckpointStore",
    "RejectedCheckpoint",
    "checkpoint_name",
]

INDEX_NAME = "evenload.json"
STATE_NAME = "state.pt"

_CHECKPOINT = re.compile(r"checkpoint-(\d{6,})-(\d{12,})(?:-\d{3,})?")

logger = logging.getLogger(__name__)


class CheckpointIndex(BaseModel):
    """What `evenload.json` says about the checkpoint whose folder it is in."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    format: Literal[2] = Field(default=2, description="Of this file; another is not read.")
    run_id: str = Field(description="Of the run; a checkpoint of another run is foreign.")
    attempt: int = Field(ge=1, description="The attempt that took it.")
    step: int = Field(ge=0, description="Optimizer steps done since the run began.")
    epoch: int = Field(ge=0, description="The epoch that was under way.")
    samples_consumed: int = Field(
        ge=0, description="Samples of that epoch that all ranks together had; 0 where nobody knows."
    )
    position: dict[str, Any] = Field(description="Where the data stands: the state_dict of who gives it.")
    identity: dict[str, str] = Field(
        description="Under which the position means what it says, each fact by its name: dataset, plan, ... "
        "Who goes on has to have the same."
    )
    world_size: int = Field(ge=1, description="Workers that took it; any number may go on.")
    torch_threads: int = Field(ge=1, description="Of each worker; sums depend on it in their last bits.")
    files: dict[str, FileRecord] = Field(description="What has to be in the folder.")
    told: dict[str, Any] = Field(default_factory=dict, description="The position in other words, for people.")
    created_at_s: float = Field(ge=0, description="Seconds since 1970.")

    def to_json(self) -> bytes:
        content = self.model_dump(mode="json")
        return json.dumps(
            {"content": content, "checksum": _digest(content)}, indent=1, sort_keys=True
        ).encode()

    @classmethod
    def from_json(cls, text: bytes) -> CheckpointIndex:
        """Raises:
        ValueError: Truncated, damaged, or not ours; says which.
        """
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:  # the second: nested without end
            raise ValueError(f"its {INDEX_NAME} is truncated or not JSON ({len(text)} bytes)") from error
        if not isinstance(document, dict) or set(document) != {"content", "checksum"}:
            raise ValueError(f"its {INDEX_NAME} is not one of evenload's")
        if _digest(document["content"]) != document["checksum"]:
            raise ValueError(f"its {INDEX_NAME} does not match its own checksum {document['checksum']}")
        try:
            return cls.model_validate(document["content"])
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(
                f"its {INDEX_NAME} is of another format: {'.'.join(map(str, first['loc']))}: {first['msg']}"
            ) from error


class CheckpointFolder(NamedTuple):
    """What a checkpoint's place in the storage says about it."""

    name: str  # relative to the run
    attempt: int
    step: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A valid checkpoint."""

    folder: str  # relative to the run
    index: CheckpointIndex


class RejectedCheckpoint(NamedTuple):
    """One that was passed over."""

    folder: str
    reason: str


class CheckpointSearch(NamedTuple):
    """The newest valid checkpoint, and what is newer but not valid."""

    checkpoint: Checkpoint | None
    rejected: tuple[RejectedCheckpoint, ...]


class CheckpointStore:
    """The checkpoints of one run. No state of its own but names; any process may use one at any time.

    Args:
        storage: The run's folder.
        run_id: Whose checkpoints count; None: any run's (to look at a run from outside).
    """

    def __init__(self, storage: RunStorage, run_id: str | None) -> None:
        self._storage = storage
        self._run_id = run_id

    def place(self, folder: str) -> str:
        """A checkpoint's folder as a person would write it."""
        return self._storage.place(folder)

    def folders(self) -> list[CheckpointFolder]:
        """Every folder that is named as a checkpoint, newest first, valid or not."""
        found = []
        for driver_folder in self._storage.list_names():
            if attempt_number(driver_folder) is None:
                continue
            for name in self._storage.list_names(driver_folder):
                if match := _CHECKPOINT.fullmatch(name):
                    found.append(CheckpointFolder(f"{driver_folder}/{name}", int(match[1]), int(match[2])))
        return sorted(found, key=lambda folder: (folder.attempt, folder.step, folder.name), reverse=True)

    def newest_valid(
        self, *, since: int = 0, verify: Callable[[Checkpoint], None] | None = None
    ) -> CheckpointSearch:
        """Look from the newest down until one verifies; reads that one whole, once, to check its checksums.

        Args:
            since: Those of earlier attempts don't count: the run has begun anew after them.
            verify: Reads a checkpoint in another way, and raises InvalidCheckpointError; None: `verify`.

        Raises:
            StorageUnreadableError: The storage does not say.
        """
        rejected: list[RejectedCheckpoint] = []
        for folder in self.folders():
            if folder.attempt < since:
                continue
            try:
                checkpoint = Checkpoint(folder.name, self.read_index(folder.name))
                (verify or self.verify)(checkpoint)
                return CheckpointSearch(checkpoint, tuple(rejected))
            except InvalidCheckpointError as error:
                rejected.append(RejectedCheckpoint(folder.name, error.reason))
        return CheckpointSearch(None, tuple(rejected))

    def newest_listed(self, *, since: int = 0) -> Checkpoint | None:
        """The newest whose index is good and whose files have the sizes listed; reads no file but indexes.

        Raises:
            StorageUnreadableError: The storage does not say.
        """

        return self.newest_valid(since=since, verify=self.verify_sizes).checkpoint

    def has_finished_any(self, *, since: int = 0) -> bool:
        """Whether any checkpoint was ever finished, of what is still there; damaged ones count."""
        return any(
            self._storage.exists(f"{folder.name}/{INDEX_NAME}")
            for folder in self.folders()
            if folder.attempt >= since
        )

    def verify(self, checkpoint: Checkpoint) -> None:
        """Read all of a checkpoint, once, a piece at a time, and compare it with its index.

        Raises:
            InvalidCheckpointError: It does not count, and why.
            StorageUnreadableError: The storage does not say.
        """
        for name in checkpoint.index.files:
            self.verify_file(checkpoint, name)

    def verify_file(self, checkpoint: Checkpoint, name: str) -> None:
        """The same of one file."""
        try:
            found = self._storage.checksum(f"{checkpoint.folder}/{name}")
        except FileNotFoundError as error:
            raise self._missing(checkpoint, name) from error
        self._require_listed(checkpoint, name, found)

    def verify_sizes(self, checkpoint: Checkpoint, *, besides: Collection[str] = ()) -> None:
        """Compare a checkpoint's files with its index by their sizes alone.

        Args:
            besides: Files that the caller reads itself.

        Raises:
            InvalidCheckpointError: It does not count, and why.
            StorageUnreadableError: The storage does not say.
        """
        for name, listed in checkpoint.index.files.items():
            if name in besides:
                continue
            size_bytes = self.size_of(checkpoint.folder, name)
            if size_bytes != listed.size_bytes:
                found = "is missing" if size_bytes is None else f"has {size_bytes} bytes"
                reason = f"its file {name} {found}, listed are {listed.size_bytes}"
                raise InvalidCheckpointError(self._storage.place(checkpoint.folder), reason)

    def read_index(self, folder: str) -> CheckpointIndex:
        """The index alone, without looking at the files.

        Raises:
            InvalidCheckpointError: There is none, or it is damaged or foreign.
            StorageUnreadableError: The storage does not say.
        """
        try:
            index = CheckpointIndex.from_json(self._storage.read(f"{folder}/{INDEX_NAME}"))
        except FileNotFoundError as error:
            reason = f"it has no {INDEX_NAME}, so it was never finished"
            raise InvalidCheckpointError(self._storage.place(folder), reason) from error
        except ValueError as error:
            raise InvalidCheckpointError(self._storage.place(folder), str(error)) from error
        if self._run_id is not None and index.run_id != self._run_id:
            reason = f"it belongs to run id {index.run_id}, this run is {self._run_id}"
            raise InvalidCheckpointError(self._storage.place(folder), reason)
        return index

    def require_identity(self, checkpoint: Checkpoint, identity: Mapping[str, str]) -> None:
        """Refuse to go on from a checkpoint of other data.

        Raises:
            CheckpointMismatchError: With each fact that differs, of the checkpoint and as it is now.
        """
        then = checkpoint.index.identity
        names = [*identity, *(name for name in then if name not in identity)]
        differences = {
            name: (then.get(name, "none"), identity.get(name, "none"))
            for name in names
            if then.get(name) != identity.get(name)
        }
        if differences:
            raise CheckpointMismatchError(self._storage.place(checkpoint.folder), differences)

    @contextmanager
    def open_file(self, checkpoint: Checkpoint, name: str) -> Iterator[Path]:
        """One file as one of this machine's own, verified; read once from the storage, never held in memory.

        Raises:
            InvalidCheckpointError: It is missing, or is not what the index lists.
            StorageUnreadableError: The storage does not say.
        """
        with ExitStack() as opened:
            try:
                path, found = opened.enter_context(self._storage.local_file(f"{checkpoint.folder}/{name}"))
            except FileNotFoundError as error:
                raise self._missing(checkpoint, name) from error
            self._require_listed(checkpoint, name, found)
            yield path

    def read_range(self, checkpoint: Checkpoint, name: str, start: int, size_bytes: int) -> bytes:
        """Some bytes of one file, not verified; fewer where it ends before.

        Raises:
            InvalidCheckpointError: The file is missing.
            StorageUnreadableError: The storage does not say.
        """
        try:
            return self._storage.read_range(f"{checkpoint.folder}/{name}", start, size_bytes)
        except FileNotFoundError as error:
            raise self._missing(checkpoint, name) from error

    def size_of(self, folder: str, name: str) -> int | None:
        """Bytes of a file of a checkpoint, whether or not that counts; None: there is none.

        Raises:
            StorageUnreadableError: The storage does not say.
        """
        return self._storage.size_of(f"{folder}/{name}")

    def _missing(self, checkpoint: Checkpoint, name: str) -> InvalidCheckpointError:
        return InvalidCheckpointError(
            self._storage.place(checkpoint.folder), f"its file {name} is missing, so it can't be read"
        )

    def _require_listed(self, checkpoint: Checkpoint, name: str, found: FileRecord) -> None:
        listed = checkpoint.index.files[name]
        if found != listed:
            raise InvalidCheckpointError(
                self._storage.place(checkpoint.folder),
                f"its file {name} has {found.size_bytes} bytes with checksum {found.checksum}, "
                f"listed are {listed.size_bytes} bytes with {listed.checksum}",
            )

    def write_file(self, folder: str, name: str, write: Callable[[HashingWriter], None]) -> FileRecord:
        """Write one file of a checkpoint that does not count yet.

        Raises:
            OSError: It can't be written.
        """
        with self._storage.open_writer(f"{folder}/{name}") as writer:
            write(writer)
        return writer.record

    def finish(self, folder: str, index: CheckpointIndex) -> Checkpoint:
        """Write the index: from here on the checkpoint is valid.

        Raises:
            OSError: It can't be written.
        """
        # Once: an index that a later try brings about would count at a moment that nobody has looked at.
        self._storage.write_once(f"{folder}/{INDEX_NAME}", index.to_json())
        return Checkpoint(folder, index)

    def delete_old(self, *, keep: int, since: int = 0, spare: Collection[str] = ()) -> int:
        """Delete all but the newest `keep` finished ones; leftovers that are older than the newest, too.

        Args:
            keep: At least 1.
            since: All of earlier attempts stay: the run has begun anew after them.
            spare: Folders that stay, whatever they are: they were passed over, and might be wanted yet.

        Returns:
            How many folders were deleted.

        Raises:
            StorageUnreadableError: The storage does not say what is there.
        """
        if keep < 1:
            raise ValueError(f"keep={keep}: at least the newest checkpoint has to stay")
        kept = deleted = 0
        for folder in self.folders():
            if folder.name in spare or folder.attempt < since:
                continue
            index_name = f"{folder.name}/{INDEX_NAME}"
            has_index = self._storage.exists(index_name)
            if has_index and not self._is_ours(folder.name):
                continue
            if has_index and kept < keep:
                kept += 1
            elif kept:
                self._delete(folder.name, index_name=index_name if has_index else None)
                deleted += 1
        return deleted

    def discard(self, folder: str) -> None:
        """Delete what was written of a checkpoint whose index never was, to have its room again."""
        self._delete(folder, index_name=None)

    def _is_ours(self, folder: str) -> bool:
        try:
            self.read_index(folder)
        except InvalidCheckpointError:
            return False
        return True

    def _delete(self, folder: str, *, index_name: str | None) -> None:
        try:
            # The index first: killed in between, the rest must not look like a damaged checkpoint.
            if index_name is not None:
                self._storage.delete_file(index_name)
            self._storage.delete_folder(folder)
        except OSError as error:
            logger.warning("old checkpoint %s can't be deleted: %s", self._storage.place(folder), error)


def checkpoint_name(attempt: int, step: int, *, again: int = 0) -> str:
    """The name of a checkpoint within a driver's folder.

    Args:
        attempt: Who takes it.
        step: After which step.
        again: How many the attempt has taken after that step already: nothing is written over one that may
            count. The later one is the newer.
    """
    return f"checkpoint-{attempt:06d}-{step:012d}" + (f"-{again:03d}" if again else "")


def _digest(content: Mapping[str, Any]) -> str:
    return checksum_of(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).checksum
