"""Held samples are the same whether they are in memory, in a scratch file, or mapped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from evenload.kafka_plugin.errors import UnsupportedSourceError
from evenload.kafka_plugin.sources.held_samples import hold, hold_mapped

SCHEMA = pa.schema({"n": pa.int64(), "s": pa.string()})


def table(num_samples: int) -> pa.Table:
    rows = {"n": range(num_samples), "s": ["x" * (number % 7) for number in range(num_samples)]}
    return pa.table({name: list(values) for name, values in rows.items()}, schema=SCHEMA)


@pytest.mark.parametrize("memory_bytes", [0, 2_000, 1 << 20])
@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_take_gives_any_samples_in_any_order(memory_bytes: int, chunk: int, tmp_path: Path) -> None:
    held = hold(SCHEMA, table(1000).to_batches(chunk), memory_bytes=memory_bytes, scratch_folder=tmp_path)
    positions = np.random.default_rng(3).permutation(1000)[:333]
    assert held.num_samples == 1000
    assert held.take(positions).to_pylist() == table(1000).take(positions).to_pylist()


def test_a_sample_may_be_taken_twice() -> None:
    held = hold(SCHEMA, table(10).to_batches(3), memory_bytes=1 << 20)
    assert held.take(np.array([9, 0, 9])).column("n").to_pylist() == [9, 0, 9]


def test_the_scratch_file_is_gone_as_soon_as_it_is_mapped(tmp_path: Path) -> None:
    held = hold(SCHEMA, table(1000).to_batches(10), memory_bytes=100, scratch_folder=tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert held.take(np.array([500])).column("n").to_pylist() == [500]


def test_small_batches_are_joined_so_that_a_gather_visits_few_chunks() -> None:
    held = hold_mapped(SCHEMA, table(1000).to_batches(1), memory_bytes=1 << 20)
    assert len(list(held.batches())) == 1


def test_a_scratch_folder_that_cant_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedSourceError, match="no-such-folder"):
        hold(SCHEMA, table(9).to_batches(), memory_bytes=0, scratch_folder=tmp_path / "no-such-folder")
