"""What can go wrong while a cluster is measured.

    CollectorError
    ├── NoFreshSnapshotError     nothing new enough came before the deadline (retriable)
    ├── CollectorClosedError     it was asked before start() or after close()
    ├── ServiceUnusableError     the collector service gave nothing that can be used (retriable)
    │   └── ServiceRefusedError  it answers, but not to this question
    ├── ClusterChangedError      another cluster answers by now
    ├── SubscriptionError        clients can't be asked to push their metrics
    └── SourceError              one question to one broker failed; the collector counts it and goes on
        ├── BrokerUnreachableError   no answer, or the connection broke (retriable)
        ├── AccessRefusedError       the cluster's ACLs or our credentials don't allow the question
        └── BadAnswerError           an answer that can't be what was asked for

Facts are attributes; errors pickle (tests/unit/telemetry_collector/test_errors.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

__all__ = [
    "AccessRefusedError",
    "BadAnswerError",
    "BrokerUnreachableError",
    "ClusterChangedError",
    "CollectorClosedError",
    "CollectorError",
    "NoFreshSnapshotError",
    "ServiceRefusedError",
    "ServiceUnusableError",
    "SourceError",
    "SubscriptionError",
]


class CollectorError(Exception):
    """The root of this package's errors."""

    retriable: ClassVar[bool] = False


class NoFreshSnapshotError(CollectorError):
    """A snapshot was demanded, and none that is new enough could be had in time.

    Attributes:
        bootstrap_servers: the cluster's addresses.
        timeout_s: how long it was waited.
        reasons: by what was asked ("cluster_metadata", "log_dirs of broker 2"), why it has no answer.
    """

    retriable: ClassVar[bool] = True

    def __init__(self, bootstrap_servers: str, timeout_s: float, reasons: Mapping[str, str]) -> None:
        super().__init__(bootstrap_servers, timeout_s, dict(reasons))  # a view of them wouldn't pickle
        self.bootstrap_servers = bootstrap_servers
        self.timeout_s = timeout_s
        self.reasons = dict(reasons)

    def __str__(self) -> str:
        why = "; ".join(f"{what}: {reason}" for what, reason in self.reasons.items())
        return (
            f"no fresh measurement of the cluster at {self.bootstrap_servers} within {self.timeout_s:g} s "
            f"({why or 'no broker has answered yet'}); check that its brokers run and can be reached"
        )


class CollectorClosedError(CollectorError):
    """A collector was asked for something while it doesn't run.

    Attributes:
        reason: why it doesn't run, as a clause.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"the collector doesn't run: {self.reason}"


class ServiceUnusableError(CollectorError):
    """A collector service didn't answer, or answered what can't be used.

    Attributes:
        reason: why it can't be used, as a clause.
    """

    retriable: ClassVar[bool] = True

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"the collector service can't be used: {self.reason}"


class ServiceRefusedError(ServiceUnusableError):
    """A collector service answered this question with what can't be used; it may answer others."""


class ClusterChangedError(CollectorError):
    """Brokers at the addresses that we were given belong to another cluster than before.

    Attributes:
        bootstrap_servers: the addresses.
        known_id: the id of the cluster that was measured.
        found_id: the id of the one that answers now.
    """

    def __init__(self, bootstrap_servers: str, known_id: str, found_id: str) -> None:
        super().__init__(bootstrap_servers, known_id, found_id)
        self.bootstrap_servers = bootstrap_servers
        self.known_id = known_id
        self.found_id = found_id

    def __str__(self) -> str:
        return (
            f"the brokers at {self.bootstrap_servers} belong to cluster {self.found_id!r} now, not to "
            f"{self.known_id!r}, which was measured so far; start the collector again to measure that one"
        )


class SubscriptionError(CollectorError):
    """Clients can't be asked to push their metrics, or asked no more.

    Attributes:
        reason: why, as a clause.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"clients' metrics can't be subscribed to: {self.reason}"


class SourceError(CollectorError):
    """One question to one broker failed.

    Attributes:
        broker: who was asked: a broker id, or an address from the bootstrap servers.
        reason: what happened, as a clause.
    """

    def __init__(self, broker: int | str, reason: str) -> None:
        super().__init__(broker, reason)
        self.broker = broker
        self.reason = reason

    def __str__(self) -> str:
        return f"broker {self.broker}: {self.reason}"


class BrokerUnreachableError(SourceError):
    """No answer before the deadline, or the connection was refused or broke."""

    retriable: ClassVar[bool] = True


class AccessRefusedError(SourceError):
    """The broker understood, and won't tell us.

    Attributes:
        permission: what to grant, or what is wrong with the credentials.
    """

    def __init__(self, broker: int | str, reason: str, permission: str) -> None:
        super().__init__(broker, reason)
        self.args = (broker, reason, permission)
        self.permission = permission

    def __str__(self) -> str:
        return f"broker {self.broker}: {self.reason}; {self.permission}"


class BadAnswerError(SourceError):
    """The broker answered with an error, or with something that isn't an answer to the question."""
