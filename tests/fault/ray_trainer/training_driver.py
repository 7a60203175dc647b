"""A driver with a loop of its own, for tests that kill it or its workers (not a test itself).

Run as a program with one JSON argument; prints what happens as JSON lines. Every rank writes down the `id` of
each sample that its loop was handed: the samples' own content, not what the reader says about them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 -- as everybody calls it

from evenload.kafka_connection.connection import Connection
from evenload.ray_trainer.reading.reader import DatasetReader
from evenload.ray_trainer.training.events import Event
from evenload.ray_trainer.training.model import prepare_model
from evenload.ray_trainer.training.on_ray.trainer import TrainConfig, train
from evenload.ray_trainer.training.session import Session


def loop(config: dict[str, Any]) -> None:
    torch.manual_seed(1)
    reader = DatasetReader(
        config["dataset"],
        global_batch_size=config["global_batch_size"],
        seed=config["seed"],
        hold_whole=False,
    )
    model = prepare_model(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    session = Session(model, optimizer, None, reader)
    session.resume()
    log = Path(config["logs"]) / f"handed-out-{session.attempt}-{session.rank}.jsonl"
    for epoch in range(reader.epoch, config["epochs"]):
        for batch in session.steps():
            for part in session.parts(batch, 16):
                loss = F.cross_entropy(model(part["x"]), part["label"], reduction="sum")
                session.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            entry = {
                "attempt": session.attempt,
                "step": session.step + 1,
                "epoch": epoch,
                "ids": batch["id"].tolist(),
            }
            with log.open("a") as file:
                print(json.dumps(entry), file=file)
            time.sleep(config["step_s"])
            if session.step + 1 == config.get("mistake_at"):
                raise ValueError("a mistake in the loop")
            if session.end_step(batch):
                return


def say(kind: str, content: dict[str, Any]) -> None:
    print(json.dumps({"kind": kind, **content}), flush=True)


def tell(event: Event) -> None:
    say(type(event).__name__, asdict(event))


def main(arguments: dict[str, Any]) -> int:
    connection = Connection.model_validate(arguments.pop("connection"))
    say("Driver", {"pid": os.getpid()})
    result = train(
        loop, TrainConfig(connection=connection, **arguments), on_event=tell, progress_interval_s=0.0
    )
    say("Result", result.to_dict())
    return 130 if result.is_stopped else 0


if __name__ == "__main__":
    try:
        code = main(json.loads(sys.argv[1]))
    except Exception as error:  # noqa: BLE001 -- told as the driver's last line
        say("Error", {"type": type(error).__name__, "text": str(error)})
        code = 1
    sys.exit(code)
