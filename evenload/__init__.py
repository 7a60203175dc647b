"""Train PyTorch models on Ray from datasets kept in Kafka, evenly over brokers and exactly once.

The public names are loaded when they are first used, so that a producer never loads torch and
`evenload --help` is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from evenload.extras import missing_extra

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

__all__ = list(_HOMES)


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
    return sorted([*globals(), *_HOMES])
