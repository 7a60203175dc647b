"""A DatasetReader on real brokers: exactly once, resumable at every step, whatever way samples are held."""

from __future__ import annotations

import io
import json
import pickle
import threading
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image

from evenload.dataset_catalog.catalog import Catalog
from evenload.dataset_catalog.errors import DatasetGoneError, UnknownDatasetError
from evenload.dataset_catalog.manifest import DatasetManifest, Encoding
from evenload.dataset_catalog.testing import write_dataset
from evenload.kafka_connection import Connection
from evenload.kafka_connection.clients import open_admin
from evenload.ray_trainer.errors import CursorMismatchError, TooManyWorkersError
from evenload.ray_trainer.planning import rule
from evenload.ray_trainer.reading.batch import Batch
from evenload.ray_trainer.reading.errors import UndecodableColumnError
from evenload.ray_trainer.reading.reader import DatasetReader

NUM_SAMPLES = 230
MODES = ["whole", "blocks", "record"]
MakeReader = Callable[..., DatasetReader]


def make_samples(num_samples: int) -> pa.RecordBatch:
    pixels = np.random.default_rng(0).integers(0, 256, (num_samples, 3, 4), dtype=np.uint8)
    return pa.RecordBatch.from_pydict(
        {
            "id": pa.array(range(num_samples)),
            "pixels": pa.FixedShapeTensorArray.from_numpy_ndarray(pixels),
            "text": pa.array([f"text {n}" for n in range(num_samples)]),
        }
    )


@pytest.fixture(scope="module")
def manifests(connection: Connection) -> Mapping[str, DatasetManifest]:
    samples = make_samples(NUM_SAMPLES)
    once = uuid.uuid4().hex[:8]  # when its tests run in two stretches, this is made twice
    packed = write_dataset(
        connection, samples, topic=f"reader-packed-{once}", samples_per_record=6, name="packed"
    )
    record = write_dataset(
        connection, samples, topic=f"reader-record-{once}", encoding="record", name="record"
    )
    return {"whole": packed, "blocks": packed, "record": record}


@pytest.fixture
def make_reader(connection: Connection, manifests: Mapping[str, DatasetManifest]) -> Iterator[MakeReader]:
    """Readers that are closed with the test, after which nothing of them runs and no copy is left."""
    readers: list[DatasetReader] = []

    def make(mode: str = "blocks", **options: Any) -> DatasetReader:
        dataset = options.pop("dataset", manifests[mode])
        defaults = {"global_batch_size": 16, "hold_whole": mode == "whole", "seed": 3}
        readers.append(DatasetReader(dataset, connection=connection, **(defaults | options)))
        return readers[-1]

    yield make
    for reader in readers:
        reader.close()
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith(("fetch-", "decode-"))]
    assert not [path for reader in readers for path in copies_of(reader.dataset)]


def copies_of(manifest: DatasetManifest) -> list[Path]:
    return list(Path("/dev/shm").glob(f"evenload-*/{manifest.fingerprint}*"))


def ids(batches: Iterator[Batch] | list[Batch] | DatasetReader) -> list[int]:
    return [sample for batch in batches for sample in batch["id"].tolist()]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 8])
def test_all_ranks_together_get_every_sample_once(
    make_reader: MakeReader, mode: str, world_size: int
) -> None:
    samples = make_samples(NUM_SAMPLES)
    pixels = samples.column("pixels").to_numpy_ndarray()
    readers = [make_reader(mode, rank=rank, world_size=world_size) for rank in range(world_size)]
    by_rank = [list(reader) for reader in readers]
    assert sorted(sample for batches in by_rank for sample in ids(batches)) == list(range(NUM_SAMPLES))
    for batches in zip(*by_rank, strict=True):
        assert sum(batch.num_samples for batch in batches) == batches[0].global_num_samples
        assert len({batch.cursor for batch in batches}) == 1
        for batch in batches:
            rows = batch["id"].tolist()
            assert np.array_equal(batch["pixels"].numpy(), pixels[rows])
            assert batch["text"] == [f"text {row}" for row in rows]
    assert sorted(torch.cat([b.index for batches in by_rank for b in batches]).tolist()) == list(
        range(NUM_SAMPLES)
    )


@pytest.mark.parametrize("mode", MODES)
def test_from_every_step_the_same_remainder_follows(make_reader: MakeReader, mode: str) -> None:
    reader = make_reader(mode, rank=1, world_size=2)
    states, stream = [reader.state_dict()], []
    for batch in reader:
        stream.append(batch["id"].tolist())
        states.append(reader.state_dict())
    next_epoch = ids(reader)
    for step, state in enumerate(states):
        resumed = make_reader(mode, rank=1, world_size=2)
        resumed.load_state_dict(state)
        if step < len(stream):
            assert resumed.steps_left() == len(stream) - step
            assert [batch["id"].tolist() for batch in resumed] == stream[step:]
        assert resumed.epoch == 1
        if step % 5 == 0 or step == len(stream):
            assert ids(resumed) == next_epoch


@pytest.mark.parametrize("mode", MODES)
def test_the_world_may_change_its_size_at_any_step(make_reader: MakeReader, mode: str) -> None:
    seen: list[int] = []
    state: dict[str, Any] | None = None
    for world_size, num_steps in ((2, 4), (1, 3), (3, 2), (5, 100)):
        states = []
        for rank in range(world_size):
            reader = make_reader(mode, rank=rank, world_size=world_size)
            if state is not None:
                reader.load_state_dict(state)
            seen += ids(list(islice(reader, num_steps)))
            states.append(reader.state_dict())
        assert all(each == states[0] for each in states)
        state = states[0]
    assert sorted(seen) == list(range(NUM_SAMPLES))


@pytest.mark.parametrize("mode", MODES)
def test_leaving_the_loop_loses_nothing_that_was_read_ahead(make_reader: MakeReader, mode: str) -> None:
    reader = make_reader(mode)
    seen: list[int] = []
    while reader.steps_left():
        for count, batch in enumerate(reader):
            seen += batch["id"].tolist()
            if count == 2:
                break
        assert not [t.name for t in threading.enumerate() if t.name.startswith(("fetch-", "decode-"))]
        if reader.epoch:
            break
    assert sorted(seen) == list(range(NUM_SAMPLES))


def test_epochs_have_orders_of_their_own_and_the_same_ones_in_every_run(make_reader: MakeReader) -> None:
    reader = make_reader()
    first, second = ids(reader), ids(reader)
    assert first != second
    assert sorted(first) == sorted(second)
    assert reader.epoch == 2
    again = make_reader()
    assert [ids(again), ids(again)] == [first, second]
    assert ids(make_reader(seed=4)) != first


def test_unshuffled_samples_come_as_they_lie_in_kafka(make_reader: MakeReader) -> None:
    for mode in MODES:
        batches = list(make_reader(mode, shuffle=False))
        assert torch.cat([batch.index for batch in batches]).tolist() == list(range(NUM_SAMPLES))


def test_its_length_is_the_steps_of_an_epoch(make_reader: MakeReader) -> None:
    reader = make_reader(global_batch_size=50)
    sizes = [batch.num_samples for batch in reader]
    assert len(sizes) == len(reader) == 5
    assert sizes == [50, 50, 50, 40, 40]


def test_a_changed_batch_size_is_taken_up_with_the_next_epoch_and_said_once(make_reader: MakeReader) -> None:
    reader = make_reader(global_batch_size=16)
    seen = ids(list(islice(reader, 3)))
    changed = make_reader(global_batch_size=20)
    with pytest.warns(UserWarning, match=r"epoch 0 was begun with a global batch of 16.*20 is taken up"):
        changed.load_state_dict(reader.state_dict())
    sizes = [(batch.num_samples, seen.extend(batch["id"].tolist()))[0] for batch in changed]
    assert sizes[0] == 16
    assert sorted(seen) == list(range(NUM_SAMPLES))
    with warnings.catch_warnings(action="error"):
        assert next(iter(changed)).num_samples == 20
    at_an_epochs_beginning = make_reader(global_batch_size=20)
    with warnings.catch_warnings(action="error"):
        at_an_epochs_beginning.load_state_dict(make_reader(global_batch_size=16).state_dict())


@pytest.mark.parametrize(
    "change", [{"seed": 9}, {"shuffle": False}, {"split": (0.5, 1)}, {"hold_whole": True}]
)
def test_a_state_of_another_order_is_refused_with_what_differs(
    make_reader: MakeReader, change: dict[str, Any]
) -> None:
    state = make_reader().state_dict()
    with pytest.raises(CursorMismatchError) as raised:
        make_reader(**change).load_state_dict(state)
    assert raised.value.cursor_fingerprint != raised.value.plan_fingerprint


def test_a_state_is_resumed_in_its_order_when_the_program_would_choose_another_by_now(
    make_reader: MakeReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = make_reader(hold_whole=None)
    seen = [batch["id"].tolist() for batch in reader]
    reader.close()
    state = make_reader(hold_whole=None).state_dict()
    state_in_the_middle = make_reader(hold_whole=None)
    begun = [batch["id"].tolist() for batch in islice(state_in_the_middle, 3)]
    monkeypatch.setattr(rule, "WHOLE_BYTES_MAX", 0)
    monkeypatch.setattr(rule, "_LANES", 10)
    monkeypatch.setattr(rule, "_BLOCK_BYTES_MIN", 1 << 10)
    other = make_reader(hold_whole=None)
    assert other.plan_fingerprint != reader.plan_fingerprint
    other.load_state_dict(json.loads(json.dumps(state)))
    assert other.plan_fingerprint == reader.plan_fingerprint
    assert [batch["id"].tolist() for batch in other] == seen
    another = make_reader(hold_whole=None)
    another.load_state_dict(state_in_the_middle.state_dict())
    assert begun + [batch["id"].tolist() for batch in another] == seen
    state["plan"]["num_lanes"] = 10**12
    with pytest.raises(CursorMismatchError, match="num_lanes"):
        make_reader().load_state_dict(state)


def test_too_many_workers_are_refused_with_the_numbers(make_reader: MakeReader) -> None:
    with pytest.raises(TooManyWorkersError, match="9 workers"):
        make_reader(rank=0, world_size=9, global_batch_size=16)
    with pytest.raises(ValueError, match="both, or neither"):
        make_reader(rank=0)


def test_rank_and_world_size_come_from_the_environment(
    make_reader: MakeReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    reader = make_reader()
    assert (reader.rank, reader.world_size) == (1, 4)
    monkeypatch.setenv("RANK", "4")
    with pytest.raises(ValueError, match="rank 4"):
        make_reader()


@pytest.mark.parametrize("mode", MODES)
def test_a_split_and_the_rest_are_the_whole_dataset(make_reader: MakeReader, mode: str) -> None:
    parts = []
    for fraction in (0.7, -0.3):
        readers = [make_reader(mode, split=(fraction, 5), rank=rank, world_size=2) for rank in range(2)]
        batches = [batch for reader in readers for batch in reader]
        parts.append(ids(batches))
        assert len(parts[-1]) == readers[0].num_samples
        by_index = {int(i): s for b in batches for i, s in zip(b.index, b["id"].tolist(), strict=True)}
        order = ids(make_reader(mode, shuffle=False))
        assert all(order[index] == sample for index, sample in by_index.items())
    assert 0.6 < len(parts[0]) / NUM_SAMPLES < 0.8
    assert sorted(parts[0] + parts[1]) == list(range(NUM_SAMPLES))


def test_a_transform_gets_the_batch_and_may_return_other_columns(make_reader: MakeReader) -> None:
    reader = make_reader(columns=["id"], transform=lambda batch: {"double": batch["id"] * 2})
    batches = list(reader)
    assert set(batches[0]) == {"double"}
    assert batches[0].global_num_samples == 16
    assert sorted(v for b in batches for v in b["double"].tolist()) == [2 * n for n in range(NUM_SAMPLES)]
    with pytest.raises(TypeError, match="transform has to return"):
        next(iter(make_reader(transform=len)))


def test_a_batch_whose_transform_fails_was_not_handed_out(make_reader: MakeReader) -> None:
    failing = [True]

    def transform(batch: Batch) -> Batch:
        if failing and batch.cursor is not None and batch.cursor.samples_consumed == 48:
            failing.clear()
            raise RuntimeError("the third batch")
        return batch

    reader = make_reader(transform=transform)
    seen: list[int] = []
    with pytest.raises(RuntimeError, match="the third batch"):
        seen.extend(sample for batch in reader for sample in batch["id"].tolist())
    assert reader.cursor.samples_consumed == 32
    seen += ids(reader)
    assert sorted(seen) == list(range(NUM_SAMPLES))


def test_sample_seeds_belong_to_the_sample_whoever_reads_it(make_reader: MakeReader) -> None:
    def seeds(world_size: int, batch_size: int) -> dict[int, int]:
        readers = [
            make_reader(rank=rank, world_size=world_size, global_batch_size=batch_size)
            for rank in range(world_size)
        ]
        return {
            sample: seed
            for reader in readers
            for batch in reader
            for sample, seed in zip(batch["id"].tolist(), batch.sample_seeds.tolist(), strict=True)
        }

    one = seeds(1, 16)
    assert one == seeds(3, 25)
    assert len(set(one.values())) == NUM_SAMPLES
    assert min(one.values()) >= 0


def test_a_batch_is_split_into_as_many_parts_on_every_rank(make_reader: MakeReader) -> None:
    by_rank = [list(make_reader(rank=r, world_size=3, global_batch_size=50)) for r in range(3)]
    for batches in zip(*by_rank, strict=True):
        parts = [batch.split(4) for batch in batches]
        assert len({len(each) for each in parts}) == 1
        for batch, each in zip(batches, parts, strict=True):
            assert ids(each) == batch["id"].tolist()
            assert sum(part["text"] == [] for part in each) == 0
            assert all(part.num_samples <= 4 for part in each)
            assert all(part.global_num_samples == batch.global_num_samples for part in each)


def test_a_new_iteration_ends_the_one_before(make_reader: MakeReader) -> None:
    reader = make_reader()
    old = iter(reader)
    first = next(old)["id"].tolist()
    rest = ids(reader)
    assert sorted(first + rest) == list(range(NUM_SAMPLES))
    assert list(old) == []


def test_a_reader_goes_to_another_process_with_its_state(make_reader: MakeReader) -> None:
    for mode in MODES:
        reader = make_reader(mode)
        seen = ids(list(islice(reader, 3)))
        copy = pickle.loads(pickle.dumps(reader))
        assert copy.state_dict() == reader.state_dict()
        assert sorted(seen + ids(copy)) == list(range(NUM_SAMPLES))
        copy.close()


def test_ranks_on_one_machine_share_one_copy_that_goes_with_the_last(make_reader: MakeReader) -> None:
    first, second = make_reader("whole"), make_reader("whole")
    seen = next(iter(first))["id"].tolist()
    assert next(iter(second))["id"].tolist() == seen
    assert first.num_wire_bytes > 0
    assert second.num_wire_bytes == 0
    one_copy = {".arrow", ".build", ".lock"}  # the data, and what guards making and deleting it
    assert {path.suffix for path in copies_of(first.dataset)} == one_copy
    first.close()
    assert {path.suffix for path in copies_of(first.dataset)} == one_copy
    assert sorted(seen + ids(second)) == list(range(NUM_SAMPLES))
    second.close()
    assert copies_of(first.dataset) == []


def test_a_dataset_is_found_by_its_name(connection: Connection, topic_name: str) -> None:
    name = topic_name[-40:].strip("-")
    manifest = write_dataset(connection, make_samples(20), topic=topic_name, name=name)
    catalog = Catalog(connection)
    catalog.ensure_internal_topics()
    catalog.publish(manifest)
    reader = DatasetReader(name, global_batch_size=5, connection=connection)
    assert reader.dataset.id == f"{name}@1"
    assert sorted(ids(reader)) == list(range(20))
    reader.close()
    with pytest.raises(UnknownDatasetError):
        DatasetReader(name + "-not", global_batch_size=5, connection=connection)


def test_a_dataset_whose_topic_is_gone_is_refused_on_opening(connection: Connection, topic_name: str) -> None:
    manifest = write_dataset(connection, make_samples(20), topic=topic_name)
    with open_admin(connection) as admin:
        admin.delete_topics([topic_name])
    with pytest.raises(DatasetGoneError):
        DatasetReader(manifest, global_batch_size=5, connection=connection)


@pytest.mark.parametrize("hold_whole", [True, False])
def test_what_fails_in_the_background_is_raised_in_the_loop(
    connection: Connection, topic_name: str, hold_whole: bool
) -> None:
    samples = pa.RecordBatch.from_pydict({"x": pa.array([1, 2, None, 4] * 10)})
    manifest = write_dataset(connection, samples, topic=topic_name)
    reader = DatasetReader(manifest, global_batch_size=4, connection=connection, hold_whole=hold_whole)
    with pytest.raises(UndecodableColumnError, match="column 'x'"):
        list(reader)
    reader.close()


def test_one_sample_and_fewer_samples_than_a_batch_are_read(connection: Connection, topic_name: str) -> None:
    for number, hold_whole in enumerate((True, False)):
        manifest = write_dataset(connection, make_samples(1), topic=f"{topic_name}-{number}")
        reader = DatasetReader(manifest, global_batch_size=8, connection=connection, hold_whole=hold_whole)
        assert [ids(reader), ids(reader)] == [[0], [0]]
        assert len(reader) == 1
        reader.close()


@pytest.mark.parametrize("mode", MODES)
def test_images_texts_lists_and_numbers_arrive_side_by_side(
    connection: Connection, topic_name: str, mode: str
) -> None:
    def image(number: int) -> bytes:
        stream = io.BytesIO()
        Image.fromarray(np.full((3, 4, 3), number, dtype=np.uint8)).save(stream, "PNG")
        return stream.getvalue()

    count = 40
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    samples = pa.RecordBatch.from_pydict(
        {
            "image": pa.array([{"bytes": image(n), "path": None} for n in range(count)], kind),
            "text": pa.array([None if n % 5 == 0 else "ä" * n for n in range(count)]),
            "items": pa.array([list(range(n % 4)) for n in range(count)], pa.list_(pa.int64())),
            "label": pa.array(range(count)),
        }
    )
    features = {field.name: str(field.type) for field in samples.schema} | {"image": "image"}
    encoding: Encoding = "record" if mode == "record" else "packed"
    manifest = write_dataset(connection, samples, topic=topic_name, encoding=encoding, features=features)
    reader = DatasetReader(manifest, global_batch_size=7, connection=connection, hold_whole=mode == "whole")
    seen = []
    for batch in reader:
        rows = batch["label"].tolist()
        seen += rows
        assert batch["image"].shape == (len(rows), 3, 3, 4)
        assert batch["image"][:, 0, 0, 0].tolist() == rows
        assert batch["text"] == [None if n % 5 == 0 else "ä" * n for n in rows]
        assert [each.tolist() for each in batch["items"]] == [list(range(n % 4)) for n in rows]
    reader.close()
    assert sorted(seen) == list(range(count))
