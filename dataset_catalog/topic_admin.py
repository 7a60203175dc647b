"""The few questions that the catalog asks a cluster about topics, each with a deadline.

The only module here that speaks to kafka-python: its exceptions end in this file, as one sentence.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self

import kafka
from kafka.admin import OffsetSpec
from kafka.errors import (
    KafkaError,
    TopicAlreadyExistsError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)

from evenload.dataset_catalog.errors import failure
from evenload.kafka_connection import Connection
from evenload.kafka_connection.admin_questions import (
    ask_again,
    code_of,
    describe_brokers,
    may_pass,
    reason_of,
)
from evenload.kafka_connection.clients import open_admin

OffsetKind = Literal["log start", "last stable", "log end"]
_ANSWERS = (TopicAlreadyExistsError, UnknownTopicIdError)  # for who asks to read


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic as the cluster knows it now."""

    topic_id: str  # as in '91c32d74-c864-4525-b2eb-7a5962ad81b5'
    partitions: tuple[int, ...]
    leaders: Mapping[int, int]  # broker by partition; of one without a leader -1


class TopicAdmin:
    """An open admin client; a context manager, for one thread.

    Args:
        connection: The cluster.
        timeout_s: Deadline of each request, in seconds, above 0.

    Raises:
        BrokersUnreachableError: No broker answers.
    """

    def __init__(self, connection: Connection, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._admin = open_admin(connection, timeout_s=timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._admin.close()

    def num_brokers(self) -> int:
        """Brokers that the cluster knows, those included that are down for the moment.

        As many copies a new topic can have: one placed on a broker that is down catches up later.
        """
        return len(self._ask("asking for the cluster's brokers", lambda: describe_brokers(self._admin)))

    def describe(self, topic: str) -> TopicDescription | None:
        """What the topic is; None when there is none of this name.

        Raises:
            CatalogUnavailableError: The cluster doesn't say.
        """
        doing = f"describing topic {topic!r}"
        (found,) = self._ask(doing, lambda: self._admin.describe_topics([topic]))
        if found["error_code"] == UnknownTopicOrPartitionError.errno:
            return None
        if found["error_code"]:
            code = found["error_code"]
            raise failure(doing, kafka.errors.for_code(code).__name__, code=code, operation="DESCRIBE")
        partitions = sorted(p["partition_index"] for p in found["partitions"])
        leaders = {p["partition_index"]: p["leader_id"] for p in found["partitions"]}
        return TopicDescription(str(found["topic_id"]), tuple(partitions), leaders)

    def offsets(self, topic: str, partitions: Collection[int], kind: OffsetKind) -> dict[int, int]:
        """By partition: the first readable offset, or one past the last committed or written.

        Raises:
            CatalogUnavailableError: A partition has no leader, or it doesn't answer.
        """
        wanted = OffsetSpec.EARLIEST if kind == "log start" else OffsetSpec.LATEST
        isolation = "read_committed" if kind == "last stable" else "read_uncommitted"
        asked = {kafka.TopicPartition(topic, partition): wanted for partition in partitions}
        if not asked:
            return {}
        found = self._ask(
            f"asking for the {kind} offsets of topic {topic!r}",
            lambda: self._admin.list_partition_offsets(asked, isolation_level=isolation),
        )
        return {at.partition: answer.offset for at, answer in found.items()}

    def open_transactions(self, topic: str, partition: int) -> tuple[str, ...]:
        """Transactional ids that have records there without a known end; fewer, where brokers don't say."""
        at = kafka.TopicPartition(topic, partition)
        with suppress(KafkaError):
            producers = self._admin.describe_producers([at])[at].active_producers
            ids = [each.producer_id for each in producers if each.current_transaction_start_offset >= 0]
            found = self._admin.list_transactions(producer_id_filters=ids) if ids else {}
            return tuple(sorted(each.transactional_id for listed in found.values() for each in listed))
        return ()

    def create(self, topic: str, *, replication: int, configs: Mapping[str, str]) -> None:
        """Makes a topic of one partition, unless it exists."""
        options: dict[str, Any] = {
            "num_partitions": 1,
            "replication_factor": replication,
            "configs": dict(configs),
        }
        with suppress(TopicAlreadyExistsError):
            self._ask(
                f"creating topic {topic!r}",
                lambda: self._admin.create_topics({topic: options}),
                operation="CREATE",
            )

    def wait_for_leader(self, topic: str, partition: int) -> None:
        """Returns when the partition's leader answers.

        Writing to a new topic earlier can lose records without any error (confluent-kafka 2.16).

        Raises:
            CatalogUnavailableError: It doesn't before the deadline.
        """
        self.offsets(topic, [partition], "log end")

    def delete(self, topic: str, topic_id: str) -> bool:
        """Deletes the topic with this id; False when it was gone already, or is another one by now."""
        try:
            self._ask(
                f"deleting topic {topic!r}",
                lambda: self._admin.delete_topics([uuid.UUID(topic_id)]),
                operation="DELETE",
            )
        except UnknownTopicIdError:
            return False
        return True

    def _ask(self, doing: str, question: Callable[[], Any], *, operation: str = "DESCRIBE") -> Any:
        """The answer; while a leader fails over or a topic is new, the question is put again.

        Raises:
            TopicAlreadyExistsError, UnknownTopicIdError: As answers, for the caller to read.
            CatalogUnavailableError: No answer before the deadline.
            CatalogRefusedError: The account lacks the permission for `operation`.
        """
        try:
            return ask_again(self._admin, question, timeout_s=self._timeout_s, is_passing=_is_passing)
        except _ANSWERS:
            raise
        except KafkaError as error:
            raise failure(doing, reason_of(error), code=code_of(error), operation=operation) from error


def _is_passing(error: KafkaError) -> bool:
    return may_pass(error) and not isinstance(error, _ANSWERS)
