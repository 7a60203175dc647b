"""Records opened by the layout of the last one read as Arrow reads them, and only where they are alike."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload.dataset_catalog.records.encoding import encode_samples
from evenload.dataset_catalog.testing import make_manifest
from evenload.ray_trainer.reading.decoding import BatchDecoder
from evenload.ray_trainer.reading.errors import UndecodableColumnError
from evenload.ray_trainer.reading.record_layout import RecordOpener


def samples(num_rows: int, seed: int) -> pa.RecordBatch:
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 256, (num_rows, 3, 5), dtype=np.uint8)
    return pa.RecordBatch.from_pydict(
        {
            "pixels": pa.FixedShapeTensorArray.from_numpy_ndarray(pixels),
            "label": pa.array(random.integers(0, 10, num_rows)),
            "weight": pa.array(random.random(num_rows, dtype=np.float32)),
        }
    )


def value(batch: pa.RecordBatch, shift: int = 0) -> memoryview:
    """A record's value at any place in memory, as it lies in a receive buffer."""
    encoded = encode_samples(batch)
    return memoryview(bytearray(b"\xff" * shift + encoded))[shift:]


def opened_rows(opener: RecordOpener, decoder: BatchDecoder, values: list[memoryview]) -> dict[str, object]:
    block, num_rows = opener.open(values)
    blocks = decoder.no_blocks()
    slot = blocks.put(block)
    (decoded,) = decoder.decode(blocks, np.full(num_rows, slot), np.arange(num_rows), sizes=[num_rows])
    return {name: column.tolist() for name, column in decoded.items()}  # type: ignore[union-attr]


def rows_of(batch: pa.RecordBatch) -> dict[str, object]:
    return {
        "pixels": batch.column("pixels").to_numpy_ndarray().tolist(),
        "label": batch.column("label").to_pylist(),
        "weight": batch.column("weight").to_pylist(),
    }


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 15)), min_size=2, max_size=8))
def test_packed_records_of_any_sizes_and_places_are_read_right(records: list[tuple[int, int]]) -> None:
    decoder = BatchDecoder(make_manifest(samples(1, 0), [], num_samples=0))
    opener = RecordOpener(make_manifest(samples(1, 0), [], num_samples=0), decoder)
    for seed, (num_rows, shift) in enumerate(records):
        batch = samples(num_rows, seed)
        assert opened_rows(opener, decoder, [value(batch, shift)]) == rows_of(batch)


@settings(max_examples=40)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_many_records_of_one_sample_become_one_block(counts: list[int]) -> None:
    manifest = make_manifest(samples(1, 0), [], num_samples=0, encoding="record")
    decoder = BatchDecoder(manifest)
    opener = RecordOpener(manifest, decoder)
    for seed, count in enumerate(counts):
        batch = samples(count, seed)
        values = [value(batch.slice(row, 1), row % 8) for row in range(count)]
        assert opened_rows(opener, decoder, values) == rows_of(batch)


def test_records_that_look_alike_are_not_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = BatchDecoder(make_manifest(samples(1, 0), [], num_samples=0))
    opener = RecordOpener(make_manifest(samples(1, 0), [], num_samples=0), decoder)
    opened_rows(opener, decoder, [value(samples(4, 0))])
    monkeypatch.setattr(decoder, "open", None)
    assert opened_rows(opener, decoder, [value(samples(4, 1))]) == rows_of(samples(4, 1))


def test_a_null_in_a_later_record_is_found_though_the_first_had_none() -> None:
    batch = pa.RecordBatch.from_pydict({"x": pa.array([1, 2, 3])})
    manifest = make_manifest(batch, [], num_samples=0)
    decoder = BatchDecoder(manifest)
    opener = RecordOpener(manifest, decoder)
    opener.open([value(batch)])
    opener.open([value(batch)])
    with pytest.raises(UndecodableColumnError, match="null"):
        opener.open([value(pa.RecordBatch.from_pydict({"x": pa.array([1, None, 3])}))])
