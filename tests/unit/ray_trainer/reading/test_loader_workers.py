"""A DataLoader's worker that isn't kept begins where the one before began: what that may hide is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import DataLoader

from evenload.dataset_catalog.catalog import Catalog
from evenload.dataset_catalog.testing import PlacedRecord, make_batch, make_manifest, make_records
from evenload.kafka_connection import Connection
from evenload.ray_trainer.reading.errors import LoaderWorkersError
from evenload.ray_trainer.reading.reader import DatasetReader

NUM_SAMPLES, BATCH = 60, 10
UNREACHABLE = Connection(bootstrap_servers="127.0.0.1:1")


class NumbersReader(DatasetReader):
    """Hands out where its steps begin, which takes no broker."""

    def _batches(self, _: Any) -> Iterator[int]:  # type: ignore[override]
        yield from range(self._samples_consumed, self.num_samples, self.global_batch_size)


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> NumbersReader:
    monkeypatch.setattr(Catalog, "check", lambda *_: None)  # asks brokers whether the topic is there
    batch = make_batch(NUM_SAMPLES)
    placed = [PlacedRecord(0, offset, record) for offset, record in enumerate(make_records(batch))]
    manifest = make_manifest(batch, placed)
    return NumbersReader(manifest, global_batch_size=BATCH, connection=UNREACHABLE, shuffle=False)


def numbers(loader: DataLoader[Any]) -> list[int]:
    return list(loader)


def workers(reader: DatasetReader) -> DataLoader[Any]:
    return DataLoader(reader, batch_size=None, num_workers=1, multiprocessing_context="fork")


def test_unshuffled_epochs_are_alike_whichever_worker_reads_them(reader: NumbersReader) -> None:
    loader = workers(reader)
    assert numbers(loader) == numbers(loader) == [0, 10, 20, 30, 40, 50]


def test_the_rest_of_an_unshuffled_epoch_is_not_taken_for_the_next_one(reader: NumbersReader) -> None:
    state = reader.state_dict()
    state["cursor"]["samples_consumed"] = 40
    reader.load_state_dict(state)
    loader = workers(reader)
    assert numbers(loader) == [40, 50]
    with pytest.raises((LoaderWorkersError, RuntimeError), match="persistent_workers=True"):
        numbers(loader)
