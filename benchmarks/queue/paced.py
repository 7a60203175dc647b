"""Runs whose steps take as long as a curve says for so many workers; all else of them is real.

python -m benchmarks.queue.paced governor ...   # `evenload governor`, which can start such runs
python -m benchmarks.queue.paced driver         # what it has Ray start for a stint of one
"""

from __future__ import annotations

import shlex
import sys
import time
from types import MappingProxyType
from typing import Any

from benchmarks.queue.workload import speeds_of
from evenload.ray_trainer.recipes import registry
from evenload.ray_trainer.recipes.options import RecipeOptions
from evenload.ray_trainer.recipes.registry import Recipe
from evenload.ray_trainer.training.on_ray import submission

NAME = "paced"
MODULE = "benchmarks.queue.paced"
CATCH_UP_STEPS = 2  # a step that was late has the next ones wait less


class PacedOptions(RecipeOptions):
    """What such a run is told."""

    curve: str


def loop(config: dict[str, Any]) -> None:
    """The loop of one worker."""
    import torch
    from torch import nn
    from torch.nn import functional as F  # noqa: N812 -- as everybody calls it

    from evenload import DatasetReader, Session, prepare_model

    torch.manual_seed(config["seed"])
    size = config["global_batch_size"]
    reader = DatasetReader(config["dataset"], global_batch_size=size, seed=config["seed"])
    model = prepare_model(nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    session = Session(model, optimizer, None, reader)
    session.resume()
    step_s = size / speeds_of(config["curve"])[session.world_size]
    due_s = time.monotonic()
    for _ in range(reader.epoch, config["epochs"]):
        for batch in session.steps():
            for part in session.parts(batch, size):
                session.backward(F.cross_entropy(model(part["x"]), part["label"], reduction="sum"))
            optimizer.step()
            optimizer.zero_grad()
            due_s = max(due_s, time.monotonic() - CATCH_UP_STEPS * step_s) + step_s
            time.sleep(max(0.0, due_s - time.monotonic()))
            if session.end_step(batch):
                return


def _govern() -> None:
    from evenload.__main__ import main

    recipe = Recipe(name=NAME, summary="steps by a curve", options=PacedOptions, module=MODULE)
    registry.RECIPES = MappingProxyType({**registry.RECIPES, NAME: recipe})  # type: ignore[misc]
    submission._entrypoint = lambda: f"exec {shlex.quote(sys.executable)} -m {MODULE} driver"
    main()


def _drive() -> None:
    from benchmarks.queue import paced  # by its name, workers find the loop again
    from evenload.ray_trainer.training.on_ray.job_driver import main

    sys.exit(main(paced.loop))


if __name__ == "__main__":
    _drive() if sys.argv[1:] == ["driver"] else _govern()
