"""The loop that the tests of resuming run on several ranks (not a test itself)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F  # noqa: N812 -- as everybody calls it

from evenload.ray_trainer.reading.testing import MemoryReader
from evenload.ray_trainer.training.model import prepare_model
from evenload.ray_trainer.training.session import Session
from evenload.resume.state_copy import unwrap


def columns(num_samples: int) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    return {
        "x": rng.normal(size=(num_samples, 24)).astype(np.float32),
        "y": rng.integers(0, 3, num_samples),
    }


def make_model() -> nn.Module:
    torch.manual_seed(5)
    # Several layers of different sizes, so that gradients fill several buckets in another order than that
    # of the parameters, and sums of three ranks' gradients depend on how the buckets are laid out.
    return nn.Sequential(
        nn.Linear(24, 301), nn.ReLU(), nn.Dropout(0.1), nn.Linear(301, 57), nn.Tanh(), nn.Linear(57, 3)
    )


def train(
    *,
    storage: str,
    logs: str,
    epochs: int = 2,
    num_samples: int = 211,
    global_batch_size: int = 18,
    die_after: int | None = None,
    die_rank: int | None = None,
    bit_equal: bool = True,
    interval_s: float = 0.0,
    part_size: int = 4,
) -> None:
    """Train to the end, or die with kill -9 after so many steps of this attempt: one rank, or all."""
    torch.set_num_threads(1)
    rank = dist.get_rank()
    log = Path(logs) / f"handed-out-{dist.get_world_size()}-{rank}.jsonl"
    model = prepare_model(make_model(), bit_equal=bit_equal)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.8)
    reader = MemoryReader(columns(num_samples), global_batch_size=global_batch_size, seed=11)
    with Session(
        model, optimizer, scheduler, reader, run="toy", storage=storage, checkpoint_interval_s=interval_s
    ) as session:
        session.resume()
        done = 0
        for epoch in range(reader.epoch, epochs):
            for batch in session.steps():
                total = 0.0
                for part in session.parts(batch, part_size):
                    loss = F.cross_entropy(model(part["x"]), part["y"], reduction="sum")
                    session.backward(loss)
                    total += loss.item()
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                entry = {
                    "attempt": session.attempt,
                    "step": session.step + 1,
                    "epoch": epoch,
                    "index": [int(i) for i in batch.index],
                    "loss": total.hex(),
                }
                with log.open("a") as file:
                    print(json.dumps(entry), file=file)
                session.end_step(batch)
                session._attempt._checkpoints.wait()  # type: ignore[union-attr]
                done += 1
                if done == die_after and die_rank in (None, rank):
                    import os
                    import signal

                    os.kill(os.getpid(), signal.SIGKILL)
    if rank == 0:
        torch.save(unwrap(model).state_dict(), Path(logs) / "final.pt")


def gradients(*, logs: str, num_samples: int, global_batch_size: int, part_size: int) -> None:
    """Write the gradient of every step of an epoch, without training."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    model = prepare_model(make_model().eval())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    data = {name: np.asarray(column) for name, column in columns(num_samples).items()}
    data["x"] = data["x"].astype(np.float64)
    reader = MemoryReader(data, global_batch_size=global_batch_size, seed=11)
    found = []
    with Session(model, optimizer, None, reader, run="toy", storage=Path(logs) / "storage") as session:
        for batch in session.steps():
            # Labels count as tokens: class 0 has none, so ranks differ in how many they have.
            weight = batch["y"].double()
            for part in session.parts(batch, part_size, num_tokens=int(weight.sum())):
                each = F.cross_entropy(model(part["x"]), part["y"], reduction="none")
                session.backward((each * part["y"]).sum())
            found.append([p.grad.clone() for p in unwrap(model).parameters() if p.grad is not None])
            optimizer.zero_grad()
            session.end_step(batch)
    torch.save(found, Path(logs) / f"gradients-{dist.get_world_size()}-{dist.get_rank()}.pt")
