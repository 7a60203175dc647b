"""A session finds what it needs in the real reader and in `MemoryReader`, with which loops are tested."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pytest

from evenload.dataset_catalog.testing import write_dataset
from evenload.kafka_connection import Connection
from evenload.ray_trainer.errors import CursorMismatchError
from evenload.ray_trainer.planning.cursor import Cursor
from evenload.ray_trainer.planning.plan import EpochPlan
from evenload.ray_trainer.reading.batch import Batch
from evenload.ray_trainer.reading.reader import DatasetReader
from evenload.ray_trainer.reading.testing import MemoryReader

NUM_SAMPLES = 53
STEPS = [10, 10, 10, 10, 7, 6]


class Reader(Protocol):
    """All that a session asks of one."""

    dataset: Any
    global_batch_size: int
    seed: int
    rank: int
    world_size: int
    plan_fingerprint: str

    @property
    def epoch(self) -> int: ...
    @property
    def num_samples(self) -> int: ...
    @property
    def plan(self) -> EpochPlan: ...
    @property
    def cursor(self) -> Cursor: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Batch]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


Make = Callable[..., Reader]


@pytest.fixture(scope="module", params=["memory", "kafka"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    rows = {"id": np.arange(NUM_SAMPLES), "x": np.random.default_rng(3).normal(size=NUM_SAMPLES)}
    defaults = {"global_batch_size": 10, "seed": 11, "rank": 0, "world_size": 1}
    if request.param == "memory":
        yield lambda **options: MemoryReader(rows, **(defaults | options))
        return
    connection: Connection = request.getfixturevalue("connection")
    samples = pa.RecordBatch.from_pydict({name: pa.array(column) for name, column in rows.items()})
    topic = f"contract-{uuid.uuid4().hex[:8]}"
    manifest = write_dataset(connection, samples, topic=topic, samples_per_record=6, name="contract")
    made: list[DatasetReader] = []

    def make_real(**options: Any) -> Reader:
        made.append(DatasetReader(manifest, connection=connection, hold_whole=False, **(defaults | options)))
        return made[-1]

    yield make_real
    for reader in made:
        reader.close()


def test_a_session_knows_what_it_reads(make: Make) -> None:
    reader = make(rank=1, world_size=2)

    assert reader.num_samples == NUM_SAMPLES
    assert (reader.rank, reader.world_size, reader.seed, reader.global_batch_size) == (1, 2, 11, 10)
    assert len(reader) == len(STEPS)
    assert reader.dataset.id.count("@") == 1
    assert reader.dataset.fingerprint
    assert reader.plan_fingerprint != make(seed=12).plan_fingerprint
    assert reader.cursor == Cursor(0, 0, reader.plan_fingerprint)


def test_the_cursor_moves_with_each_batch_and_the_epoch_after_the_last(make: Make) -> None:
    reader = make()
    consumed, seen = 0, []
    for batch, size in zip(reader, STEPS, strict=True):
        consumed += size
        assert (batch.global_num_samples, len(batch.index)) == (size, size)
        assert batch.cursor == reader.cursor == Cursor(0, consumed, reader.plan_fingerprint)
        seen += batch.index.tolist()
        assert (reader.epoch, reader.plan.epoch) == (0, 0)
    assert reader.cursor == Cursor(1, 0, reader.plan_fingerprint)
    assert reader.plan.epoch == 1
    assert sorted(seen) == list(range(NUM_SAMPLES))


def test_from_every_step_on_any_number_of_ranks_the_same_rest_follows(make: Make) -> None:
    reader = make()
    states, stream = [reader.state_dict()], []
    for batch in reader:
        stream.append(sorted(batch["id"].tolist()))
        states.append(reader.state_dict())
    second = [sorted(batch["id"].tolist()) for batch in reader]
    assert sorted(i for step in stream for i in step) == list(range(NUM_SAMPLES))
    assert second != stream
    for done, state in enumerate(states):
        for world_size in (1, 2, 3):
            ranks = [make(rank=rank, world_size=world_size) for rank in range(world_size)]
            for rank in ranks:
                rank.load_state_dict(state)
            # A state taken after an epoch's last batch is the beginning of the next one.
            expected = stream[done:] or second
            assert [rank.epoch for rank in ranks] == [int(done == len(stream))] * world_size
            assert [
                sorted(i for batch in batches for i in batch["id"].tolist())
                for batches in zip(*ranks, strict=True)
            ] == expected


def test_a_state_of_another_order_is_refused(make: Make) -> None:
    with pytest.raises(CursorMismatchError, match="seed was 12, is now 11"):
        make().load_state_dict(make(seed=12).state_dict())
