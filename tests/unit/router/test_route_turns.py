from __future__ import annotations

import itertools
import math
import threading
import timeit
from collections import Counter

import pytest

from evenload.router.route import Route

BATCH = 1000


def follow(route: Route, size: int, calls: int) -> list[int]:
    return [route.partition_for(size) for _ in range(calls)]


def test_equal_shares_take_turns() -> None:
    assert follow(Route({0: 1, 5: 1, 7: 1}, batch_bytes=BATCH), BATCH, 6) == [0, 5, 7, 0, 5, 7]


def test_a_large_share_is_spread_between_the_small_ones() -> None:
    turns = follow(Route({0: 3, 1: 1, 2: 1}, batch_bytes=BATCH), BATCH, 10)
    assert Counter(turns) == {0: 6, 1: 2, 2: 2}
    assert max(len(list(run)) for _, run in itertools.groupby(turns)) <= 2


def test_a_record_goes_where_the_turn_is_and_the_next_one_moves_on() -> None:
    route = Route({0: 1, 1: 1}, batch_bytes=BATCH)
    assert follow(route, 400, 6) == [0, 0, 0, 1, 1, 1]


def test_after_a_giant_record_its_partition_waits_until_the_others_have_caught_up() -> None:
    route = Route({0: 1, 1: 1}, batch_bytes=BATCH)
    assert route.partition_for(20 * BATCH) == 0
    assert follow(route, BATCH, 20) == [1] * 20
    assert 0 in follow(route, BATCH, 2)


def test_tiny_shares_that_come_due_together_do_not_hold_up_the_large_one() -> None:
    shares = {0: 1.0, **dict.fromkeys(range(1, 101), 1e-4)}
    route = Route(shares, batch_bytes=BATCH)
    large = total = 0
    for _ in range(20_000):
        total += 6 * BATCH
        large += 6 * BATCH if route.partition_for(6 * BATCH) == 0 else 0
        assert abs(large - route.shares[0] * total) < 20 * BATCH


def test_records_without_bytes_stay_where_they_are() -> None:
    route = Route({0: 1, 1: 1}, batch_bytes=BATCH)
    assert len(set(follow(route, 0, 50))) == 1


def test_one_partition_gets_everything() -> None:
    assert set(follow(Route({3: 0.2}), 10**9, 20)) == {3}


def test_skipped_turns_begin_elsewhere() -> None:
    begins = {Route({0: 1, 1: 1, 2: 1}, skip_turns=skip).partition_for(1) for skip in range(3)}
    assert begins == {0, 1, 2}


def test_a_route_that_takes_over_goes_on_where_the_other_stood() -> None:
    before = Route({0: 1, 1: 1, 2: 1, 3: 1}, batch_bytes=BATCH)
    assert follow(before, BATCH, 2) == [0, 1]
    after = Route({0: 1, 1: 1, 2: 1, 3: 1}, batch_bytes=BATCH, previous=before)
    assert set(follow(after, BATCH, 2)) == {2, 3}


def test_a_route_that_takes_over_owes_new_partitions_nothing() -> None:
    before = Route({0: 1, 1: 1}, batch_bytes=BATCH)
    follow(before, BATCH, 99)
    after = Route({1: 1, 2: 1}, batch_bytes=BATCH, previous=before)
    assert Counter(follow(after, BATCH, 100)) == {1: 50, 2: 50}


def test_shares_cannot_be_changed() -> None:
    route = Route({0: 1.0})
    with pytest.raises(TypeError):
        route.shares[0] = 0.5  # type: ignore[index]
    with pytest.raises(AttributeError):
        route.anything = 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("shares", [{}, {0: 0.0}, {0: -1.0, 1: 2.0}, {0: math.nan}, {0: math.inf}])
def test_shares_that_are_none_are_refused(shares: dict[int, float]) -> None:
    with pytest.raises(ValueError, match="shares have to be finite"):
        Route(shares)


def test_a_batch_of_no_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="batch_bytes is 0"):
        Route({0: 1.0}, batch_bytes=0)


def test_a_reason_makes_it_a_fallback() -> None:
    assert Route({0: 1.0}, reason="no_snapshot").is_fallback
    assert not Route({0: 1.0}).is_fallback


def test_threads_that_share_a_route_keep_the_shares() -> None:
    route = Route({0: 3, 1: 2, 2: 1}, batch_bytes=BATCH)
    counts: list[Counter[int]] = []
    begin = threading.Barrier(4)

    def produce() -> None:
        begin.wait()
        counts.append(Counter(route.partition_for(97) for _ in range(60_000)))

    threads = [threading.Thread(target=produce) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    total = sum(counts, Counter())
    assert len(counts) == 4
    assert total[0] / 240_000 == pytest.approx(3 / 6, abs=0.02)
    assert total[1] / 240_000 == pytest.approx(2 / 6, abs=0.02)


class Empty:
    def method(self) -> None:
        pass


def test_the_usual_call_costs_at_most_five_times_an_empty_method_call() -> None:
    empty, route = Empty(), Route(dict.fromkeys(range(24), 1.0))
    calls, best_empty, best_route = 20_000, math.inf, math.inf
    for _ in range(25):  # interleaved, and the best of many: other load on the machine only ever adds
        best_empty = min(best_empty, timeit.timeit("m()", globals={"m": empty.method}, number=calls))
        best_route = min(
            best_route, timeit.timeit("m(1024)", globals={"m": route.partition_for}, number=calls)
        )
    assert best_route <= 5 * best_empty
