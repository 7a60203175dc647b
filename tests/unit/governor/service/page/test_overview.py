"""What the governor's page shows of a governor, and in which sentences."""

from __future__ import annotations

import json
from typing import Any

import pytest

from evenload.governor.deciding.policies.elastic import elastic_fifo
from evenload.governor.deciding.state import Team
from evenload.governor.governing.cycle import run_cycle
from evenload.governor.governing.engine import Outcome, StintId, StintSeen
from evenload.governor.governing.governor import Governor
from evenload.governor.governing.jobs import Wish
from evenload.governor.on_ray.gpu_pages import Gpu
from evenload.governor.service.page.findings import GpuFacts, Troubles
from evenload.governor.service.page.overview import (
    DRAWN_JOBS_MAX,
    JOBS_MAX,
    Overview,
    PolicyOverview,
    make_overview,
    without_governor,
)
from evenload.governor.service.page.slot_history import SlotHistory
from evenload.governor.testing import MemoryJournal, StillEngine

POLICY = PolicyOverview(name="elastic_fifo", fault=None, known=("elastic_fifo", "fifo"))
NO_TROUBLES = Troubles()


class World:
    """A governor at a time that a test sets."""

    def __init__(self, num_slots: int = 4) -> None:
        self.engine = StillEngine(num_slots)
        self.governor = Governor(elastic_fifo, policy_name="elastic_fifo", wait_max_s=600.0)
        self.history, self.journal = SlotHistory(), MemoryJournal()
        self.now_s = 1000.0

    def submit(self, job_id: str, **fields: Any) -> None:
        told: dict[str, Any] = {"kind": "k", "samples": 1000.0, "asked_size": 2, "max_size": 2} | fields
        self.governor.submit(Wish(job_id=job_id, **{"min_size": told["asked_size"]} | told), self.now_s)

    def pass_by(self, seconds: float) -> None:
        self.now_s += seconds
        for _ in range(3):
            run_cycle(self.governor, self.journal, self.engine, self.now_s)
        held = {job_id: job.size for job_id, job in self.governor.jobs.items()}
        self.history.add(self.now_s, self.governor.num_slots, held)

    def overview(self, troubles: Troubles = NO_TROUBLES) -> Overview:
        overview = make_overview(
            self.governor, self.now_s, history=self.history, policy=POLICY, troubles=troubles
        )
        json.loads(overview.model_dump_json())  # as it is sent: it has no infinities
        return overview

    def sentences(self, troubles: Troubles = NO_TROUBLES) -> list[tuple[str, str]]:
        return [(finding.severity, finding.text) for finding in self.overview(troubles).findings]


def test_those_with_slots_come_first_and_each_says_what_it_needs_to() -> None:
    world = World()
    world.submit("first", asked_size=1, max_size=1)
    world.now_s += 1
    world.submit("wide", min_size=4, asked_size=4, max_size=4)
    world.now_s += 1
    world.submit("third", asked_size=1, max_size=1)
    world.pass_by(10)
    world.pass_by(20)
    first, third, wide = world.overview().jobs
    assert (first.job, third.job, wide.job) == ("first", "third", "wide")
    assert (first.state, first.size, first.done, first.left_s, first.since_s) == ("running", 1, 0.0, None, 20)
    assert (wide.state, wide.since_s) == ("waiting", 31)
    assert wide.reason == "waits: 2 slots free, needs 4; its turn at the latest in 569 s"
    world.now_s += 600
    assert world.overview().jobs[-1].reason == "waits: 2 slots free, needs 4; its turn is due"


def test_what_is_left_is_known_once_its_speed_is() -> None:
    world = World()
    world.submit("a")
    world.pass_by(10)
    world.engine._stints[StintId("a", 1)] = StintSeen(
        samples_done=500.0, has_trained=True, samples_per_s=50.0
    )
    world.pass_by(10)
    overview = world.overview()
    (job,), (kind,) = overview.jobs, overview.kinds
    assert (job.done, job.left_s) == (0.5, 10.0)
    assert (kind.jobs, kind.measured, kind.expected) == (("a",), {2: 50.0}, (0.0, 25.0, 50.0))


def test_the_last_hour_and_its_decisions_are_told() -> None:
    world = World()
    world.submit("a")
    world.pass_by(10)
    world.submit("b")
    world.pass_by(10)
    overview = world.overview()
    assert overview.history is not None
    assert overview.history.jobs == ("a", "b")
    assert overview.history.from_ago_s == (10.0, 0.0)
    assert overview.history.sizes == ((2, 0, 0), (2, 2, 0))
    newest, before = overview.decisions
    assert (newest.changes, newest.ago_s) == ({"b": (0, 2)}, 0.0)
    assert (before.changes, before.policy, before.num_changes) == ({"a": (0, 2)}, "elastic_fifo", 1)


def test_all_is_well_says_who_has_what() -> None:
    world = World()
    world.pass_by(1)
    assert world.sentences() == [("fine", "All is well: no job is in the queue, and 4 slots are free.")]
    for name in "abc":
        world.submit(name)
    world.pass_by(10)
    assert world.sentences() == [("fine", "All is well: 2 jobs have 4 of 4 slots, 1 waits.")]


def test_troubles_are_said_the_most_urgent_first() -> None:
    world = World()
    world.submit("wide", min_size=5, asked_size=5, max_size=5)
    world.submit("broken", samples=None, min_size=1, asked_size=1, max_size=1)
    world.submit("held")
    world.pass_by(10)
    world.governor.hold("held", world.now_s)
    world.engine._stints[StintId("broken", 1)] = StintSeen(
        samples_done=0.0, has_trained=False, outcome=Outcome.FAILED
    )
    world.pass_by(10)
    troubles = Troubles("the Ray cluster can't be asked", "p raised; elastic_fifo decides.", 2)
    assert world.sentences(troubles) == [
        ("critical", "Nothing is decided at present: the Ray cluster can't be asked. Runs train on."),
        ("warning", "The policy was put aside: p raised; elastic_fifo decides."),
        ("warning", "2 records of the journal can't be understood; the governor's log names them."),
        ("warning", "broken failed. `evenload jobs log` says why, `release` starts again."),
        ("warning", "wide needs more than the 4 slots that there are."),
        ("notice", "held is held until released."),
    ]
    world.now_s += 90_000
    assert "broken" not in str(world.sentences())


@pytest.mark.parametrize(
    ("num_jobs", "named"), [(2, "j00 and j01 need"), (5, "j00, j01, j02 and 2 more need")]
)
def test_many_jobs_with_one_trouble_are_one_sentence(num_jobs: int, named: str) -> None:
    world = World()
    for number in range(num_jobs):
        world.submit(f"j{number:02}", min_size=9, asked_size=9, max_size=9)
    world.pass_by(10)
    assert world.sentences() == [("warning", f"{named} more than the 4 slots that there are.")]


def test_a_governor_that_isnt_there_is_said() -> None:
    overview = without_governor(POLICY, Troubles("the journal isn't read yet"))
    assert overview.is_stale
    assert [finding.text for finding in overview.findings] == [
        "Nothing is decided at present: the journal isn't read yet. Runs train on."
    ]
    assert without_governor(POLICY, Troubles()).findings[0].text == "The governor begins."


def test_many_jobs_are_bounded_and_counted() -> None:
    world = World(num_slots=300)
    for number in range(300):
        team = f"t{number}"
        world.submit(f"j{number:03}", asked_size=1, max_size=1, kind=team, team=team)
    world.governor.set_team("t0", Team(limit=0), world.now_s)
    world.pass_by(10)
    overview = world.overview()
    assert (len(overview.jobs), overview.num_jobs) == (JOBS_MAX, 300)
    assert overview.history is not None
    assert len(overview.history.jobs) == DRAWN_JOBS_MAX
    assert overview.history.sizes[0][-1] == 299 - DRAWN_JOBS_MAX
    assert len(overview.model_dump_json()) < 200_000


def test_gpus_that_are_held_for_nothing_or_fail_are_said() -> None:
    world = World()
    world.submit("idle")
    world.submit("busy")
    world.pass_by(10)
    gpus = GpuFacts(
        {"idle": 0.03, "busy": 0.9, "gone": 0.0},
        {Gpu("node-2", "3"): 79, Gpu("node-2", "1"): 48, Gpu("node-3", "0"): 31},
        {"http://node-1:9400/metrics": "it doesn't answer"},
    )
    assert world.sentences(Troubles(gpus=gpus)) == [
        (
            "warning",
            "node-2 had errors of hardware (GPU 1 XID 48, GPU 3 XID 79). `ray drain-node` takes a machine "
            "out of use.",
        ),
        ("warning", "idle holds 2 GPUs, 3% busy for ten minutes."),
        (
            "notice",
            "Not all GPUs are known: http://node-1:9400/metrics can't be read (it doesn't answer).",
        ),
    ]
    assert [job.busy for job in world.overview(Troubles(gpus=gpus)).jobs] == [0.9, 0.03]
