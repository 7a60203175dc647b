"""The arithmetic that orders, hashes and seeds rest on is the published SplitMix64, and never changes."""

from __future__ import annotations

import numpy as np

from evenload.dataset_catalog.splitmix64 import INCREMENT, WORD_MAX, mix_in_place, next_output

# The first outputs for seed 1234567, as published with the reference implementation in C
# (https://prng.di.unimi.it/splitmix64.c) and listed at https://rosettacode.org/wiki/Pseudo-random_numbers/Splitmix64
SEED = 1234567
PUBLISHED = [
    6457827717110365317,
    3203168211198807973,
    9817491932198370423,
    4593380528125082431,
    16408922859458223821,
]


def test_single_outputs_are_the_published_ones() -> None:
    assert [next_output(SEED + number * INCREMENT) for number in range(5)] == PUBLISHED
    assert next_output(0) == next_output(WORD_MAX + 1) == 0xE220A8397B1DCDAF


def test_an_array_is_mixed_in_its_place_to_the_published_outputs() -> None:
    words = np.arange(1, 6, dtype=np.uint64) * np.uint64(INCREMENT) + np.uint64(SEED)
    assert mix_in_place(words) is words
    assert words.tolist() == PUBLISHED


def test_different_words_stay_different() -> None:
    words = np.arange(100_000, dtype=np.uint64)
    assert len(np.unique(mix_in_place(words))) == len(words)
