"""Make sure that every partition of a transaction hears how it ended.

A transaction ends when its coordinator decides so; each partition learns of it by a marker, later. When a
partition has no leader at that moment (its last broker was just killed), Kafka's coordinator takes it for
deleted and never sends the marker (Kafka 4.3.1, TransactionMarkerChannelManager). What the transaction wrote
there is then open for ever, or ends as the next transaction of this producer does, whatever that is. So
nothing is written after a transaction before each partition was looked at, and where a marker is missing,
it is written from here. docs/decisions/0034 tells what was seen, tests/fault/test_transaction_markers.py
does it again.

Which marker is right follows from the coordinator: it remembers how the last transaction ended, and as
nothing was begun after it, that is the one which a partition can have missed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

import kafka
import stamina
from kafka import TopicPartition
from kafka.admin import ProducerState, TransactionDescription, TransactionState
from kafka.errors import (
    AuthorizationError,
    KafkaError,
    TransactionalIdNotFoundError,
    UnknownBrokerIdError,
    UnsupportedVersionError,
)
from kafka.protocol.producer.transaction import WriteTxnMarkersRequest

from kafka_connection import BrokersUnreachableError, Connection
from kafka_connection.clients import open_admin
from kafka_plugin.errors import MarkerRefusedError, TransactionFailedError, sentence

_log = logging.getLogger(__name__)
_REQUEST_TIMEOUT_S = 10.0
_POLL_S = 0.005  # markers take 2 to 30 ms
_ENDING = (
    TransactionState.PREPARE_COMMIT,
    TransactionState.PREPARE_ABORT,
    TransactionState.PREPARE_EPOCH_FENCE,
)


class TransactionMarkers:
    """Looks after one transactional id. For one thread; `close` ends what it started.

    Args:
        connection: The cluster.
        transactional_id: Whose transactions.
    """

    def __init__(self, connection: Connection, transactional_id: str) -> None:
        self._connection = connection
        self._transactional_id = transactional_id
        self._admin: kafka.KafkaAdminClient | None = None

    def close(self) -> None:
        """Close the connections. It may be used again."""
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()

    def complete(self, num_partitions: Mapping[str, int], timeout_s: float) -> None:
        """Wait until all partitions know how the last transaction ended; tell those that have missed it.

        A transaction that is still open is left as it is.

        Args:
            num_partitions: Of each topic that the transaction may have written to.
            timeout_s: How long that may take, in seconds; a partition without a leader is waited for.

        Raises:
            TransactionFailedError: Not all of them could be asked, or told, in time.
            MarkerRefusedError: Brokers don't allow it.
        """
        partitions = [TopicPartition(topic, p) for topic, n in num_partitions.items() for p in range(n)]
        deadline_s = time.monotonic() + timeout_s
        try:
            for attempt in stamina.retry_context(
                on=_may_pass,
                attempts=None,
                timeout=timeout_s,
                wait_initial=0.05,
                wait_max=0.5,
                wait_jitter=0,
            ):
                with attempt:
                    self._complete_now(partitions, deadline_s)
        except (AuthorizationError, UnsupportedVersionError) as error:
            raise MarkerRefusedError(self._transactional_id, type(error).__name__) from error
        except (KafkaError, BrokersUnreachableError) as error:
            raise _untold(partitions, _reason(error)) from error

    def _complete_now(self, partitions: Sequence[TopicPartition], deadline_s: float) -> None:
        if self._admin is None:
            self._admin = open_admin(self._connection, timeout_s=_REQUEST_TIMEOUT_S)
        try:
            ended = self._ended(self._admin)
            while ended is not None and ended.state in _ENDING:
                if time.monotonic() > deadline_s:
                    raise _untold(partitions, "its coordinator is still at it.")
                time.sleep(_POLL_S)
                ended = self._ended(self._admin)
            if ended is not None:
                _tell(self._admin, partitions, ended)
        except KafkaError:
            self.close()  # it would go on asking a coordinator that is gone
            raise

    def _ended(self, admin: kafka.KafkaAdminClient) -> TransactionDescription | None:
        """The last transaction, unless it is open, or there never was one."""
        try:
            found = admin.describe_transactions([self._transactional_id])[self._transactional_id]
        except TransactionalIdNotFoundError:
            return None
        return None if found.state == TransactionState.ONGOING else found


def _tell(
    admin: kafka.KafkaAdminClient, partitions: Sequence[TopicPartition], ended: TransactionDescription
) -> None:
    is_committed = ended.state == TransactionState.COMPLETE_COMMIT
    for partition, described in admin.describe_producers(partitions).items():
        for producer in described.active_producers:
            is_open = producer.current_transaction_start_offset >= 0
            if is_open and producer.producer_id == ended.producer_id:
                _write_marker(admin, partition, producer, is_committed=is_committed)


def _write_marker(
    admin: kafka.KafkaAdminClient, at: TopicPartition, producer: ProducerState, *, is_committed: bool
) -> None:
    """As `KafkaAdminClient.abort_transaction` does, which knows no commit."""
    marker = WriteTxnMarkersRequest.WritableTxnMarker
    request = WriteTxnMarkersRequest(
        markers=[
            marker(
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                transaction_result=is_committed,
                topics=[marker.WritableTxnMarkerTopic(name=at.topic, partition_indexes=[at.partition])],
                coordinator_epoch=producer.coordinator_epoch,
            )
        ]
    )

    async def send() -> Any:
        (leader,) = await admin._async_get_leader_for_partitions([at])
        return await admin._manager.send(request, node_id=leader)

    response = admin._manager.run(send)
    for code in (p.error_code for m in response.markers for t in m.topics for p in t.partitions):
        if code:
            raise kafka.errors.for_code(code)(f"{at.topic} {at.partition}")
    _log.warning(
        "partition %d of topic %s had missed the %s of a transaction (offsets from %d on), and was told",
        at.partition,
        at.topic,
        "commit" if is_committed else "abort",
        producer.current_transaction_start_offset,
    )


def _may_pass(error: Exception) -> bool:
    # A partition without a leader has broker -1, which kafka-python does not count as passing.
    passing = (UnknownBrokerIdError, BrokersUnreachableError)
    return isinstance(error, passing) or (isinstance(error, KafkaError) and error.retriable)


def _untold(partitions: Sequence[TopicPartition], reason: str) -> TransactionFailedError:
    topics = " and ".join(sorted({partition.topic for partition in partitions}))
    return TransactionFailedError(
        f"not every partition of {topics} knows how the last transaction ended: {reason}"
    )


def _reason(error: Exception) -> str:
    if isinstance(error, UnknownBrokerIdError):
        return "one has no leader: its brokers are down."
    return sentence(error)
