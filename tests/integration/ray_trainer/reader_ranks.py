"""One rank that reads a dataset, started by torchrun or by Lightning (not a test itself).

Run as a program with one JSON argument. The reader is made before anybody knows of ranks; each rank writes
down the `id` of each sample that its loop was handed: the samples' own content, not what the reader says.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from evenload.dataset_catalog.manifest import DatasetManifest
from evenload.kafka_connection import Connection
from evenload.ray_trainer.reading.reader import DatasetReader


def data_of(reader: DatasetReader, config: dict[str, Any]) -> Any:
    if "context" not in config:
        return reader
    return DataLoader(reader, batch_size=None, num_workers=1, multiprocessing_context=config["context"])


def write_down(config: dict[str, Any], ids: list[int]) -> None:
    # One file a process, whatever rank it thinks it has.
    with (Path(config["logs"]) / f"{os.getpid()}.jsonl").open("a") as file:
        print(json.dumps(ids), file=file)


def with_torchrun(reader: DatasetReader, config: dict[str, Any]) -> None:
    if config["group"]:
        torch.distributed.init_process_group("gloo")
    for _ in range(config["epochs"]):
        for batch in data_of(reader, config):
            write_down(config, batch["id"].tolist())
    if config["group"]:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def with_lightning(reader: DatasetReader, config: dict[str, Any]) -> None:
    import lightning

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            write_down(config, batch["id"].tolist())
            loss: torch.Tensor = ((self.layer(batch["x"])[:, 0] - batch["labels"]) ** 2).mean()
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    trainer = lightning.Trainer(
        max_epochs=config["epochs"],
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=config["logs"],
    )
    trainer.fit(Module(), data_of(reader, config))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    asked = json.loads(sys.argv[1])
    made = DatasetReader(
        DatasetManifest.from_json(Path(asked["manifest"]).read_text()),
        global_batch_size=10,
        connection=Connection(bootstrap_servers=asked["bootstrap_servers"]),
        hold_whole=asked["hold_whole"],
        seed=2,
    )
    {"torchrun": with_torchrun, "lightning": with_lightning}[asked["launcher"]](made, asked)
    made.close()
