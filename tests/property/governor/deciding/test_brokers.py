"""The invariants of brokers.py, and what a decision makes of budgets."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.governor.deciding.brokers import TOLERANCE, loads, spare_brokers
from evenload.governor.deciding.decision import decide
from evenload.governor.deciding.plugins import load_policy
from evenload.governor.deciding.policies.elastic import elastic_fifo
from evenload.governor.deciding.stages import ends_soon
from evenload.governor.deciding.state import ClusterState, JobView
from evenload.governor.testing import make_curve, make_job, make_state

BROKERS = (1, 2, 3)


@st.composite
def jobs(draw: st.DrawFn, number: int) -> JobView:
    power = draw(st.sampled_from([0.3, 0.7, 1.0]))
    return make_job(
        f"job-{number}",
        submitted_s=float(number),
        speed=make_curve(lambda size: 100.0 * size**power, 8),
        asked_size=draw(st.integers(1, 8)),
        samples_left=draw(st.sampled_from([1e4, 1e6])),
        size=draw(st.integers(0, 8)),
        held_s=1e4,
        reads=draw(st.dictionaries(st.sampled_from(BROKERS), st.floats(0.0, 1e4), max_size=3)),
    )


@st.composite
def states(draw: st.DrawFn) -> ClusterState:
    found = [draw(jobs(number)) for number in range(draw(st.integers(0, 5)))]
    budgets = draw(st.dictionaries(st.sampled_from(BROKERS), st.floats(1.0, 1e7), max_size=3))
    return dataclasses.replace(make_state(*found, num_slots=40), read_budgets=budgets)


@given(states(), st.data())
def test_brokers_keep_their_budgets_as_far_as_runs_can_shrink(
    state: ClusterState, data: st.DataObject
) -> None:
    sizes = {job.job_id: data.draw(st.integers(0, 8)) for job in state.jobs}
    new, most = spare_brokers(state, sizes, room=lambda _: {})
    assert sum(new.values()) <= sum(sizes.values())
    before, after = loads(state, sizes), loads(state, new)
    for broker, budget in state.read_budgets.items():
        if after[broker] > TOLERANCE * budget:
            assert_cant_shrink(state, new, broker)
            assert after[broker] <= before[broker] * (1 + 1e-9)
    for job_id, size in new.items():
        assert (size > 0) or not sizes[job_id]
        assert (size < sizes[job_id]) == (job_id in most)
    assert spare_brokers(state, new, room=lambda _: {})[0] == new


def assert_cant_shrink(state: ClusterState, sizes: Mapping[str, int], broker: int) -> None:
    """All that read there have their least size, or are about to end."""
    for job in state.jobs:
        if job.reads.get(broker) and not (sizes[job.job_id] == job.size and ends_soon(job)):
            assert sizes[job.job_id] <= job.least_size


@given(states(), st.sampled_from(["elastic_fifo", "las", "round_robin", "smartfill", "srtf"]))
def test_a_decision_keeps_budgets_whatever_the_policy_wishes(state: ClusterState, name: str) -> None:
    sizes = decide(state, load_policy(name))
    for broker, load in loads(state, sizes).items():
        if load > TOLERANCE * state.read_budgets.get(broker, math.inf):
            assert_cant_shrink(state, sizes, broker)


@given(states())
def test_what_was_decided_is_decided_again(state: ClusterState) -> None:
    def settled(sizes: dict[str, int]) -> ClusterState:
        held = [dataclasses.replace(job, size=sizes[job.job_id]) for job in state.jobs]
        return dataclasses.replace(state, jobs=tuple(held))

    sizes = decide(settled(decide(state, elastic_fifo)), elastic_fifo)
    assert decide(settled(sizes), elastic_fifo) == sizes


def test_who_loses_least_by_it_shrinks_and_others_get_the_slots() -> None:
    flat = make_curve(lambda size: 100.0 * size**0.3, 8)
    steep, tired, elsewhere = (
        make_job("steep", reads={1: 1000.0}, size=4, held_s=1e4),
        make_job("tired", reads={1: 1000.0}, speed=flat, size=4, held_s=1e4),
        make_job("elsewhere", reads={2: 1000.0}, size=4, held_s=1e4),
    )
    state = dataclasses.replace(
        make_state(steep, tired, elsewhere, num_slots=12), read_budgets={1: 510_000.0, 2: 1e9}
    )
    notes: dict[str, str] = {}
    new, most = spare_brokers(state, {"steep": 4, "tired": 4, "elsewhere": 4}, room=lambda _: {}, notes=notes)
    assert new == {"steep": 4, "tired": 2, "elsewhere": 6}
    assert most == {"tired": 2}
    assert notes["tired"] == "has 2, as broker 1 can't give it more data"


@pytest.mark.parametrize(("budget", "size"), [(1e9, 8), (400_000.0, 4), (1.0, 1)])
def test_a_decision_keeps_a_run_at_what_its_broker_can_give(budget: float, size: int) -> None:
    run = make_job("run", reads={1: 1000.0}, size=8, held_s=1e4)
    state = dataclasses.replace(make_state(run, num_slots=8), read_budgets={1: budget})
    assert decide(state, elastic_fifo) == {"run": size}
