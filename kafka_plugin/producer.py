"""A `confluent_kafka.Producer` that keeps brokers even.

    with BalancedProducer({"bootstrap.servers": "..."}) as producer:     # in place of
    confluent_kafka.Producer
        producer.produce("clicks", b"...", on_delivery=report)

It is that class, with few methods changed. `produce` and `produce_batch` choose the partition, as that client
calls nobody to do so: an explicit partition is kept, a record with a key goes where the Java client would put
it, all others go where the router says, in turns of some milliseconds. And no record is lost silently: the
first record of a topic waits until all its leaders answer, and a delivery report without error but without
offset (a record that confluent-kafka 2.16 has lost on a new topic) reaches the caller as an error.

That client takes half a microsecond for a small record, so whatever is done here for each record is seen
(benchmarks/write/). Hence the size of `produce`, which calls as little as can be.

Read next: topic_turns.py (whose turn it is), delivery_reports.py (what became of a record), batch_portions.py
(how a batch is cut).
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from confluent_kafka import KafkaError, KafkaException, Producer

from evenload.kafka_connection import Connection, KafkaConnectionError
from evenload.kafka_connection.environment import with_telemetry
from evenload.kafka_plugin.batch_portions import REFUSED, UNASSIGNED, Portion, portions_of, size_of
from evenload.kafka_plugin.config import ProducerConfig
from evenload.kafka_plugin.delivery_reports import DeliveryCallback, TopicReports, explained
from evenload.kafka_plugin.errors import PluginConfigError, TopicError
from evenload.kafka_plugin.producer_routing import ProducerRouting
from evenload.kafka_plugin.producer_settings import connection_of, full_batch_bytes, needs_latency, turn_s
from evenload.kafka_plugin.topic_turns import TopicTurns
from evenload.kafka_plugin.topics import wait_for_leaders
from evenload.router.config import RouterConfig
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

# Bound once: `super()` costs a tenth of a microsecond.
_produce, _produce_batch = Producer.produce, Producer.produce_batch
_flush, _close = Producer.flush, Producer.close
_now_s = time.monotonic


class BalancedProducer(Producer):
    """Sends like `confluent_kafka.Producer`, evenly over brokers. Thread-safe as that is.

    A collector measures the brokers in the background until `close` (or the end of `with`).

    Args:
        settings: Of `confluent_kafka.Producer`. `acks=all` and idempotence are set unless you set one of
            them; `partitioner` decides for records with keys and is the Java client's unless set.
        connection: How the collector reaches the cluster; None: as `settings` say, with the collector service
            or the weights that the environment names.
        config: How partitions are chosen.
        router_config: What to level by.
        collector: One that runs already, to be shared and left running.
        logger: As `confluent_kafka.Producer` takes it: gets the client's own log lines.

    Raises:
        PluginConfigError: A setting would hide lost records, or can't be used by the collector.
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
        self._connection = connection or with_telemetry(connection_of(own))
        self._config = config or ProducerConfig()
        router_config = router_config or RouterConfig()
        statistics = None
        is_measuring = collector is None and self._connection.collector_url is None
        if is_measuring and needs_latency(self._config, router_config):
            statistics = ClientStatisticsSource(age_max_s=_STATISTICS_AGE_MAX_S)
        elif self._config.is_latency_measured:
            _log.warning(
                "is_latency_measured has no effect: the collector is shared, and not told by clients"
            )
        self._listen_to_statistics(own, statistics)
        self._has_offsets = str(own.get("acks", own.get("request.required.acks", "all"))) != "0"
        self._default_callback: DeliveryCallback | None = own.pop("on_delivery", None)
        self._spreads_keys = self._config.spread_keys
        self._opening = threading.Lock()
        self._topics: dict[str, TopicTurns] = {}
        self._transmitted = (0, 0)
        super().__init__(own)
        self._turn_s, self._full_batch_bytes = turn_s(own), full_batch_bytes(own)
        self._routing = ProducerRouting(
            self._connection,
            self._config,
            router_config,
            collector,
            statistics=statistics,
            count_partitions=self._count_partitions,
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
        """As `confluent_kafka.Producer.produce`; the first record of a topic may wait until it is ready.

        Raises:
            BufferError: The client's queue is full; `poll`, and try again.
            KafkaException: The topic is not there, or the client refuses the record.
        """
        turns = self._topics.get(topic) or self._open(topic)
        users = callback or on_delivery
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
            turns.recount()
            turns.next(turn)
            turn = turns.of_batch(1, size_bytes)
            report = turns.reports.reporter(users, turn)
            try:
                _produce(self, topic, value, key, turn.partition, report, report, timestamp, headers)
            except BaseException:
                turn.refuse(1, size_bytes)
                raise

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
        turns = self._topics.get(topic) or self._open(topic)
        portions = portions_of(
            messages,
            partition=partition,
            spread_keys=self._spreads_keys,
            portion_bytes=turns.routing.route.batch_bytes,
        )
        return sum(self._send(topic, portion, turns, callback or on_delivery) for portion in portions)

    def expect(self, topic: str, size_bytes: int) -> None:
        """Say how much this producer will still send to a topic: shares are then decided for all of it.

        Where others write to the topic as well, they are taken to have as much left as they send beside this
        producer: if it sent a tenth of what came in the last minute, ten times its rest is still to come.

        Args:
            topic: Its name.
            size_bytes: Payload, in bytes; about is enough.
        """
        self._routing.expect(topic, size_bytes)

    @property
    def num_fallbacks(self) -> int:
        """How often shares were even for want of something better, for any of the router's reasons."""
        return self._routing.num_fallbacks

    @property
    def num_without_service(self) -> int:
        """How often the collector service was gone or gave nothing usable; each time it went on without."""
        return self._routing.num_without_service

    @property
    def num_lost(self) -> int:
        """Records that were acknowledged without an offset; each was reported as an error."""
        return sum(turns.reports.num_lost for turns in list(self._topics.values()))

    def flush(self, timeout: float = -1) -> int:
        """As `confluent_kafka.Producer.flush`.

        Raises:
            KafkaException: Nothing can be sent any more. Where a permission is missing, it says which. `poll`
                says it in the client's words: it is called for each record, and a check would cost as much.
        """
        with _explaining():
            num_left: int = _flush(self, timeout)
        return num_left

    def close(self) -> bool:
        """Send what is queued, and end the collector, whatever comes of the former.

        Raises:
            KafkaException: As `flush`.
        """
        try:
            with _explaining():
                is_closed: bool = _close(self)
        finally:
            self._routing.close()
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
            self._routing.stored_ratio = min(2.0, max(0.01, sent / payload))

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
            if any(_is_gone(messages[number][REFUSED]) for number in refused):
                turns.recount()
        return num_queued

    def _send_single(
        self, topic: str, message: dict[str, Any], partition: int | None, callback: DeliveryCallback | None
    ) -> int:
        try:
            self.produce(
                topic,
                message.get("value"),
                message.get("key"),
                UNASSIGNED if partition is None else partition,
                message.get("callback") or callback,
                timestamp=message.get("timestamp") or 0,
                headers=message.get("headers"),
            )
        except BufferError as error:
            message[REFUSED] = KafkaError(KafkaError._QUEUE_FULL, str(error))
        except KafkaException as error:
            message[REFUSED] = error.args[0]
        return int(REFUSED not in message)

    def _open(self, topic: str) -> TopicTurns:
        """Wait until a topic can be written: once, before its first record."""
        with self._opening:
            if topic in self._topics:
                return self._topics[topic]
            timeout_s = self._config.new_topic_timeout_s
            num_partitions = self._find_partitions(topic, timeout_s)
            try:
                wait_for_leaders(self._connection, topic, num_partitions, timeout_s=timeout_s)
            except (TopicError, KafkaConnectionError) as error:
                # A topic that is not new may have a dead leader for long; its records wait in the client.
                _log.warning("writing to topic %s all the same: %s", topic, error)
            self._topics[topic] = TopicTurns(
                self._routing.add(topic, num_partitions),
                TopicReports(self._default_callback, has_offsets=self._has_offsets),
                turn_s=self._turn_s,
                full_bytes=self._full_batch_bytes,
                recount=self._routing.recount,
            )
            return self._topics[topic]

    def _find_partitions(self, topic: str, timeout_s: float) -> int:
        deadline_s = time.monotonic() + timeout_s
        while True:  # asking makes the topic, where brokers are set to do so
            found = self.list_topics(topic, timeout=timeout_s).topics[topic]
            if found.error is None and found.partitions:
                return len(found.partitions)
            if time.monotonic() > deadline_s:
                raise KafkaException(explained(found.error or _NO_LEADER, topic))
            time.sleep(0.05)

    def _count_partitions(self, topic: str, num_measured: int) -> int | None:  # noqa: ARG002 (brokers say it)
        """How many partitions the client knows; asking brokers teaches it those that are new."""
        try:
            found = self.list_topics(topic, timeout=self._config.new_topic_timeout_s).topics[topic]
        except KafkaException as error:
            _log.warning("brokers don't say which partitions topic %s has by now: %s", topic, error)
            return None
        return len(found.partitions) or None


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


_NO_LEADER = KafkaError(KafkaError.LEADER_NOT_AVAILABLE)


def _is_gone(error: KafkaError) -> bool:
    """Whether the client knows no partition of such a number."""
    return bool(error.code() == KafkaError._UNKNOWN_PARTITION)
