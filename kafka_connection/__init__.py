"""How a cluster is reached: one description (addresses, TLS, SASL), both clients' dialects.

The description is re-exported here. What speaks to brokers is imported by its full path: clients.py opens
clients, and admin_questions.py asks what everybody asks of them; what kafka-python doesn't promise is in
kafka_python_internals.py. Topics are read with Fetch requests of our own, which bound what a batch may unpack
to: broker_connection.py, topic_leaders.py, fetch_messages.py, record_batches.py.

Read next: connection.py.
"""

from __future__ import annotations

from evenload.kafka_connection.connection import Connection
from evenload.kafka_connection.environment import resolve_connection
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
    "resolve_connection",
]
