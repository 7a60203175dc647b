"""Compare the records of a topic with what its dataset's manifest says, record by record.

Each sample that is found or due falls into one place:

- found: at an offset that the manifest lists, whole, for the first time;
- repeated: there a second time, be it at a listed offset or at another one;
- corrupt: due at a listed offset, but what stands there is broken or someone else's;
- missing: due, and nothing stands there;
- extra: committed in the topic, not listed, and no copy of a sample that was found.

A record says itself which samples it holds (record_header.py); the checksum over samples, taken from
the source while loading, then says that they are the same as those that went in.

Memory: two bits a sample that is there, and some tens of MB of records that are decoded together.

Invariant, checked in tests/property/dataset_catalog/test_manifest_verification.py: whatever is dropped,
doubled, damaged or added, it is counted in its place, and a topic as it was loaded is clean.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from evenload.dataset_catalog.errors import CorruptManifestError, UndecodableValueError
from evenload.dataset_catalog.extents import Int64Array
from evenload.dataset_catalog.foreign_content import refused_as
from evenload.dataset_catalog.manifest import DatasetManifest, PartitionExtents
from evenload.dataset_catalog.records.encoding import (
    add_checksum,
    decode_records,
    decode_value,
    format_checksum,
    parse_record_header,
    sample_hashes,
    value_hash,
)

_PENDING_RECORDS = 4096
# JSON of empty lists takes thirty times as much once it is read.
_PENDING_BYTES = 4 << 20
_HASHED_SAMPLES = 1 << 16
_EXTENTS_AT_ONCE = 4096
_COUNTED_AT_ONCE = 1 << 20  # bytes


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What was found in a topic, in samples."""

    dataset: str  # NAME@VERSION
    num_samples: int  # found: whole, where they should be, each counted once
    missing: int
    repeated: int
    corrupt: int
    extra: int
    checksum_matches: bool  # over what was found at listed offsets, repetitions too

    @property
    def is_clean(self) -> bool:
        """The topic holds the dataset, all of it once, and nothing else."""
        return self.checksum_matches and not (self.missing or self.repeated or self.corrupt or self.extra)


class Verification:
    """Takes the committed records of a topic, then reports. For one thread.

    Args:
        manifest: What should be there.
    """

    def __init__(self, manifest: DatasetManifest) -> None:
        self._manifest = manifest
        self._schema = manifest.arrow_schema
        self._listed = {extents.partition: _ListedOffsets(extents) for extents in manifest.partitions}
        with refused_as(lambda reason: _too_many(manifest, reason)):
            self._found = SampleSet(manifest.num_samples)
            self._copies = SampleSet(manifest.num_samples)  # by unlisted records of this load
        self._checksum = 0
        self._repeated = self._corrupt = self._extra = 0
        self._pending: list[tuple[int, int, bytes]] = []  # first sample, number of samples, value
        self._pending_bytes = 0

    def add(self, partition: int, offset: int, header: bytes | None, value: bytes | None) -> int:
        """Takes one committed record; offsets of a partition must ascend.

        Returns:
            How many samples the manifest expects in it; 0 when it is not listed.
        """
        listed = self._listed.get(partition)
        num_due = listed.num_samples_at(offset) if listed else 0
        first_sample = self._first_sample(header, value)
        if not num_due:
            self._add_unlisted(first_sample, value)
        elif value is None or first_sample is None or first_sample + num_due > self._manifest.num_samples:
            self._corrupt += num_due
        else:
            self._pending.append((first_sample, num_due, value))
            self._pending_bytes += len(value)
            if len(self._pending) >= _PENDING_RECORDS or self._pending_bytes >= _PENDING_BYTES:
                self._take_pending()
        return num_due

    def report(self) -> VerifyReport:
        """What all records so far add up to; what did not come is missing."""
        self._take_pending()
        num_found, num_copied = len(self._found), self._copies.num_common(self._found)
        return VerifyReport(
            dataset=self._manifest.id,
            num_samples=num_found,
            missing=max(0, self._manifest.num_samples - num_found - self._corrupt),
            repeated=self._repeated + num_copied,
            corrupt=self._corrupt,
            extra=self._extra + len(self._copies) - num_copied,
            checksum_matches=format_checksum(self._checksum) == self._manifest.checksum,
        )

    def _first_sample(self, header: bytes | None, value: bytes | None) -> int | None:
        """The number of the record's first sample, when it is whole and of this load."""
        parsed = parse_record_header(header)
        if parsed is None or value is None or parsed.load_id != self._manifest.load_id:
            return None
        return parsed.first_sample if parsed.value_hash == value_hash(value) else None

    def _add_unlisted(self, first_sample: int | None, value: bytes | None) -> None:
        num_samples = self._num_samples_in(value)
        if first_sample is None or first_sample + num_samples > self._manifest.num_samples:
            self._extra += num_samples
        else:
            self._repeated += self._copies.add_range(first_sample, num_samples)

    def _num_samples_in(self, value: bytes | None) -> int:
        """Samples in an unlisted record; one, if it can't be read."""
        if value is None or self._manifest.encoding == "record":
            return 1
        try:
            return int(decode_value(value, self._schema, self._manifest.value_format).num_rows)
        except UndecodableValueError:
            return 1

    def _take_pending(self) -> None:
        pending, self._pending, self._pending_bytes = self._pending, [], 0
        if self._manifest.encoding == "packed":
            for each in pending:
                self._take([each])
        elif pending:
            self._take(pending)

    def _take(self, records: list[tuple[int, int, bytes]]) -> None:
        """Hashes samples of records together; of all one by one, when they can't be read together."""
        values = [value for _, _, value in records]
        try:
            batch = decode_records(values, self._schema, self._manifest.value_format)
            is_whole = batch.num_rows == sum(num_due for _, num_due, _ in records)
            checksum = _add_samples(self._checksum, batch) if is_whole else 0
        except UndecodableValueError:
            is_whole, checksum = False, 0
        if is_whole:
            self._checksum = checksum
            self._repeated += sum(self._found.add_range(first, num_due) for first, num_due, _ in records)
        elif len(records) > 1:
            for each in records:
                self._take([each])
        else:
            self._corrupt += records[0][1]


class SampleSet:
    """Numbers of samples, from 0 to `capacity - 1`; for one thread.

    One bit each: 12 MB for a hundred million samples. What a manifest says of their number needs no memory,
    only samples that are there do: the system gives pages when they are first written to.

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


def _add_samples(checksum: int, batch: pa.RecordBatch) -> int:
    """With the hashes of its samples, some thousands at a time: while they are made, each takes 100 bytes.

    Raises:
        UndecodableValueError: They can't be hashed.
    """
    with refused_as(lambda reason: UndecodableValueError(reason, batch.nbytes)):
        for at in range(0, batch.num_rows, _HASHED_SAMPLES):
            checksum = add_checksum(checksum, sample_hashes(batch.slice(at, _HASHED_SAMPLES)))
    return checksum


def _too_many(manifest: DatasetManifest, reason: str) -> CorruptManifestError:
    return CorruptManifestError(f"it claims {manifest.num_samples} samples ({reason})", manifest.id)


class _ListedOffsets:
    """What a partition's extents say of offsets that are asked for in ascending order."""

    def __init__(self, extents: PartitionExtents) -> None:
        self._extents = _extents(extents.columns)
        self._start, self._stop, self._num_samples = 0, 0, 0

    def num_samples_at(self, offset: int) -> int:
        """Samples in the record at this offset; 0 when it is not listed."""
        while offset >= self._stop:
            extent = next(self._extents, None)
            if extent is None:
                return 0
            self._start, self._stop, self._num_samples = extent[0], extent[0] + extent[1], extent[2]
        return self._num_samples if offset >= self._start else 0


def _extents(columns: Int64Array) -> Iterator[tuple[int, ...]]:
    """Extents as numbers of Python, some at a time: all of a million would take a hundred megabytes."""
    for at in range(0, columns.shape[1], _EXTENTS_AT_ONCE):
        yield from zip(*columns[:, at : at + _EXTENTS_AT_ONCE].tolist(), strict=True)
