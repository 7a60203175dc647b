"""What Kafka's clients are asked to push: a subscription of the cluster's (KIP-714), which brokers tell their
clients.

    subscribe(connection, interval_s=10)

It never asks for more than the figures that are used, by the names in full. A push that is larger than a
broker's `telemetry.max.bytes` is answered in a way (INVALID_RECORD) upon which its client doesn't push again
until it is started anew; so metrics of which a client has one for each topic are only asked for on demand,
and a bound that is set too low is refused. librdkafka 2.5.0 is left out, which ends its process when nothing
matches.

Consumers are asked for one figure that nobody uses: librdkafka up to 2.10 loses its connection, time and
again, where a subscription has nothing for it.

Needs ALTER_CONFIGS and DESCRIBE_CONFIGS on the cluster. Only kafka-python can do it: to others of its kind,
client metrics are no kind of resource.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import kafka
from kafka.admin import AlterConfigOp, ConfigResource, ConfigResourceType
from kafka.errors import (
    ClusterAuthorizationFailedError,
    IncompatibleBrokerVersion,
    KafkaError,
    UnsupportedVersionError,
)

from evenload.kafka_connection import Connection
from evenload.kafka_connection.admin_questions import (
    ask_again,
    describe_brokers,
    describe_settings,
    reason_of,
)
from evenload.kafka_connection.clients import open_admin
from evenload.telemetry_collector.errors import SubscriptionError
from evenload.telemetry_collector.pushed.client_figures import BY_TOPIC, METRICS

__all__ = ["SUBSCRIPTION", "Subscription", "subscribe", "subscriptions", "unsubscribe"]

SUBSCRIPTION = "evenload"
"""The name of ours."""

T = TypeVar("T")

_FOR_CONSUMERS = "org.apache.kafka.consumer.node.request.latency."
_CLIENTS = r"client_software_version=(?!2\.5\.0$).*"
_MAX_BYTES = "telemetry.max.bytes"
_MAX_BYTES_MIN = 256 << 10  # three figures of 150 bytes for each of 500 brokers
_KEYS = ("metrics", "interval.ms", "match")
_TIMEOUT_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """What clients are asked for.

    Attributes:
        name: of the subscription.
        metrics: what their names begin with; `*`: all.
        interval_s: from one push to the next.
        match: which clients, as KEY=REGEX; all where nothing is said.
    """

    name: str
    metrics: tuple[str, ...]
    interval_s: float
    match: tuple[str, ...] = ()

    @property
    def may_silence(self) -> bool:
        """Whether a client may have more of these than a broker takes."""
        return any(
            prefix == "*" or BY_TOPIC.startswith(prefix) or prefix.startswith(BY_TOPIC)
            for prefix in self.metrics
        )


def subscribe(connection: Connection, *, interval_s: float = 10.0, by_topic: bool = False) -> Subscription:
    """Ask clients for what is used, from their next look on (up to five minutes); in place of what ours asked
    for before.

    Args:
        interval_s: from one push to the next, 1 to 3600.
        by_topic: whether for what they write by topic, too.

    Raises:
        SubscriptionError: brokers don't let us, or would silence clients; why.
        BrokersUnreachableError: no broker answers.
    """
    metrics = [*sorted(METRICS - {BY_TOPIC}), *([BY_TOPIC] if by_topic else []), _FOR_CONSUMERS]
    ours = Subscription(name=SUBSCRIPTION, metrics=tuple(metrics), interval_s=interval_s, match=(_CLIENTS,))
    with open_admin(connection) as admin:
        _check_bound(admin)
        _change(
            admin,
            {
                "metrics": ",".join(ours.metrics),
                "interval.ms": str(round(1000 * ours.interval_s)),
                "match": ",".join(ours.match),
            },
        )
    return ours


def subscriptions(connection: Connection) -> list[Subscription]:
    """All that clients are asked for, whoever asks, by name.

    Raises:
        SubscriptionError: brokers don't tell us; why.
        BrokersUnreachableError: no broker answers.
    """
    with open_admin(connection) as admin:
        return _subscriptions(admin)


def unsubscribe(connection: Connection) -> bool:
    """Ask for nothing any more; whether we did until now.

    Raises:
        SubscriptionError: brokers don't let us; why.
        BrokersUnreachableError: no broker answers.
    """
    with open_admin(connection) as admin:
        if not any(each.name == SUBSCRIPTION for each in _subscriptions(admin)):
            return False
        _change(admin, dict.fromkeys(_KEYS))
        return True


def _subscriptions(admin: kafka.KafkaAdminClient) -> list[Subscription]:
    def ask() -> list[Any]:
        kind = ConfigResourceType.CLIENT_METRICS
        names = admin.list_config_resources([kind]).get(kind.name.lower(), [])
        return describe_settings(admin, kind, sorted(names), _KEYS) if names else []

    return [_subscription(told) for told in _ask(admin, ask, "DESCRIBE_CONFIGS")]


def _subscription(told: Any) -> Subscription:
    settings = {config.name: config.value or "" for config in told.configs}
    return Subscription(
        name=told.resource_name,
        metrics=_listed(settings.get("metrics", "")),
        interval_s=int(settings.get("interval.ms") or 300_000) / 1000,
        match=_listed(settings.get("match", "")),
    )


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _check_bound(admin: kafka.KafkaAdminClient) -> None:
    """Refuse what brokers would silence clients for.

    Raises:
        SubscriptionError: a push of a large cluster's producer wouldn't fit.
    """
    for broker in _ask(admin, lambda: describe_brokers(admin), "DESCRIBE"):
        name = str(broker["broker_id"])
        (told,) = _ask(admin, partial(_bound_of, admin, name), "DESCRIBE_CONFIGS")
        bounds = [int(config.value) for config in told.configs if config.name == _MAX_BYTES and config.value]
        if told.error_code == ClusterAuthorizationFailedError.errno:
            raise SubscriptionError("brokers refuse it; it needs DESCRIBE_CONFIGS on the cluster")
        if not bounds:
            raise SubscriptionError(
                f"broker {name} is older than Kafka 3.7, from which on clients push metrics"
            )
        if bounds[0] < _MAX_BYTES_MIN:
            raise SubscriptionError(
                f"broker {name} takes pushes of {bounds[0]} bytes ({_MAX_BYTES}); a client with more would "
                f"never "
                f"push again, so set it to {_MAX_BYTES_MIN} at least"
            )


def _bound_of(admin: kafka.KafkaAdminClient, broker: str) -> list[Any]:
    return describe_settings(admin, ConfigResourceType.BROKER, [broker], [_MAX_BYTES])


def _change(admin: kafka.KafkaAdminClient, value_by_key: dict[str, str | None]) -> None:
    """Set what has a value, and take off what hasn't.

    Raises:
        SubscriptionError: brokers don't let us.
    """
    operations = {
        key: (AlterConfigOp.DELETE, None) if value is None else (AlterConfigOp.SET, value)
        for key, value in value_by_key.items()
    }
    kind = ConfigResourceType.CLIENT_METRICS

    def change() -> str:
        # Incremental, as Kafka 3 knows no other way to make a new one.
        told = admin.alter_configs(
            [ConfigResource(kind, SUBSCRIPTION, dict(operations))], raise_on_unknown=False, incremental=True
        )
        return str(told[kind.name.lower()][SUBSCRIPTION])

    result = _ask(admin, change, "ALTER_CONFIGS")
    if "AuthorizationFailed" in result:
        raise SubscriptionError("brokers refuse it; it needs ALTER_CONFIGS on the cluster")
    if result != "OK":
        raise SubscriptionError(f"a broker says {result}")


def _ask(admin: kafka.KafkaAdminClient, question: Callable[[], T], operation: str) -> T:
    try:
        return ask_again(admin, question, timeout_s=_TIMEOUT_S)
    except (IncompatibleBrokerVersion, UnsupportedVersionError) as error:
        raise SubscriptionError(
            "brokers are older than Kafka 3.7, from which on clients push metrics"
        ) from error
    except ClusterAuthorizationFailedError as error:
        raise SubscriptionError(f"brokers refuse it; it needs {operation} on the cluster") from error
    except KafkaError as error:
        raise SubscriptionError(f"a broker says {reason_of(error)}") from error
