"""The journal in Kafka: topics of one partition each, which only one governor at a time may write.

One is compacted and holds what stands; the other holds decisions, for some time.

The writer holds a transactional id. Taking it fences the governor that had it, whose transactions Kafka then
refuses, and ends what that one left open. What was committed by then is read as a whole before anything is
decided. All that changes in one cycle is one transaction: it is kept as a whole or not at all.
"""

from __future__ import annotations

import math
import socket
import time
from typing import Final

from evenload.dataset_catalog.errors import CatalogError
from evenload.dataset_catalog.logs.committed_reader import OffsetRange, read_committed
from evenload.dataset_catalog.logs.internal_topics import (
    PARTITION,
    ensure_internal_topics,
    latest_records,
    wait_for_stable_end,
)
from evenload.dataset_catalog.process_identity import is_running, this_process
from evenload.dataset_catalog.topic_admin import TopicAdmin
from evenload.governor.errors import (
    GovernorAtWorkError,
    JournalError,
    JournalGoneError,
    JournalTakenError,
    RecordError,
)
from evenload.governor.governing.records import (
    Decision,
    Records,
    Writer,
    decoded,
    decoded_decision,
    encoded,
    encoded_decision,
    writer_in,
)
from evenload.kafka_connection.connection import Connection
from evenload.kafka_connection.errors import KafkaConnectionError
from evenload.kafka_plugin.config import LoaderConfig
from evenload.kafka_plugin.errors import LoadError
from evenload.kafka_plugin.transactional_writer import ProducerFencedError, TransactionalWriter

# Not among the topics `evenload.*`, which every loader may write: a job of the queue is run.
JOBS_TOPIC: Final = "evenload-governor.jobs"
DECISIONS_TOPIC: Final = "evenload-governor.decisions"
KEPT_DAYS: Final = 30  # decisions
TRANSACTIONAL_ID: Final = "evenload-governor"
HEARTBEAT_S: Final = 5.0
SILENT_S: Final = 15.0  # a governor of which nobody knows whether it lives, and that says nothing, is dead
_TRANSACTION_TIMEOUT_S: Final = 10.0

_FAILURES: Final = (CatalogError, KafkaConnectionError, LoadError)
_Entry = tuple[str, bytes | None, bytes | None]  # topic, key, value


class KafkaJournal:
    """The journal. For one thread; `close` ends what was opened.

    Args:
        connection: The cluster.
        take_over: Also from a governor that is at work.
        timeout_s: How long brokers may take over anything, in seconds.
    """

    def __init__(self, connection: Connection, *, take_over: bool = False, timeout_s: float = 30.0) -> None:
        self._connection, self._timeout_s = connection, timeout_s
        self._take_over = take_over
        self._id: str | None = None
        self._written_s = -math.inf
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
            JournalGoneError: It is another one than at the first call.
        """
        try:
            ensure_internal_topics(self._connection, timeout_s=self._timeout_s, topics=(JOBS_TOPIC,))
            ensure_internal_topics(
                self._connection, timeout_s=self._timeout_s, topics=(DECISIONS_TOPIC,), kept_days=KEPT_DAYS
            )
            with TopicAdmin(self._connection, timeout_s=self._timeout_s) as admin:
                found = admin.describe(JOBS_TOPIC)
        except _FAILURES as error:
            raise JournalError(f"the journal can't be opened: {error}") from error
        if found is None:
            raise JournalError(f"topic {JOBS_TOPIC!r} was deleted just now")
        if self._id not in (None, found.topic_id):
            raise JournalGoneError(JOBS_TOPIC)
        self._id = found.topic_id
        return found.topic_id

    def open(self) -> tuple[Records, list[RecordError]]:
        """Takes the journal from whoever had it, and reads it.

        Returns:
            What stands there, and what can't be understood of it.

        Raises:
            JournalError: Brokers don't answer, or refuse it.
            GovernorAtWorkError: Another governor writes it.
            JournalGoneError: As `identify`.
        """
        self.identify()
        try:
            if not self._take_over:
                self._refuse_who_is_at_work()
            self._writer.open(DECISIONS_TOPIC, self._timeout_s)
            # A commit of the one before may be under way still: it counts, and has to be read.
            wait_for_stable_end(
                self._connection, JOBS_TOPIC, timeout_s=self._timeout_s, wait_s=self._timeout_s
            )
            stored = latest_records(self._connection, JOBS_TOPIC, timeout_s=self._timeout_s)
            found = decoded(stored)
        except _FAILURES as error:
            raise JournalError(f"the journal can't be opened: {error}") from error
        self._write([])
        self._take_over = False  # once: whoever takes it from us later is meant to have it
        return found

    def _refuse_who_is_at_work(self) -> None:
        stored = latest_records(self._connection, JOBS_TOPIC, timeout_s=self._timeout_s)
        writer = writer_in(stored)
        if writer is None or writer.process == this_process() or is_running(writer.process) is False:
            return
        # A date far ahead is that of a clock that was wrong, and counts as silence too.
        silent_s = abs(time.time() - writer.at_s)
        if silent_s < SILENT_S:
            raise GovernorAtWorkError(writer.host, silent_s)

    def write(self, changes: Records) -> None:
        """Keeps all of it or nothing, and says every few seconds that somebody is at work.

        Raises:
            JournalTakenError: Another governor has taken it: nothing is to be done any more.
            JournalError: It is kept or not; `open` tells.
        """
        entries: list[_Entry] = [(JOBS_TOPIC, key, value) for key, value in encoded(changes)]
        if changes.decision is not None:
            entries.append((DECISIONS_TOPIC, None, encoded_decision(changes.decision)))
        if entries or time.monotonic() - self._written_s >= HEARTBEAT_S:
            self._write(entries)

    def prove(self) -> None:
        """Writes something, which only who has the journal can.

        Raises:
            JournalTakenError, JournalError: As `write`.
        """
        self._write([])

    def decisions(self, num_max: int) -> list[Decision]:
        """The newest that stand there, oldest first.

        Raises:
            JournalError: Brokers don't answer.
        """
        try:
            with TopicAdmin(self._connection, timeout_s=self._timeout_s) as admin:
                end = admin.offsets(DECISIONS_TOPIC, [PARTITION], "last stable")[PARTITION]
                start = admin.offsets(DECISIONS_TOPIC, [PARTITION], "log start")[PARTITION]
            # Beside each decision stands the marker of its transaction.
            ranges = {PARTITION: OffsetRange(max(start, end - 2 * num_max), end)}
            found = read_committed(self._connection, DECISIONS_TOPIC, ranges, timeout_s=self._timeout_s)
            read = [decoded_decision(record.value) for record in found if record.value is not None]
        except _FAILURES as error:
            raise JournalError(f"earlier decisions can't be read: {error}") from error
        return [decision for decision in read if decision is not None][-num_max:]

    def _write(self, entries: list[_Entry]) -> None:
        entries.append((JOBS_TOPIC, *Writer(this_process(), socket.gethostname(), time.time()).encoded()))
        try:
            self._writer.begin()
            for topic, key, value in entries:
                self._writer.write(topic, value, partition=PARTITION, num_samples=0, key=key)
            self._writer.commit(num_bytes=sum(len(value or b"") for _, _, value in entries))
        except ProducerFencedError as error:
            raise JournalTakenError from error
        except LoadError as error:
            raise JournalError(f"the journal can't be written: {error}") from error
        self._written_s = time.monotonic()

    def close(self) -> None:
        """Lets go of it."""
        self._writer.close()
