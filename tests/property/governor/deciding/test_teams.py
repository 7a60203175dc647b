"""Limits hold whatever a policy wishes, and guarantees are kept by shrinking."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from evenload.governor.deciding.decision import decide
from evenload.governor.deciding.plugins import known_policies, load_policy
from evenload.governor.deciding.state import ClusterState, JobView, PlainView, Policy, Team
from evenload.governor.deciding.teams import keep_guarantees, keep_limits
from evenload.governor.testing import make_job, make_state

NUM_SLOTS = 12
TEAMS = ("a", "b", "c")
POLICIES = [load_policy(name) for name in known_policies()]

teams = st.builds(
    lambda limit, guarantee: Team(
        limit=limit, guarantee=min(guarantee, NUM_SLOTS if limit is None else limit)
    ),
    st.one_of(st.none(), st.integers(0, NUM_SLOTS)),
    st.integers(0, NUM_SLOTS),
)


@st.composite
def states(draw: st.DrawFn) -> ClusterState:
    num_free = NUM_SLOTS
    jobs: list[JobView] = []
    for number in range(draw(st.integers(0, 7))):
        min_size = draw(st.integers(1, 3))
        size = draw(st.sampled_from([size for size in (0, *range(min_size, 9)) if size <= num_free]))
        num_free -= size
        jobs.append(
            make_job(
                f"job-{number}",
                submitted_s=float(number),
                team=draw(st.sampled_from(TEAMS)),
                min_size=min_size,
                asked_size=draw(st.integers(min_size, 8)),
                size=size,
                held_s=draw(st.sampled_from([0.0, 1e4])),
                waiting_s=draw(st.sampled_from([0.0, 600.0])),
                running_s=draw(st.sampled_from([10.0, 1e4])) if size else 0.0,
                samples_left=draw(st.sampled_from([100.0, 1e6])),
            )
        )
    plain = [
        PlainView(job_id=f"plain-{number}", submitted_s=0.0, asked_size=2, team=draw(st.sampled_from(TEAMS)))
        for number in range(draw(st.integers(0, 2)))
    ]
    return ClusterState(
        now_s=1e5,
        num_slots=NUM_SLOTS,
        jobs=tuple(jobs),
        plain=tuple(plain),
        teams={name: draw(teams) for name in TEAMS if draw(st.booleans())},
    )


@given(state=states(), policy=st.sampled_from(POLICIES))
def test_no_team_has_more_than_its_limit(state: ClusterState, policy: Policy) -> None:
    sizes = decide(state, policy, wait_max_s=600.0)
    assert sum(sizes.values()) <= NUM_SLOTS
    used: Counter[str] = Counter()
    for job in state.all_jobs:
        used[job.team] += sizes[job.job_id]
    for name, team in state.teams.items():
        assert team.limit is None or used[name] <= team.limit
    for job in state.jobs:
        size = sizes[job.job_id]
        assert size == 0 or size >= job.min_size


@given(state=states())
def test_who_waits_within_a_guarantee_waits_only_where_nobody_over_its_own_can_shrink(
    state: ClusterState,
) -> None:
    sizes = keep_guarantees(state, {job.job_id: job.size for job in state.jobs}, {})
    assert sum(sizes.values()) <= NUM_SLOTS
    used: Counter[str] = Counter()
    for job in state.jobs:
        used[job.team] += sizes[job.job_id]
        assert sizes[job.job_id] >= min(job.size, job.least_size)  # nobody was stopped
    guarantees = {name: team.guarantee for name, team in state.teams.items()}
    spare = sum(
        min(
            max(0, used[name] - guarantees.get(name, 0)),
            sum(max(0, sizes[job.job_id] - job.least_size) for job in state.jobs if job.team == name),
        )
        for name in TEAMS
    )
    for job in state.jobs:
        if not sizes[job.job_id] and used[job.team] + job.least_size <= guarantees.get(job.team, 0):
            assert NUM_SLOTS - sum(sizes.values()) + spare < job.least_size


def test_a_team_over_its_limit_shrinks_before_one_of_its_jobs_is_stopped() -> None:
    jobs = (make_job("first", team="a", size=4), make_job("second", team="a", size=4, submitted_s=1.0))
    state = ClusterState(now_s=0.0, num_slots=12, jobs=jobs, teams={"a": Team(limit=5)})
    sizes = keep_limits(state, {"first": 4, "second": 4}, {})
    assert sum(sizes.values()) == 5
    assert min(sizes.values()) >= 1
    assert keep_limits(state, {"first": 4, "second": 4}, {"a": 5}) == {"first": 0, "second": 0}


def test_lent_slots_come_back_from_the_team_that_is_furthest_over() -> None:
    little = make_job("little", team="b", size=3)
    much = make_job("much", team="c", size=8)
    own = make_job("own", team="a", submitted_s=2.0, min_size=2, asked_size=2)
    state = make_state(little, much, own, num_slots=11)
    state = ClusterState(now_s=0.0, num_slots=11, jobs=state.jobs, teams={"a": Team(guarantee=4)})
    notes: dict[str, str] = {}
    sizes = keep_guarantees(state, {"little": 3, "much": 8, "own": 0}, {}, notes=notes)
    assert sizes == {"little": 3, "much": 6, "own": 2}
    assert notes == {"own": "starts by the guarantee of team 'a'"}
