"""What Kafka's clients are asked to push: subscriptions of the cluster's (KIP-714), which brokers tell their
clients.

    subscribe(connection, interval_s=10)

Two of them, as two kinds of clients need different care:

- Java's clients have hundreds of metrics, so they are asked for those that are used, by their names in full.
  A push that is larger than a broker's `telemetry.max.bytes` is answered in a way (INVALID_RECORD) upon which
  its client doesn't push again until it is started anew. So metrics of which a client has one for each topic
  are only asked for on demand, and a bound that is set too low is refused.
- Those of librdkafka have some dozens at most, none by topic, and up to 2.10.0 they can't read a list of
  names (each runs on into the next), nor push nothing: they lose their connection, and 2.5.0 its process. So
  they are asked for all that begins with one name.

Who else pushes isn't asked. Needs ALTER_CONFIGS and DESCRIBE_CONFIGS on the cluster. Only kafka-python can do
it: to other admin clients, client metrics are no kind of resource.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    code_of,
    describe_brokers,
    describe_settings,
    reason_of,
)
from evenload.kafka_connection.clients import open_admin
from evenload.kafka_connection.refusals import missing_permission
from evenload.telemetry_collector.errors import SubscriptionError
from evenload.telemetry_collector.pushed.client_figures import BY_TOPIC, METRICS

__all__ = ["SUBSCRIPTIONS", "Subscription", "subscribe", "subscriptions", "unsubscribe"]

_JAVA, _LIBRDKAFKA = "evenload-java", "evenload-librdkafka"
SUBSCRIPTIONS = (_JAVA, _LIBRDKAFKA)
"""The names of ours."""

T = TypeVar("T")

_OF_JAVA = ("client_software_name=apache-kafka-java",)
# As its bindings call themselves; their versions end with that of librdkafka.
_OF_LIBRDKAFKA = (
    "client_software_name=.*rdkafka.*|confluent-kafka-.*",
    r"client_software_version=(?!(.*[^0-9.])?2\.5\.0$).*",
)
_ALL_OF_KAFKA = "org.apache.kafka."
# Of these, a client has one for each topic or partition.
_BY_TOPIC = ("org.apache.kafka.producer.topic.", "org.apache.kafka.consumer.fetch.manager.")
_MAX_BYTES = "telemetry.max.bytes"
_MAX_BYTES_MIN = 256 << 10  # three figures of 150 bytes for each of 500 brokers
_KEYS = ("metrics", "interval.ms", "match")
_TIMEOUT_S = 15.0
_TOO_OLD = "older than Kafka 3.7, from which on clients push metrics"


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
        """Whether a Java client may have more of these than a broker takes."""
        return self.match != _OF_LIBRDKAFKA and any(
            prefix == "*" or prefix.startswith(many) or many.startswith(prefix)
            for prefix in self.metrics
            for many in _BY_TOPIC
        )


def subscribe(
    connection: Connection, *, interval_s: float = 10.0, by_topic: bool = False
) -> list[Subscription]:
    """Ask clients for what is used, in place of what ours asked for before. They find out within five
    minutes.

    Args:
        interval_s: from one push to the next, 1 to 600.
        by_topic: whether for what Java's write by topic, too.

    Raises:
        SubscriptionError: brokers don't let us, or would silence clients; why.
        BrokersUnreachableError: no broker answers.
    """
    of_java = sorted(METRICS if by_topic else METRICS - {BY_TOPIC})
    ours = [
        Subscription(name=_JAVA, metrics=tuple(of_java), interval_s=interval_s, match=_OF_JAVA),
        Subscription(name=_LIBRDKAFKA, metrics=(_ALL_OF_KAFKA,), interval_s=interval_s, match=_OF_LIBRDKAFKA),
    ]
    with open_admin(connection) as admin:
        _check_bound(admin)
        for each in ours:
            told = {
                "metrics": ",".join(each.metrics),
                "interval.ms": str(round(1000 * each.interval_s)),
                "match": ",".join(each.match),
            }
            _change(admin, each.name, told)
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
        ours = [each.name for each in _subscriptions(admin) if each.name in SUBSCRIPTIONS]
        for name in ours:
            _change(admin, name, dict.fromkeys(_KEYS))
        return bool(ours)


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
        if broker.get("is_fenced"):
            continue  # it is down, and can't be asked
        name = str(broker["broker_id"])
        (told,) = _ask(admin, partial(_bound_of, admin, name), "DESCRIBE_CONFIGS")
        if told.error_code:
            raise _refused(told.error_code, "DESCRIBE_CONFIGS", told.error_message)
        bounds = [int(config.value) for config in told.configs if config.name == _MAX_BYTES and config.value]
        if not bounds:
            raise SubscriptionError(f"broker {name} is {_TOO_OLD}")
        if bounds[0] < _MAX_BYTES_MIN:
            raise SubscriptionError(
                f"broker {name} takes pushes of {bounds[0]} bytes ({_MAX_BYTES}); a client with more would "
                f"never push again, so set it to {_MAX_BYTES_MIN} at least"
            )


def _bound_of(admin: kafka.KafkaAdminClient, broker: str) -> list[Any]:
    return describe_settings(admin, ConfigResourceType.BROKER, [broker], [_MAX_BYTES])


def _change(admin: kafka.KafkaAdminClient, name: str, value_by_key: Mapping[str, str | None]) -> None:
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
            [ConfigResource(kind, name, dict(operations))], raise_on_unknown=False, incremental=True
        )
        return str(told[kind.name.lower()][name])

    result = _ask(admin, change, "ALTER_CONFIGS")
    if "AuthorizationFailed" in result:
        raise _refused(ClusterAuthorizationFailedError.errno, "ALTER_CONFIGS", result)
    if result != "OK":
        raise SubscriptionError(f"a broker says {result}")


def _ask(admin: kafka.KafkaAdminClient, question: Callable[[], T], operation: str) -> T:
    try:
        return ask_again(admin, question, timeout_s=_TIMEOUT_S)
    except (IncompatibleBrokerVersion, UnsupportedVersionError) as error:
        raise SubscriptionError(f"brokers are {_TOO_OLD}") from error
    except KafkaError as error:
        raise _refused(code_of(error), operation, reason_of(error)) from error


def _refused(code: int | None, operation: str, said: str | None) -> SubscriptionError:
    if missing := missing_permission(code, operation):
        return SubscriptionError(f"brokers refuse it; {missing}")
    return SubscriptionError(f"a broker says {said or code}")
