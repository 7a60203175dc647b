"""The attempts of a run: what their folders are called, with what each began, and whether it got anywhere.

An attempt is one life of a group of workers. It has a folder for what is written while it lasts (its books,
where there are some), in which these two files stand:

    ledger/attempt-000004/start.json    with what it began; before its first step
    ledger/attempt-000004/saved.json    it has had a checkpoint; after its first

Checkpoints have folders of their own, named alike (storage.py draws them). A driver's folder bears the number
of its first attempt.

Read next: beginning.py, which reads and writes them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from evenload.resume.storage import RunStorage

__all__ = [
    "AttemptStart",
    "ResumedFrom",
    "attempt_folder",
    "attempt_number",
    "began_anew_at",
    "books_folder",
    "list_attempts",
    "mark_saved",
    "read_starts",
    "saved_attempts",
    "write_start",
]

_BOOKS = "ledger"
_ATTEMPT = re.compile(r"attempt-(\d{6,})")
_START = "start.json"
_SAVED = "saved.json"


class ResumedFrom(BaseModel):
    """The checkpoint that an attempt began with."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: str = Field(description="Its folder, relative to the run.")
    attempt: int = Field(ge=1, description="The attempt that took it.")
    step: int = Field(ge=0, description="Steps done when it was taken.")
    epoch: int = Field(ge=0, description="Epoch of its cursor.")
    samples_consumed: int = Field(ge=0, description="Samples of that epoch consumed.")


class AttemptStart(BaseModel):
    """The record with which an attempt begins; written before its first step."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_id: str
    attempt: int = Field(ge=1)
    resumed_from: ResumedFrom | None = Field(description="None: it began from nothing.")
    began_anew: bool = Field(False, description="It was told to; checkpoints of before don't count any more.")
    world_size: int = Field(ge=1)
    num_parts: int | None = Field(
        None, ge=1, description="Parts of the data, each read by a rank or several."
    )
    pids: tuple[int, ...] = Field((), description="Process of each rank.")
    hosts: tuple[str, ...] = Field((), description="Machine of each rank.")
    started_at_s: float = Field(ge=0, description="Seconds since 1970.")


def attempt_folder(attempt: int) -> str:
    """The name of an attempt's folder; or of a driver's, whose first attempt this is."""
    return f"attempt-{attempt:06d}"


def attempt_number(folder: str) -> int | None:
    """The number in such a name; None for other names."""
    match = _ATTEMPT.fullmatch(folder)
    return int(match[1]) if match else None


def books_folder(attempt: int) -> str:
    """Where what is written while an attempt lasts is, relative to the run."""
    return f"{_BOOKS}/{attempt_folder(attempt)}"


def list_attempts(storage: RunStorage) -> list[int]:
    """Attempts that have begun, ascending.

    Raises:
        StorageUnreadableError: The storage does not say.
    """
    numbers = (attempt_number(name) for name in storage.list_names(_BOOKS))
    return sorted(number for number in numbers if number is not None)


def write_start(storage: RunStorage, start: AttemptStart) -> None:
    """Raises:
    StorageUnwritableError: It can't be written.
    """
    storage.write(f"{books_folder(start.attempt)}/{_START}", start.model_dump_json(indent=1).encode())


def read_starts(storage: RunStorage) -> tuple[dict[int, AttemptStart], dict[int, str]]:
    """The start records by attempt; and of attempts whose record is gone or damaged, what is wrong with it.

    Killed while it was written, an attempt has none, and has done nothing either.

    Raises:
        StorageUnreadableError: The storage does not say.
    """
    starts, unread = {}, {}
    for attempt in list_attempts(storage):
        name = f"{books_folder(attempt)}/{_START}"
        try:
            starts[attempt] = AttemptStart.model_validate_json(storage.read(name))
        except (FileNotFoundError, ValidationError) as error:
            unread[attempt] = f"{name} can't be read: {str(error).splitlines()[0]}"
    return starts, unread


def began_anew_at(starts: Mapping[int, AttemptStart]) -> int:
    """The attempt with which the run last began anew because it was told to; 0: it never did."""
    return max((attempt for attempt, start in starts.items() if start.began_anew), default=0)


def mark_saved(storage: RunStorage, attempt: int, step: int) -> None:
    """Write down that an attempt has had a checkpoint, once: a run that had one must not begin anew unasked.

    Written after the checkpoint counts; killed in between, it is the checkpoint itself that says so.

    Raises:
        StorageUnwritableError: It can't be written.
    """
    storage.write(f"{books_folder(attempt)}/{_SAVED}", json.dumps({"step": step}).encode())


def saved_attempts(storage: RunStorage) -> list[int]:
    """Attempts that are known to have had a checkpoint, ascending.

    Raises:
        StorageUnreadableError: The storage does not say.
    """
    return [n for n in list_attempts(storage) if storage.exists(f"{books_folder(n)}/{_SAVED}")]
