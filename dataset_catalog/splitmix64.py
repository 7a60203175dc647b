"""SplitMix64: numbers that are the same on every machine, for every version of NumPy, for ever.

The order in which a load writes, the hashes of samples, the order of an epoch and the seeds of a step have to
come out alike in programs that run years apart. NumPy promises its random streams for one build only, so
these numbers are integer arithmetic of our own. This package is the lowest that both loading and training
know, and what they draw are facts about its datasets; so the arithmetic stands here, once.

The generator adds INCREMENT to its state, and its output is that state, mixed. So output number i of a stream
is `mix(state + i * INCREMENT)`, found without computing the ones before it.

Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014), as in
java.util.SplittableRandom.

Invariants, checked in tests/unit/dataset_catalog/test_splitmix64.py:
1. Outputs are those of the published generator, for single numbers and for arrays.
2. Mixing is a bijection: different words stay different.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["INCREMENT", "WORD_MAX", "mix_in_place", "next_output"]

WORD_MAX: Final = (1 << 64) - 1
INCREMENT: Final = 0x9E3779B97F4A7C15
_FACTOR_1: Final = 0xBF58476D1CE4E5B9
_FACTOR_2: Final = 0x94D049BB133111EB


def next_output(state: int) -> int:
    """The output that follows a state (any integer, taken modulo 2**64); of a seed, the first."""
    word = (state + INCREMENT) & WORD_MAX
    word = ((word ^ (word >> 30)) * _FACTOR_1) & WORD_MAX
    word = ((word ^ (word >> 27)) * _FACTOR_2) & WORD_MAX
    return word ^ (word >> 31)


def mix_in_place(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Mix each word, so that each of its bits reaches every bit of what comes out. Returns the same array.

    In place, as a million words are 8 MB a copy.
    """
    words ^= words >> np.uint64(30)
    words *= np.uint64(_FACTOR_1)
    words ^= words >> np.uint64(27)
    words *= np.uint64(_FACTOR_2)
    words ^= words >> np.uint64(31)
    return words
