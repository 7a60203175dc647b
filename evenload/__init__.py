"""Train PyTorch models on Ray from datasets kept in Kafka, evenly over brokers and exactly once.

The public names are loaded when they are first used, so that a producer never loads torch and
`evenload --help` is quick. Type checkers and editors see them as plain imports
(tests/unit/project/test_surface.py compares the two).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = [
    "BalancedProducer",
    "Batch",
    "CheckpointHook",
    "Connection",
    "DatasetReader",
    "NodeAwarePartitioner",
    "Session",
    "load_dataset",
    "prepare_model",
]

# Where each name is, and the extra that it comes with; None: a plain install has it.
_HOMES = {
    "BalancedProducer": ("evenload.kafka_plugin.producer", None),
    "Batch": ("evenload.ray_trainer.reading.batch", "reader"),
    "CheckpointHook": ("evenload.resume.hook", "resume"),
    "Connection": ("evenload.kafka_connection.connection", None),
    "DatasetReader": ("evenload.ray_trainer.reading.reader", "reader"),
    "NodeAwarePartitioner": ("evenload.kafka_plugin.partitioner", "measure"),
    "Session": ("evenload.ray_trainer.training.session", "reader"),
    "load_dataset": ("evenload.kafka_plugin.loading.loader", "load"),
    "prepare_model": ("evenload.ray_trainer.training.model", "reader"),
}

if TYPE_CHECKING:
    from evenload.kafka_connection.connection import Connection
    from evenload.kafka_plugin.loading.loader import load_dataset
    from evenload.kafka_plugin.partitioner import NodeAwarePartitioner
    from evenload.kafka_plugin.producer import BalancedProducer
    from evenload.ray_trainer.reading.batch import Batch
    from evenload.ray_trainer.reading.reader import DatasetReader
    from evenload.ray_trainer.training.model import prepare_model
    from evenload.ray_trainer.training.session import Session
    from evenload.resume.hook import CheckpointHook
else:  # a type checker that saw this would take any name for a public one
    from importlib import import_module

    from evenload.extras import naming_extra

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'evenload' has no attribute {name!r}; it has {', '.join(_HOMES)}")
        home, extra = _HOMES[name]
        with naming_extra(extra, f"evenload.{name}"):
            return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return list(__all__)
