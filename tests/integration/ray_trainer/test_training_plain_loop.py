"""A loop in a plain process, reading from real brokers, without Ray: what a session keeps is exact."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 -- as everybody calls it

from evenload.dataset_catalog.catalog import Catalog
from evenload.kafka_connection import Connection
from evenload.kafka_connection.clients import open_admin
from evenload.kafka_plugin.loading.loader import load_dataset
from evenload.ray_trainer.reading.reader import DatasetReader
from evenload.ray_trainer.reading.testing import MemoryReader
from evenload.ray_trainer.training.audit import audit
from evenload.ray_trainer.training.group_progress import group_of
from evenload.ray_trainer.training.session import Session
from evenload.resume.checkpoint import CheckpointStore
from evenload.resume.errors import RunMismatchError, UnknownRunError
from evenload.resume.storage import RunStorage

NUM_SAMPLES = 61
NUM_STEPS = 14  # two epochs of 61 samples, 9 at a time


def columns() -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(4)
    return {
        "id": np.arange(NUM_SAMPLES),
        "x": rng.normal(size=(NUM_SAMPLES, 3)).astype(np.float32),
        "label": rng.integers(0, 2, NUM_SAMPLES),
    }


@pytest.fixture(scope="module", params=["packed", "record"])
def dataset(request: pytest.FixtureRequest, connection: Connection) -> str:
    name = f"plain-{request.param}-{uuid.uuid4().hex[:8]}"
    load_dataset(columns(), name, connection=connection, encoding=request.param, partitions=2)
    return name


def train(
    reader: Any, storage: Path, *, run: str = "plain", steps: int | None = None
) -> list[tuple[int, int]]:
    """Two epochs, or so many steps and then gone; what the loop was handed, as (epoch, id)."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = Session(model, optimizer, None, reader, run=run, storage=storage, checkpoint_interval_s=0.0)
    session.resume()
    handed_out = []
    for epoch in range(reader.epoch, 2):
        for batch in session.steps():
            loss = F.cross_entropy(model(batch["x"]), batch["label"], reduction="sum")
            session.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            handed_out += [(epoch, int(i)) for i in batch["id"]]
            session.end_step(batch)
            if session.step == steps:
                session.close()
                return handed_out
    session.close()
    return handed_out


def reader_of(dataset: str, connection: Connection, **options: Any) -> DatasetReader:
    return DatasetReader(
        dataset, global_batch_size=9, seed=5, connection=connection, **{"hold_whole": False, **options}
    )


@pytest.mark.parametrize("hold_whole", [False, True])
def test_a_loop_left_at_any_step_and_taken_up_again_is_exact(
    tmp_path: Path, connection: Connection, dataset: str, hold_whole: bool
) -> None:
    whole = train(reader_of(dataset, connection, hold_whole=hold_whole), tmp_path / "whole")
    assert sorted(whole) == [(epoch, i) for epoch in range(2) for i in range(NUM_SAMPLES)]
    for left_after in (1, 6, 7, 8, 13):
        storage = tmp_path / str(left_after)
        first = train(reader_of(dataset, connection, hold_whole=hold_whole), storage, steps=left_after)
        rest = train(reader_of(dataset, connection, hold_whole=hold_whole), storage)

        assert first + rest == whole
        report = audit("plain", storage, connection)
        assert report.exactly_once, report
        assert report.dataset == f"{dataset}@1"


def test_a_checkpoint_says_its_place_in_kafkas_words_and_the_group_shows_it(
    tmp_path: Path, connection: Connection, dataset: str
) -> None:
    run = f"plain-{uuid.uuid4().hex[:8]}"
    train(reader_of(dataset, connection), tmp_path, run=run, steps=4)
    store = CheckpointStore(RunStorage(tmp_path, run), None)
    found = store.newest_valid().checkpoint
    assert found is not None
    said = json.loads(json.dumps(found.index.told))

    manifest = Catalog(connection).get(dataset)
    assert set(said["records_consumed"]) == {str(part.partition) for part in manifest.partitions}
    consumed = sum(said["records_consumed"].values())
    assert 0 <= consumed < manifest.num_records
    with open_admin(connection) as admin:
        committed = admin.list_group_offsets(group_of(run))[group_of(run)]
    offsets = {key.partition: value.offset for key, value in committed.items() if key.topic == manifest.topic}
    first = {p.partition: int(p.first_offset[0]) for p in manifest.partitions}
    assert offsets == {p: first[p] + said["records_consumed"][str(p)] for p in first}


def test_a_run_on_a_part_of_a_dataset_is_audited_against_that_part(
    tmp_path: Path, connection: Connection, dataset: str
) -> None:
    handed_out = train(reader_of(dataset, connection, split=(0.7, 3)), tmp_path)

    report = audit("plain", tmp_path, connection)
    assert report.exactly_once, report
    assert [epoch.samples for epoch in report.epochs] == [len(handed_out) // 2] * 2
    assert len(handed_out) < 2 * NUM_SAMPLES


def test_another_version_of_the_dataset_is_refused_with_both_names(
    tmp_path: Path, connection: Connection
) -> None:
    name = f"versions-{uuid.uuid4().hex[:8]}"
    load_dataset(columns(), name, connection=connection, partitions=2)
    train(reader_of(name, connection), tmp_path, steps=3)
    load_dataset(columns(), name, connection=connection, partitions=2, new_version=True)

    with pytest.raises(RunMismatchError, match=f"dataset is '{name}@1', asked for '{name}@2'"):
        train(reader_of(name, connection), tmp_path)
    train(reader_of(f"{name}@1", connection), tmp_path)
    assert audit("plain", tmp_path, connection).exactly_once


def test_auditing_a_run_that_is_not_there_lists_those_that_are(
    tmp_path: Path, connection: Connection, dataset: str
) -> None:
    train(reader_of(dataset, connection), tmp_path, run="first", steps=1)

    with pytest.raises(UnknownRunError, match="there are first"):
        audit("second", tmp_path, connection)


def test_the_reader_of_tests_keeps_the_contract_of_the_real_one(connection: Connection, dataset: str) -> None:
    """What sessions rely on, asked of both: sizes of steps, cursors, states, and who refuses what."""
    real = reader_of(dataset, connection)
    fake = MemoryReader(columns(), global_batch_size=9, seed=5)

    def story(reader: Any) -> list[Any]:
        told: list[Any] = [reader.epoch, reader.num_samples, len(reader), reader.seed]
        for number, batch in enumerate(reader):
            told.append((batch.num_samples, batch.global_num_samples, len(batch.split(4)), len(batch.index)))
            told.append((batch.cursor.epoch, batch.cursor.samples_consumed))
            told.append((reader.cursor.epoch, reader.cursor.samples_consumed))
            state = reader.state_dict()
            told.append((sorted(state), sorted(state["cursor"]), state["global_batch_size"]))
            assert batch.cursor.plan_fingerprint == reader.plan_fingerprint
            assert reader.plan.num_samples == reader.num_samples
            if number == 6:
                told.append(("last", state["cursor"]["epoch"], state["cursor"]["samples_consumed"]))
        told.append((reader.epoch, reader.cursor.samples_consumed))
        reader.load_state_dict(state)
        told.append((reader.epoch, reader.cursor.samples_consumed))
        return told

    assert story(real) == story(fake)
    assert sorted(i for b in real for i in b.index.tolist()) == sorted(
        i for b in fake for i in b.index.tolist()
    )
