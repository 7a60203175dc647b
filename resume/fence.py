"""Who may go on with a run: the newest claim, and nobody else.

Before a driver takes workers it writes a *claim*, a file that no other driver writes, and reads back what
claims there are. So does each attempt of its workers. A storage of objects knows no lock, no rename and no
"create unless it is there", but a file whose name holds a random token needs none of them: claims are only
ever added, so whoever has once seen a greater one is stale for good, however long it was asleep.

    claims/driver-000004-7d0e...              the driver whose first attempt is 4
    claims/attempt-000005-000004-7d0e...-91ab...    that driver's second group of workers

Drivers are ordered by (number, token). An attempt is stale when there is a greater driver than its own, or a
greater attempt of its own driver. Everyone writes first and reads after: of two that start together at least
one sees the other, and the smaller one stops. A number that two have claimed is used by neither: the greater
one claims again. So attempts have numbers of their own, and those of a newer driver are higher: it has seen
every older attempt that was allowed to begin.

Nothing can stop a writer between its look and its write. So one index of a stale attempt may still appear.
It is older than any of the newer driver's, and its writer looks again before it deletes anything.

Invariants, checked in tests/property/resume/test_fence.py for all interleavings of storage
operations that it draws:
1. Of drivers that start together exactly one goes on; of drivers that start one after the other, the last.
2. No two attempts have the same number, and a newer driver's are higher.

Read next: checkpoint_writer.py (who looks, and when).
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from evenload.resume.attempts import attempt_number, list_attempts
from evenload.resume.errors import RunError, RunTakenOverError
from evenload.resume.storage import RunStorage

__all__ = [
    "LOOK_S",
    "AttemptClaim",
    "DriverClaim",
    "FenceWatch",
    "claim_attempt",
    "claim_run",
    "require_newest",
]

LOOK_S: Final = 5.0

_FOLDER = "claims"
_DRIVER = re.compile(r"driver-(\d{6,})-([0-9a-f]{16})")
_ATTEMPT = re.compile(r"attempt-(\d{6,})-(\d{6,})-([0-9a-f]{16})-([0-9a-f]{16})")
_CLAIMS_MAX = 100

logger = logging.getLogger(__name__)


class DriverClaim(NamedTuple):
    """A driver's claim to a run; the greater one counts."""

    number: int
    token: str

    @property
    def name(self) -> str:
        return f"{_FOLDER}/driver-{self.number:06d}-{self.token}"


class AttemptClaim(NamedTuple):
    """The claim of one group of a driver's workers."""

    driver: DriverClaim
    number: int
    token: str

    @property
    def name(self) -> str:
        return (
            f"{_FOLDER}/attempt-{self.number:06d}-{self.driver.number:06d}-{self.driver.token}-{self.token}"
        )


class _Claims(NamedTuple):
    drivers: list[DriverClaim]
    attempts: list[AttemptClaim]


def claim_run(storage: RunStorage) -> DriverClaim:
    """Claim a run for a driver that begins now; whoever held it before will notice and stop.

    Raises:
        RunTakenOverError: Another driver that begins now has claimed it too, and goes on.
        StorageUnreadableError, StorageUnwritableError: The storage does not answer.
    """
    token = secrets.token_hex(8)
    number = _first_free(storage)
    for _ in range(_CLAIMS_MAX):
        mine = DriverClaim(number, token)
        # Written before the others' claims are read. Were they read first, two drivers that start together
        # could both see nobody, and both go on.
        storage.write(mine.name, _content())
        there = _read_claims(storage)
        _require_greatest_driver(storage, mine, there)
        others = [c.number for c in there.drivers if c.token != token]
        highest = max([*others, *(c.number for c in there.attempts)], default=0)
        if highest < number:
            return mine
        # Somebody chose the same number in the same moment, or an older driver's workers began just now.
        number = highest + 1
    raise RunTakenOverError(storage.run, attempt=number, newer_attempt=number)


def claim_attempt(storage: RunStorage, driver: DriverClaim) -> AttemptClaim:
    """Claim a number for a group of this driver's workers that begins now.

    Raises:
        RunTakenOverError: A newer driver, or a newer group of this one, goes on with the run.
        StorageUnreadableError, StorageUnwritableError: The storage does not answer.
    """
    token = secrets.token_hex(8)
    number = max([driver.number, *(claim.number + 1 for claim in _read_claims(storage).attempts)])
    for _ in range(_CLAIMS_MAX):
        mine = AttemptClaim(driver, number, token)
        storage.write(mine.name, _content())
        there = _read_claims(storage)
        _require_greatest(storage, mine, there)
        highest = max((claim.number for claim in there.attempts if claim.token != token), default=0)
        if highest < number:
            return mine
        number = highest + 1
    raise RunTakenOverError(storage.run, attempt=number, newer_attempt=number)


def require_newest(storage: RunStorage, claim: DriverClaim | AttemptClaim) -> None:
    """Look whether the run is still this claim's.

    Raises:
        RunTakenOverError: It is not, for good.
        StorageUnreadableError: The storage does not say.
    """
    there = _read_claims(storage)
    if isinstance(claim, DriverClaim):
        _require_greatest_driver(storage, claim, there)
        return
    _require_greatest(storage, claim, there)
    # An attempt of a version that made no claims yet.
    newest = max(list_attempts(storage), default=0)
    if newest > claim.number:
        raise RunTakenOverError(storage.run, attempt=claim.number, newer_attempt=newest)


class FenceWatch:
    """Looks every few seconds, on a thread of its own, until it is closed or the run was taken over.

    Args:
        look: Raises RunTakenOverError when it was.
        interval_s: Seconds between looks.
    """

    def __init__(self, look: Callable[[], None], *, interval_s: float = LOOK_S) -> None:
        self._look = look
        self._interval_s = interval_s
        self._closing = threading.Event()
        self.error: RunTakenOverError | None = None
        self._thread = threading.Thread(target=self._watch, name="fence-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop looking; a look that hangs in the storage is left behind."""
        self._closing.set()

    def _watch(self) -> None:
        while self.error is None and not self._closing.wait(self._interval_s):
            try:
                self._look()
            except RunTakenOverError as error:
                self.error = error
            except Exception as error:  # noqa: BLE001 -- else nobody would look any more
                # Not knowing is no reason to stop; no checkpoint counts without a look that succeeds.
                logger.warning("whether the run was taken over is not known: %s", error)


def _first_free(storage: RunStorage) -> int:
    """One more than any number that a driver or an attempt of this run has had."""
    there = _read_claims(storage)
    folders = [n for n in map(attempt_number, storage.list_names()) if n is not None]
    claimed = [*(claim.number for claim in there.drivers), *(claim.number for claim in there.attempts)]
    return 1 + max([*claimed, *folders, *list_attempts(storage)], default=0)


def _read_claims(storage: RunStorage) -> _Claims:
    drivers, attempts = [], []
    for name in storage.list_names(_FOLDER):
        if match := _DRIVER.fullmatch(name):
            drivers.append(DriverClaim(int(match[1]), match[2]))
        elif match := _ATTEMPT.fullmatch(name):
            attempts.append(AttemptClaim(DriverClaim(int(match[2]), match[3]), int(match[1]), match[4]))
    return _Claims(drivers, attempts)


def _require_greatest_driver(storage: RunStorage, mine: DriverClaim, there: _Claims) -> None:
    greatest = max(there.drivers, default=mine)
    if greatest > mine and greatest.token != mine.token:
        raise _taken_over(storage, mine.number, greatest)


def _require_greatest(storage: RunStorage, mine: AttemptClaim, there: _Claims) -> None:
    # Drivers first. A driver that slept through its successor's start may start its workers again: their
    # attempt is the newest there is, and by its number alone it would stop the successor's.
    _require_greatest_driver(storage, mine.driver, there)
    family = [claim for claim in there.attempts if claim.driver.token == mine.driver.token]
    greatest = max(family, default=mine)
    if greatest > mine and greatest.token != mine.token:
        raise _taken_over(storage, mine.number, greatest)


def _taken_over(storage: RunStorage, attempt: int, greatest: DriverClaim | AttemptClaim) -> RunTakenOverError:
    try:
        content = json.loads(storage.read(greatest.name))
        where = f"on {content['host']}, process {content['pid']}"
    except (OSError, RunError, ValueError, LookupError, TypeError):
        where = "where is not known"
    return RunTakenOverError(storage.run, attempt=attempt, newer_attempt=greatest.number, where=where)


def _content() -> bytes:
    """For people: who it is that claims."""
    return json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "at_s": time.time()}).encode()
