"""What everybody asks of an admin client in the same way; `clients.open_admin` opens one.

An answer that can pass (a leader is being elected, a topic is new) is no answer yet: `ask_again` puts the
question again until a deadline. What kafka-python 3.0.12 gets wrong on the way is mended here.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import kafka
from kafka.admin import ConfigResourceType
from kafka.errors import KafkaError, UnknownBrokerIdError

from evenload.kafka_connection.kafka_python_internals import (
    brokers_in_metadata,
    forget_controller,
    send_request,
    settings_request,
)

__all__ = [
    "ask_again",
    "code_of",
    "describe_brokers",
    "describe_settings",
    "may_pass",
    "reason_of",
]

T = TypeVar("T")

_POLL_S = 0.05


def code_of(error: KafkaError) -> int | None:
    """The code of a broker's error; None for what kafka-python says by itself (a lost connection)."""
    return getattr(error, "errno", None)


def may_pass(error: KafkaError) -> bool:
    """Whether what kafka-python says may be over when it is asked again."""
    # A partition without a leader has broker -1, which kafka-python does not count as passing.
    return error.retriable or isinstance(error, UnknownBrokerIdError)


def reason_of(error: KafkaError) -> str:
    """The broker's own words, without the request and response that kafka-python puts around them."""
    if isinstance(error, UnknownBrokerIdError):
        return "a partition has no leader: its brokers are down"
    said = re.search(r"error_message=(['\"])(.+?)\1", str(error))
    text = said[2] if said else str(error).split("failed with response")[0].strip()[:200]
    return f"{type(error).__name__.removesuffix('Error')} ({text or 'no answer'})"


def ask_again(
    admin: kafka.KafkaAdminClient,
    question: Callable[[], T],
    *,
    timeout_s: float,
    is_passing: Callable[[KafkaError], bool] = may_pass,
) -> T:
    """What `question` returns; it is put again while what is wrong may pass.

    Args:
        admin: Who is asked.
        question: Asks it.
        timeout_s: For so long, in seconds; 0: it is asked once.
        is_passing: Which errors are no answer yet.

    Raises:
        KafkaError: The last one.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            return question()
        except KafkaError as error:
            forget_controller(admin)
            if not is_passing(error) or time.monotonic() > deadline_s:
                raise
        time.sleep(_POLL_S)


def describe_brokers(admin: kafka.KafkaAdminClient) -> list[dict[str, Any]]:
    """The cluster's brokers, each with `broker_id`; from Kafka 4.0 on also those that are down."""
    try:
        brokers: list[dict[str, Any]] = admin.describe_cluster()["brokers"]
        return brokers
    except KeyError:
        # It takes a field for given that Kafka has had since 3.7.
        return [{**broker, "broker_id": broker["node_id"]} for broker in brokers_in_metadata(admin)]


def describe_settings(
    admin: kafka.KafkaAdminClient, kind: ConfigResourceType, names: Sequence[str], keys: Sequence[str]
) -> list[Any]:
    """What topics, one broker or subscriptions have set, inherited or not: `configs`, or an `error_code`.

    Args:
        admin: Who is asked.
        kind: TOPIC, BROKER or CLIENT_METRICS.
        names: Of the topics or subscriptions; a broker's id, which alone knows its settings.
        keys: Of the settings.
    """
    # kafka-python's own `describe_configs` takes a refusal for an empty answer.
    broker_id = int(names[0]) if kind is ConfigResourceType.BROKER else None
    results: list[Any] = send_request(admin, settings_request(kind, names, keys), broker_id).results
    return results
