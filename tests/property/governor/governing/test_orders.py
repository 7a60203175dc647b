"""Slots are never held twice, whatever is decided, fails or takes long in between."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from evenload.governor.governing.orders import Phase, Placement, Start, next_orders

NUM_SLOTS = 8


class Cluster:
    """Jobs that are told to start and stop, and do it some time later; a start may fail."""

    def __init__(self, num_jobs: int, chance: random.Random, *, starts_may_fail: bool) -> None:
        self.starts_may_fail = starts_may_fail
        self.jobs = {
            f"{n}": Placement(job_id=f"{n}", phase=Phase.WAITING, size=0, wanted=0) for n in range(num_jobs)
        }
        self._chance = chance

    def decide(self) -> None:
        """Sizes within capacity; jobs on their way keep what was decided for them."""
        on_their_way = [job for job in self.jobs.values() if job.phase in (Phase.STARTING, Phase.STOPPING)]
        num_free = NUM_SLOTS - sum(job.wanted for job in on_their_way)
        for job in self._chance.sample(sorted(self.jobs), len(self.jobs)):
            if self.jobs[job] not in on_their_way:
                wanted = self._chance.randint(0, num_free)
                self.jobs[job] = replace(self.jobs[job], wanted=wanted)
                num_free -= wanted

    def order(self) -> int:
        orders = next_orders(list(self.jobs.values()), NUM_SLOTS)
        for order in orders:
            job = self.jobs[order.job_id]
            if isinstance(order, Start):
                assert job.phase is Phase.WAITING
                self.jobs[job.job_id] = replace(
                    job, phase=Phase.STARTING, size=order.size, is_interrupted=False
                )
            else:
                assert job.phase is Phase.RUNNING
                self.jobs[job.job_id] = replace(job, phase=Phase.STOPPING)
            assert self.num_held <= NUM_SLOTS
        return len(orders)

    def go_on(self) -> None:
        """One of those on their way arrives; who has stopped to be resized goes on at once."""
        on_their_way = [job for job in self.jobs.values() if job.phase in (Phase.STARTING, Phase.STOPPING)]
        if on_their_way:
            job = self._chance.choice(on_their_way)
            fails = self.starts_may_fail and self._chance.random() < 0.3
            if job.phase is Phase.STARTING and not fails:
                self.jobs[job.job_id] = replace(job, phase=Phase.RUNNING)
                return
            self.jobs[job.job_id] = replace(job, phase=Phase.WAITING, size=0, is_interrupted=job.wanted > 0)
            self.order()
            # Where starts fail, others that were interrupted as well may come first.
            assert self.starts_may_fail or not job.wanted or self.jobs[job.job_id].phase is Phase.STARTING

    @property
    def num_held(self) -> int:
        return sum(job.size for job in self.jobs.values())


@given(
    num_jobs=st.integers(1, 6),
    seed=st.integers(0, 2**32),
    starts_may_fail=st.booleans(),
)
def test_what_is_held_never_exceeds_what_there_is_and_all_get_what_was_decided(
    num_jobs: int, seed: int, starts_may_fail: bool
) -> None:
    chance = random.Random(seed)
    cluster = Cluster(num_jobs, chance, starts_may_fail=starts_may_fail)
    for _ in range(100):
        chance.choice([cluster.decide, cluster.order, cluster.go_on, cluster.go_on])()
        assert cluster.num_held <= NUM_SLOTS
    for _ in range(40 * num_jobs):  # a start fails a few times in a row now and then
        cluster.order()
        cluster.go_on()
    assert cluster.order() == 0
    assert all(job.size == job.wanted for job in cluster.jobs.values())
