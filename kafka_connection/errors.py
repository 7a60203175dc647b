"""What can go wrong between us and a cluster.

    KafkaConnectionError
    ├── NoClusterError           nobody said which cluster, and no embedded one runs
    ├── BadConnectionFileError   a connection file can't be read or says something impossible
    ├── NoCredentialsError       a password or token can't be got from where it is kept (retriable)
    └── BrokersUnreachableError  an address was given, but nothing answers there (retriable)

Facts are attributes; errors pickle, as they cross processes in Ray
(tests/unit/kafka_connection/test_clients.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar


class KafkaConnectionError(Exception):
    """The root of this package's errors."""

    retriable: ClassVar[bool] = False


class NoClusterError(KafkaConnectionError):
    """Nobody said which cluster to use, and the embedded one doesn't run.

    Attributes:
        home: the folder whose embedded cluster was looked for.
        reason: why there is none, as a clause.
    """

    def __init__(self, home: Path, reason: str) -> None:
        super().__init__(home, reason)
        self.home = home
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"no Kafka cluster: {self.reason} ({self.home}); run `evenload up`, or pass --bootstrap-servers"
        )


class BadConnectionFileError(KafkaConnectionError):
    """A connection file can't be read, or what it says can't be.

    Attributes:
        path: the file.
        reason: what is wrong in it.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"connection file {self.path}: {self.reason}"


class NoCredentialsError(KafkaConnectionError):
    """What proves who we are can't be got from the file or the provider that a connection names.

    Attributes:
        what: the field of the connection, or what was wanted.
        reason: why it can't be got; quotes no secret.
    """

    retriable: ClassVar[bool] = True

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(what, reason)
        self.what = what
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.what} for the brokers can't be had: {self.reason}"


class BrokersUnreachableError(KafkaConnectionError):
    """No broker answered at the given address before the deadline.

    Attributes:
        bootstrap_servers: the addresses that were tried.
        reason: what the last attempt said.
    """

    retriable: ClassVar[bool] = True

    def __init__(self, bootstrap_servers: str, reason: str) -> None:
        super().__init__(bootstrap_servers, reason)
        self.bootstrap_servers = bootstrap_servers
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"no Kafka broker answers at {self.bootstrap_servers}: {self.reason}; "
            "check the address, and that the cluster runs"
        )
