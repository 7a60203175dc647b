"""Did each record lie where the load had put it? Told from places and numbers in a run's books.

An entry says for each sample where it was read, and which number it has by its record's header. Which number
a record begins with isn't in the manifest, so it is learned from the books themselves, and two things are
known of it: it is the same whenever the record is read; and a load writes ascending, so in a partition a
record at a higher offset has higher numbers. Two records that have changed places break the second, unless
they lie in different partitions and fit between their new neighbours; nothing that is kept would tell then,
but each sample is still there once.

Memory: 8 bytes a record of the dataset.

Read next: audit.py, which asks.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from evenload.dataset_catalog.manifest import ExtentArrays

__all__ = ["Placement"]

_Int64Array = npt.NDArray[np.int64]
_UNKNOWN: Final = -1
_SAMPLES_AT_ONCE: Final = 1 << 18  # far cheaper than one step's at a time


class Placement:
    """What is known of a dataset's records. For one thread: `add` as often as wanted, then `close`.

    Args:
        extents: of the manifest.
    """

    def __init__(self, extents: ExtentArrays) -> None:
        self._extents = extents
        self._first_record = np.cumsum([0, *extents.num_records])
        self._first_number = np.full(int(self._first_record[-1]), _UNKNOWN, dtype=np.int64)
        self._waiting: list[tuple[_Int64Array, _Int64Array]] = []
        self._num_waiting = 0
        self._changed: int | None = None  # a record that was read with different numbers

    def add(self, index: _Int64Array, number: _Int64Array) -> None:
        """The samples with these numbers were read at these positions of the manifest, all in range."""
        self._waiting.append((index, number))
        self._num_waiting += len(index)
        if self._num_waiting >= _SAMPLES_AT_ONCE:
            self._learn()

    def close(self) -> list[str]:
        """A sentence for each thing that is wrong."""
        self._learn()
        notes = []
        if self._changed is not None:
            notes.append(
                f"{self._name(self._changed)} did not hold the same samples each time it was read: it was "
                "written over"
            )
        known = np.flatnonzero(self._first_number != _UNKNOWN)
        extent = self._extent_of(known)
        first = self._first_number[known]
        is_wrong = first[1:] < (first + self._extents.samples_per_record[extent])[:-1]
        is_wrong &= self._extents.partition[extent][1:] == self._extents.partition[extent][:-1]
        if is_wrong.any():
            before, after = known[(at := int(np.argmax(is_wrong))) : at + 2]
            notes.append(
                f"{self._name(after)} holds samples {self._first_number[after]} on, and the one at offset "
                f"{self._offset(before)} before it samples {self._first_number[before]} on: a load writes "
                f"ascending, so {int(is_wrong.sum())} records are not where the load put them"
            )
        return notes

    def _learn(self) -> None:
        if not self._waiting:
            return
        index, number = (np.concatenate(each) for each in zip(*self._waiting, strict=True))
        self._waiting, self._num_waiting = [], 0
        extents = self._extents
        extent = np.searchsorted(extents.first_sample, index, side="right") - 1
        in_extent = index - extents.first_sample[extent]
        record = self._first_record[extent] + in_extent // extents.samples_per_record[extent]
        first = number - in_extent % extents.samples_per_record[extent]
        is_new = self._first_number[record] == _UNKNOWN
        self._first_number[record[is_new]] = np.maximum(first[is_new], 0)
        is_changed = self._first_number[record] != first
        if is_changed.any() and self._changed is None:
            self._changed = int(record[np.argmax(is_changed)])

    def _extent_of(self, record: _Int64Array) -> _Int64Array:
        return np.searchsorted(self._first_record, record, side="right") - 1

    def _offset(self, record: int) -> int:
        extent = int(np.searchsorted(self._first_record, record, side="right")) - 1
        return int(self._extents.first_offset[extent] + record - self._first_record[extent])

    def _name(self, record: int) -> str:
        extent = int(np.searchsorted(self._first_record, record, side="right")) - 1
        return f"the record at offset {self._offset(record)} of partition {self._extents.partition[extent]}"
