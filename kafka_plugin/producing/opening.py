"""Opens a topic for a producer: its partitions are known, all its leaders answer, and it has shares.

A topic that is written in its first moments loses records (confluent-kafka 2.16;
tests/fault/kafka_plugin/test_new_topics.py). So each leader is asked for an offset first, by a client that
lives only while topics are being opened (`set_sasl_credentials` doesn't reach it). A topic that isn't new may
have a dead leader for long: after a while it is written all the same, and the records for that leader wait in
the client.

Read next: waiting.py, which tries again and again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from evenload.kafka_connection.refusals import missing_permission
from evenload.kafka_plugin.producing.delivery_reports import explained

_log = logging.getLogger(__name__)
_ASK_S = 5.0
# What a client that only asks needs of a producer's settings: how brokers are reached.
_SETTINGS = (
    "bootstrap.servers",
    "broker.",
    "client.",
    "debug",
    "enable.sasl.",
    "enable.ssl.",
    "https.",
    "log",
    "metadata.broker.list",
    "oauth_cb",
    "plugin.",
    "sasl.",
    "security.",
    "socket.",
    "ssl.",
)
_NO_LEADER = KafkaError(KafkaError.LEADER_NOT_AVAILABLE)


class Described(Protocol):
    """What a client says of one topic (`confluent_kafka.admin.TopicMetadata`)."""

    error: KafkaError | None
    partitions: Mapping[int, object]


class TopicOpener:
    """Tries to open topics. Any thread may call it.

    Args:
        settings: Of the producer.
        describe: Asks brokers about a topic, within so many seconds; asking makes the topic, where they are
            set to do so. Raises `KafkaException` if none answers.
        patience_s: How long a topic that brokers don't know, or whose leaders don't answer, is waited for.
    """

    def __init__(
        self, settings: Mapping[str, Any], describe: Callable[[str, float], Described], *, patience_s: float
    ) -> None:
        self._settings = {
            name: value for name, value in settings.items() if name.lower().startswith(_SETTINGS)
        }
        self._describe = describe
        self._patience_s = patience_s
        self._answered_s: dict[str, float] = {}  # since when brokers have answered about a topic
        self._lock = threading.Lock()
        self._admin: AdminClient | None = None

    def num_partitions(self, topic: str) -> int | None:
        """How many a topic has that can be written now; None: it can't be yet.

        Raises:
            KafkaException: It can't be written, and won't be soon.
        """
        try:
            found = self._describe(topic, _ASK_S)
        except KafkaException as unanswered:
            self._end(topic)
            self._raise_if_refused(topic, unanswered.args[0])
            return None  # no broker answers: that is no matter of a topic's, and patience begins anew
        now_s = time.monotonic()
        is_patient = now_s - self._answered_s.setdefault(topic, now_s) < self._patience_s
        if found.error is not None or not found.partitions:
            error = found.error or _NO_LEADER
            self._raise_if_refused(topic, error)
            if is_patient:
                return None
            self._end(topic)
            raise KafkaException(explained(error, topic))
        problem = self._problem_of_leaders(topic, len(found.partitions))
        if problem is not None:
            if is_patient:
                return None
            _log.warning("writing to topic %s, though not all its leaders answer: %s", topic, problem.str())
        self._end(topic)
        return len(found.partitions)

    def _end(self, topic: str) -> None:
        """It isn't waited for any more; the client that asks goes with the last one."""
        with self._lock:
            self._answered_s.pop(topic, None)
            if not self._answered_s:
                self._admin = None

    def _raise_if_refused(self, topic: str, error: KafkaError) -> None:
        if missing_permission(error.code(), "WRITE") is not None:
            self._end(topic)
            raise KafkaException(explained(error, topic))

    def _problem_of_leaders(self, topic: str, num_partitions: int) -> KafkaError | None:
        """Why not all leaders answer; None: they do."""
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        asked = {TopicPartition(topic, number): latest for number in range(num_partitions)}
        problem = None
        try:
            with self._lock:
                admin = self._admin = self._admin or AdminClient(self._settings)
            answers = admin.list_offsets(asked, request_timeout=_ASK_S)
        except KafkaException as error:
            return _fault(error)
        for answer in answers.values():
            try:
                answer.result()
            except KafkaException as error:
                problem = _fault(error)
        return problem


def _fault(error: KafkaException) -> KafkaError:
    fault: KafkaError = error.args[0]
    return fault
