"""The loop that both recipes share: train a classifier, measure it after each epoch, leave the model.

A recipe brings what differs, as a `Task`: which columns, how a batch becomes tensors, which model. The loop
is the one of training/session.py, written out; it is meant to be read, and copied into one's own program.

Read next: preparation.py (what happens before), evaluation.py, schedule.py.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 -- as everybody calls it

from evenload.kafka_connection.environment import resolve_connection
from evenload.ray_trainer.reading.batch import Batch
from evenload.ray_trainer.reading.reader import DatasetReader
from evenload.ray_trainer.recipes.evaluation import Evaluation
from evenload.ray_trainer.recipes.options import RecipeOptions
from evenload.ray_trainer.recipes.schedule import Schedule
from evenload.ray_trainer.training.model import prepare_model
from evenload.ray_trainer.training.run_context import RunContext, current_run
from evenload.ray_trainer.training.session import Session
from evenload.ray_trainer.training.train_config import TrainConfig
from evenload.resume.state_copy import unwrap
from evenload.resume.storage import RunStorage

__all__ = ["Task", "run_context", "run_storage", "train_classifier"]


class Task(Protocol):
    """What a recipe brings."""

    columns: tuple[str, str]  # input, label
    num_classes: int
    class_names: tuple[str, ...] | None
    learning_rate: float
    has_matthews: bool

    def build_model(self) -> nn.Module:
        """The model, untrained or pretrained; the same on every rank."""

    def transform(self, batch: Batch) -> Mapping[str, Any]:
        """A decoded batch as tensors: the model's inputs, and `label` [n] int64."""

    def vary(self, part: Batch) -> Batch:
        """The same samples for training, changed a little at random if the recipe was told to."""

    def logits(self, model: nn.Module, part: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """[n, num_classes], of a batch that `transform` made."""

    def save(self, model: nn.Module, folder: Path) -> None:
        """Leave the model, and all that is needed to use it."""


def run_context() -> RunContext:
    """The run that this process works for: a worker of `train`, or a program that entered one."""
    context = current_run()
    if context is None:
        raise RuntimeError("a recipe's loop runs in a worker of train(), or within run_context.entered(...)")
    return context


def run_storage() -> RunStorage:
    """The folder of that run."""
    return run_context().open_storage()


def train_classifier(task: Task, config: TrainConfig, options: RecipeOptions) -> dict[str, float]:
    """Train to the last epoch, or until asked to stop.

    Returns:
        Metrics of the last evaluation of the model as it is now; empty without one.
    """
    torch.manual_seed(config.seed)
    connection = run_context().connection or resolve_connection()
    # As many microbatches on every rank, so the bound must not depend on what this rank has of a step.
    part_size = options.micro_batch_size or config.global_batch_size
    with ExitStack() as opened:
        reader = DatasetReader(
            config.dataset,
            global_batch_size=config.global_batch_size,
            seed=config.seed,
            columns=task.columns,
            transform=task.transform,
            max_workers=config.max_workers,
            hold_whole=config.hold_whole,
            connection=connection,
        )
        opened.callback(reader.close)
        evaluation = None
        if config.eval_dataset is not None:
            evaluation = Evaluation(task, config.eval_dataset, connection)
            opened.callback(evaluation.close)
        model = prepare_model(task.build_model(), bit_equal=config.bit_equal)
        optimizer = make_optimizer(model, options.weight_decay)
        schedule = Schedule(
            optimizer,
            reader,
            highest=options.learning_rate or task.learning_rate,
            epochs=config.epochs,
            warmup_share=options.warmup_share,
        )
        session = opened.enter_context(Session(model, optimizer, schedule, reader))
        session.resume()
        measure = partial(evaluation.measure, model) if evaluation is not None else None
        schedule.step()  # a resumed run's optimizer has the settings of then
        for epoch in range(reader.epoch, config.epochs):
            # The epoch before is measured here, and not as it ends: so it is also when a run goes on that was
            # stopped while it was measured.
            if epoch and measure and session.evaluate(epoch - 1, measure) is None:
                return _last_metrics(session)
            model.train()
            for batch in session.steps():
                for part in session.parts(batch, part_size):
                    logits = task.logits(model, task.vary(part))
                    loss = F.cross_entropy(logits, part["label"], reduction="sum")
                    session.backward(loss)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
                if session.end_step(batch):
                    return _last_metrics(session)
        session.close()  # the last checkpoint, before what may take long or fail
        if measure and session.evaluate(config.epochs - 1, measure) is None:
            return _last_metrics(session)
        if session.rank == 0:
            save_model(task, model)
    return _last_metrics(session)


def _last_metrics(session: Session) -> dict[str, float]:
    return dict(session.metrics[max(session.metrics)]) if session.metrics else {}


def make_optimizer(model: nn.Module, weight_decay: float) -> torch.optim.Optimizer:
    """AdamW; weight decay on matrices and kernels, not on biases and scales. `Schedule` sets its rate."""
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    others = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW([group for group in groups if group["params"]], fused=True)


def save_model(task: Task, model: nn.Module) -> None:
    """Leave the model in STORAGE/RUN/model, in place of an earlier one."""
    with tempfile.TemporaryDirectory(prefix="evenload-model-") as folder:
        task.save(unwrap(model), Path(folder))
        run_storage().upload_folder(Path(folder), "model")
