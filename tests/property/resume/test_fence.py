"""Drivers that claim a run at once, in every order of their storage operations that is drawn."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload.ray_trainer.training.testing import Before, interposed_storage
from evenload.resume.attempts import AttemptStart, write_start
from evenload.resume.errors import RunTakenOverError
from evenload.resume.fence import (
    AttemptClaim,
    DriverClaim,
    FenceWatch,
    claim_attempt,
    claim_run,
    require_newest,
)
from evenload.resume.storage import RunStorage

CHECKPOINTS = 3


class Turns:
    """Lets one storage operation of several threads happen at a time, in an order that is given.

    Args:
        order: At each operation, which of the threads that wait goes on (modulo their number).
    """

    def __init__(self, order: list[int]) -> None:
        self._order = order
        self._changed = threading.Condition()
        self._waiting: list[int] = []
        self._granted: int | None = None
        self._num_running = 0
        self.log: list[tuple[int, str]] = []

    def before(self, actor: int, what: str) -> None:
        with self._changed:
            self._waiting.append(actor)
            self._num_running -= 1
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._granted == actor, timeout=60)
            self._granted = None
            self._waiting.remove(actor)
            self.log.append((actor, what))

    def run(self, actors: list[Callable[[], None]]) -> None:
        """Run the actors to their end, each on a thread."""
        threads = [threading.Thread(target=self._run, args=(n, a)) for n, a in enumerate(actors)]
        self._num_running = len(threads)
        for thread in threads:
            thread.start()
        turn = 0
        while True:
            with self._changed:
                assert self._changed.wait_for(lambda: not self._num_running, timeout=60)
                if not self._waiting:
                    break
                choice = self._order[turn] if turn < len(self._order) else 0
                turn += 1
                self._num_running += 1
                self._granted = sorted(self._waiting)[choice % len(self._waiting)]
                self._changed.notify_all()
        for thread in threads:
            thread.join()

    def _run(self, actor: int, body: Callable[[], None]) -> None:
        _actor.number = actor
        body()
        with self._changed:
            self._num_running -= 1
            self._changed.notify_all()


_actor = threading.local()


@dataclass
class Driver:
    """A driver that claims, starts its workers once or twice, and writes checkpoints while it may."""

    storage: Path
    turns: Turns
    groups: int
    claim: DriverClaim | None = None
    attempts: list[AttemptClaim] = field(default_factory=list)
    is_stale: bool = False
    counted_at: list[int] = field(default_factory=list)

    def run(self) -> None:
        storage = RunStorage(self.storage, "run", patience_s=0)
        try:
            self.claim = claim_run(storage)
            for _ in range(self.groups):
                attempt = claim_attempt(storage, self.claim)
                self.attempts.append(attempt)
                start = AttemptStart(
                    run_id="r", attempt=attempt.number, resumed_from=None, world_size=1, started_at_s=0.0
                )
                write_start(storage, start)
                for step in range(CHECKPOINTS):
                    require_newest(storage, attempt)
                    storage.write_once(f"counted/{attempt.number}-{step}", b"")
                    self.counted_at.append(len(self.turns.log))
            require_newest(storage, self.claim)
        except RunTakenOverError:
            self.is_stale = True


@settings(max_examples=300, deadline=None)
@given(
    order=st.lists(st.integers(0, 2), max_size=80),
    groups=st.lists(st.integers(1, 2), min_size=2, max_size=3),
)
def test_of_drivers_at_once_one_goes_on_and_numbers_are_never_used_twice(
    order: list[int], groups: list[int]
) -> None:
    turns = Turns(order)

    def make_before() -> Before:
        actor = _actor.number
        return lambda operation, path: turns.before(actor, f"{operation} {path}")

    with TemporaryDirectory() as folder, interposed_storage(make_before):
        drivers = [Driver(Path(folder), turns, number) for number in groups]
        turns.run([driver.run for driver in drivers])

    claimed = [driver for driver in drivers if driver.claim is not None]
    assert claimed
    newest = max(claimed, key=lambda driver: driver.claim or DriverClaim(0, ""))
    assert newest.claim is not None
    assert not newest.is_stale
    assert len(newest.attempts) == newest.groups
    assert len(newest.counted_at) == newest.groups * CHECKPOINTS
    assert len({driver.claim.number for driver in claimed if driver.claim}) == len(claimed)
    begun = [attempt for driver in drivers for attempt in driver.attempts]
    assert len({attempt.number for attempt in begun}) == len(begun)
    assert sorted(begun) == sorted(begun, key=lambda attempt: attempt.number)
    written_at = next(
        at for at, (_, what) in enumerate(turns.log, 1) if what == f"write {folder}/run/{newest.claim.name}"
    )
    for driver in drivers:
        if driver is not newest:
            # What was looked at before the newer claim was there may still be written, once.
            assert sum(at > written_at + 1 for at in driver.counted_at) <= 1


@settings(max_examples=150, deadline=None)
@given(order=st.lists(st.integers(0, 2), max_size=40), num_groups=st.integers(2, 3))
def test_of_groups_of_one_driver_at_once_no_two_have_a_number_and_the_newest_goes_on(
    order: list[int], num_groups: int
) -> None:
    turns = Turns(order)
    confirmed: list[AttemptClaim] = []
    stale: list[int] = []

    def make_before() -> Before:
        actor = _actor.number
        return lambda operation, path: turns.before(actor, f"{operation} {path}")

    with TemporaryDirectory() as folder:
        driver = claim_run(RunStorage(folder, "run"))

        def begin() -> None:
            storage = RunStorage(folder, "run", patience_s=0)
            try:
                confirmed.append(claim_attempt(storage, driver))
            except RunTakenOverError as error:
                stale.append(error.attempt)

        with interposed_storage(make_before):
            turns.run([begin] * num_groups)
        require_newest(RunStorage(folder, "run"), max(confirmed))

    assert len(confirmed) + len(stale) == num_groups
    assert len({attempt.number for attempt in confirmed}) == len(confirmed)


def test_the_driver_that_starts_later_goes_on_and_the_one_before_hears_who_it_is(tmp_path: Path) -> None:
    storage = RunStorage(tmp_path, "run")
    first = claim_run(storage)
    group = claim_attempt(storage, first)
    require_newest(storage, first)
    require_newest(storage, group)
    second = claim_run(storage)

    assert (first.number, group.number, second.number) == (1, 1, 2)
    for stale in (first, group):
        with pytest.raises(
            RunTakenOverError, match=r"attempt 2 began after our attempt 1, on .*, process \d+"
        ):
            require_newest(storage, stale)
    with pytest.raises(RunTakenOverError):
        claim_attempt(storage, first)
    require_newest(storage, second)


def test_of_two_drivers_with_one_number_the_one_that_stops_says_that_they_began_at_once(
    tmp_path: Path,
) -> None:
    storage = RunStorage(tmp_path, "run")
    mine = claim_run(storage)
    storage.write(DriverClaim(mine.number, "f" * 16).name, b"{}")

    with pytest.raises(RunTakenOverError) as caught:
        require_newest(storage, mine)

    assert "they began at once, both as attempt 1, and the other one goes on" in str(caught.value)
    assert "after our attempt" not in str(caught.value)


def test_a_second_group_of_a_driver_makes_the_first_stale_but_not_the_driver(tmp_path: Path) -> None:
    storage = RunStorage(tmp_path, "run")
    driver = claim_run(storage)
    first, second = claim_attempt(storage, driver), claim_attempt(storage, driver)

    assert (first.number, second.number) == (1, 2)
    require_newest(storage, driver)
    require_newest(storage, second)
    with pytest.raises(RunTakenOverError):
        require_newest(storage, first)
    assert claim_run(storage).number == 3


def test_numbers_of_attempts_and_folders_without_claims_are_not_used_again(tmp_path: Path) -> None:
    storage = RunStorage(tmp_path, "run")
    storage.write("attempt-000005/.marker", b"")
    assert claim_run(storage).number == 6
    write_start(
        storage, AttemptStart(run_id="r", attempt=9, resumed_from=None, world_size=1, started_at_s=0.0)
    )
    assert claim_run(storage).number == 10


def test_a_watch_goes_on_when_the_storage_fails_and_ends_when_the_run_is_taken_over() -> None:
    answers = iter(
        [None, OSError("away"), ValueError("odd"), RunTakenOverError("r", attempt=1, newer_attempt=2)]
    )

    def look() -> None:
        answer = next(answers)
        if answer is not None:
            raise answer

    watch = FenceWatch(look, interval_s=0.0)
    watch._thread.join(timeout=60)

    assert isinstance(watch.error, RunTakenOverError)
    assert next(answers, None) is None
    watch.close()
