"""However many ask, a service is asked about as often as it can answer."""

from __future__ import annotations

import pytest

from evenload.route_service.pace import Pace


def asked(pace: Pace, num_asking: int, *, for_s: float, since_s: float = 0.0) -> list[float]:
    """How often a second it is asked, by so many who do as they are told; from one change to the next."""
    rates, now_s, left = [], since_s, 0.0
    while now_s < since_s + for_s:
        pace.look(now_s)
        rate = num_asking / pace.poll_s
        rates.append(rate)
        left += rate * 0.5
        while left >= 1:
            pace.count()
            left -= 1
        now_s += 0.5
    return rates


@pytest.mark.parametrize(
    ("num_asking", "poll_s"), [(0, 1), (400, 1), (1000, 2), (1900, 4), (4000, 8), (10**5, 8)]
)
def test_the_more_ask_the_less_often_each(num_asking: int, poll_s: float) -> None:
    pace = Pace(500)
    rates = asked(pace, num_asking, for_s=60)
    assert pace.poll_s == poll_s
    assert len(set(rates[-40:])) == 1  # it has settled
    assert rates[-1] <= 500 or poll_s == 8


def test_it_is_asked_more_often_when_most_have_gone() -> None:
    pace = Pace(500)
    asked(pace, 4000, for_s=60)
    asked(pace, 100, for_s=120, since_s=60)
    assert pace.poll_s == 1
