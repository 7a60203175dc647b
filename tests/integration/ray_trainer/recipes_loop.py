"""A recipe as several ranks run it, without Ray (not a test itself)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist

from evenload.kafka_connection import Connection
from evenload.ray_trainer.recipes import find_recipe
from evenload.ray_trainer.training.events import AttemptStarted, CheckpointSaved, Event, StepDone
from evenload.ray_trainer.training.run_context import RunContext, entered
from evenload.ray_trainer.training.train_config import TrainConfig
from evenload.resume.storage import RunStorage


class ListeningLink:
    """Hears what the session tells, and asks it to stop after a step."""

    is_preempted = False
    can_report = False

    def __init__(self, stop_after: int | None = None) -> None:
        self.events: list[Event] = []
        self.stop_asked = False
        self._stop_after = stop_after

    def started(self, event: AttemptStarted) -> None:
        self.events.append(event)

    def step_done(self, event: StepDone) -> None:
        self.events.append(event)
        self.stop_asked = self._stop_after is not None and event.step >= self._stop_after

    def tell(self, event: Event) -> None:
        self.events.append(event)

    def report(self, checkpoint: CheckpointSaved | None, metrics: Mapping[str, float]) -> None:
        del checkpoint, metrics

    def poll_preemption(self) -> None:
        pass

    def flush(self, timeout_s: float) -> None:
        del timeout_s


def run_recipe(
    recipe: str,
    config: TrainConfig,
    *,
    connection: Connection,
    storage: str | Path,
    run: str,
    stop_after: int | None = None,
) -> tuple[dict[str, float], list[Event]]:
    """What a worker of `train` does, in this process, with the config that `check` made."""
    link = ListeningLink(stop_after)
    context = RunContext(
        run=run, storage=storage, connection=connection, torch_threads=1, device="cpu", link=link
    )
    with entered(context):
        metrics = find_recipe(recipe).load().train(config)
    return dict(metrics), link.events


def check_and_run(
    recipe: str,
    config: TrainConfig,
    *,
    connection: Connection,
    storage: str | Path,
    run: str = "run",
    stop_after: int | None = None,
) -> tuple[dict[str, float], list[Event]]:
    """The whole way, in this process alone."""
    checked = find_recipe(recipe).load().check(config, connection, RunStorage(storage, run))
    return run_recipe(recipe, checked, connection=connection, storage=storage, run=run, stop_after=stop_after)


def run_rank(
    *,
    recipe: str,
    config: dict[str, Any],
    connection: dict[str, Any],
    storage: str,
    run: str,
    stop_after: int | None = None,
) -> None:
    """What `rank_processes` starts on every rank; rank 0 writes its metrics beside the run."""
    metrics, _ = run_recipe(
        recipe,
        TrainConfig.model_validate(config),
        connection=Connection.model_validate(connection),
        storage=storage,
        run=run,
        stop_after=stop_after,
    )
    (Path(storage) / run / f"metrics-{dist.get_rank()}.json").write_text(json.dumps(metrics))
