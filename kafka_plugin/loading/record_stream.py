"""A thread gathers, encodes and hashes samples ahead of the loader, up to a bound.

So the loader's thread only routes and sends: it can commit in time however slow the source is, and encoding
costs no throughput. What goes wrong in the thread is raised where the records are taken.

A `RecordGroup` is what a transaction takes as a whole: for `packed`, one record (or its parts, when samples
are much larger than most); for `record`, as many records of one sample each as make a block, which training
fetches together and a broker therefore had better keep together.

Invariants, checked in tests/unit/kafka_plugin/loading/test_record_stream.py:
1. The groups from any start hold the same samples, numbers and checksum as the rest of the stream from 0.
2. At most `ahead_bytes` and one group wait to be taken.
3. `close` leaves no thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from evenload.dataset_catalog.manifest import Encoding, ValueFormat
from evenload.dataset_catalog.records.encoding import (
    add_checksum,
    encode_records,
    encode_samples,
    record_header,
    sample_hashes,
)
from evenload.kafka_plugin.errors import SampleTooLargeError
from evenload.kafka_plugin.sources.source import Source

_RECORD_OVERHEAD_BYTES = 256  # a record's and a batch's own fields, and the header
_SPLIT_FACTOR = 4
_SPLIT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class EncodedRecord:
    """A record to send."""

    value: bytes
    header: bytes
    num_samples: int


@dataclass(frozen=True, slots=True)
class RecordGroup:
    """Records that are committed together."""

    first_sample: int  # in written order
    num_samples: int
    num_bytes: int  # payload
    checksum: int  # of these samples alone
    records: tuple[EncodedRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLayout:
    """How samples become records."""

    encoding: Encoding
    value_format: ValueFormat
    samples_per_record: int
    block_bytes: int  # what a packed record is to have; of single samples, a group
    seed: int | None
    load_id: str
    max_record_bytes: int


class RecordStream:
    """The records of a source from a sample on. For one thread; reading begins at once.

    Args:
        source: Where samples come from.
        layout: How they become records.
        start_sample: In written order; where an earlier group ended.
        ahead_bytes: How much may wait to be taken.
    """

    def __init__(self, source: Source, layout: RecordLayout, start_sample: int, *, ahead_bytes: int) -> None:
        self._groups = encode_groups(source, layout, start_sample)
        self._ahead_bytes = ahead_bytes
        self._news = threading.Condition()  # guards what follows
        self._waiting: deque[RecordGroup] = deque()
        self._waiting_bytes = 0
        self._error: BaseException | None = None
        self._is_done = False
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="evenload-encode", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; what waits is dropped."""
        with self._news:
            self._is_closed = True
            self._news.notify_all()
        self._thread.join()

    @property
    def is_done(self) -> bool:
        """Whether all groups have been taken."""
        with self._news:
            return self._is_done and not self._waiting and self._error is None

    def take(self, timeout_s: float) -> RecordGroup | None:
        """The next group; None when it isn't there within `timeout_s`, or there are no more (`is_done`).

        Raises:
            SourceError: The source can't be read any more.
            SampleTooLargeError: A sample does not fit into a record.
        """
        with self._news:
            self._news.wait_for(lambda: self._waiting or self._is_done, timeout_s)
            if self._waiting:
                group = self._waiting.popleft()
                self._waiting_bytes -= group.num_bytes
                self._news.notify_all()
                return group
            if self._error is not None:
                raise self._error
            return None

    def _run(self) -> None:
        try:
            for group in self._groups:
                with self._news:
                    self._news.wait_for(lambda: self._waiting_bytes < self._ahead_bytes or self._is_closed)
                    if self._is_closed:
                        return
                    self._waiting.append(group)
                    self._waiting_bytes += group.num_bytes
                    self._news.notify_all()
        except BaseException as error:  # noqa: BLE001 - raised by take()
            with self._news:
                self._error = error
        finally:
            with self._news:
                self._is_done = True
                self._news.notify_all()


def encode_groups(source: Source, layout: RecordLayout, start_sample: int) -> Iterator[RecordGroup]:
    """The groups of a source from a sample on, in the caller's thread."""
    first = start_sample
    per_batch = layout.samples_per_record
    if layout.encoding == "record":
        per_batch = records_per_group(source, layout.value_format, layout.block_bytes)
    for batch in source.batches(start_sample, samples_per_batch=per_batch, seed=layout.seed):
        yield _group(batch, layout, first)
        first += batch.num_rows


def records_per_group(source: Source, value_format: ValueFormat, block_bytes: int) -> int:
    """How many records of one sample each make a group; the same whenever it is asked of a source."""
    return max(1, int(block_bytes // encoded_bytes_per_sample(source, "record", value_format)))


def encoded_bytes_per_sample(source: Source, encoding: Encoding, value_format: ValueFormat) -> float:
    """What a sample takes as payload, from encoding the first few of the source; above 0."""
    batch = next(source.batches(samples_per_batch=min(256, source.num_samples), seed=None))
    if encoding == "packed":
        return float(max(1.0, len(encode_samples(batch)) / batch.num_rows))
    return float(max(1.0, sum(map(len, encode_records(batch, value_format))) / batch.num_rows))


def _group(batch: pa.RecordBatch, layout: RecordLayout, first_sample: int) -> RecordGroup:
    if layout.encoding == "record":
        values = [(value, 1) for value in encode_records(batch, layout.value_format)]
    else:
        values = list(_packed(batch, layout))
    records = []
    at = first_sample
    for value, num_samples in values:
        if len(value) > layout.max_record_bytes - _RECORD_OVERHEAD_BYTES:
            limit_bytes = layout.max_record_bytes - _RECORD_OVERHEAD_BYTES
            raise SampleTooLargeError(at, len(value), limit_bytes)
        records.append(EncodedRecord(value, record_header(layout.load_id, at, value), num_samples))
        at += num_samples
    return RecordGroup(
        first_sample=first_sample,
        num_samples=batch.num_rows,
        num_bytes=sum(len(record.value) for record in records),
        checksum=add_checksum(0, sample_hashes(batch)),
        records=tuple(records),
    )


def _packed(batch: pa.RecordBatch, layout: RecordLayout) -> Iterator[tuple[bytes, int]]:
    """The batch as one record; as two halves (and so on) where its samples are much larger than most."""
    value = encode_samples(batch)
    if batch.num_rows == 1 or len(value) <= _split_bytes(layout):
        yield value, batch.num_rows
        return
    middle = batch.num_rows // 2
    yield from _packed(batch.slice(0, middle), layout)
    yield from _packed(batch.slice(middle), layout)


def _split_bytes(layout: RecordLayout) -> int:
    usual = max(_SPLIT_BYTES, _SPLIT_FACTOR * layout.block_bytes)
    return min(usual, layout.max_record_bytes - _RECORD_OVERHEAD_BYTES)
