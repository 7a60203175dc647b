"""When to ask next: shared ticks, growing waits, both with a known amount of chance."""

from __future__ import annotations

import itertools
import random

import pytest

from evenload.telemetry_collector.schedule import Ticks, backoff_s


def test_all_who_ask_before_a_tick_are_told_the_same_one() -> None:
    ticks = Ticks(5.0, jitter=0.1, rng=random.Random(1))
    tick_s = ticks.next_after(100.0)
    assert {ticks.next_after(100.0 + ask_s) for ask_s in (0.0, 1.0, 4.0)} == {tick_s}
    assert ticks.next_after(tick_s) > tick_s


def test_distances_between_ticks_vary_by_no_more_than_the_jitter() -> None:
    ticks = Ticks(10.0, jitter=0.2, rng=random.Random(2))
    instants = [0.0]
    for _ in range(200):
        instants.append(ticks.next_after(instants[-1]))
    distances = [b - a for a, b in itertools.pairwise(instants)]
    assert 8.0 <= min(distances) < 8.5
    assert 11.5 < max(distances) <= 12.0


def test_collectors_that_start_together_do_not_stay_together() -> None:
    tenth_ticks = set()
    for seed in range(20):
        ticks = Ticks(5.0, jitter=0.1, rng=random.Random(seed))
        now_s = 0.0
        for _ in range(10):
            now_s = ticks.next_after(now_s)
        tenth_ticks.add(round(now_s, 2))
    assert len(tenth_ticks) > 15


def test_ticks_missed_meanwhile_are_not_made_up_for() -> None:
    ticks = Ticks(1.0, jitter=0.0, rng=random.Random(3))
    assert ticks.next_after(0.0) == 1.0
    assert ticks.next_after(57.3) == 58.3


@pytest.mark.parametrize(
    ("num_failures", "longest_s"), [(1, 0.5), (2, 1.0), (4, 4.0), (6, 15.0), (10_000, 15.0)]
)
def test_the_wait_doubles_up_to_its_bound_and_is_at_least_half_of_it(
    num_failures: int, longest_s: float
) -> None:
    rng = random.Random(4)
    waits = [backoff_s(num_failures, initial_s=0.5, max_s=15.0, rng=rng) for _ in range(200)]
    assert longest_s / 2 <= min(waits) < max(waits) <= longest_s
