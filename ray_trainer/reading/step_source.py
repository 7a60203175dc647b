"""Where the samples of a step are: in blocks that come and go, or in a copy of the whole dataset.

Either way a rank's share of a step becomes (slot of an open block, row in it), which a decoder reads.

Read next: block_cache.py and whole_copy.py (the two ways), step_stream.py (who asks).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from evenload.dataset_catalog.errors import UndecodableValueError
from evenload.dataset_catalog.manifest import DatasetManifest
from evenload.ray_trainer.errors import CorruptRecordError
from evenload.ray_trainer.fetching.fetch import BlockFetcher, BlockRange, FetchedBlock, fetch_all
from evenload.ray_trainer.fetching.range_fetch import NOT_STAMPED
from evenload.ray_trainer.planning.blocks import BlockTable
from evenload.ray_trainer.planning.plan import EpochPlan, StepShare
from evenload.ray_trainer.reading.block_cache import BlockCache, CacheLimits, block_range
from evenload.ray_trainer.reading.decoding import BatchDecoder, OpenBlock, OpenBlocks
from evenload.ray_trainer.reading.record_layout import RecordOpener, decode_values
from evenload.ray_trainer.reading.sample_split import SplitTable
from evenload.ray_trainer.reading.whole_copy import WholeCopy

Int64Array = npt.NDArray[np.int64]

_COPY_BATCH_BYTES = 128 << 20  # far from the 2 GiB at which Arrow's offsets end


@dataclass(frozen=True, slots=True)
class Located:
    """A rank's samples of a step, in the order to be handed out. Arrays of one entry a sample.

    Attributes:
        slot, row: where to read it in the source's open blocks.
        index: the place that was read: position in manifest order, of the whole dataset also where only a
            part is read.
        number: what lies there: the sample's number in written order, by the header of its record. Equal
            numbers are equal samples, wherever they were found. (Records without headers: the index.)
    """

    slot: npt.NDArray[np.integer[Any]]
    row: Int64Array
    index: Int64Array
    number: Int64Array


class StepSource(Protocol):
    """Gives steps' samples, in the order of steps. For one thread; any thread may interrupt."""

    @property
    def opened(self) -> OpenBlocks:
        """What to decode from."""
        ...

    def locate(self, share: StepShare) -> Located:
        """Wait until a step's samples can be read.

        Raises:
            ReadError: they can't be had.
        """
        ...

    def release(self, share: StepShare) -> None:
        """They have been read."""
        ...

    def interrupt(self) -> None:
        """Stop fetching, and wait for that; `locate` in another thread ends with an error.

        Open blocks stay open as long as the source exists: the other thread may be reading from them, by
        address.
        """
        ...


class FetchedBlocks:
    """A StepSource that fetches the blocks as they are needed; one for each epoch.

    Args:
        plan: of the epoch.
        start: first sample of the order that is still to be read.
        split: the part of the dataset that the plan is of; None: all of it.
        fetcher: made for this, and closed with this.
    """

    def __init__(
        self,
        manifest: DatasetManifest,
        plan: EpochPlan,
        *,
        split: SplitTable | None,
        start: int,
        global_batch_size: int,
        rank: int,
        world_size: int,
        decoder: BatchDecoder,
        fetcher: BlockFetcher,
        prefetch_bytes: int,
    ) -> None:
        self.opened = decoder.no_blocks()
        self._manifest = manifest
        self._schema = manifest.arrow_schema
        self._first_sample = plan.table.first_sample
        # Samples of such blocks are numbered one by one, those of others from their only record's first on.
        self._has_many_records = plan.table.num_records > 1
        self._records = RecordOpener(manifest, decoder)
        self._split = split
        self._decoder = decoder
        self._fetcher = fetcher
        num_lanes = -(-plan.layout.num_lanes // world_size)
        self._cache = BlockCache(
            manifest,
            plan.table,
            plan.blocks_needed(
                start=start, global_batch_size=global_batch_size, rank=rank, world_size=world_size
            ),
            fetcher=fetcher,
            open_block=self._open,
            opened=self.opened,
            limits=CacheLimits.for_lanes(num_lanes, prefetch_bytes=prefetch_bytes),
        )

    def locate(self, share: StepShare) -> Located:
        slot = self._cache.wait_for(share)
        index, row = share.index, share.row
        if self._split is not None:
            row = self.opened.rows_in_block(slot, row)
            index = self._split.first_index[share.block] + row
        number = index
        if is_stamped(self._manifest):
            is_counted = self._has_many_records[share.block]
            number = self.opened.numbers(slot, np.where(is_counted, row, 0)) + np.where(is_counted, 0, row)
        return Located(slot, share.row, index, number)

    def release(self, share: StepShare) -> None:
        self._cache.release(share)

    def interrupt(self) -> None:
        self._fetcher.close()
        self._cache.interrupt()

    def _open(self, block: int, fetched: FetchedBlock) -> OpenBlock:
        """In a fetcher's thread: records to columns, and only the part's rows."""
        try:
            if self._split is None:
                opened, num_rows = self._records.open(fetched.values)
                num_expected = int(self._first_sample[block + 1]) - int(self._first_sample[block])
            else:
                batch = decode_values(fetched.values, self._schema, self._manifest.value_format)
                num_rows, num_expected = batch.num_rows, self._split.num_full_rows(block)
                _require_rows(num_rows, num_expected)  # before rows are taken that it hasn't
                rows = self._split.rows_of(block)
                opened = self._decoder.open(batch.take(pa.array(rows)))._replace(rows=rows)
            _require_rows(num_rows, num_expected)
            return opened._replace(numbers=_first_numbers(self._manifest, fetched, num_rows))
        except UndecodableValueError as error:
            raise _corrupt(self._manifest, fetched, error.reason) from error


class HeldWhole:
    """A StepSource over a copy of the whole dataset; one serves all epochs, the copy is closed elsewhere."""

    def __init__(self, copy: WholeCopy, *, split: SplitTable | None, decoder: BatchDecoder) -> None:
        self.opened = decoder.no_blocks()
        self._slot = np.array(
            [self.opened.put(_open_numbered(decoder, batch)) for batch in copy.batches], dtype=np.int32
        )
        self._first = np.cumsum([0, *(batch.num_rows for batch in copy.batches)])
        self._index = split.all_index() if split is not None else None

    def locate(self, share: StepShare) -> Located:
        index = share.index if self._index is None else self._index[share.index]
        batch = np.searchsorted(self._first, index, side="right") - 1
        slot, row = self._slot[batch], index - self._first[batch]
        return Located(slot, row, index, self.opened.numbers(slot, row))

    def release(self, share: StepShare) -> None:
        pass

    def interrupt(self) -> None:
        pass


def build_whole(
    manifest: DatasetManifest, table: BlockTable, fetcher: BlockFetcher
) -> Iterator[pa.RecordBatch]:
    """All samples of a dataset in manifest order, in a few large batches, each with its number.

    Raises:
        ReadError: a block can't be had.
    """
    stored, schema, num_bytes = manifest.arrow_schema, numbered_schema(manifest), 0
    ranges = [block_range(manifest, table, block) for block in range(table.num_blocks)]
    num_rows = dict(zip(ranges, np.diff(table.first_sample).tolist(), strict=True))
    first_index = dict(zip(ranges, table.first_sample.tolist(), strict=False))
    for stretch in _stretches(ranges):
        batches: dict[BlockRange, pa.RecordBatch] = {}
        for fetched in fetch_all(fetcher, stretch):
            num_bytes += sum(map(len, fetched.values))
            if num_bytes > manifest.num_bytes:
                # It is held whole for being small: were it larger than it says, it would fill the memory.
                reason = f"with it, records hold more than the {manifest.num_bytes} bytes of the manifest"
                raise _corrupt(manifest, fetched, reason)
            try:
                batch = decode_values(fetched.values, stored, manifest.value_format)
                _require_rows(batch.num_rows, num_rows[fetched.wanted])
                numbers = _first_numbers(manifest, fetched, batch.num_rows)
            except UndecodableValueError as error:
                raise _corrupt(manifest, fetched, error.reason) from error
            if numbers is None:
                numbers = np.arange(first_index[fetched.wanted], first_index[fetched.wanted] + batch.num_rows)
            elif len(fetched.values) == 1:
                numbers = numbers + np.arange(batch.num_rows)
            columns = [*batch.columns, pa.array(numbers, pa.int64())]
            batches[fetched.wanted] = pa.RecordBatch.from_arrays(columns, schema=schema)
        joined = pa.Table.from_batches([batches[wanted] for wanted in stretch], schema).combine_chunks()
        yield from joined.to_batches()


def numbered_schema(manifest: DatasetManifest) -> pa.Schema:
    """Of build_whole's batches: the dataset's columns, and last the numbers, whatever the others' names."""
    return manifest.arrow_schema.append(pa.field("number", pa.int64(), nullable=False))


def is_stamped(manifest: DatasetManifest) -> bool:
    """Whether a dataset's records have headers that number their samples."""
    return manifest.load_id != NOT_STAMPED


def _open_numbered(decoder: BatchDecoder, batch: pa.RecordBatch) -> OpenBlock:
    *columns, numbers = range(batch.num_columns)
    opened = decoder.open(batch.select(columns))
    return opened._replace(numbers=batch.column(numbers).to_numpy(zero_copy_only=True))


def _first_numbers(manifest: DatasetManifest, fetched: FetchedBlock, num_rows: int) -> Int64Array | None:
    """Of each record's first sample, by its header; None where records have none.

    Raises:
        UndecodableValueError: a header names samples that the dataset doesn't have.
    """
    if fetched.first_samples is None or not is_stamped(manifest):
        return None
    last = max(fetched.first_samples) + num_rows // len(fetched.values) - 1
    if last >= manifest.num_samples:
        reason = f"its header says that it holds sample {last}, of a dataset of {manifest.num_samples}"
        raise UndecodableValueError(reason, 0)
    return np.array(fetched.first_samples, dtype=np.int64)


def _corrupt(manifest: DatasetManifest, fetched: FetchedBlock, reason: str) -> CorruptRecordError:
    wanted = fetched.wanted
    return CorruptRecordError(
        topic=manifest.topic, partition=wanted.partition, offset=wanted.first_offset, reason=reason
    )


def _require_rows(num_rows: int, num_expected: int) -> None:
    if num_rows != num_expected:
        raise UndecodableValueError(f"it holds {num_rows} samples, the manifest says {num_expected}", 0)


def _stretches(ranges: list[BlockRange]) -> Iterator[list[BlockRange]]:
    """The ranges in order, in stretches of bounded size."""
    stretch: list[BlockRange] = []
    size_bytes = 0
    for wanted in ranges:
        if stretch and size_bytes + wanted.size_bytes > _COPY_BATCH_BYTES:
            yield stretch
            stretch, size_bytes = [], 0
        stretch.append(wanted)
        size_bytes += wanted.size_bytes
    if stretch:
        yield stretch
