"""How a cluster is reached: one description (addresses, TLS, SASL), both clients' dialects.

Topics are read with Fetch requests of our own, which bound what a batch may unpack to: broker_connection.py,
topic_leaders.py, fetch_messages.py and record_batches.py. They are imported by their full names.
"""

from __future__ import annotations

from evenload.kafka_connection.connection import Connection
from evenload.kafka_connection.environment import evenload_home, resolve_connection
from evenload.kafka_connection.errors import (
    BadConnectionFileError,
    BrokersUnreachableError,
    KafkaConnectionError,
    NoClusterError,
    NoCredentialsError,
)
from evenload.kafka_connection.oauth import OAuth

__all__ = [
    "BadConnectionFileError",
    "BrokersUnreachableError",
    "Connection",
    "KafkaConnectionError",
    "NoClusterError",
    "NoCredentialsError",
    "OAuth",
    "evenload_home",
    "resolve_connection",
]
