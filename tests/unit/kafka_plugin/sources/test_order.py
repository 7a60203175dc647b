"""The written order is a permutation that depends on the seed alone, for ever."""

from __future__ import annotations

import numpy as np
import pytest

from evenload.kafka_plugin.sources.sample_order import written_order


def test_the_order_of_a_seed_never_changes() -> None:
    # A loader that goes on after an upgrade must write the rest of the same order.
    assert written_order(10, 0).tolist() == [1, 4, 5, 7, 6, 9, 0, 3, 2, 8]
    assert written_order(10, 7).tolist() == [7, 8, 1, 2, 3, 9, 5, 4, 0, 6]


@pytest.mark.parametrize("num_samples", [0, 1, 2, 1000])
@pytest.mark.parametrize("seed", [0, 1, -1, 2**64 + 5])
def test_every_sample_has_one_place(num_samples: int, seed: int) -> None:
    assert sorted(written_order(num_samples, seed).tolist()) == list(range(num_samples))


def test_no_seed_keeps_the_order_of_the_source() -> None:
    assert written_order(5, None).tolist() == [0, 1, 2, 3, 4]


def test_different_seeds_give_unrelated_orders() -> None:
    same_place = np.count_nonzero(written_order(100_000, 1) == written_order(100_000, 2))
    assert same_place < 12  # one is expected; Poisson
