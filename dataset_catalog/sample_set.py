"""A set of sample numbers in one bit each: 12 MB for a hundred million samples."""

from __future__ import annotations

import numpy as np


class SampleSet:
    """Numbers from 0 to `capacity - 1`; for one thread.

    Args:
        capacity: One past the largest number, 0 or more.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._bytes = bytearray((capacity + 7) // 8)
        self._bits = np.frombuffer(self._bytes, np.uint8)  # the same memory, writable

    def __len__(self) -> int:
        return int(np.bitwise_count(self._bits).sum(dtype=np.int64))

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
        return int(np.bitwise_count(self._bits & other._bits).sum(dtype=np.int64))
