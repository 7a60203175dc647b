"""What drivers say, and what speed is made of it."""

from __future__ import annotations

from evenload.governor.governing.engine import StintId
from evenload.governor.on_ray.reports import Progress, Reports

STINT = StintId("a", 1)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_speed_is_measured_without_the_first_twenty_seconds_over_at_least_ten() -> None:
    clock = Clock()
    reports = Reports(clock)
    assert reports.progress(STINT) is None
    heard = []
    for clock.now_s, samples_done in ((0, 0), (10, 10), (20, 100), (25, 200), (30, 300), (40, 400)):
        reports.hear(STINT, samples_done)
        heard.append(reports.progress(STINT))
    assert heard[:4] == [Progress(each, None) for each in (0, 10, 100, 200)]
    assert heard[4:] == [Progress(300, 20.0), Progress(400, 15.0)]


def test_after_a_crash_it_is_measured_anew() -> None:
    clock = Clock()
    reports = Reports(clock)
    for clock.now_s, samples_done in ((0, 0), (20, 200), (40, 400), (45, 300)):
        reports.hear(STINT, samples_done)
    assert reports.progress(STINT) == Progress(300, None)


def test_one_that_stands_still_has_no_speed_and_one_that_ended_is_forgotten() -> None:
    clock = Clock()
    reports = Reports(clock)
    for clock.now_s in (0, 20, 40):
        reports.hear(STINT, 100)
    assert reports.progress(STINT) == Progress(100, None)
    reports.forget(STINT)
    assert reports.progress(STINT) is None
