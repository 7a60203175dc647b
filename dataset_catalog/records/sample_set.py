"""A set of sample numbers in one bit each: 12 MB for a hundred million samples, where any of them are.

What a manifest says of their number needs no memory, only samples that are there do: the system gives pages
when they are first written to.
"""

from __future__ import annotations

from typing import Final

import numpy as np

_COUNTED_AT_ONCE: Final = 1 << 20  # bytes


class SampleSet:
    """Numbers from 0 to `capacity - 1`; for one thread.

    Args:
        capacity: One past the largest number, 0 or more.

    Raises:
        MemoryError: The system has no addresses left for so many.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._bits = np.zeros((capacity + 7) // 8, np.uint8)
        self._bytes = memoryview(self._bits.data)  # the same memory: twice as fast, byte by byte

    def __len__(self) -> int:
        return self.num_common(self)

    def add_range(self, first: int, count: int) -> int:
        """Adds `first` .. `first + count - 1`; returns how many of them were there before.

        Raises:
            ValueError: They are not all from 0 to `capacity - 1`.
        """
        if first < 0 or count < 0 or first + count > self._capacity:
            raise ValueError(f"samples {first} to {first + count - 1} are not below {self._capacity}")
        if count == 1:  # a twentieth of the time, where each record holds one sample
            mask = 1 << (first & 7)
            was_there = self._bytes[first >> 3] & mask != 0
            self._bytes[first >> 3] |= mask
            return int(was_there)
        begin, end = first // 8, (first + count + 7) // 8
        bits = np.unpackbits(self._bits[begin:end], bitorder="little")
        window = bits[first - 8 * begin :][:count]
        num_before = int(window.sum(dtype=np.int64))
        window[:] = 1
        self._bits[begin:end] = np.packbits(bits, bitorder="little")
        return num_before

    def num_common(self, other: SampleSet) -> int:
        """How many numbers both sets have; both of the same capacity."""
        return sum(
            int(np.bitwise_count(mine & theirs).sum(dtype=np.int64))
            for mine, theirs in (
                (self._bits[at : at + _COUNTED_AT_ONCE], other._bits[at : at + _COUNTED_AT_ONCE])
                for at in range(0, len(self._bits), _COUNTED_AT_ONCE)
            )
        )
