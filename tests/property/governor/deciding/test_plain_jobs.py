"""Plain jobs: one size or none, within their part, and those that are to stay stay."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from evenload.governor.deciding.decision import decide
from evenload.governor.deciding.plain_jobs import place_plain
from evenload.governor.deciding.policies.elastic import elastic_fifo
from evenload.governor.deciding.state import ClusterState, PlainView
from evenload.governor.testing import make_curve, make_job


@st.composite
def states(draw: st.DrawFn) -> ClusterState:
    num_slots = num_free = draw(st.integers(0, 16))
    plain = []
    for number in range(draw(st.integers(0, 6))):
        asked_size = draw(st.integers(1, 8))
        size = asked_size if asked_size <= num_free and draw(st.booleans()) else 0
        num_free -= size
        plain.append(
            PlainView(
                job_id=f"plain-{number}",
                submitted_s=float(number),
                asked_size=asked_size,
                weight=draw(st.sampled_from([1.0, 4.0, 16.0])),
                size=size,
                is_kept=draw(st.booleans()),
                waiting_s=draw(st.sampled_from([0.0, 599.0, 600.0])),
                running_s=draw(st.sampled_from([0.0, 299.0, 300.0, 1e5])),
                slot_seconds=draw(st.sampled_from([0.0, 1e4, 1e6])),
            )
        )
    runs = [make_job(f"run-{n}", submitted_s=float(n)) for n in range(draw(st.integers(0, 3)))]
    return ClusterState(now_s=0.0, num_slots=num_slots, jobs=tuple(runs), plain=tuple(plain))


@given(state=states())
def test_each_has_its_size_or_none_and_all_together_no_more_than_there_is(state: ClusterState) -> None:
    sizes = place_plain(state, wait_max_s=600.0)
    assert all(sizes[job.job_id] in (0, job.asked_size) for job in state.plain)
    assert sum(sizes.values()) <= state.num_slots
    decided = decide(state, elastic_fifo, wait_max_s=600.0)
    assert all(decided[job.job_id] in (sizes[job.job_id], job.asked_size) for job in state.plain)
    assert sum(decided.values()) <= state.num_slots


@given(state=states())
def test_one_that_is_to_be_kept_stays_whatever_comes(state: ClusterState) -> None:
    sizes = place_plain(state, wait_max_s=0.0)
    assert all(sizes[job.job_id] == job.size for job in state.plain if job.size and job.is_kept)


@given(state=states())
def test_who_has_waited_too_long_goes_before_those_that_had_their_turn(state: ClusterState) -> None:
    sizes = place_plain(state, wait_max_s=600.0)
    num_firm = sum(
        job.asked_size
        for job in state.plain
        if (job.size and (job.is_kept or job.running_s < 300)) or (not job.size and job.waiting_s >= 600)
    )
    owed = [job for job in state.plain if not job.size and job.waiting_s >= 600]
    assert num_firm > state.num_slots or all(sizes[job.job_id] for job in owed)


def test_beside_runs_they_have_their_part_by_weight_and_alone_all() -> None:
    plain = tuple(PlainView(job_id=f"{n}", submitted_s=float(n), asked_size=2) for n in range(4))
    runs = (make_job("r", weight=4.0),)
    beside = ClusterState(now_s=0.0, num_slots=8, jobs=runs, plain=plain)
    assert place_plain(beside, wait_max_s=600.0) == {"0": 2, "1": 2, "2": 0, "3": 0}
    # Three runs that can't have more than a slot each leave five.
    one = make_curve(lambda size: 1.0 * size, 1)
    small = tuple(make_job(f"r{n}", speed=one, asked_size=1) for n in range(3))
    left = ClusterState(now_s=0.0, num_slots=9, jobs=small, plain=plain)
    decided = decide(left, elastic_fifo, wait_max_s=600.0)
    assert sum(decided[job.job_id] for job in plain) == 6
    alone = ClusterState(now_s=0.0, num_slots=8, jobs=(), plain=plain)
    assert sum(place_plain(alone, wait_max_s=600.0).values()) == 8
