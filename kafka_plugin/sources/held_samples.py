"""Hold samples so that any of them can be read at once: in memory, or memory-mapped if they are many.

Shuffling a whole dataset needs every sample within reach. What fits the memory budget is kept in memory;
the rest goes to one Arrow file in the scratch folder, which is mapped and then deleted at once, so that a
loader killed with -9 leaves nothing behind. If an Arrow file can be mapped directly, it isn't copied.

`take` gathers from chunks itself: `Table.take` copies whole columns together for every call.

Invariants, checked in tests/unit/kafka_plugin/sources/test_held.py: `take` gives the same samples from
memory, from the scratch file, and for any chunking.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from evenload.kafka_plugin.errors import UnsupportedSourceError

_MAX_CHUNKS = 16
_WRITE_BYTES = 8 << 20


class HeldSamples:
    """Random access to samples; read-only, so it may be shared between threads."""

    def __init__(self, schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> None:
        self.schema = schema
        self._batches = [batch for batch in batches if batch.num_rows]
        self._starts = np.cumsum([0, *(batch.num_rows for batch in self._batches)])
        self.num_samples = int(self._starts[-1])
        self.num_bytes = sum(batch.nbytes for batch in self._batches)

    def take(self, positions: npt.NDArray[np.int64]) -> pa.RecordBatch:
        """The samples at `positions`, in that order, as one batch that shares no memory with what is held."""
        by_position = np.argsort(positions, kind="stable")
        ascending = positions[by_position]
        chunks = np.searchsorted(self._starts, ascending, side="right") - 1
        cuts = np.flatnonzero(np.diff(chunks)) + 1
        parts = [
            self._batches[chunks[first]].take(_indices(ascending[first:end] - self._starts[chunks[first]]))
            for first, end in zip([0, *cuts], [*cuts, len(ascending)], strict=True)
        ]
        back = np.empty_like(by_position)
        back[by_position] = np.arange(len(by_position))
        return pa.concat_batches(parts).take(_indices(back))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All samples in source order, as they lie."""
        return iter(self._batches)


def hold(
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    *,
    memory_bytes: int,
    scratch_folder: Path | None = None,
) -> HeldSamples:
    """Hold what `batches` yields: in memory up to `memory_bytes`, all of it in a mapped scratch file beyond.

    Args:
        schema: What each batch has.
        batches: Read once, in order.
        memory_bytes: How much may be held in memory (a little more while chunks are joined).
        scratch_folder: Where the scratch file is made; the system's temporary folder if None.

    Raises:
        UnsupportedSourceError: The scratch folder has no room for the samples.
    """
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    remaining = iter(batches)
    for batch in remaining:
        held.append(batch)
        held_bytes += batch.nbytes
        if held_bytes > memory_bytes:
            return HeldSamples(schema, _spool(schema, chain(held, remaining), scratch_folder))
    if len(held) > _MAX_CHUNKS:
        held = pa.Table.from_batches(held, schema).combine_chunks().to_batches()
    return HeldSamples(schema, held)


def hold_mapped(schema: pa.Schema, batches: Sequence[pa.RecordBatch], *, memory_bytes: int) -> HeldSamples:
    """Hold batches that are mapped from a file already: as they are, or joined in memory when that is cheap.

    A file of many small chunks (the datasets library writes 1,000 samples each) makes every gather visit
    most of them, so what fits the memory budget is joined.
    """
    is_small = sum(batch.nbytes for batch in batches) <= memory_bytes
    if is_small:
        return hold(schema, batches, memory_bytes=memory_bytes)
    return HeldSamples(schema, batches)


def _spool(
    schema: pa.Schema, batches: Iterable[pa.RecordBatch], scratch_folder: Path | None
) -> list[pa.RecordBatch]:
    folder = scratch_folder or Path(tempfile.gettempdir())
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix="evenload-", suffix=".arrow") as scratch:
            with pa.ipc.new_file(scratch, schema) as writer:
                for batch in _join_small(batches):
                    writer.write_batch(batch)
            scratch.flush()
            reader = pa.ipc.open_file(pa.memory_map(scratch.name))
            return [reader.get_batch(number) for number in range(reader.num_record_batches)]
    except OSError as error:
        reason = f"can't take the scratch file that shuffling this source needs: {error.strerror or error}."
        raise UnsupportedSourceError(str(folder), reason) from error


def _indices(positions: npt.NDArray[np.int64]) -> pa.Array:
    # Not pa.array(): given a NumPy array, that imports pandas, which takes a second or two.
    contiguous = np.ascontiguousarray(positions, dtype=np.int64)
    return pa.Array.from_buffers(pa.int64(), len(contiguous), [None, pa.py_buffer(contiguous)])


def _join_small(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches of about `_WRITE_BYTES`, so that a gather visits few chunks."""
    waiting: list[pa.RecordBatch] = []
    waiting_bytes = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        waiting.append(batch)
        waiting_bytes += batch.nbytes
        if waiting_bytes >= _WRITE_BYTES:
            yield _joined(waiting)
            waiting, waiting_bytes = [], 0
    if waiting:
        yield _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
