"""Train PyTorch models on Ray from datasets kept in Kafka, evenly over brokers and exactly once.

The public names are loaded when they are first used, so that a producer never loads torch and
`evenload --help` is quick. Type checkers and editors see them as plain imports
(tests/unit/project/test_surface.py compares the two).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from evenload.extras import missing_extra

__all__ = [
    "BalancedProducer",
    "Batch",
    "Connection",
    "DatasetReader",
    "NodeAwarePartitioner",
    "Session",
    "load_dataset",
    "prepare_model",
]

_HOMES = {
    "BalancedProducer": "evenload.kafka_plugin.producer",
    "Batch": "evenload.ray_trainer.reading.batch",
    "Connection": "evenload.kafka_connection.connection",
    "DatasetReader": "evenload.ray_trainer.reading.reader",
    "NodeAwarePartitioner": "evenload.kafka_plugin.partitioner",
    "Session": "evenload.ray_trainer.training.session",
    "load_dataset": "evenload.kafka_plugin.loading.loader",
    "prepare_model": "evenload.ray_trainer.training.model",
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
else:  # a type checker that saw this would take any name for a public one

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'evenload' has no attribute {name!r}; it has {', '.join(_HOMES)}")
        try:
            return getattr(import_module(_HOMES[name]), name)
        except ModuleNotFoundError as error:
            if missing := missing_extra(error):
                raise ModuleNotFoundError(f"evenload.{name}: {missing}", name=error.name) from error
            raise


def __dir__() -> list[str]:
    return list(__all__)
