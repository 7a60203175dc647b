"""The journal in Kafka: a compacted topic of one partition, which only one governor at a time may write.

The writer holds a transactional id. Taking it fences the governor that had it, whose transactions Kafka then
refuses, and ends what that one left open. What was committed by then is read as a whole before anything is
decided. All that changes in one cycle is one transaction: it is kept as a whole or not at all.
"""

from __future__ import annotations

from typing import Final

from evenload.dataset_catalog.errors import CatalogError
from evenload.dataset_catalog.logs.internal_topics import (
    PARTITION,
    ensure_internal_topics,
    latest_records,
    wait_for_stable_end,
)
from evenload.dataset_catalog.topic_admin import TopicAdmin
from evenload.governor.errors import JournalError, JournalTakenError, RecordError
from evenload.governor.governing.records import Records, decoded, encoded
from evenload.kafka_connection.connection import Connection
from evenload.kafka_plugin.config import LoaderConfig
from evenload.kafka_plugin.errors import LoadError
from evenload.kafka_plugin.transactional_writer import ProducerFencedError, TransactionalWriter

# Not among the topics `evenload.*`, which every loader may write: a job of the queue is run.
JOBS_TOPIC: Final = "evenload-governor.jobs"
TRANSACTIONAL_ID: Final = "evenload-governor"
_TRANSACTION_TIMEOUT_S: Final = 10.0


class KafkaJournal:
    """The journal. For one thread; `close` ends what was opened.

    Args:
        connection: The cluster.
        timeout_s: How long brokers may take over anything, in seconds.
    """

    def __init__(self, connection: Connection, *, timeout_s: float = 30.0) -> None:
        self._connection, self._timeout_s = connection, timeout_s
        self._writer = TransactionalWriter(
            connection,
            TRANSACTIONAL_ID,
            "packed",
            LoaderConfig(transaction_timeout_s=_TRANSACTION_TIMEOUT_S),
            log_topic=JOBS_TOPIC,
        )

    def identify(self) -> str:
        """Which journal it is: another one where the topic was made anew. Makes it where there is none.

        Raises:
            JournalError: Brokers don't answer, or refuse it.
        """
        try:
            ensure_internal_topics(self._connection, timeout_s=self._timeout_s, topics=(JOBS_TOPIC,))
            with TopicAdmin(self._connection, timeout_s=self._timeout_s) as admin:
                found = admin.describe(JOBS_TOPIC)
        except CatalogError as error:
            raise JournalError(f"the journal can't be opened: {error}") from error
        if found is None:
            raise JournalError(f"topic {JOBS_TOPIC!r} was deleted just now")
        return found.topic_id

    def open(self) -> tuple[Records, list[RecordError]]:
        """Takes the journal from whoever had it, and reads it.

        Returns:
            What stands there, and what can't be understood of it.

        Raises:
            JournalError: Brokers don't answer, or refuse it.
        """
        self.identify()  # it may have been deleted since
        try:
            self._writer.open(None, self._timeout_s)
            # A commit of the one before may be under way still: it counts, and has to be read.
            wait_for_stable_end(
                self._connection, JOBS_TOPIC, timeout_s=self._timeout_s, wait_s=self._timeout_s
            )
            stored = latest_records(self._connection, JOBS_TOPIC, timeout_s=self._timeout_s)
            return decoded(stored)
        except (CatalogError, LoadError) as error:
            raise JournalError(f"the journal can't be opened: {error}") from error

    def write(self, changes: Records) -> None:
        """Keeps all of it or nothing.

        Raises:
            JournalTakenError: Another governor has taken it: nothing is to be done any more.
            JournalError: It is kept or not; `open` tells.
        """
        entries = list(encoded(changes))
        if not entries:
            return
        try:
            self._writer.begin()
            for key, value in entries:
                self._writer.write(JOBS_TOPIC, value, partition=PARTITION, num_samples=0, key=key)
            self._writer.commit(num_bytes=sum(len(value) for _, value in entries))
        except ProducerFencedError as error:
            raise JournalTakenError from error
        except LoadError as error:
            raise JournalError(f"the journal can't be written: {error}") from error

    def close(self) -> None:
        """Lets go of it."""
        self._writer.close()
