"""Topics for datasets: made where there is room, and written only when every leader is ready.

A topic that is written in its first moments loses records without any error (confluent-kafka 2.16;
tests/fault/kafka_plugin/test_new_topics.py). So a new topic is handed out only when each of its leaders
answers a ListOffsets request; if that can't be had, the topic is taken away again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial

import kafka
from kafka.admin import ConfigResourceType, OffsetSpec
from kafka.errors import KafkaError

from evenload.dataset_catalog.topic_admin import TopicAdmin
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
from evenload.kafka_plugin.errors import TopicError


def create_topic(
    connection: Connection,
    topic: str,
    *,
    num_partitions: int,
    replication: int | None,
    assignments: Sequence[tuple[int, ...]] | None,
    configs: Mapping[str, str],
    timeout_s: float,
) -> str:
    """Make a topic and wait until it can be written.

    Args:
        topic: A name that no topic has.
        num_partitions: How many, unless `assignments` says it.
        replication: Copies of each partition; None for the cluster's default. Unless `assignments` says it.
        assignments: For each partition its brokers, the preferred leader first; None: Kafka places it.
        configs: The topic's settings.
        timeout_s: How long it may take until all leaders answer, in seconds.

    Returns:
        Kafka's id of the topic.

    Raises:
        TopicError: It can't be made, or not all leaders answer in time; then no topic is left.
        BrokersUnreachableError: No broker answers.
    """
    wanted: dict[str, object] = {"configs": dict(configs)}
    if assignments is not None:
        wanted["assignments"] = {partition: list(ids) for partition, ids in enumerate(assignments)}
    else:
        wanted |= {"num_partitions": num_partitions, "replication_factor": replication or -1}
    with open_admin(connection, timeout_s=timeout_s) as admin:
        with _translated(topic, "can't be made", operation="CREATE"):
            (made,) = admin.create_topics({topic: wanted}, raise_errors=False)["topics"]
        if made["error_code"]:
            reason = missing_permission(made["error_code"], "CREATE") or made["error_message"]
            reason = reason or kafka.errors.for_code(made["error_code"]).__name__
            raise TopicError(topic, f"can't be made: {reason.rstrip('.')}.")
        try:
            _wait_for_leaders(admin, topic, range(num_partitions), timeout_s)
        except BaseException as error:
            problem = "was made, but is not ready, and can't be deleted either"
            with _translated(topic, problem, operation="DELETE"):
                admin.delete_topics([topic])
            if isinstance(error, TopicError):
                raise TopicError(topic, f"{error.reason.rstrip('.')}; it was deleted again.") from error
            raise
    return str(made["topic_id"])


def wait_for_leaders(connection: Connection, topic: str, num_partitions: int, *, timeout_s: float) -> None:
    """Wait until every leader of a topic answers, as one must before writing to a new one.

    Raises:
        TopicError: Not all of them did within `timeout_s`.
        BrokersUnreachableError: No broker answers.
    """
    with open_admin(connection, timeout_s=timeout_s) as admin:
        _wait_for_leaders(admin, topic, range(num_partitions), timeout_s)


def default_replication(connection: Connection, topic: str, *, timeout_s: float) -> int:
    """How many copies the cluster makes of a topic unless told (`default.replication.factor` of a broker).

    Raises:
        BrokersUnreachableError: No broker answers.
        TopicError: They don't say.
    """
    name = "default.replication.factor"
    with (
        open_admin(connection, timeout_s=timeout_s) as admin,
        _translated(topic, f"can't be placed: no {name}", operation="DESCRIBE_CONFIGS"),
    ):
        return ask_again(admin, partial(_setting_of_any_broker, admin, name), timeout_s=timeout_s)


def delete_empty_topics(
    connection: Connection, pattern: str, *, keep: set[str], timeout_s: float
) -> list[str]:
    """Take away topics that match, hold no record, and are not to be kept: what dead loaders left.

    Returns:
        What was deleted.

    Raises:
        TopicError, CatalogUnavailableError, BrokersUnreachableError: Not all of them could be looked at.
    """
    deleted = []
    with open_admin(connection, timeout_s=timeout_s) as admin:
        with _translated(pattern, "can't be looked for", operation="DESCRIBE"):
            topics = admin.list_topics()
        for topic in topics:
            if not re.fullmatch(pattern, topic) or topic in keep:
                continue
            with TopicAdmin(connection, timeout_s=timeout_s) as described:
                found = described.describe(topic)
                if found is None or any(described.offsets(topic, found.partitions, "log end").values()):
                    continue
                if described.delete(topic, found.topic_id):
                    deleted.append(topic)
    return deleted


def _setting_of_any_broker(admin: kafka.KafkaAdminClient, name: str) -> int:
    # The dead are listed too, as fenced; one that has just died is not fenced yet.
    brokers = describe_brokers(admin)
    brokers.sort(key=lambda broker: broker.get("is_fenced", False))
    for broker in brokers[:-1]:
        with suppress(KafkaError):
            return _broker_setting(admin, broker["broker_id"], name)
    return _broker_setting(admin, brokers[-1]["broker_id"], name)


def _broker_setting(admin: kafka.KafkaAdminClient, broker_id: int, name: str) -> int:
    (found,) = describe_settings(admin, ConfigResourceType.BROKER, [str(broker_id)], [name])
    if found.error_code:
        raise kafka.errors.for_code(found.error_code)(found.error_message)
    return int(found.configs[0].value)


def _wait_for_leaders(
    admin: kafka.KafkaAdminClient, topic: str, partitions: Sequence[int], timeout_s: float
) -> None:
    asked = {kafka.TopicPartition(topic, partition): OffsetSpec.LATEST for partition in partitions}
    try:
        # Whatever brokers say of a topic that was made a moment ago may be over in another.
        ask_again(
            admin,
            lambda: admin.list_partition_offsets(asked),
            timeout_s=timeout_s,
            is_passing=lambda _: True,
        )
    except KafkaError as error:
        reason = f"isn't ready: not all of its {len(asked)} leaders answered within {timeout_s:.0f} s"
        raise TopicError(topic, f"{reason} ({type(error).__name__}).") from error


@contextmanager
def _translated(topic: str, problem: str, *, operation: str) -> Iterator[None]:
    try:
        yield
    except KafkaError as error:
        reason = missing_permission(code_of(error), operation) or reason_of(error)
        raise TopicError(topic, f"{problem}: {reason}.") from error
