"""Make sure that every partition of a transaction hears how it ended.

A transaction ends when its coordinator decides so; each partition learns of it by a marker, later. When a
partition has no leader at that moment (its last broker was just killed), Kafka's coordinator takes it for
deleted and never sends the marker (Kafka 4.3.1, TransactionMarkerChannelManager). What the transaction wrote
there is then open for ever, or ends as the next transaction of this producer does, whatever that is. So
after each end, and before a transactional id is taken, the partitions are asked, and where a marker is
missing, it is written from here. docs/decisions/0034 tells what was seen.

Which marker is right, the coordinator knows: it remembers how the last transaction ended, until the id is
taken anew. So nothing is begun, and no id taken, before all partitions know. Where it has forgotten all the
same, what the load has committed tells (`end_forgotten`).

Tested in tests/fault/kafka_plugin/test_transaction_markers.py.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, NoReturn

import kafka
import stamina
from kafka import TopicPartition
from kafka.admin import ProducerState, TransactionDescription, TransactionState
from kafka.errors import (
    AuthorizationError,
    ClusterAuthorizationFailedError,
    ConcurrentTransactionsError,
    InvalidProducerEpochError,
    KafkaError,
    NotCoordinatorError,
    ProducerFencedError,
    TransactionalIdAuthorizationFailedError,
    TransactionalIdNotFoundError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)

from evenload.dataset_catalog.manifest import Extent
from evenload.kafka_connection import BrokersUnreachableError, Connection
from evenload.kafka_connection.admin_questions import describe_brokers, may_pass
from evenload.kafka_connection.clients import open_admin
from evenload.kafka_connection.kafka_python_internals import (
    CoordinatorType,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    WriteTxnMarkersRequest,
    send_request,
)
from evenload.kafka_connection.refusals import missing_permission
from evenload.kafka_plugin.errors import (
    MarkerRefusedError,
    TransactionFailedError,
    UndecidedTransactionError,
    sentence,
)

ALL_PARTITIONS = -1

_log = logging.getLogger(__name__)
_REQUEST_TIMEOUT_S = 5.0
_POLL_S = 0.005  # markers take 2 to 30 ms
_NUM_POLLS = 40
_EPOCH_OF_NOBODY = 2**15 - 1  # brokers begin a new producer id before that
_ENDING = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
_NO_LEADER = -1
_OPERATION_BY_REFUSAL = {
    # For writing a marker; see KAFKA-16513.
    ClusterAuthorizationFailedError: "ALTER, or before Kafka 3.8 CLUSTER_ACTION,",
    TransactionalIdAuthorizationFailedError: "WRITE",
}


class _NoLeaderError(Exception):
    """Nobody can be asked about a partition for now."""


class _OpenTransaction(NamedTuple):
    """A partition has records of it, and no marker yet."""

    at: TopicPartition
    leader: int
    producer: ProducerState


class TransactionMarkers:
    """Looks after one transactional id. For one thread; `close` ends what it started.

    Partitions are given as TopicPartition; ALL_PARTITIONS stands for each of the topic.

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

    def complete(
        self, partitions: Collection[TopicPartition], timeout_s: float, *, is_committed: bool
    ) -> None:
        """After the end of one's own transaction: wait until all partitions know of it.

        Args:
            partitions: Where it may have written. One without a leader is waited for.
            timeout_s: How long that may take, in seconds.
            is_committed: How it was ended.

        Raises:
            TransactionFailedError: Not all of them know by then, or the coordinator knows another end.
            MarkerRefusedError: Brokers don't let us ask or tell.
        """
        expected = (
            {TransactionState.COMPLETE_COMMIT}
            if is_committed
            else {TransactionState.COMPLETE_ABORT, TransactionState.EMPTY}
        )

        def step(admin: kafka.KafkaAdminClient) -> None:
            last = self._last(admin)
            if last is None or last.state not in expected:
                known = last.state.value if last is not None else "no transaction"
                raise TransactionFailedError(f"it is in doubt how it ended: the coordinator says {known}")
            self._tell(admin, _open_transactions(admin, partitions), last)

        self._retry(step, timeout_s)

    def end_earlier(self, partitions: Collection[TopicPartition], timeout_s: float) -> None:
        """Before the id is taken: end what an earlier holder left, as it was decided, or with an abort.

        Taking the id would abort it as well, but then nobody could say any more which of the two it was.

        Args:
            partitions: Where the earlier holder may have written; topics that are gone are passed over.
            timeout_s: How long that may take, in seconds.

        Raises:
            TransactionFailedError: Not everything is ended by then.
            MarkerRefusedError: Brokers don't let us ask or tell.
        """

        def step(admin: kafka.KafkaAdminClient) -> None:
            last = self._last(admin)
            if last is not None and last.state == TransactionState.ONGOING:
                self._fence(admin, last)
            if last is not None and last.state != TransactionState.EMPTY:
                self._tell(admin, _open_transactions(admin, partitions, pass_over_gone=True), last)

        self._retry(step, timeout_s)

    def end_forgotten(self, topic: str, committed: Mapping[int, Sequence[Extent]], timeout_s: float) -> None:
        """After the id was taken: end what is open in a topic where nobody else writes, as its records count.

        The coordinator can't tell any more: librdkafka takes an id anew by itself when it aborts, and its
        loader may have died before it told a partition that missed the abort (decision 0055).

        Args:
            topic: That; one that is gone is passed over.
            committed: Where its committed records are, by partition: those that the progress tells of, which
                each transaction writes together with its records.
            timeout_s: How long the answer may take, in seconds.

        Raises:
            UndecidedTransactionError: One is open that is not of this id.
            TransactionFailedError: Not all partitions could be asked by then.
            MarkerRefusedError: Brokers don't let us ask or tell.
        """

        def step(admin: kafka.KafkaAdminClient) -> None:
            partitions = [TopicPartition(topic, ALL_PARTITIONS)]
            for found in _open_transactions(admin, partitions, pass_over_gone=True):
                last = self._last(admin)
                if last is None or last.state != TransactionState.EMPTY:
                    raise ConcurrentTransactionsError(
                        "another loader is at work, or this id is not known yet"
                    )
                self._check_coordinator(admin, last.coordinator_id)
                offset = found.producer.current_transaction_start_offset
                if found.producer.producer_id != last.producer_id:
                    raise UndecidedTransactionError(topic, found.at.partition, offset)
                extents = committed.get(found.at.partition, ())
                is_committed = any(extent.first_offset <= offset < extent.end_offset for extent in extents)
                _write_marker(admin, found, is_committed=is_committed)

        self._retry(step, timeout_s)

    def _retry(self, step: Callable[[kafka.KafkaAdminClient], None], timeout_s: float) -> None:
        """A step, again and again while what is in its way may pass."""
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
                    self._try(step)
        except AuthorizationError as error:
            permission = missing_permission(error.errno, _OPERATION_BY_REFUSAL.get(type(error), "READ"))
            reason = permission or type(error).__name__
            raise MarkerRefusedError(self._transactional_id, reason) from error
        except UnsupportedVersionError as error:
            reason = "they are older than Kafka 3.0, and can't say which transactions are open"
            raise MarkerRefusedError(self._transactional_id, reason) from error
        except (KafkaError, BrokersUnreachableError, _NoLeaderError) as error:
            raise TransactionFailedError(
                f"not every partition knows how the last transaction ended: {sentence(error)}"
            ) from error

    def _try(self, step: Callable[[kafka.KafkaAdminClient], None]) -> None:
        if self._admin is None:
            self._admin = open_admin(self._connection, timeout_s=_REQUEST_TIMEOUT_S)
        try:
            step(self._admin)
        except (KafkaError, TransactionFailedError):
            self.close()  # it would go on asking a coordinator that is gone, or is another by now
            raise

    def _last(self, admin: kafka.KafkaAdminClient) -> TransactionDescription | None:
        """The last transaction, open or ended; None if there never was one.

        Raises:
            ConcurrentTransactionsError: Its coordinator is still ending it.
            _NoLeaderError: It can't, before a broker is back.
        """
        for _ in range(_NUM_POLLS):
            try:
                found = admin.describe_transactions([self._transactional_id])[self._transactional_id]
            except TransactionalIdNotFoundError:
                return None
            if found.state not in _ENDING:
                return found
            time.sleep(_POLL_S)
        # Coordinators that don't skip a partition without a leader (Kafka 3) wait for it.
        _by_leader(admin, found.topic_partitions, pass_over_gone=True)
        raise ConcurrentTransactionsError("its coordinator is still telling them")

    def _fence(self, admin: kafka.KafkaAdminClient, last: TransactionDescription) -> NoReturn:
        """Have an open transaction aborted, and its producer refused, unless its end is on its way.

        Who asks for the id with an epoch that nobody has does not get it, so that how the transaction ended
        stays known; an open one is aborted all the same.

        Raises:
            ConcurrentTransactionsError, ProducerFencedError: As it should be; ask again how it ended.
        """
        request = InitProducerIdRequest(
            transactional_id=self._transactional_id,
            transaction_timeout_ms=last.transaction_timeout_ms,
            producer_id=last.producer_id,
            producer_epoch=_EPOCH_OF_NOBODY,
            min_version=3,
            max_version=4,
        )
        error = kafka.errors.for_code(send_request(admin, request, last.coordinator_id).error_code)
        raise error("an open transaction is being ended")

    def _tell(
        self,
        admin: kafka.KafkaAdminClient,
        found: Iterator[_OpenTransaction],
        last: TransactionDescription,
    ) -> None:
        """Write the markers that are missing of the last transaction, which has ended."""
        for each in found:
            if each.producer.producer_id != last.producer_id:
                continue
            if self._last(admin) != last:
                raise ConcurrentTransactionsError("another loader is at work")
            self._check_coordinator(admin, last.coordinator_id)
            _write_marker(admin, each, is_committed=last.state == TransactionState.COMPLETE_COMMIT)

    def _check_coordinator(self, admin: kafka.KafkaAdminClient, broker_id: int) -> None:
        """One that doesn't know yet that another took its place tells what was so before (decision 0054).

        Raises:
            NotCoordinatorError: Not all brokers name it.
        """
        request = FindCoordinatorRequest(
            key_type=CoordinatorType.TRANSACTION, coordinator_keys=[self._transactional_id], min_version=4
        )
        awake = [each["broker_id"] for each in describe_brokers(admin) if not each.get("is_fenced")]
        for asked in awake:
            (named,) = send_request(admin, request, asked).coordinators
            if named.error_code or named.node_id != broker_id:
                raise NotCoordinatorError(f"broker {asked} does not call broker {broker_id} the coordinator")


def _open_transactions(
    admin: kafka.KafkaAdminClient, partitions: Collection[TopicPartition], *, pass_over_gone: bool = False
) -> Iterator[_OpenTransaction]:
    for leader, led in _by_leader(admin, partitions, pass_over_gone=pass_over_gone).items():
        for at, state in admin.describe_producers(led, broker_id=leader).items():
            for producer in state.active_producers:
                if producer.current_transaction_start_offset >= 0:
                    yield _OpenTransaction(at, leader, producer)


def _by_leader(
    admin: kafka.KafkaAdminClient, partitions: Collection[TopicPartition], *, pass_over_gone: bool
) -> dict[int, list[TopicPartition]]:
    """Who can be asked about partitions.

    Raises:
        _NoLeaderError: Nobody, for one of them.
    """
    by_leader: dict[int, list[TopicPartition]] = {}
    for topic in admin.describe_topics(sorted({at.topic for at in partitions})):
        error = kafka.errors.for_code(topic["error_code"])
        if pass_over_gone and error is UnknownTopicOrPartitionError:
            continue
        if topic["error_code"]:
            raise error(f"topic {topic['name']}")
        for described in topic["partitions"]:
            at = TopicPartition(topic["name"], described["partition_index"])
            if at not in partitions and TopicPartition(at.topic, ALL_PARTITIONS) not in partitions:
                continue
            if described["leader_id"] == _NO_LEADER:
                raise _NoLeaderError(
                    f"partition {at.partition} of topic {at.topic!r} has no leader, its brokers "
                    f"({', '.join(map(str, described['replica_nodes']))}) are down"
                )
            by_leader.setdefault(described["leader_id"], []).append(at)
    return by_leader


def _write_marker(admin: kafka.KafkaAdminClient, found: _OpenTransaction, *, is_committed: bool) -> None:
    """As `KafkaAdminClient.abort_transaction` does, which knows no commit.

    It carries the epoch that the partition knows: where a newer holder of the id has written, it is refused.
    It leaves `transaction_version` at 0, as loads' transactions are of the first kind (decision 72).
    """
    at, producer = found.at, found.producer
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
    response = send_request(admin, request, found.leader)
    for code in (p.error_code for m in response.markers for t in m.topics for p in t.partitions):
        if code:
            raise kafka.errors.for_code(code)(f"partition {at.partition} of topic {at.topic!r}")
    _log.warning(
        "partition %d of topic %s had missed the %s of a transaction (offsets from %d on), and was told",
        at.partition,
        at.topic,
        "commit" if is_committed else "abort",
        producer.current_transaction_start_offset,
    )


def _may_pass(error: Exception) -> bool:
    # The last two: what is answered to a marker of an older epoch, and by a coordinator to `_fence`.
    passing = (BrokersUnreachableError, _NoLeaderError, InvalidProducerEpochError, ProducerFencedError)
    return isinstance(error, passing) or (isinstance(error, KafkaError) and may_pass(error))
