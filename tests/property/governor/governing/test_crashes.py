"""The governor is killed at any point, its orders arrive or not, and everything fails now and then."""

from __future__ import annotations

import random
from collections.abc import Collection
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.governor.deciding.curves import interpolated
from evenload.governor.deciding.plugins import load_policy
from evenload.governor.errors import EngineUnreachableError
from evenload.governor.governing.cycle import run_cycle
from evenload.governor.governing.engine import Observed, Stint, StintId
from evenload.governor.governing.governor import Governor, Orders
from evenload.governor.governing.jobs import Ending, Job
from evenload.governor.governing.orders import Phase
from evenload.governor.governing.records import Records
from evenload.governor.simulating.simulation import Costs, SimulatedEngine, Submission
from evenload.governor.testing import MemoryJournal

NUM_SLOTS = 8
POLICIES = ("smartfill", "elastic_fifo", "round_robin", "fifo_backfill", "srtf")
WAIT_MAX_S = 100.0


class KilledError(Exception):
    """The process is no more."""


class FatalJournal(MemoryJournal):
    """Whoever writes may be killed before or after; what was written is kept."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.kill_part = 0.0
        self._chance = chance

    def write(self, changes: Records) -> None:
        if self._chance.random() < self.kill_part:
            raise KilledError
        super().write(changes)
        assert sum(job.size for job in self.read().jobs.values()) <= NUM_SLOTS
        if self._chance.random() < self.kill_part:
            raise KilledError


class FaultyEngine:
    """Can't be reached now and then; whoever gives an order may be killed before or after."""

    def __init__(self, engine: SimulatedEngine, chance: random.Random) -> None:
        self.kill_part = self.unreachable_part = 0.0
        self._engine, self._chance = engine, chance

    def look(self, current: Collection[StintId]) -> Observed:
        if self._chance.random() < self.unreachable_part:
            raise EngineUnreachableError("no answer")
        return self._engine.look(current)

    def start(self, stint: Stint) -> None:
        self._before()
        self._engine.start(stint)
        self._after()

    def stop(self, stint_id: StintId) -> None:
        self._before()
        self._engine.stop(stint_id)
        self._after()

    def _before(self) -> None:
        if self._chance.random() < self.kill_part:
            raise KilledError
        if self._chance.random() < self.unreachable_part:
            raise EngineUnreachableError("not sent")

    def _after(self) -> None:
        if self._chance.random() < self.unreachable_part:
            raise EngineUnreachableError("sent, but no answer")
        if self._chance.random() < self.kill_part:
            raise KilledError


def workload(chance: random.Random) -> list[Submission]:
    found = []
    for number in range(chance.randint(1, 6)):
        largest = chance.randint(1, NUM_SLOTS)
        curve = interpolated({size: 10.0 * size ** chance.random() for size in range(1, largest + 1)})
        asked_size = chance.randint(1, largest)
        found.append(
            Submission(
                job_id=f"job-{number}",
                submitted_s=chance.uniform(0, 500),
                asked_size=asked_size,
                samples=chance.choice([50.0, 2000.0, 20_000.0]),
                speed=curve,
                kind=chance.choice(["", "shared"]) if largest == NUM_SLOTS else "",
                is_plain=chance.random() < 0.2,
            )
        )
    return sorted(found, key=lambda job: job.submitted_s)


class World:
    """A governor with all that can happen to it, from one seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        costs = Costs(
            start_s=self.chance.choice([0.0, 15.0]),
            stop_s=self.chance.choice([0.0, 5.0, 200.0]),
            failed_starts=self.chance.choice([0.0, 0.3]),
            seed=seed,
        )
        self.simulated = SimulatedEngine(NUM_SLOTS, costs)
        self.engine = FaultyEngine(self.simulated, self.chance)
        self.journal = FatalJournal(self.chance)
        self.coming = list(reversed(workload(self.chance)))
        self.num_jobs = len(self.coming)
        self.now_s = 0.0
        self.stale: list[Orders] = []  # of governors that were killed, but wake again
        self.begin_anew()

    def begin_anew(self) -> None:
        self.governor = Governor(
            load_policy(self.chance.choice(POLICIES)), wait_max_s=WAIT_MAX_S, records=self.journal.read()
        )

    def break_things(self) -> None:
        self.engine.kill_part = self.journal.kill_part = self.chance.choice([0.0, 0.05, 0.3])
        self.engine.unreachable_part = self.chance.choice([0.0, 0.3])

    def mend_things(self) -> None:
        self.engine.kill_part = self.journal.kill_part = self.engine.unreachable_part = 0.0

    def go_on(self) -> None:
        """To the next thing that happens."""
        # Where the engine can't be reached, a decision that is due stays due: time goes on meanwhile.
        due_s = max(self.governor.due_s, self.now_s + 1.0)
        coming_s = self.coming[-1].submitted_s if self.coming else due_s
        self.now_s = max(self.now_s, min(due_s, coming_s, self.simulated.next_event_s, self.now_s + 60.0))
        self.simulated.advance(self.now_s)
        try:
            while self.coming and self.coming[-1].submitted_s <= self.now_s:
                self.simulated.add(self.coming[-1])
                self.governor.submit(self.coming[-1].wish, self.now_s)
                self.journal.write(self.governor.take_changes())  # only then is it answered
                self.coming.pop()
            run_cycle(self.governor, self.journal, self.engine, self.now_s)
        except KilledError:
            self.stale.append(self.governor.orders())
            self.begin_anew()

    def ask_something(self) -> None:
        if not self.governor.jobs:
            return
        job_id = self.chance.choice(sorted(self.governor.jobs))
        ask = self.chance.choice([self.governor.hold, self.governor.release, self.governor.cancel])
        if ask != self.governor.cancel or self.chance.random() < 0.2:
            with suppress(ValueError):  # one that isn't held can't be released
                ask(job_id, self.now_s)

    def restart_cluster(self) -> None:
        self.simulated.restart()

    def send_again(self) -> None:
        """One that was fenced off sends what it had in mind."""
        if self.stale:
            orders = self.stale.pop()
            for stint in orders.starts:
                self.simulated.start(stint)
            for stint_id in (*orders.stops, *orders.strays):
                self.simulated.stop(stint_id)

    def is_over(self) -> bool:
        return not self.coming and not self.governor.jobs


def ending_of(job: Job) -> Ending:
    assert job.ending
    assert (job.phase, job.size) == (Phase.WAITING, 0)
    return job.ending


@given(seed=st.integers(0, 2**32), are_stale_orders_sent=st.booleans())
def test_killed_anywhere_no_slot_is_held_twice_and_every_job_ends(
    seed: int, are_stale_orders_sent: bool
) -> None:
    world = World(seed)
    for _ in range(world.chance.randint(0, 150)):
        what = world.chance.random()
        if what < 0.05:
            world.break_things()
        elif what < 0.1:
            world.ask_something()
        elif what < 0.11:
            world.restart_cluster()
        elif what < 0.13 and are_stale_orders_sent:
            world.send_again()
        world.go_on()
        # A start that comes late is stopped when it is seen; until then Ray, not we, would let it wait.
        assert are_stale_orders_sent or world.simulated.num_held <= NUM_SLOTS
    world.mend_things()
    for job_id in list(world.governor.jobs):
        with suppress(ValueError):
            world.governor.release(job_id, world.now_s)
    for _ in range(10_000):
        if world.is_over():
            break
        world.go_on()
    endings = {job_id: ending_of(job) for job_id, job in world.governor.ended.items()}
    assert len(endings) == world.num_jobs
    for job_id, ending in endings.items():
        job = world.governor.ended[job_id]
        assert ending is not Ending.FAILED or job.is_plain or job.num_fruitless == 4


def test_an_engine_that_is_of_no_use_fails_a_job_after_four_starts() -> None:
    job = Submission(job_id="a", submitted_s=0.0, asked_size=1, samples=10.0, speed=interpolated({1: 1.0}))
    engine = SimulatedEngine(1, Costs(failed_starts=1.0))
    engine.add(job)
    governor = Governor(load_policy("fifo"))
    governor.submit(job.wish, 0.0)
    journal = MemoryJournal()
    now_s = 0.0
    while governor.jobs:
        now_s = max(now_s, min(engine.next_event_s, governor.due_s))
        engine.advance(now_s)
        run_cycle(governor, journal, engine, now_s)
    ended = governor.ended["a"]
    # Four starts of 15 s, and 5, 10 and 20 s between them.
    assert (ended.ending, ended.stint, ended.ended_s) == (Ending.FAILED, 4, pytest.approx(95.5, abs=2.0))
    governor.release("a", now_s)
    assert not governor.ended
    assert not governor.jobs["a"].ending
