"""Which records of a partition belong to a dataset.

An extent is a stretch of consecutive offsets that all hold the same number of samples. Offsets between
extents (transaction markers, aborted or compacted records, other people's records) are simply in no
extent, so nothing that reads a dataset ever has to guess what a gap means. A record that holds fewer
samples than its neighbours is an extent of its own: `num_samples` is always
`num_records * samples_per_record`.

Manifest order is the one way to number the samples of a dataset: partitions ascending, then
offsets ascending, then rows within the record.

A dataset may have a million extents (an adopted topic with gaps), so a partition keeps them as arrays
and makes `Extent` tuples only when asked.

Invariants, checked in tests/property/dataset_catalog/test_manifest_extents.py:
1. Extents ascend and don't overlap; merging never changes the set of (offset, samples) they stand for.
2. Arrays to extents and back is the identity.

Read next: manifest.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from evenload.dataset_catalog.foreign_content import NUMBER_MAX

# Of bytes alone, a record of the usual 256 KiB holds a quarter of that. Readers reserve memory by it.
SAMPLES_PER_RECORD_MAX = 1 << 20
EXTENTS_MAX = (128 << 20) // 24  # more than a manifest has room for (parts.py)
PARTITION_MAX = (1 << 31) - 1  # Kafka's own

Int64Array = npt.NDArray[np.int64]


class Extent(NamedTuple):
    """Records at `first_offset` .. `first_offset + num_records - 1`, `samples_per_record` in each."""

    first_offset: int
    num_records: int
    samples_per_record: int

    @property
    def end_offset(self) -> int:
        """One past the last record's offset."""
        return self.first_offset + self.num_records

    @property
    def num_samples(self) -> int:
        return self.num_records * self.samples_per_record


class ExtentArrays(NamedTuple):
    """All extents of a dataset in manifest order, one entry an extent; every array is read-only."""

    partition: npt.NDArray[np.int32]
    first_offset: Int64Array
    num_records: Int64Array
    samples_per_record: Int64Array
    num_samples: Int64Array
    first_sample: Int64Array  # position of the extent's first sample in manifest order


class PartitionExtents:
    """The extents of one partition, ascending. Immutable, compared by value, picklable.

    Args:
        partition: The partition's number, 0 or more.
        extents: Ascending and not overlapping, each with at least one record and one sample a record.

    Raises:
        ValueError: An extent is empty, negative, or overlaps the one before.
    """

    __slots__ = ("_columns", "partition")

    partition: int
    _columns: Int64Array  # [3, num_extents]: first offsets, numbers of records, samples per record

    def __init__(self, partition: int, extents: Iterable[Sequence[int]]) -> None:
        rows = np.array([tuple(extent) for extent in extents], dtype=np.int64).reshape(-1, 3)
        self._freeze(partition, np.ascontiguousarray(rows.T))

    @classmethod
    def from_arrays(
        cls,
        partition: int,
        first_offset: npt.ArrayLike,
        num_records: npt.ArrayLike,
        samples_per_record: npt.ArrayLike,
    ) -> PartitionExtents:
        """The same from three arrays of one entry an extent, without making a tuple for each."""
        columns = np.array([first_offset, num_records, samples_per_record], dtype=np.int64)
        return cls.from_columns(partition, columns)

    @classmethod
    def from_columns(cls, partition: int, columns: Int64Array) -> PartitionExtents:
        """The same from `columns` as the property gives them; the array is taken, not copied."""
        made = cls.__new__(cls)
        made._freeze(partition, columns)
        return made

    def _freeze(self, partition: int, columns: Int64Array) -> None:
        _check_columns(partition, columns)
        columns.setflags(write=False)
        object.__setattr__(self, "partition", partition)
        object.__setattr__(self, "_columns", columns)

    @property
    def first_offset(self) -> Int64Array:
        column: Int64Array = self._columns[0]
        return column

    @property
    def num_records_by_extent(self) -> Int64Array:
        column: Int64Array = self._columns[1]
        return column

    @property
    def samples_per_record(self) -> Int64Array:
        column: Int64Array = self._columns[2]
        return column

    @property
    def columns(self) -> Int64Array:
        """[3, num_extents]: first offsets, numbers of records, samples per record; read-only."""
        return self._columns

    @property
    def extents(self) -> tuple[Extent, ...]:
        """The extents as tuples, made anew at each call: for large datasets use the arrays."""
        return tuple(map(Extent._make, self._columns.T.tolist()))

    @property
    def num_extents(self) -> int:
        return int(self._columns.shape[1])

    @property
    def num_records(self) -> int:
        return int(self._columns[1].sum())

    @property
    def num_samples(self) -> int:
        return int((self._columns[1] * self._columns[2]).sum())

    @property
    def end_offset(self) -> int:
        """One past the last listed record; 0 without extents."""
        return int(self._columns[0, -1] + self._columns[1, -1]) if self.num_extents else 0

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"PartitionExtents is immutable: can't set {name!r}")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PartitionExtents):
            return NotImplemented
        return self.partition == other.partition and np.array_equal(self._columns, other._columns)

    def __hash__(self) -> int:
        return hash((self.partition, self._columns.tobytes()))

    def __repr__(self) -> str:
        held = f"{self.num_extents} extents, {self.num_samples} samples"
        return f"PartitionExtents(partition={self.partition}, <{held}>)"

    def __reduce__(self) -> tuple[Any, ...]:
        return (PartitionExtents.from_arrays, (self.partition, *self._columns))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls._validate, serialization=core_schema.plain_serializer_function_ser_schema(cls._to_plain)
        )

    @classmethod
    def _validate(cls, value: object) -> PartitionExtents:
        if isinstance(value, PartitionExtents):
            return value
        if isinstance(value, dict) and value.keys() == {"partition", "runs"}:
            return cls(value["partition"], value["runs"])
        raise ValueError("expected a PartitionExtents, or an object with 'partition' and 'runs'")

    # In manifests, which outlive their programs, extents are called runs.
    def _to_plain(self) -> dict[str, Any]:
        return {"partition": self.partition, "runs": self._columns.T.tolist()}


def extents_of_records(offsets: npt.ArrayLike, num_samples: npt.ArrayLike) -> tuple[Extent, ...]:
    """The shortest extents for records at these offsets, each with its own number of samples.

    Args:
        offsets: Offsets in one partition, in any order, each once.
        num_samples: Samples in the record at the same index, 1 or more.

    Raises:
        ValueError: An offset appears twice, or a record has no samples.
    """
    offset = np.asarray(offsets, dtype=np.int64)
    samples = np.asarray(num_samples, dtype=np.int64)
    if offset.shape != samples.shape or offset.ndim != 1:
        raise ValueError(f"{offset.shape} offsets do not go with {samples.shape} numbers of samples")
    if not offset.size:
        return ()
    order = np.argsort(offset, kind="stable")
    offset, samples = offset[order], samples[order]
    if (np.diff(offset) == 0).any() or samples.min() < 1:
        raise ValueError("an offset appears twice, or a record has no samples")
    starts = np.flatnonzero(np.diff(offset, prepend=offset[0] - 2) - 1 | np.diff(samples, prepend=samples[0]))
    lengths = np.diff(starts, append=offset.size)
    return tuple(map(Extent._make, np.stack([offset[starts], lengths, samples[starts]], axis=1).tolist()))


def merge_extents(extents: Iterable[Extent]) -> tuple[Extent, ...]:
    """Ascending extents with touching neighbours of the same kind joined.

    Raises:
        ValueError: An extent is empty or overlaps the one before.
    """
    merged: list[Extent] = []
    for each in extents:
        last = merged[-1] if merged else None
        if (
            each.num_records < 1
            or each.samples_per_record < 1
            or (last and each.first_offset < last.end_offset)
        ):
            raise ValueError(f"{each} is empty, or overlaps or precedes {last}")
        if last and _are_one(last, each):
            merged[-1] = last._replace(num_records=last.num_records + each.num_records)
        else:
            merged.append(each)
    return tuple(merged)


def _are_one(extent: Extent, after: Extent) -> bool:
    return extent.end_offset == after.first_offset and extent.samples_per_record == after.samples_per_record


def concatenate_extents(partitions: Sequence[PartitionExtents]) -> ExtentArrays:
    """The extents of all partitions as arrays in manifest order. A million extents take milliseconds."""
    columns = np.concatenate([np.empty((3, 0), np.int64), *(p._columns for p in partitions)], axis=1)
    counts = [p.num_extents for p in partitions]
    numbers = np.repeat(np.array([p.partition for p in partitions], dtype=np.int32), counts)
    num_samples = columns[1] * columns[2]
    first_sample = np.cumsum(num_samples) - num_samples
    arrays = ExtentArrays(numbers, columns[0], columns[1], columns[2], num_samples, first_sample)
    for array in arrays:
        array.setflags(write=False)
    return arrays


def _check_columns(partition: int, columns: Int64Array) -> None:
    is_number = isinstance(partition, int | np.integer) and not isinstance(partition, bool)
    if not is_number or not 0 <= partition <= PARTITION_MAX:
        raise ValueError(f"partition {partition!r} is no whole number from 0 to {PARTITION_MAX}")
    first, records, samples = columns
    if not first.size:
        return
    # Looked at first: sums and products of larger ones would overflow, and count as small ones.
    if max(first.max(), records.max()) > NUMBER_MAX or samples.max() > SAMPLES_PER_RECORD_MAX:
        raise ValueError(
            f"extents of partition {partition} have numbers that are too large: at most {NUMBER_MAX} for "
            f"offsets and records, {SAMPLES_PER_RECORD_MAX} for samples in a record"
        )
    overlaps = first[1:] < (first + records)[:-1]
    if first[0] < 0 or records.min() < 1 or samples.min() < 1 or overlaps.any():
        at = int(overlaps.argmax()) if overlaps.any() else 0
        raise ValueError(
            f"extents of partition {partition} must ascend without overlap, from offset 0 on, with at least "
            f"one record and one sample each; near extent {at}: {columns[:, at : at + 2].T.tolist()}"
        )
    if records.astype(np.float64) @ samples.astype(np.float64) > NUMBER_MAX:
        raise ValueError(f"partition {partition} has more than {NUMBER_MAX} samples")
