"""How good the model is on another dataset, each of its samples counted once, by all ranks together.

What is measured is rank 0's model, the one that is saved: ranks share its running statistics first. Ranks
talk to each other before and after, never in between, so they need not have the same number of batches, and
a dataset too small for all of them is measured by the first few. A rank that hears of a stop counts no
further, and afterwards all know that the counts are of no use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F  # noqa: N812 -- as everybody calls it

from evenload.dataset_catalog.catalog import Catalog
from evenload.kafka_connection.connection import Connection
from evenload.ray_trainer.reading.batch import Batch
from evenload.ray_trainer.reading.reader import DatasetReader
from evenload.ray_trainer.recipes.labels import renumbered
from evenload.ray_trainer.recipes.metrics import ClassCounts
from evenload.ray_trainer.training.model import model_device
from evenload.resume.state_copy import unwrap

__all__ = ["Evaluation", "Measured"]

_SAMPLES_PER_RANK: Final = 256  # at once


class Measured(Protocol):
    """What is needed of a recipe to measure its model."""

    @property
    def columns(self) -> tuple[str, str]: ...

    @property
    def num_classes(self) -> int: ...

    @property
    def class_names(self) -> tuple[str, ...] | None: ...

    @property
    def has_matthews(self) -> bool: ...

    def transform(self, batch: Any) -> Any: ...

    def logits(self, model: nn.Module, part: Any) -> torch.Tensor: ...


class Evaluation:
    """This rank's part in measuring on one dataset. Every rank makes one. Close it."""

    def __init__(self, task: Measured, dataset: str, connection: Connection) -> None:
        self._task = task
        manifest = Catalog(connection).get(dataset)
        rank, world_size = (dist.get_rank(), dist.get_world_size()) if _is_distributed() else (0, 1)
        taking_part = max(1, min(world_size, manifest.num_samples // 2))
        self._takes_part = rank < taking_part
        self._renumbered = renumbered(manifest, task.columns[1], task.class_names)
        self._reader = DatasetReader(
            manifest,
            global_batch_size=_SAMPLES_PER_RANK * taking_part,
            shuffle=False,
            columns=task.columns,
            transform=self._transform,
            rank=min(rank, taking_part - 1),
            world_size=taking_part,
            connection=connection,
        )

    def measure(
        self, model: nn.Module, stop_asked: Callable[[], bool] = lambda: False
    ) -> dict[str, float] | None:
        """Accuracy, mean loss, and what else the recipe has; the same on every rank.

        Every rank calls it after the same step.

        Args:
            stop_asked: Asked before each batch; True ends it on this rank.

        Returns:
            None, on every rank, when any was asked to stop before its end.
        """
        own = unwrap(model)
        if _is_distributed():
            for buffer in own.buffers():
                dist.broadcast(buffer, src=0)
        was_training = own.training
        own.eval()
        counts = ClassCounts(self._task.num_classes, device=model_device(own))
        has_stopped = self._takes_part and not self._count(own, counts, stop_asked)
        own.train(was_training)
        if _is_distributed():
            stops = torch.tensor(float(has_stopped), device=counts.values.device)
            dist.all_reduce(stops)
            has_stopped = bool(stops.item())
            dist.all_reduce(counts.values)
        if has_stopped:
            return None
        metrics = {"accuracy": counts.accuracy(), "eval_loss": counts.mean_loss()}
        if self._task.has_matthews:
            metrics["matthews_correlation"] = counts.matthews_correlation()
        return metrics

    def close(self) -> None:
        """Let go of the dataset."""
        self._reader.close()

    def _transform(self, batch: Batch) -> Any:
        if self._renumbered is None:
            return self._task.transform(batch)
        label = self._task.columns[1]
        numbers = torch.tensor(self._renumbered)[batch[label].to(torch.int64)]
        return self._task.transform(batch.with_columns({**batch, label: numbers}))

    @torch.no_grad()
    def _count(self, model: nn.Module, counts: ClassCounts, stop_asked: Callable[[], bool]) -> bool:
        """Returns whether all batches were counted."""
        device = model_device(model)
        for batch in self._reader:
            if stop_asked():
                return False
            part = batch.to(device)
            logits = self._task.logits(model, part)
            counts.add(logits, part["label"], F.cross_entropy(logits, part["label"], reduction="sum"))
        return True


def _is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
