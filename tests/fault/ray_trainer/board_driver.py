"""A driver whose board is killed under it (not a test itself). Prints what happens as JSON lines.

The loop reads from memory: no broker is needed. Rank 0 kills the board at one step and waits until another
one answers; later things happen that the new board has to know of.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import asdict
from typing import Any

import numpy as np
import ray
import torch
from ray.cluster_utils import Cluster
from torch import nn

from evenload.ray_trainer.reading.testing import MemoryReader
from evenload.ray_trainer.training.events import Event
from evenload.ray_trainer.training.model import prepare_model
from evenload.ray_trainer.training.on_ray.board_line import BoardLine
from evenload.ray_trainer.training.on_ray.trainer import TrainConfig, train
from evenload.ray_trainer.training.run_context import current_run
from evenload.ray_trainer.training.session import Session


def loop(config: dict[str, Any]) -> None:
    torch.manual_seed(1)
    reader = MemoryReader({"x": np.zeros((160, 4), np.float32)}, global_batch_size=4)
    model = prepare_model(nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = Session(model, optimizer, None, reader)
    session.resume()
    for _ in range(reader.epoch, config["epochs"]):
        for batch in session.steps():
            for part in session.parts(batch, 4):
                session.backward(model(part["x"]).sum())
            optimizer.step()
            optimizer.zero_grad()
            is_first = session.attempt == 1
            if is_first and session.step == 5 and session.rank == 0:
                kill_board()
            if is_first and session.step == config["die_at"] and session.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            if session.step == config["stop_at"] and session.rank == 0:
                os.kill(config["driver_pid"], signal.SIGINT)
            time.sleep(config["step_s"])
            if session.end_step(batch):
                return


def kill_board() -> None:
    board = current_run().link._board  # type: ignore[union-attr]
    ray.kill(board, no_restart=False)


def run(arguments: dict[str, Any]) -> None:
    arguments["options"]["driver_pid"] = os.getpid()
    config = TrainConfig(dataset="memory", workers=2, cpus_per_worker=1, epochs=1, **arguments)
    result = train(loop, config, on_event=tell, progress_interval_s=0.0)
    say("Result", result.to_dict())


def place(_: dict[str, Any]) -> None:
    """Where the boards of a driver on a cluster of three nodes are."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    for _ in range(2):
        cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False)
    lines = [BoardLine(fruitless_max=1, tell=tell) for _ in range(8)]
    for line in lines:
        line.look(is_stop_asked=False)
    here = ray.get_runtime_context().get_node_id()
    nodes = [ray._private.state.actors(line.board._actor_id.hex())["Address"]["NodeID"] for line in lines]
    ray.shutdown()
    cluster.shutdown()
    say("Placed", {"here": here, "nodes": nodes})


def say(kind: str, content: dict[str, Any]) -> None:
    print(json.dumps({"kind": kind, **content}), flush=True)


def tell(event: Event) -> None:
    say(type(event).__name__, asdict(event))


if __name__ == "__main__":
    {"run": run, "place": place}[sys.argv[1]](json.loads(sys.argv[2]))
