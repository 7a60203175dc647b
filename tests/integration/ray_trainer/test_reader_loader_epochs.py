"""Epochs that a DataLoader's worker process reads: each sample once in each, or a sentence."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa
import pytest
from torch.utils.data import DataLoader

from evenload.dataset_catalog.testing import write_dataset
from evenload.kafka_connection import Connection
from evenload.ray_trainer.reading.errors import LoaderWorkersError
from evenload.ray_trainer.reading.reader import DatasetReader

NUM_SAMPLES = 100


@pytest.fixture
def reader(connection: Connection) -> Iterator[DatasetReader]:
    samples = pa.RecordBatch.from_pydict({"id": pa.array(range(NUM_SAMPLES))})
    manifest = write_dataset(connection, samples, topic=f"loader-epochs-{uuid.uuid4().hex[:8]}")
    made = DatasetReader(manifest, global_batch_size=10, connection=connection, hold_whole=False, seed=2)
    with closing(made):
        yield made


def workers(reader: DatasetReader, *, is_kept: bool) -> DataLoader[object]:
    return DataLoader(
        reader, batch_size=None, num_workers=1, persistent_workers=is_kept, multiprocessing_context="spawn"
    )


def ids(loader: DataLoader[object]) -> list[int]:
    return [n for batch in loader for n in batch["id"].tolist()]  # type: ignore[index]


def test_a_worker_that_is_kept_reads_one_epoch_after_the_other(reader: DatasetReader) -> None:
    loader = workers(reader, is_kept=True)
    first, second = ids(loader), ids(loader)

    assert sorted(first) == sorted(second) == list(range(NUM_SAMPLES))
    assert first != second


def test_a_worker_that_is_started_anew_would_repeat_the_epoch_and_is_refused(reader: DatasetReader) -> None:
    loader = workers(reader, is_kept=False)

    assert sorted(ids(loader)) == list(range(NUM_SAMPLES))
    with pytest.raises((LoaderWorkersError, RuntimeError), match="persistent_workers=True"):
        ids(loader)
