"""A `confluent_kafka.Producer` that keeps brokers even.

    with BalancedProducer({"bootstrap.servers": "..."}) as producer:     # in place of
    confluent_kafka.Producer
        producer.produce("clicks", b"...", on_delivery=report)

It is that class, with few methods changed. `produce` and `produce_batch` choose the partition, as that client
calls nobody to do so: an explicit partition is kept, a record with a key goes where the Java client would
put it, all others go by the topic's shares, in turns of some milliseconds. And no record is lost silently:
records of a topic wait in a queue until all its leaders answer, and a delivery report without error but
without offset (a record that confluent-kafka 2.16 has lost on a new topic) reaches the caller as an error.

That client takes half a microsecond for a small record, so whatever is done here for each record is seen
(benchmarks/write/). Hence the size of `produce`, which calls as little as can be.

Read next: producing/topic_turns.py (whose turn it is), producing/waiting.py (topics that aren't open),
producing/delivery_reports.py (what became of a record), routing/ (where shares come from).
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from confluent_kafka import KafkaError, KafkaException, Producer

from evenload.extras import naming_extra
from evenload.kafka_connection import Connection
from evenload.kafka_connection.environment import with_telemetry
from evenload.kafka_plugin.config import ProducerConfig
from evenload.kafka_plugin.errors import PluginConfigError
from evenload.kafka_plugin.producing.batch_portions import REFUSED, UNASSIGNED, Portion, portions_of, size_of
from evenload.kafka_plugin.producing.delivery_reports import DeliveryCallback, TopicReports, explained
from evenload.kafka_plugin.producing.opening import Described, TopicOpener
from evenload.kafka_plugin.producing.settings import (
    addresses_of,
    connection_of,
    full_batch_bytes,
    needs_latency,
    queue_limits,
    turn_s,
)
from evenload.kafka_plugin.producing.topic_turns import TopicTurns
from evenload.kafka_plugin.producing.waiting import UnopenedTopics, WaitingRecord, check_record
from evenload.kafka_plugin.routing.opening import open_routes
from evenload.router.config import RouterConfig

if TYPE_CHECKING:
    from evenload.telemetry_collector.opening import AnyCollector
    from evenload.telemetry_collector.sources.client_statistics import ClientStatisticsSource

_log = logging.getLogger(__name__)
_client_log = logging.getLogger("evenload.kafka_plugin.librdkafka")
_client_log.addHandler(logging.NullHandler())
_STATISTICS_MS = 5000
_STATISTICS_AGE_MAX_S = 30.0
_MEASURABLE_BYTES = 1 << 20
_JAVA_PARTITIONER = "murmur2_random"
_TRUE = ("true", "t", "1")  # as librdkafka spells it
# How long the client is polled before one looks whether a record has failed that it never had: while some
# wait, and else.
_SERVED_S, _SLICE_S = 0.05, 1.0
_ASK_ID_S = 2.0

# Bound once: `super()` costs a tenth of a microsecond.
_produce, _produce_batch = Producer.produce, Producer.produce_batch
_flush, _close, _poll, _len = Producer.flush, Producer.close, Producer.poll, Producer.__len__
_now_s = time.monotonic


class BalancedProducer(Producer):
    """Sends like `confluent_kafka.Producer`, evenly over brokers. Thread-safe as that is.

    Nothing waits for a broker but `flush`, `close` and the end of a transaction. Shares come from the
    collector service that the connection names; without one, a collector of its own measures the brokers in
    the background until `close` (or the end of `with`), which takes the extra `measure`.

    Args:
        settings: Of `confluent_kafka.Producer`. `acks=all` and idempotence are set unless you set one of
            them; `partitioner` decides for records with keys and is the Java client's unless set.
        connection: How the collector reaches the cluster; None: as `settings` say, with the collector service
            or the weights that the environment names.
        config: How partitions are chosen.
        router_config: What to level by, where no service decides.
        collector: One that runs already, to be shared and left running: shares are then decided here by it.
        logger: As `confluent_kafka.Producer` takes it: gets the client's own log lines.

    Raises:
        PluginConfigError: A setting would hide lost records or be ignored, or the collector can't use it.
        ModuleNotFoundError: There is neither a service nor a collector, nor the extra `measure`.
        ValueError: EVENLOAD_COLLECTOR_URL is not http://host:port.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        *,
        connection: Connection | None = None,
        config: ProducerConfig | None = None,
        router_config: RouterConfig | None = None,
        collector: AnyCollector | None = None,
        logger: logging.Logger | None = None,
    ) -> None:
        own = dict(settings)
        if str(own.pop("delivery.report.only.error", False)).lower() in _TRUE:
            raise PluginConfigError(
                "delivery.report.only.error hides the reports by which lost records are told; leave it away."
            )
        if "acks" not in own and "request.required.acks" not in own and "enable.idempotence" not in own:
            own |= {"acks": "all", "enable.idempotence": True}
        own.setdefault("partitioner", _JAVA_PARTITIONER)
        own.setdefault("logger", logger or _client_log)
        self._connection = connection or _described(own)
        self._config = config or ProducerConfig()
        statistics = None
        is_measuring = collector is None and self._connection.collector_url is None
        if is_measuring and needs_latency(self._config, router_config or RouterConfig()):
            statistics = _client_statistics()
        elif self._config.is_latency_measured:
            _log.warning(
                "is_latency_measured has no effect: the collector is shared, and not told by clients"
            )
        if is_measuring or collector is not None:  # else a service decides, and hears of neither
            self._listen_to_statistics(own, statistics)
        self._has_offsets = str(own.get("acks", own.get("request.required.acks", "all"))) != "0"
        self._default_callback: DeliveryCallback | None = own.pop("on_delivery", None)
        self._spreads_keys = self._config.spread_keys
        self._topics: dict[str, TopicTurns] = {}
        self._num_failed_before = 0  # the transaction
        self._transmitted = (0, 0)
        self._opener = TopicOpener(own, self._describe, patience_s=self._config.new_topic_timeout_s)
        self._unopened = UnopenedTopics(
            self._topics,
            open_topic=self._try_to_open,
            send=self._send_waiting,
            reports=self._make_reports(),
            limits=queue_limits(own),
        )
        self._hold = self._unopened.hold
        if own.get("transactional.id"):
            self._unopened.refusal = _NO_TRANSACTION
        super().__init__(own)
        self._turn_s, self._full_batch_bytes = turn_s(own), full_batch_bytes(own)
        self._routes = open_routes(
            self._connection,
            self._config,
            router_config=router_config,
            collector=collector,
            statistics=statistics,
            count_partitions=self._count_partitions,
            ask_cluster_id=self._ask_cluster_id,
        )

    def produce(
        self,
        topic: str,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        partition: int = UNASSIGNED,
        callback: DeliveryCallback | None = None,
        on_delivery: DeliveryCallback | None = None,
        timestamp: int = 0,
        headers: Any = None,
    ) -> None:
        """As `confluent_kafka.Producer.produce`. Until a topic can be written, its records wait in a queue.

        Raises:
            BufferError: The queue is full; `poll`, and try again.
            KafkaException: The client refuses the record.
        """
        users = callback or on_delivery
        turns = self._topics.get(topic)
        if turns is None:
            turns = self._hold(topic, value, key, partition, users, timestamp, headers)
            if turns is None:
                return
        if partition != UNASSIGNED or (key is not None and not self._spreads_keys):
            report = turns.reports.reporter(users, None)
            _produce(self, topic, value, key, partition, report, report, timestamp, headers)
            return
        size_bytes = (0 if value is None else len(value)) + (0 if key is None else len(key))
        turn, report = turns.current
        if turn.sent_bytes >= turn.size_bytes or _now_s() >= turn.ends_s:
            turn, report = turns.next(turn)
        if users is not None:
            report = turns.reports.reporter(users, turn)
        turn.num_sent += 1
        turn.sent_bytes += size_bytes
        try:
            _produce(self, topic, value, key, turn.partition, report, report, timestamp, headers)
        except BaseException as error:
            turn.take_back(1, size_bytes)
            if not isinstance(error, KafkaException) or not _is_gone(error.args[0]):
                raise
            turns.recount(turn.partition)
            turns.next(turn)
            self._send_alone(turns, topic, value, key, None, users, timestamp, headers)

    def produce_batch(
        self,
        topic: str,
        messages: list[dict[str, Any]],
        partition: int = UNASSIGNED,
        callback: DeliveryCallback | None = None,
        on_delivery: DeliveryCallback | None = None,
    ) -> int:
        """As `confluent_kafka.Producer.produce_batch`, but partitions and headers of messages count.

        A partition is chosen for as many records at a time as a turn has bytes.
        """
        users = callback or on_delivery
        turns = self._topics.get(topic)
        if turns is None:
            for each in messages:  # all are refused together, or the caller would send the first ones again
                check_record(topic, each.get("value"), each.get("key"), partition, each.get("timestamp") or 0)
            return sum(self._send_single(topic, message, partition, users) for message in messages)
        portions = portions_of(
            messages,
            partition=partition,
            spread_keys=self._spreads_keys,
            portion_bytes=turns.route.route.batch_bytes,
        )
        return sum(self._send(topic, portion, turns, users) for portion in portions)

    def expect(self, topic: str, size_bytes: int) -> None:
        """Say how much this producer will still send to a topic: shares are then decided for all of it.

        Where others write to the topic as well, they are taken to have as much left as they send beside this
        producer: if it sent a tenth of what came in the last minute, ten times its rest is still to come.

        Args:
            topic: Its name.
            size_bytes: Payload, in bytes; about is enough.
        """
        self._routes.expect(topic, size_bytes)

    @property
    def num_fallbacks(self) -> int:
        """How often shares were even for want of something better, for any of the router's reasons."""
        return self._routes.num_fallbacks

    @property
    def num_without_service(self) -> int:
        """How often the collector service was gone or gave nothing usable; each time it went on without."""
        return self._routes.num_without_service

    @property
    def num_lost(self) -> int:
        """Records that were acknowledged without an offset; each was reported as an error."""
        return sum(turns.reports.num_lost for turns in list(self._topics.values()))

    def __len__(self) -> int:
        return _len(self) + self._unopened.num_waiting

    def poll(self, timeout: float = -1) -> int:
        """As `confluent_kafka.Producer.poll`."""
        if 0 <= timeout <= _SLICE_S and not self._unopened.num_waiting:
            num_events: int = _poll(self, timeout)
            return num_events
        return self._poll_in_slices(_end_s(timeout))

    def flush(self, timeout: float = -1) -> int:
        """As `confluent_kafka.Producer.flush`.

        Raises:
            KafkaException: Nothing can be sent any more. Where a permission is missing, it says which. `poll`
                says it in the client's words: it is called for each record, and a check would cost as much.
        """
        ends_s = _end_s(timeout)
        with _explaining():
            while True:
                left_s = self._serve_until_all_are_open(ends_s)
                num_left: int = _flush(self, left_s)
                # A callback may have sent to a topic that isn't open.
                if not self._unopened.num_waiting or _now_s() >= ends_s:
                    return num_left + self._unopened.num_waiting

    def purge(self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True) -> None:
        """As `confluent_kafka.Producer.purge`."""
        if in_queue:
            self._unopened.fail_all(KafkaError(KafkaError._PURGE_QUEUE))
        super().purge(in_queue, in_flight, blocking)

    def begin_transaction(self) -> None:
        """As `confluent_kafka.Producer.begin_transaction`."""
        super().begin_transaction()
        self._unopened.refusal = None
        self._num_failed_before = self._unopened.num_failed

    def commit_transaction(self, timeout: float = -1) -> None:
        """As `confluent_kafka.Producer.commit_transaction`; all records that wait are part of it.

        Raises:
            KafkaException: As there. Also if a record has failed before the client had it, as the client
                refuses to commit what it knows to be incomplete.
        """
        ends_s = _end_s(timeout)
        left_s = self._serve_until_all_are_open(ends_s)
        if self._unopened.num_waiting:
            raise KafkaException(
                KafkaError(KafkaError._TIMED_OUT, "some topics of it can't be written yet", retriable=True)
            )
        if num_failed := self._unopened.num_failed - self._num_failed_before:
            reason = f"{num_failed} of its records could not be sent"
            raise KafkaException(KafkaError(KafkaError._INCONSISTENT, reason, txn_requires_abort=True))
        self._unopened.refusal = _NO_TRANSACTION
        super().commit_transaction(left_s)

    def abort_transaction(self, timeout: float = -1) -> None:
        """As `confluent_kafka.Producer.abort_transaction`."""
        self._unopened.refusal = _NO_TRANSACTION
        self._unopened.fail_all(KafkaError(KafkaError._PURGE_QUEUE))
        self._unopened.report()
        super().abort_transaction(timeout)

    def close(self) -> bool:
        """Send what is queued, and end the collector, whatever comes of the former.

        Raises:
            KafkaException: As `flush`.
        """
        with _explaining():
            try:
                self.flush()
            finally:
                # Nobody may ask by the client's handle when that is gone.
                self._unopened.close()
                self._routes.close()
                is_closed: bool = _close(self)
        return is_closed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _listen_to_statistics(self, settings: dict[str, Any], source: ClientStatisticsSource | None) -> None:
        """Have the client's statistics told to us too: for latencies, or where less is stored than sent."""
        compression = settings.get("compression.type", settings.get("compression.codec", "none"))
        is_compressed = compression != "none"
        if not is_compressed and source is None:
            return
        settings.setdefault("statistics.interval.ms", _STATISTICS_MS)
        users = settings.get("stats_cb")

        def told(statistics: str) -> None:
            if is_compressed:
                self._learn_ratio(json.loads(statistics))
            if source is not None:
                source.feed(statistics)
            if users is not None:
                users(statistics)

        settings["stats_cb"] = told

    def _learn_ratio(self, statistics: Mapping[str, Any]) -> None:
        transmitted = (statistics["tx_bytes"], statistics["txmsg_bytes"])
        sent, payload = (now - then for now, then in zip(transmitted, self._transmitted, strict=True))
        if payload >= _MEASURABLE_BYTES:
            self._transmitted = transmitted
            self._routes.stored_ratio = min(2.0, max(0.01, sent / payload))

    def _send(
        self, topic: str, portion: Portion, turns: TopicTurns, callback: DeliveryCallback | None
    ) -> int:
        """Returns how many of its records the client has taken; the others say why not."""
        messages, (partition, has_callbacks, is_single) = portion.messages, portion.destination
        if is_single:
            return self._send_single(topic, messages[0], partition, callback)
        turn = None
        if partition is None:
            turn = turns.of_batch(len(messages), portion.size_bytes)
            partition = turn.partition
        report = turns.reports.reporter(callback, turn)
        if has_callbacks:
            messages = [
                {**message, "callback": turns.reports.reporter(message["callback"], turn)}
                for message in messages
            ]
        try:
            num_queued: int = _produce_batch(self, topic, messages, partition, report, report)
        except BaseException:  # one is no record at all; none was taken
            if turn is not None:
                turn.refuse(len(messages), portion.size_bytes)
            raise
        if num_queued < len(messages):
            refused = [number for number, message in enumerate(messages) if REFUSED in message]
            for number in refused:
                portion.messages[number][REFUSED] = messages[number][REFUSED]
            if turn is not None:
                turn.refuse(len(refused), sum(size_of(messages[number]) for number in refused))
            if turn is not None and any(_is_gone(messages[number][REFUSED]) for number in refused):
                turns.recount(turn.partition)
        return num_queued

    def _send_single(
        self, topic: str, message: dict[str, Any], partition: int | None, callback: DeliveryCallback | None
    ) -> int:
        """A message of a batch, as `produce` sends it. Returns 1, or 0 where the message says why not."""
        message.pop(REFUSED, None)  # of an earlier try
        wanted = partition if message.get("partition") is None else message["partition"]
        try:
            self.produce(
                topic,
                message.get("value"),
                message.get("key"),
                UNASSIGNED if wanted is None else wanted,
                message.get("callback") or callback,
                timestamp=message.get("timestamp") or 0,
                headers=message.get("headers"),
            )
        except BufferError as error:
            message[REFUSED] = KafkaError(KafkaError._QUEUE_FULL, str(error))
        except KafkaException as error:
            message[REFUSED] = error.args[0]
        return int(REFUSED not in message)

    def _send_alone(
        self,
        turns: TopicTurns,
        topic: str,
        value: str | bytes | None,
        key: str | bytes | None,
        partition: int | None,
        callback: DeliveryCallback | None,
        timestamp: int,
        headers: Any,
    ) -> None:
        """Hand one record to the client, in no turn of others; `partition` as a `Destination` has it."""
        if partition is not None:
            report = turns.reports.reporter(callback, None)
            _produce(self, topic, value, key, partition, report, report, timestamp, headers)
            return
        size_bytes = len(value or b"") + len(key or b"")
        while True:
            turn = turns.of_batch(1, size_bytes)
            report = turns.reports.reporter(callback, turn)
            try:
                _produce(self, topic, value, key, turn.partition, report, report, timestamp, headers)
                return
            except BaseException as error:
                turn.refuse(1, size_bytes)
                is_gone = isinstance(error, KafkaException) and _is_gone(error.args[0])
                if not is_gone or turn.partition == 0:
                    raise
                turns.recount(turn.partition)

    # Topics that aren't open.

    def _send_waiting(self, turns: TopicTurns, topic: str, record: WaitingRecord) -> None:
        is_free = record.partition == UNASSIGNED and (record.key is None or self._spreads_keys)
        self._send_alone(
            turns,
            topic,
            record.value,
            record.key,
            None if is_free else record.partition,
            record.callback,
            record.sent_ms,
            record.headers,
        )

    def _poll_in_slices(self, ends_s: float) -> int:
        """Poll, and look now and then whether a record has failed before the client had it."""
        while True:
            if self._unopened.has_failed:
                return self._unopened.report() + int(_poll(self, 0))
            slice_s = _SERVED_S if self._unopened.num_waiting else _SLICE_S
            left_s = ends_s - _now_s()
            num_events: int = _poll(self, max(0.0, min(slice_s, left_s)))
            if num_events or left_s <= slice_s:
                return num_events + self._unopened.report()

    def _serve_until_all_are_open(self, ends_s: float) -> float:
        """Call delivery callbacks until no record waits. Returns the seconds left; -1: any number."""
        self._unopened.report()
        while self._unopened.num_waiting and (left_s := ends_s - _now_s()) > 0:
            self.poll(min(_SERVED_S, left_s))
        return -1 if ends_s == math.inf else max(0.0, ends_s - _now_s())

    def _try_to_open(self, topic: str) -> TopicTurns | None:
        num_partitions = self._opener.num_partitions(topic)
        if num_partitions is None:
            return None
        return TopicTurns(
            self._routes.add(topic, num_partitions),
            self._make_reports(),
            turn_s=self._turn_s,
            full_bytes=self._full_batch_bytes,
            recount=self._routes.recount,
        )

    def _make_reports(self) -> TopicReports:
        return TopicReports(self._default_callback, has_offsets=self._has_offsets)

    def _describe(self, topic: str, timeout_s: float) -> Described:
        found: Described = self.list_topics(topic, timeout=timeout_s).topics[topic]
        return found

    def _ask_cluster_id(self) -> str | None:
        try:
            cluster_id: str | None = self.cluster_id(timeout=_ASK_ID_S)
        except KafkaException as error:
            _log.info("brokers don't say which cluster they are: %s", error)
            return None
        return cluster_id

    def _count_partitions(self, topic: str, num_measured: int) -> int | None:  # noqa: ARG002 (brokers say it)
        """How many partitions the client knows; asking brokers teaches it those that are new."""
        try:
            found = self._describe(topic, self._config.new_topic_timeout_s)
        except KafkaException as error:
            _log.warning("brokers don't say which partitions topic %s has by now: %s", topic, error)
            return None
        return len(found.partitions) or None


def _end_s(timeout: float) -> float:
    """When a time-out ends, as the client counts them: below 0, never."""
    return math.inf if timeout < 0 else _now_s() + timeout


def _described(settings: Mapping[str, Any]) -> Connection:
    """The cluster that settings describe; beside a service, nobody but the client itself goes there."""
    addresses = with_telemetry(Connection(bootstrap_servers=addresses_of(settings)))
    return addresses if addresses.collector_url is not None else with_telemetry(connection_of(settings))


@contextmanager
def _explaining() -> Iterator[None]:
    """Fatal errors, with the permission that is missing, if that is what they are of."""
    try:
        yield
    except (KafkaException, SystemError) as error:
        # confluent-kafka 2.16 calls delivery callbacks with the exception already set: a SystemError.
        told = error if isinstance(error, KafkaException) else error.__cause__
        fault = told.args[0] if isinstance(told, KafkaException) and told.args else None
        if not isinstance(fault, KafkaError):
            raise
        raise KafkaException(explained(fault)) from error


def _client_statistics() -> ClientStatisticsSource:
    with naming_extra("measure", "Measuring brokers' latencies"):
        from evenload.telemetry_collector.sources.client_statistics import ClientStatisticsSource
    return ClientStatisticsSource(age_max_s=_STATISTICS_AGE_MAX_S)


_NO_TRANSACTION = KafkaError(KafkaError._STATE, "no transaction has been begun")


def _is_gone(error: KafkaError) -> bool:
    """Whether the client knows no partition of such a number."""
    return bool(error.code() == KafkaError._UNKNOWN_PARTITION)
