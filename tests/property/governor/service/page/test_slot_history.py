"""The invariants of slot_history.py."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from evenload.governor.service.page.slot_history import SlotHistory, slot_seconds

SPAN_S, STEP_S = 60.0, 2.0
HELD = st.dictionaries(st.sampled_from("abc"), st.integers(0, 3), max_size=3)


@given(st.lists(st.tuples(st.floats(0.0, 9.0), HELD), min_size=1, max_size=120))
def test_it_says_what_was_held_and_stays_small(events: list[tuple[float, dict[str, int]]]) -> None:
    history = SlotHistory(span_s=SPAN_S, step_s=STEP_S)
    now_s, told = 0.0, []
    for gap_s, held in events:
        now_s += gap_s
        told.append((now_s, {job_id: size for job_id, size in held.items() if size}))
        history.add(now_s, 8, held)
    points = history.read()
    assert len(points) <= SPAN_S / STEP_S + 2
    assert [point.at_s for point in points] == sorted({point.at_s for point in points})
    assert points[-1].by_job == told[-1][1]
    # What was told last before the end of a step holds from then on, until something else is told.
    for at_s, held in told:
        later = [told_s for told_s, _ in told if told_s > at_s]
        is_last_of_step = not later or later[0] // STEP_S > at_s // STEP_S
        if is_last_of_step and points[0].at_s <= at_s and [s for s, _ in told].count(at_s) == 1:
            (*_, then) = (point for point in points if point.at_s <= at_s)
            assert then.by_job == held
    used = slot_seconds(points, now_s)
    assert sum(used.values()) <= 9 * (now_s - points[0].at_s) + 1e-6
