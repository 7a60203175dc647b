"""What holds of every policy and of every decision, whatever the jobs are like."""

from __future__ import annotations

import dataclasses

from hypothesis import assume, given
from hypothesis import strategies as st

from evenload.governor.deciding.curves import interpolated
from evenload.governor.deciding.decision import decide
from evenload.governor.deciding.plugins import known_policies, load_policy, nonsense
from evenload.governor.deciding.state import ClusterState, JobView, Policy

SLOTS_MAX = 24
POLICIES = {name: load_policy(name) for name in known_policies()}
BY_TURNS = ("round_robin",)  # wish for something else as time goes on

speeds = st.floats(1e-3, 1e6)
curves = st.builds(
    lambda first, more, among: interpolated({1: first, **more}, among={1, *among}),
    speeds,
    st.dictionaries(st.integers(2, SLOTS_MAX), speeds, max_size=6),
    st.sets(st.integers(2, SLOTS_MAX)),
)


@st.composite
def jobs(draw: st.DrawFn, number: int, num_free: int) -> JobView:
    curve = draw(curves)
    min_size = draw(st.integers(1, curve.best_size))
    asked_size = draw(st.integers(min_size, len(curve.samples_per_s) - 1))
    sizes = [
        size for size in (0, asked_size, *curve.sizes) if size <= num_free and size not in range(1, min_size)
    ]
    return JobView(
        job_id=f"job-{number}",
        submitted_s=float(number),
        asked_size=asked_size,
        min_size=min_size,
        speed=curve,
        samples_left=draw(st.sampled_from([1.0, 50.0, 1e4])) * curve.samples_per_s[1],
        weight=draw(st.sampled_from([1.0, 4.0, 16.0])),
        size=draw(st.sampled_from(sizes)),
        held_s=draw(st.sampled_from([0.0, 20.0, 200.0, 1e4])),
        waiting_s=draw(st.sampled_from([0.0, 100.0, 599.0, 600.0, 5000.0])),
        running_s=draw(st.sampled_from([0.0, 299.0, 300.0, 5000.0])),
        slot_seconds=draw(st.floats(0, 1e6)),
    )


@st.composite
def states(draw: st.DrawFn) -> ClusterState:
    num_slots = num_free = draw(st.integers(1, SLOTS_MAX))
    found: list[JobView] = []
    for number in range(draw(st.integers(0, 8))):
        found.append(draw(jobs(number, num_free)))
        num_free -= found[-1].size
    num_lost = draw(st.integers(0, 3))
    return ClusterState(now_s=1e5, num_slots=max(0, num_slots - num_lost), jobs=tuple(found))


policies = st.sampled_from(sorted(POLICIES)).map(POLICIES.__getitem__)


@given(state=states(), policy=policies)
def test_a_policy_never_answers_nonsense_and_always_the_same(state: ClusterState, policy: Policy) -> None:
    wish = policy(state)
    assert nonsense(state, wish) is None
    assert policy(state) == wish


@given(state=states(), policy=policies, wait_max_s=st.sampled_from([0.0, 600.0, 1e9]))
def test_a_decision_keeps_all_bounds(state: ClusterState, policy: Policy, wait_max_s: float) -> None:
    sizes = decide(state, policy, wait_max_s=wait_max_s)
    assert sizes.keys() == {job.job_id for job in state.jobs}
    assert sum(sizes.values()) <= state.num_slots
    for job in state.jobs:
        size = sizes[job.job_id]
        assert size in (0, job.size, job.asked_size, *job.speed.sizes)
        assert size in (0, job.size) or size >= job.min_size


@given(state=states(), policy=policies)
def test_who_has_waited_too_long_has_a_place_where_there_is_one_for_each(
    state: ClusterState, policy: Policy
) -> None:
    # All are long at their size, and far from their end: nobody stays as it is for another reason.
    jobs = [
        dataclasses.replace(job, held_s=1e4, samples_left=1e12, running_s=job.running_s * (job.size > 0))
        for job in state.jobs
    ]
    owed = [job for job in jobs if job.waiting_s >= 600 and job.running_s < 300]
    assume(sum(job.least_size for job in owed) <= state.num_slots)
    sizes = decide(dataclasses.replace(state, jobs=tuple(jobs)), policy, wait_max_s=600.0)
    assert all(sizes[job.job_id] >= job.min_size for job in owed)


@given(state=states(), name=st.sampled_from(sorted(POLICIES.keys() - set(BY_TURNS))))
def test_what_was_decided_is_decided_again(state: ClusterState, name: str) -> None:
    def settled(sizes: dict[str, int]) -> ClusterState:
        held = [dataclasses.replace(job, size=sizes[job.job_id], held_s=1e4) for job in state.jobs]
        return dataclasses.replace(state, jobs=tuple(held))

    # The first time, some can't be resized yet.
    sizes = decide(settled(decide(state, POLICIES[name])), POLICIES[name])
    assert decide(settled(sizes), POLICIES[name]) == sizes
