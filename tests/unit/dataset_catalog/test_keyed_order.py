"""The keys that decide an order are SplitMix64's and never change."""

from __future__ import annotations

import numpy as np
import pytest

from evenload.dataset_catalog import keyed_order

# Found once with a scalar implementation in plain Python integers.
GOLDEN_STATES = [
    0xB18A02F46D8D86C3,
    0xF7A96FA7E40E81B5,
    0xF234186BC19530C2,
    0x189D5F81C368E72B,
    0x88394EF861E95950,
]
GOLDEN_ORDER = [6, 3, 8, 1, 9, 10, 4, 2, 11, 7, 0, 5]
GOLDEN_SAMPLE_SEEDS = [
    0x24449E373A2511F7,
    0xDA1683735771FD08,
]


def test_keys_are_the_outputs_of_the_published_splitmix64() -> None:
    # The first outputs for seed 1234567, as published with the reference implementation in C
    # (https://prng.di.unimi.it/splitmix64.c) and listed at https://rosettacode.org/wiki/Pseudo-random_numbers/Splitmix64
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert keyed_order.keys_of_range(1234567, 5).tolist() == published


def test_keys_of_single_items_are_those_of_the_range() -> None:
    keys = keyed_order.keys_of_range(99, 1000)
    items = np.array([999, 0, 17, 17, 500])
    assert keyed_order.keys_of(99, items).tolist() == keys[items].tolist()


def test_a_streams_state_is_fixed_for_ever() -> None:
    states = [
        keyed_order.stream_state(keyed_order.BLOCK_ORDER, 0, 0),
        keyed_order.stream_state(keyed_order.BLOCK_ORDER, 7, 0),
        keyed_order.stream_state(keyed_order.BLOCK_ORDER, 7, 1),
        keyed_order.stream_state(keyed_order.SAMPLE_ORDER, 7, 1),
        keyed_order.stream_state(keyed_order.SAMPLE_SEED, keyed_order.SEED_MAX, 1),
    ]
    assert states == GOLDEN_STATES


def test_a_shuffled_order_is_fixed_for_ever() -> None:
    state = keyed_order.stream_state(keyed_order.BLOCK_ORDER, 7, 1)
    assert keyed_order.shuffled(state, 12).tolist() == GOLDEN_ORDER


def test_the_order_is_the_one_a_stable_sort_gives() -> None:
    keys = keyed_order.keys_of_range(5, 100_000)
    assert len(np.unique(keys)) == len(keys)
    assert np.array_equal(keyed_order.shuffled(5, 100_000), np.argsort(keys, kind="stable"))


def test_no_two_of_purpose_seed_and_epoch_can_be_exchanged() -> None:
    states = {
        keyed_order.stream_state(purpose, seed, epoch)
        for purpose in (1, 2, 3)
        for seed in range(20)
        for epoch in range(20)
    }
    assert len(states) == 3 * 20 * 20


@pytest.mark.parametrize(("seed", "epoch"), [(-1, 0), (1 << 64, 0), (0, -1)])
def test_a_seed_or_epoch_out_of_range_is_refused(seed: int, epoch: int) -> None:
    with pytest.raises(ValueError, match=r"must be from 0 to 2\*\*64 - 1"):
        keyed_order.stream_state(keyed_order.BLOCK_ORDER, seed, epoch)


def test_a_samples_seed_depends_on_nothing_but_seed_epoch_and_sample() -> None:
    seeds = keyed_order.sample_seeds(3, 2, np.arange(1000))
    assert keyed_order.sample_seeds(3, 2, np.array([700, 5])).tolist() == seeds[[700, 5]].tolist()
    assert not np.array_equal(seeds, keyed_order.sample_seeds(3, 1, np.arange(1000)))
    assert not np.array_equal(seeds, keyed_order.sample_seeds(4, 2, np.arange(1000)))
    assert seeds[:2].tolist() == GOLDEN_SAMPLE_SEEDS
