"""What the governor makes of requests and of what it sees, moment by moment, on a simulated cluster."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest

from evenload.governor.deciding.curves import SpeedCurve
from evenload.governor.deciding.policies.elastic import elastic_fifo
from evenload.governor.deciding.policies.rigid import fifo
from evenload.governor.deciding.state import Policy
from evenload.governor.errors import (
    EngineUnreachableError,
    JobConflictError,
    JobUnknownError,
    StintRefusedError,
)
from evenload.governor.governing import governor
from evenload.governor.governing.cycle import run_cycle
from evenload.governor.governing.engine import Observed, Outcome, Stint, StintId, StintSeen
from evenload.governor.governing.governor import Governor
from evenload.governor.governing.jobs import Ending, Job, Wish
from evenload.governor.governing.kinds import Kind
from evenload.governor.governing.orders import Phase
from evenload.governor.governing.records import Records, decoded, encoded
from evenload.governor.simulating.simulation import USUAL, Costs, SimulatedEngine, Submission
from evenload.governor.testing import make_curve

LINEAR = make_curve(lambda size: 10.0 * size, 4)


class Site:
    """A governor, an engine and what it has written down."""

    def __init__(self, policy: Policy = fifo, *, num_slots: int = 4, costs: Costs = USUAL) -> None:
        self.engine = SimulatedEngine(num_slots, costs)
        self.governor = Governor(policy)
        self.written: list[Records] = []
        self.now_s = 0.0

    def write(self, changes: Records) -> None:
        self.written.append(changes)

    def prove(self) -> None:
        pass

    def submit(self, job_id: str, *, speed: SpeedCurve = LINEAR, samples: float = 4000.0) -> Wish:
        job = Submission(
            job_id=job_id, submitted_s=self.now_s, asked_size=4, samples=samples, speed=speed, kind="k"
        )
        self.engine.add(job)
        self.governor.submit(job.wish, self.now_s)
        return job.wish

    def go_on(self, until_s: float) -> None:
        while True:
            next_s = max(self.now_s, min(self.engine.next_event_s, self.governor.due_s))
            if next_s > until_s:
                break
            self.cycle(next_s)
        self.cycle(until_s)

    def cycle(self, now_s: float) -> str | None:
        self.now_s = now_s
        self.engine.advance(now_s)
        return run_cycle(self.governor, self, self.engine, now_s)

    def job(self, job_id: str) -> Job:
        return self.governor.jobs.get(job_id) or self.governor.ended[job_id]


class Picky(SimulatedEngine):
    """Eight slots, none of them for the job `a`."""

    def __init__(self, error: Exception) -> None:
        super().__init__(8, USUAL)
        self._error = error

    def start(self, stint: Stint) -> None:
        if stint.id.job_id == "a":
            raise self._error
        super().start(stint)


def test_the_same_wish_twice_is_one_job_and_another_of_its_name_is_refused() -> None:
    site = Site()
    wish = site.submit("a")
    job = site.governor.jobs["a"]
    assert site.governor.submit(wish, 99.0) is job
    other = Wish(job_id="a", kind="k", samples=5.0, asked_size=4, max_size=4, sizes=wish.sizes)
    with pytest.raises(JobConflictError, match=r"'a' that differs: samples 4000.0, now 5.0\. Give this one"):
        site.governor.submit(other, 99.0)
    site.go_on(200.0)
    assert site.governor.submit(wish, 200.0).ending is Ending.FINISHED


def test_a_job_that_isnt_there_cant_be_asked_of_anything() -> None:
    with pytest.raises(JobUnknownError, match="there is no job 'a'"):
        Site().governor.cancel("a", 0.0)


def test_a_job_that_is_held_stops_and_goes_on_when_it_is_released() -> None:
    site = Site()
    site.submit("a")
    site.go_on(65.5)  # 50 s of 100 are done
    site.governor.hold("a", site.now_s)
    site.go_on(300.0)
    assert (site.job("a").phase, site.job("a").size) == (Phase.WAITING, 0)
    site.governor.release("a", site.now_s)
    site.go_on(364.9)
    assert not site.job("a").ending
    site.go_on(366.0)
    assert (site.job("a").ending, site.job("a").ended_s) == (Ending.FINISHED, pytest.approx(365.5, abs=0.5))


def test_a_job_that_is_cancelled_while_it_starts_is_stopped_at_once_and_others_have_its_slots() -> None:
    site = Site(costs=Costs(stop_s=5.0))
    site.submit("a")
    site.submit("b")
    site.go_on(3.0)
    assert site.job("a").phase is Phase.STARTING
    site.governor.cancel("a", site.now_s)
    site.go_on(4.0)
    assert site.job("a").phase is Phase.STOPPING
    site.go_on(9.0)
    assert site.job("a").ending is Ending.CANCELLED
    assert site.job("b").phase is Phase.STARTING
    assert site.governor.cancel("a", 10.0) is site.job("a")


def test_one_that_waits_is_cancelled_at_once() -> None:
    site = Site()
    site.submit("a")
    assert site.governor.cancel("a", 0.0).ending is Ending.CANCELLED
    assert not site.governor.jobs


def test_speeds_are_found_out_and_growth_goes_by_them() -> None:
    knee = make_curve(lambda size: 10.0 * min(size, 2) + size, 4)
    site = Site(elastic_fifo)
    site.submit("a", speed=knee, samples=40_000.0)
    sizes = []
    for _ in range(40):
        site.go_on(site.now_s + 10.0)
        if (size := site.job("a").size) not in sizes:
            sizes.append(size)
    assert sizes == [1, 2, 4]  # twice as many each time, until it is known what more are worth
    kinds = {kind_id: kind for records in site.written for kind_id, kind in records.kinds.items()}
    assert kinds["k"].measured == {1: 11.0, 2: 22.0, 4: 24.0}
    assert kinds["k"].resize_cost_s == 15.0


def test_what_a_resize_costs_is_measured_from_the_stop_to_the_first_step() -> None:
    site = Site(elastic_fifo, costs=Costs(start_s=30.0, stop_s=7.0))
    site.submit("a", samples=40_000.0)
    site.go_on(200.0)
    kinds = {kind_id: kind for records in site.written for kind_id, kind in records.kinds.items()}
    assert set(kinds["k"].resize_costs_s) == {37.0}


def test_after_a_restart_of_the_cluster_jobs_go_on_from_what_was_done() -> None:
    site = Site()
    site.submit("a")
    site.go_on(65.5)
    site.engine.restart()
    site.go_on(66.0)
    job = site.job("a")
    assert (job.phase, job.stint, job.num_failures) == (Phase.STARTING, 2, 0)
    site.go_on(131.5)
    assert site.job("a").ending is Ending.FINISHED


PLAIN = Wish(job_id="p", kind="plain", samples=None, asked_size=2, min_size=2, max_size=2)


def test_a_plain_job_has_its_slots_or_waits_and_its_failure_is_final() -> None:
    site = Site(num_slots=2)
    seen: dict[StintId, StintSeen] = {}

    class Plain(SimulatedEngine):
        def look(self, current: Collection[StintId] = ()) -> Observed:  # noqa: ARG002
            return Observed(cluster_id="c", num_slots=2, stints=dict(seen))

        def start(self, stint: Stint) -> None:
            seen[stint.id] = StintSeen(samples_done=0.0, has_trained=True)

    site.engine = Plain(2, USUAL)
    site.governor.submit(PLAIN, 0.0)
    for now_s in (0.0, 1.0, 2.0):
        site.cycle(now_s)
    assert (site.job("p").phase, site.job("p").size) == (Phase.RUNNING, 2)
    seen[StintId("p", 1)] = StintSeen(samples_done=0.0, has_trained=True, outcome=Outcome.FAILED)
    site.cycle(3.0)
    assert site.job("p").ending is Ending.FAILED
    site.governor.release("p", 3.0)
    for now_s in (4.0, 5.0, 6.0):
        site.cycle(now_s)
    seen[StintId("p", 2)] = StintSeen(samples_done=0.0, has_trained=True, outcome=Outcome.FINISHED)
    site.cycle(7.0)
    assert (site.job("p").ending, site.job("p").samples_done) == (Ending.FINISHED, 0.0)


def test_while_the_engine_cant_be_reached_requests_are_written_down_and_nothing_is_decided() -> None:
    class Gone(SimulatedEngine):
        def look(self, current: Collection[StintId] = ()) -> Observed:  # noqa: ARG002
            raise EngineUnreachableError("no answer from 10.0.0.1")

    site = Site()
    site.engine = Gone(4, Costs())
    site.submit("a")
    assert site.cycle(60.0) == "no answer from 10.0.0.1"
    assert site.written[0].jobs["a"].wanted == 0
    assert not site.governor.orders().starts


def test_a_job_that_ended_long_ago_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(governor, "ENDED_KEPT_S", 1000.0)
    site = Site()
    site.submit("a")
    site.go_on(200.0)
    site.submit("b", samples=1e9)
    site.go_on(1000.0)
    assert site.job("a").ending is Ending.FINISHED
    site.go_on(1400.0)
    assert "a" not in site.governor.ended
    assert [records.forgotten for records in site.written if records.forgotten] == [("a",)]


def test_an_order_that_the_cluster_doesnt_take_holds_up_no_others() -> None:
    site = Site(fifo, num_slots=8)
    site.engine = Picky(EngineUnreachableError("a can't be started"))
    site.submit("a")
    site.submit("b")
    site.cycle(0.0)
    assert site.cycle(0.5) == "a can't be started"
    site.go_on(30.0)
    assert site.job("b").phase is Phase.RUNNING
    assert site.job("a").phase is Phase.STARTING
    site.go_on(1000.0)
    assert site.job("a").num_fruitless > 1


def test_a_stint_that_nobody_knows_of_is_stopped() -> None:
    site = Site()
    site.submit("a")
    site.go_on(30.0)
    # Its records are lost, or its start came after it had been given up.
    site.governor = Governor(fifo)
    site.go_on(31.0)
    site.go_on(32.0)
    assert site.engine.look().stints[StintId("a", 1)].outcome is Outcome.STOPPED


def test_what_was_written_down_is_all_that_a_successor_needs() -> None:
    site = Site()
    site.submit("a")
    site.submit("b")
    site.go_on(65.5)
    jobs = {key: job for records in site.written for key, job in records.jobs.items()}
    (cluster_id,) = {each.cluster_id for each in site.written if each.cluster_id}
    before = site.job("a")
    site.governor = Governor(fifo, records=Records(jobs, {}, cluster_id))
    site.go_on(66.0)
    assert site.job("a").stint == before.stint == 1
    site.go_on(400.0)
    assert {job.ending for job in site.governor.ended.values()} == {Ending.FINISHED}
    assert [job.stint for job in site.governor.ended.values()] == [1, 1]


def test_a_cancelled_job_ends_though_its_stint_fails_before_it_is_stopped() -> None:
    site = Site()
    site.submit("a")
    site.go_on(30.0)
    site.governor.cancel("a", site.now_s)
    stint = site.engine.look().stints[StintId("a", 1)]
    failed = StintSeen(samples_done=stint.samples_done, has_trained=True, outcome=Outcome.FAILED)
    seen = Observed(cluster_id="simulated", num_slots=4, stints={StintId("a", 1): failed})
    site.governor.observe(seen, 31.0)
    assert site.job("a").ending is Ending.CANCELLED


def test_a_report_of_more_than_there_is_does_no_harm() -> None:
    site = Site()
    site.submit("a")
    site.go_on(30.0)
    mad = StintSeen(samples_done=1e24, has_trained=True, samples_per_s=1e23)
    seen = Observed(cluster_id="simulated", num_slots=4, stints={StintId("a", 1): mad})
    site.governor.observe(seen, 31.0)
    assert site.job("a").samples_done == 4000.0
    assert decoded(dict(encoded(site.governor.take_changes())))[1] == []


def test_a_start_that_can_never_have_its_slots_is_taken_back_when_slots_are_lost() -> None:
    site = Site(elastic_fifo, num_slots=4, costs=Costs(start_s=10_000.0))
    site.submit("a")
    kind = Kind()
    for size in range(1, 5):
        kind = kind.with_speed(size, StintId("k", size), 10.0 * size)
    wish = site.job("a").wish
    site.governor = Governor(elastic_fifo, records=Records({}, {"k": kind}, None))
    site.governor.submit(wish, 0.0)
    site.go_on(5.0)
    assert (site.job("a").phase, site.job("a").size) == (Phase.STARTING, 4)
    fewer = Observed(cluster_id="simulated", num_slots=2, stints=site.engine.look().stints)
    site.governor.observe(fewer, 6.0)
    site.governor.decide_if_due(7.0)
    assert site.job("a").phase is Phase.STOPPING
    assert site.job("a").wanted == 2


def test_a_stint_that_the_cluster_refuses_for_good_fails_its_job_and_no_other() -> None:
    site = Site(fifo, num_slots=8)
    site.engine = Picky(StintRefusedError("it can't be made a Ray job"))
    site.submit("a")
    site.submit("b")
    site.go_on(200.0)
    assert site.job("b").ending is Ending.FINISHED
    assert site.job("a").ending is Ending.FAILED
    assert site.governor.why_refused(site.job("a")) == "it can't be made a Ray job"


def test_a_start_isnt_given_up_before_this_governor_has_given_it() -> None:
    site = Site()
    site.submit("a")
    site.cycle(0.0)
    site.governor.decide_if_due(0.5)  # written down, but killed before the order
    jobs = {"a": site.job("a")}
    assert jobs["a"].phase is Phase.STARTING
    site.governor = Governor(fifo, records=Records(jobs, {}, "simulated"))
    site.cycle(1000.0)
    site.go_on(1020.0)
    assert (site.job("a").phase, site.job("a").num_failures) == (Phase.RUNNING, 0)


def test_a_name_is_free_again_after_a_cancel_or_for_more_of_what_has_finished() -> None:
    site = Site()
    wish = site.submit("a")
    site.go_on(30.0)
    site.governor.cancel("a", site.now_s)
    site.go_on(31.0)
    assert site.governor.submit(wish, 31.0).ending is None
    site.go_on(200.0)
    assert (site.job("a").ending, site.job("a").stint) == (Ending.FINISHED, 2)
    assert site.governor.submit(wish, 200.0).ending is Ending.FINISHED
    more = replace(wish, samples=8000.0)
    assert site.governor.submit(more, 200.0).ending is None
    with pytest.raises(JobConflictError, match=r"samples 8000.0, now 4000.0"):
        site.governor.submit(wish, 201.0)


def test_only_what_is_held_or_has_failed_is_released() -> None:
    site = Site()
    site.submit("a")
    with pytest.raises(ValueError, match="a is neither held nor has it failed"):
        site.governor.release("a", 0.0)


def test_a_run_that_goes_on_between_its_failures_isnt_made_to_wait_for_longer_each_time() -> None:
    site = Site()
    site.submit("a")
    for number in range(1, 4):
        site.go_on(site.now_s + 40.0)
        stints = site.engine.look().stints
        failed = replace(stints[site.job("a").stint_id], outcome=Outcome.FAILED)
        stints = {**stints, site.job("a").stint_id: failed}
        site.governor.observe(Observed(cluster_id="simulated", num_slots=4, stints=stints), site.now_s)
        assert site.job("a").num_failures == 1, number
        site.engine.stop(site.job("a").stint_id)
