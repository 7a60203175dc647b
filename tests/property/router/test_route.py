"""What a route hands out, followed call by call for any shares and any sizes of records."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload.router.route import Route

BATCH = 1000

shares_of_partitions = st.dictionaries(
    st.integers(0, 40), st.one_of(st.just(1.0), st.floats(1e-6, 1.0)), min_size=1, max_size=12
)
sizes_of_records = st.one_of(
    st.just([10]),
    st.just([BATCH]),
    st.lists(st.integers(0, 300), min_size=1, max_size=20).filter(any),
    st.lists(st.integers(1, 9 * BATCH), min_size=1, max_size=20),
)


@settings(max_examples=300)
@given(shares_of_partitions, sizes_of_records, st.integers(0, 10))
def test_bytes_follow_the_shares_to_within_a_batch_and_a_record(
    shares: dict[int, float], sizes: list[int], skip_turns: int
) -> None:
    route = Route(shares, batch_bytes=BATCH, skip_turns=skip_turns)
    bound = 1.5 * (BATCH + max(sizes))
    if skip_turns:
        bound += BATCH  # it begins as if the turns left out had been taken
    sent = dict.fromkeys(route.shares, 0)
    total = 0
    for call in range(600):
        size = sizes[call % len(sizes)]
        sent[route.partition_for(size)] += size
        total += size
        for partition, share in route.shares.items():
            assert abs(sent[partition] - share * total) <= bound


@settings(max_examples=100)
@given(shares_of_partitions, st.integers(1, BATCH // 4), st.integers(0, 2**32))
def test_consecutive_records_stay_on_a_partition_for_a_batch(
    shares: dict[int, float], largest: int, seed: int
) -> None:
    route = Route(shares, batch_bytes=BATCH)
    chance = random.Random(seed)
    turns: list[tuple[int, int]] = []
    for _ in range(2000):
        size = chance.randint(0, largest)
        partition = route.partition_for(size)
        if turns and turns[-1][0] == partition:
            turns[-1] = (partition, turns[-1][1] + size)
        else:
            turns.append((partition, size))
    assert all(size >= BATCH for _, size in turns[:-1])


@given(st.dictionaries(st.integers(0, 40), st.one_of(st.just(0.0), st.floats(1e-9, 1e9)), min_size=1))
def test_shares_are_normalised_and_partitions_without_one_left_out(shares: dict[int, float]) -> None:
    if not any(shares.values()):
        with pytest.raises(ValueError, match="not all 0"):
            Route(shares)
        return
    route = Route(shares)
    assert math.fsum(route.shares.values()) == pytest.approx(1.0)
    assert set(route.shares) == {partition for partition, share in shares.items() if share > 0}
    assert {route.partition_for(300 * 1024) for _ in range(100)} <= set(route.shares)


@settings(max_examples=100)
@given(shares_of_partitions, st.integers(1, 9), st.integers(1, BATCH))
def test_routes_that_take_over_often_still_follow_the_shares(
    shares: dict[int, float], calls: int, size: int
) -> None:
    route = Route(shares, batch_bytes=BATCH)
    sent = dict.fromkeys(route.shares, 0)
    total = 0
    for _ in range(800 // calls):
        for _ in range(calls):
            sent[route.partition_for(size)] += size
            total += size
        route = Route(shares, batch_bytes=BATCH, previous=route)
    for partition, share in route.shares.items():
        assert abs(sent[partition] - share * total) <= 3 * (BATCH + size)
