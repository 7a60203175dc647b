"""How a cluster is reached: one description (addresses, TLS, SASL), both clients' dialects."""

from __future__ import annotations

from .connection import Connection
from .environment import evenload_home, resolve_connection
from .errors import (
    BadConnectionFileError,
    BrokersUnreachableError,
    KafkaConnectionError,
    NoClusterError,
)

__all__ = [
    "BadConnectionFileError",
    "BrokersUnreachableError",
    "Connection",
    "KafkaConnectionError",
    "NoClusterError",
    "evenload_home",
    "resolve_connection",
]
