"""The benchmark's yardstick, against answers that can be found by hand or by trying everything."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from benchmarks.optimum import best_utilisation


@pytest.mark.parametrize(
    ("other", "capacity", "sets", "payload", "best"),
    [
        ((0, 0, 0), (100, 100, 100), [(1,), (2,), (3,)], 90, (0.3, 0.3, 0.3)),
        ((0, 0, 0), (200, 200, 100), [(1,), (2,), (3,)], 100, (0.2, 0.2, 0.2)),
        ((70, 0, 0), (100, 100, 100), [(1,), (2,), (3,)], 60, (0.7, 0.3, 0.3)),
        # A broker without a partition keeps what it has; one with all of them gets everything.
        ((0, 50, 0), (100, 100, 100), [(1,)], 60, (0.6, 0.5, 0.0)),
        # As many copies as brokers: nothing to choose.
        ((10, 0, 0), (100, 100, 100), [(1, 2, 3), (3, 1, 2)], 20, (0.3, 0.2, 0.2)),
        # Min-max alone would leave brokers 3 and 4 anywhere below broker 1's 0.9.
        ((90, 0, 0, 0), (100, 100, 100, 100), [(2,), (3,), (4,)], 90, (0.9, 0.3, 0.3, 0.3)),
        # 2 and 4 get all of it between them, as do 1 and 3: what 2 held before is made up for by 4 alone.
        ((0, 20, 0, 0), (100, 100, 100, 100), [(1, 2), (2, 3), (3, 4)], 60, (0.2, 0.4, 0.4, 0.4)),
    ],
)
def test_known_answers(
    other: tuple[int, ...],
    capacity: tuple[int, ...],
    sets: list[tuple[int, ...]],
    payload: int,
    best: tuple[float, ...],
) -> None:
    found = best_utilisation(
        other_bytes=dict(enumerate(other, 1)),
        capacity_bytes=dict(enumerate(capacity, 1)),
        replica_sets=sets,
        payload_bytes=payload,
    )
    assert list(found.values()) == pytest.approx(best, abs=2e-4)


def test_what_is_held_leaves_the_solver_room_for_the_rest() -> None:
    draw = np.random.default_rng(192)  # of 400 of this kind, the one that was called infeasible
    num_brokers, copies = int(draw.integers(3, 12)), int(draw.integers(1, 4))
    sets = [
        tuple(draw.choice(num_brokers, min(copies, num_brokers), replace=False).tolist())
        for _ in range(int(draw.integers(2, 4 * num_brokers)))
    ]
    capacity = draw.choice([1.0, 2.0, 4.0], num_brokers) * 100 * 2**20
    held = draw.uniform(0, 0.9, num_brokers) * capacity
    payload = float(draw.uniform(0.01, 0.9)) * (capacity - held).sum() / copies
    found = best_utilisation(
        other_bytes=dict(enumerate(held.tolist())),
        capacity_bytes=dict(enumerate(capacity.tolist())),
        replica_sets=sets,
        payload_bytes=payload,
    )
    stored = sum(found[b] * capacity[b] - held[b] for b in found)
    assert stored == pytest.approx(copies * payload, rel=1e-4)


@pytest.mark.parametrize("seed", range(6))
def test_no_other_shares_do_better(seed: int) -> None:
    held = [(17 * seed + 31 * broker) % 60 for broker in range(4)]
    capacity = [100 + (41 * seed + 23 * broker) % 100 for broker in range(4)]
    sets = [[(1, 2), (2, 3), (1, 4)], [(1, 3), (2, 4), (3, 4)], [(1,), (2, 3), (4, 1)]][seed % 3]
    found = best_utilisation(
        other_bytes=dict(enumerate(held, 1)),
        capacity_bytes=dict(enumerate(capacity, 1)),
        replica_sets=sets,
        payload_bytes=80,
    )
    best = sorted(found.values(), reverse=True)
    steps = 50
    for first, second in itertools.product(range(steps + 1), repeat=2):
        if first + second > steps:
            continue
        shares = [first / steps, second / steps, 1 - (first + second) / steps]
        levels = [
            (
                held[broker - 1]
                + sum(80 * share for share, one in zip(shares, sets, strict=True) if broker in one)
            )
            / capacity[broker - 1]
            for broker in range(1, 5)
        ]
        for place, (tried, highest) in enumerate(zip(sorted(levels, reverse=True), best, strict=True)):
            assert tried >= highest - 2e-4, (shares, place, levels, best)
            if tried > highest + 1e-9:
                break
