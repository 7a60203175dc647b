"""A reader inside what people train with: DataLoaders, a Hugging Face Trainer, Lightning."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
import warnings
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from evenload.dataset_catalog.manifest import DatasetManifest
from evenload.dataset_catalog.testing import write_dataset
from evenload.kafka_connection import Connection
from evenload.ray_trainer.reading.batch import Batch
from evenload.ray_trainer.reading.errors import LoaderWorkersError
from evenload.ray_trainer.reading.reader import DatasetReader

NUM_SAMPLES = 100
RANKS = Path(__file__).with_name("reader_ranks.py")
# torchdata 0.11 calls a function that PyTorch 2.15 deprecates
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")


@pytest.fixture(scope="module")
def manifest(connection: Connection) -> DatasetManifest:
    samples = pa.RecordBatch.from_pydict(
        {
            "id": pa.array(range(NUM_SAMPLES)),
            "x": pa.array([[float(n % 7), 1.0] for n in range(NUM_SAMPLES)], pa.list_(pa.float32(), 2)),
            "labels": pa.array([float(n % 7) for n in range(NUM_SAMPLES)], pa.float32()),
        }
    )
    return write_dataset(connection, samples, topic=f"reader-frameworks-{uuid.uuid4().hex[:8]}")


@pytest.fixture
def reader(connection: Connection, manifest: DatasetManifest) -> Iterator[DatasetReader]:
    with closing(open_reader(connection, manifest)) as made:
        yield made


def open_reader(connection: Connection, manifest: DatasetManifest) -> DatasetReader:
    return DatasetReader(manifest, global_batch_size=10, connection=connection, hold_whole=False, seed=2)


def again(reader: DatasetReader) -> DatasetReader:
    return open_reader(reader.connection, reader.dataset)


def loader(reader: DatasetReader, kind: type[Any], num_workers: int) -> Any:
    # Threads run in this process, so a worker must not be forked from it.
    context = "spawn" if num_workers else None
    return kind(reader, batch_size=None, num_workers=num_workers, multiprocessing_context=context)


@pytest.mark.parametrize(("kind", "num_workers"), [(DataLoader, 0), (DataLoader, 1), (StatefulDataLoader, 0)])
def test_a_loader_hands_out_the_readers_batches(
    reader: DatasetReader, kind: type[Any], num_workers: int
) -> None:
    batches = list(loader(reader, kind, num_workers))
    assert sorted(n for batch in batches for n in batch["id"].tolist()) == list(range(NUM_SAMPLES))
    assert all(isinstance(batch, Batch) for batch in batches)
    assert batches[0].global_num_samples == 10
    assert batches[0].cursor is not None
    assert batches[0].split(4)[0].num_samples == 3


def test_several_worker_processes_are_refused(reader: DatasetReader) -> None:
    with pytest.raises((LoaderWorkersError, RuntimeError), match="2 worker processes"):
        list(loader(reader, DataLoader, 2))


@pytest.mark.parametrize("context", ["spawn", "fork"])
def test_the_state_of_a_reader_that_a_worker_process_reads_is_refused(
    connection: Connection, manifest: DatasetManifest, context: str
) -> None:
    with closing(open_reader(connection, manifest)) as reader:
        assert reader.state_dict()["cursor"]["samples_consumed"] == 0
        workers = DataLoader(reader, batch_size=None, num_workers=1, multiprocessing_context=context)
        iterator = iter(workers)
        next(iterator)
        with pytest.raises(LoaderWorkersError, match="StatefulDataLoader"):
            reader.state_dict()
        del iterator
        with pytest.raises(LoaderWorkersError, match="num_workers=0"):
            reader.state_dict()
        next(iter(reader))  # what it hands out itself, it knows
        assert reader.state_dict()["cursor"]["samples_consumed"] == 10


@pytest.mark.parametrize(("num_workers", "num_steps"), [(0, 0), (0, 4), (0, 10), (1, 4)])
def test_a_stateful_loader_resumes_where_it_stood(
    reader: DatasetReader, num_workers: int, num_steps: int
) -> None:
    first = loader(reader, StatefulDataLoader, num_workers)
    iterator = iter(first)
    seen = [n for batch in islice(iterator, num_steps) for n in batch["id"].tolist()]
    state = first.state_dict()
    del iterator
    other = again(reader)
    resumed = loader(other, StatefulDataLoader, num_workers)
    resumed.load_state_dict(state)
    rest = [n for batch in resumed for n in batch["id"].tolist()]
    other.close()
    if num_steps == 10:  # at an epoch's end, the next one follows, or nothing of this one
        assert rest == [] or sorted(rest) == list(range(NUM_SAMPLES))
    else:
        assert sorted(seen + rest) == list(range(NUM_SAMPLES))


def ids_by_process(
    connection: Connection, manifest: DatasetManifest, folder: Path, program: list[str], **asked: Any
) -> list[list[list[int]]]:
    """Start two ranks; what each of their loops was handed, batch by batch."""
    (folder / "manifest.json").write_text(manifest.to_json())
    config = {
        "manifest": str(folder / "manifest.json"),
        "bootstrap_servers": connection.bootstrap_servers,
        "logs": str(folder),
        "hold_whole": False,
        "epochs": 1,
        **asked,
    }
    done = subprocess.run(
        [sys.executable, *program, str(RANKS), json.dumps(config)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [[json.loads(line) for line in log.read_text().splitlines()] for log in folder.glob("*.jsonl")]


def require_halves_of_each_epoch(handed_out: list[list[list[int]]], *, epochs: int) -> None:
    """Two ranks, all samples once an epoch, and in each step as many for one as for the other."""
    first, second = handed_out
    assert len(first) == len(second) == 10 * epochs
    assert {len(batch) for batch in first + second} == {5}
    for epoch in range(epochs):
        steps = slice(10 * epoch, 10 * epoch + 10)
        assert sorted(i for batch in first[steps] + second[steps] for i in batch) == list(range(NUM_SAMPLES))


TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]


@pytest.mark.parametrize(
    ("group", "hold_whole"),
    [
        (True, True),
        (False, False),
        pytest.param(True, False, marks=pytest.mark.torture),
        pytest.param(False, True, marks=pytest.mark.torture),
    ],
)
def test_two_ranks_of_torchrun_share_every_epoch(
    connection: Connection, manifest: DatasetManifest, tmp_path: Path, group: bool, hold_whole: bool
) -> None:
    asked = {"launcher": "torchrun", "group": group, "hold_whole": hold_whole, "epochs": 2}
    handed_out = ids_by_process(connection, manifest, tmp_path, TORCHRUN, **asked)

    require_halves_of_each_epoch(handed_out, epochs=2)


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.torture)])
def test_a_loaders_worker_process_reads_its_ranks_part(
    connection: Connection, manifest: DatasetManifest, tmp_path: Path, context: str
) -> None:
    asked = {"launcher": "torchrun", "group": True, "context": context}
    handed_out = ids_by_process(connection, manifest, tmp_path, TORCHRUN, **asked)

    require_halves_of_each_epoch(handed_out, epochs=1)


def test_two_ranks_of_lightnings_own_launcher_share_every_epoch(
    connection: Connection, manifest: DatasetManifest, tmp_path: Path
) -> None:
    handed_out = ids_by_process(connection, manifest, tmp_path, [], launcher="lightning", epochs=2)

    require_halves_of_each_epoch(handed_out, epochs=2)


class Linear(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.seen: list[int] = []

    def forward(self, x: torch.Tensor, labels: torch.Tensor, id: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen += id.tolist()
        return {"loss": ((self.layer(x)[:, 0] - labels) ** 2).mean()}


def test_a_hugging_face_trainer_trains_on_every_sample_once_an_epoch(
    reader: DatasetReader, tmp_path: Path
) -> None:
    with warnings.catch_warnings(action="ignore"):
        from transformers import Trainer, TrainingArguments

        class ReaderTrainer(Trainer):  # type: ignore[misc]
            def get_train_dataloader(self) -> DatasetReader:
                return reader

        model = Linear()
        arguments = TrainingArguments(
            output_dir=str(tmp_path),
            num_train_epochs=2,
            ignore_data_skip=True,
            remove_unused_columns=False,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
            logging_strategy="no",
        )
        result = ReaderTrainer(model=model, args=arguments).train()
    assert result.global_step == 20
    assert sorted(model.seen[:NUM_SAMPLES]) == sorted(model.seen[NUM_SAMPLES:]) == list(range(NUM_SAMPLES))
    assert model.seen[:NUM_SAMPLES] != model.seen[NUM_SAMPLES:]


def test_lightning_trains_on_every_sample_and_resumes_in_the_middle_of_an_epoch(
    reader: DatasetReader, tmp_path: Path
) -> None:
    with warnings.catch_warnings(action="ignore"):
        import lightning

        class Module(lightning.LightningModule):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.model = Linear()

            def training_step(self, batch: Batch, _: int) -> torch.Tensor:
                return self.model(**batch)["loss"]

            def configure_optimizers(self) -> torch.optim.Optimizer:
                return torch.optim.SGD(self.parameters(), lr=0.01)

        class StopInTheMiddle(lightning.Callback):  # type: ignore[misc]
            def on_train_batch_end(self, trainer: Any, *_: object) -> None:
                if trainer.global_step == 4:
                    trainer.save_checkpoint(tmp_path / "last.ckpt")
                    raise KeyboardInterrupt

        def train(module: Module, data: DatasetReader, *, resume: bool) -> None:
            trainer = lightning.Trainer(
                max_epochs=1,
                callbacks=[] if resume else [StopInTheMiddle()],
                accelerator="cpu",
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                default_root_dir=tmp_path,
            )
            path = tmp_path / "last.ckpt" if resume else None
            trainer.fit(module, data, ckpt_path=path, weights_only=False)

        first, resumed, other = Module(), Module(), again(reader)
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            train(first, reader, resume=False)
        train(resumed, other, resume=True)
        other.close()
    assert len(first.model.seen) == 40
    assert sorted(first.model.seen + resumed.model.seen) == list(range(NUM_SAMPLES))
