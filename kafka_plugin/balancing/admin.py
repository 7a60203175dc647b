"""The requests that moving replicas needs, each with a deadline.

While brokers fail over, a request is repeated until the deadline. If brokers refuse one, the error names the
permission that it needs. kafka-python's exceptions end in this file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self

import kafka
from kafka.admin import AlterConfigOp, ConfigResource, ConfigResourceType
from kafka.errors import (
    ClusterAuthorizationFailedError,
    KafkaError,
    NoReassignmentInProgressError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)

from evenload.kafka_connection import Connection
from evenload.kafka_connection.admin_questions import (
    ask_again,
    describe_brokers,
    describe_settings,
    may_pass,
    reason_of,
)
from evenload.kafka_connection.clients import open_admin
from evenload.kafka_plugin.errors import BalanceInterruptedError, BalanceRefusedError
from evenload.telemetry_collector.snapshot import TopicPartition

__all__ = ["BalanceAdmin", "Reassignment", "SettingChange"]

_REQUEST_TIMEOUT_S = 5.0
_TOPICS_A_REQUEST = 500
_SET_ON_THE_TOPIC = 1  # DescribeConfigsResponse: DYNAMIC_TOPIC_CONFIG
_REFUSALS = (ClusterAuthorizationFailedError, TopicAuthorizationFailedError)


@dataclass(frozen=True, slots=True)
class Reassignment:
    """One that Kafka is at: all replicas, old and new, and those to come and to go."""

    replica_ids: tuple[int, ...]
    adding_ids: tuple[int, ...]
    removing_ids: tuple[int, ...]

    @property
    def target_ids(self) -> frozenset[int]:
        """Who shall hold it in the end."""
        return frozenset(self.replica_ids) - frozenset(self.removing_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingChange:
    """A change of one setting."""

    name: str
    operation: str  # SET, DELETE, APPEND or SUBTRACT
    value: str | None = None


class BalanceAdmin:
    """An open admin client; a context manager, for one thread.

    Args:
        connection: The cluster.
        timeout_s: How long a question is put again, in seconds.
        changing: Entered around each request that changes something; what it raises, nothing is sent.

    Raises:
        BrokersUnreachableError: No broker answers.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        timeout_s: float,
        changing: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._timeout_s = timeout_s
        self._changing = changing
        self._admin = open_admin(connection, timeout_s=min(timeout_s, _REQUEST_TIMEOUT_S))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._admin.close()

    def reassignments(self) -> dict[TopicPartition, Reassignment]:
        """All that Kafka is at, whoever ordered them."""
        found = self._ask(
            "asking for reassignments",
            "DESCRIBE on the cluster",
            self._admin.list_partition_reassignments,
        )
        return {
            TopicPartition(at.topic, at.partition): Reassignment(
                *(tuple(each[key]) for key in ("replicas", "adding_replicas", "removing_replicas"))
            )
            for at, each in found.items()
        }

    def reassign(self, replica_ids: Mapping[TopicPartition, Sequence[int]]) -> dict[TopicPartition, str]:
        """Orders reassignments; returns those that Kafka refuses, and why."""
        return self._alter({at: list(ids) for at, ids in replica_ids.items()})

    def cancel(self, partitions: Collection[TopicPartition]) -> None:
        """Takes reassignments back; those that are complete stay so."""
        if partitions:
            self._alter(dict.fromkeys(partitions))

    def replicas(self, topics: Collection[str]) -> dict[TopicPartition, tuple[int, ...]]:
        """The replicas of the partitions of these topics; topics that are gone are left out."""
        found = self._ask(
            "describing topics", "DESCRIBE on the topics", lambda: self._admin.describe_topics(list(topics))
        )
        return {
            TopicPartition(topic["name"], each["partition_index"]): tuple(each["replica_nodes"])
            for topic in found
            if not topic["error_code"]
            for each in topic["partitions"]
        }

    def copy_bytes(self, broker_id: int, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """How much of these partitions a broker holds by now.

        Raises:
            BalanceInterruptedError: It doesn't say, asked once.
        """
        asked: dict[str, list[int]] = {}
        for topic, partition in partitions:
            asked.setdefault(topic, []).append(partition)
        (answer,) = self._ask(
            f"asking broker {broker_id} for its log dirs",
            "DESCRIBE on the cluster",
            lambda: self._admin.describe_log_dirs(asked, brokers=[broker_id]),
            0.0,
        )
        return {
            TopicPartition(topic["name"], each["partition_index"]): each["partition_size"]
            for log_dir in answer["log_dirs"]
            for topic in log_dir["topics"]
            for each in topic["partitions"]
            if not each["is_future_key"]
        }

    def settings(self, of: int | str, names: Sequence[str]) -> dict[str, str]:
        """What a broker (an int) or topic has these set to, inherited or not; none for what isn't set."""
        permission = f"DESCRIBE_CONFIGS on the {_guarded(of)}"
        doing = f"reading settings of {_named(of)}"
        try:
            found = self._ask(doing, permission, lambda: self._described(of, names))
        except _TopicGone:
            return {}
        return {config.name: config.value for config in found.configs if config.value}

    def own_settings(self, topic: str, names: Sequence[str]) -> dict[str, str]:
        """What is set on a topic itself, though it may be empty."""
        permission, doing = "DESCRIBE_CONFIGS on the topic", f"reading settings of {_named(topic)}"
        try:
            found = self._ask(doing, permission, lambda: self._described(topic, names))
        except _TopicGone:
            return {}
        return {c.name: c.value or "" for c in found.configs if c.config_source == _SET_ON_THE_TOPIC}

    def broker_ids(self) -> list[int]:
        """All brokers that the cluster knows."""
        found = self._ask(
            "asking for brokers", "DESCRIBE on the cluster", lambda: describe_brokers(self._admin)
        )
        return sorted(broker["broker_id"] for broker in found)

    def settings_of_topics(self, names: Sequence[str]) -> tuple[dict[str, dict[str, str]], list[str]]:
        """By topic, what it has these set to; and the topics that didn't tell, or may not be asked.

        A topic that may not even be described isn't known of.
        """
        topics = self._ask("listing topics", "DESCRIBE on the topics", self._admin.list_topics)
        found: dict[str, dict[str, str]] = {}
        untold = []
        for begin in range(0, len(topics), _TOPICS_A_REQUEST):
            asked = sorted(topics)[begin : begin + _TOPICS_A_REQUEST]
            question = partial(describe_settings, self._admin, ConfigResourceType.TOPIC, asked, names)
            doing, permission = "reading settings of topics", "DESCRIBE_CONFIGS on the topics"
            for result in self._ask(doing, permission, question):
                if settings := {config.name: config.value for config in result.configs if config.value}:
                    found[result.resource_name] = settings
                if result.error_code not in (0, UnknownTopicOrPartitionError.errno):  # gone meanwhile
                    untold.append(result.resource_name)
        return found, untold

    def change_settings(self, of: int | str, changes: Sequence[SettingChange]) -> None:
        """Changes settings of a broker (an int) or a topic; a topic that is gone has none to change."""
        if not changes:
            return
        kind = _kind(of)
        operations = {change.name: (AlterConfigOp[change.operation], change.value) for change in changes}
        permission = f"ALTER_CONFIGS on the {_guarded(of)}"
        doing = f"changing settings of {_named(of)}"

        def change() -> None:
            with self._changing():
                told = self._admin.alter_configs(
                    [ConfigResource(kind, str(of), dict(operations))], raise_on_unknown=False
                )
            result = str(told[kind.name.lower()][str(of)])
            if "AuthorizationFailed" in result:
                raise BalanceRefusedError(doing, result, permission)
            if result != "OK" and "UnknownTopicOrPartition" not in result:
                raise BalanceInterruptedError(doing, result)

        self._ask(doing, permission, change)

    def _described(self, of: int | str, names: Sequence[str]) -> Any:
        (result,) = describe_settings(self._admin, _kind(of), [str(of)], names)
        if result.error_code:
            raise kafka.errors.for_code(result.error_code)(result.error_message)
        return result

    def _alter(self, orders: Mapping[TopicPartition, list[int] | None]) -> dict[TopicPartition, str]:
        asked = {kafka.TopicPartition(*at): ids for at, ids in orders.items()}

        def order() -> Any:
            with self._changing():
                return self._admin.alter_partition_reassignments(
                    asked, timeout_ms=int(_REQUEST_TIMEOUT_S * 1000)
                )

        told = self._ask("reassigning partitions", "ALTER on the cluster", order)
        refused = {}
        for at, problem in told.items():
            if problem is None or problem is NoReassignmentInProgressError:
                continue
            if problem in _REFUSALS:
                raise BalanceRefusedError("reassigning partitions", problem.__name__, "ALTER on the cluster")
            refused[TopicPartition(at.topic, at.partition)] = f"{problem.__name__} ({problem.description})"
        return refused

    def _ask(
        self, doing: str, permission: str, question: Callable[[], Any], timeout_s: float | None = None
    ) -> Any:
        """The answer; asked again while what is wrong may pass, until the deadline."""
        try:
            return ask_again(
                self._admin,
                question,
                timeout_s=self._timeout_s if timeout_s is None else timeout_s,
                is_passing=_is_passing,
            )
        except _REFUSALS as error:
            raise BalanceRefusedError(doing, type(error).__name__, permission) from error
        except UnknownTopicOrPartitionError as error:
            raise _TopicGone from error
        except KafkaError as error:
            raise BalanceInterruptedError(doing, reason_of(error)) from error


class _TopicGone(Exception):  # noqa: N818 -- an answer, not an error: it never leaves this file
    """There is no such topic any more."""


def _kind(of: int | str) -> ConfigResourceType:
    return ConfigResourceType.BROKER if isinstance(of, int) else ConfigResourceType.TOPIC


def _named(of: int | str) -> str:
    return f"broker {of}" if isinstance(of, int) else f"topic {of!r}"


def _guarded(of: int | str) -> str:
    """What a permission on its settings is granted on."""
    return "cluster" if isinstance(of, int) else "topic"


def _is_passing(error: KafkaError) -> bool:
    return may_pass(error) and not isinstance(error, UnknownTopicOrPartitionError)
