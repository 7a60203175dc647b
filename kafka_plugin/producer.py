"""A `confluent_kafka.Producer` that keeps brokers even.

    with BalancedProducer({"bootstrap.servers": "..."}) as producer:     # in place of
    confluent_kafka.Producer
        producer.produce("clicks", b"...", on_delivery=report)

It is that class, with two methods changed. `produce` chooses the partition, as that client calls nobody to
do so: an explicit partition is kept, a record with a key goes where the Java client would put it, all
others go where the router says. And no record is lost silently: the first record of a topic waits until all
its leaders answer, and a delivery report without error but without offset (a record that confluent-kafka
2.16 has lost on a new topic) reaches the caller as an error.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from pydantic import ValidationError

from kafka_connection import Connection, KafkaConnectionError
from kafka_connection.connection import first_reason
from kafka_plugin.config import ProducerConfig
from kafka_plugin.errors import PluginConfigError, TopicError
from kafka_plugin.producer_routing import ProducerRouting
from kafka_plugin.routing import TopicRouting
from kafka_plugin.topics import wait_for_leaders
from router.config import RouterConfig
from telemetry_collector.collector import Collector
from telemetry_collector.sources.client_statistics import ClientStatisticsSource

_log = logging.getLogger(__name__)
_client_log = logging.getLogger("kafka_plugin.librdkafka")
_client_log.addHandler(logging.NullHandler())
_STATISTICS_MS = 5000
_STATISTICS_AGE_MAX_S = 30.0
_MEASURABLE_BYTES = 1 << 20
_UNASSIGNED = -1  # RD_KAFKA_PARTITION_UA
_JAVA_PARTITIONER = "murmur2_random"
_TRUE = ("true", "t", "1")  # as librdkafka spells it
_DEFAULT_PORT = 9092  # RD_KAFKA_PORT

DeliveryCallback = Callable[[KafkaError | None, Message], None]


class BalancedProducer(Producer):
    """Sends like `confluent_kafka.Producer`, evenly over brokers. Thread-safe as that is.

    A collector measures the brokers in the background until `close` (or the end of `with`).

    Args:
        settings: Of `confluent_kafka.Producer`. `acks=all` and idempotence are set unless you set one of
            them; `partitioner` decides for records with keys and is the Java client's unless set.
        connection: How the collector reaches the cluster; None: as `settings` say.
        config: How partitions are chosen.
        router_config: What to level by.
        collector: One that runs already, to be shared and left running.
        logger: As `confluent_kafka.Producer` takes it: gets the client's own log lines.

    Raises:
        PluginConfigError: A setting would hide lost records, or can't be used by the collector.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        *,
        connection: Connection | None = None,
        config: ProducerConfig | None = None,
        router_config: RouterConfig | None = None,
        collector: Collector | None = None,
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
        self._config = config or ProducerConfig()
        router_config = router_config or RouterConfig()
        statistics = None
        if collector is None and needs_latency(self._config, router_config):
            statistics = ClientStatisticsSource(age_max_s=_STATISTICS_AGE_MAX_S)
        elif self._config.is_latency_measured:
            _log.warning(
                "is_latency_measured has no effect: the collector is shared, and not told by clients"
            )
        self._listen_to_statistics(own, statistics)
        self._has_offsets = str(own.get("acks", own.get("request.required.acks", "all"))) != "0"
        self._default_callback: DeliveryCallback | None = own.pop("on_delivery", None)
        self._connection = connection or connection_of(own)
        self._opening = threading.Lock()
        self._num_lost = 0
        self._transmitted = (0, 0)
        super().__init__(own)
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
        partition: int = _UNASSIGNED,
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
        routing = self._routing.find(topic) or self._open(topic)
        size_bytes = _size(value) + _size(key)
        for is_last in (False, True):
            chosen = self._choose(routing, partition, has_key=key is not None, size_bytes=size_bytes)
            report = self._reporter(routing, on_delivery or callback, is_counted=chosen != partition)
            try:
                super().produce(
                    topic,
                    value=value,
                    key=key,
                    partition=chosen,
                    on_delivery=report,
                    timestamp=timestamp,
                    headers=headers,
                )
                return
            except BaseException as error:
                is_gone = chosen != partition and self._take_back(routing, chosen, size_bytes, error)
                if is_gone:
                    self._routing.recount(routing)
                if is_last or not is_gone:
                    raise

    def produce_batch(
        self,
        topic: str,
        messages: list[dict[str, Any]],
        partition: int = _UNASSIGNED,
        callback: DeliveryCallback | None = None,
        on_delivery: DeliveryCallback | None = None,
    ) -> int:
        """As `confluent_kafka.Producer.produce_batch`, with a partition chosen for each message."""
        routing = self._routing.find(topic) or self._open(topic)
        routed = []
        for message in messages:
            wanted = message.get("partition", partition)
            key = message.get("key")
            size_bytes = _size(message.get("value")) + _size(key)
            chosen = self._choose(routing, wanted, has_key=key is not None, size_bytes=size_bytes)
            user_callback = message.get("callback") or on_delivery or callback
            report = self._reporter(routing, user_callback, is_counted=chosen != wanted)
            routed.append({**message, "partition": chosen, "callback": report})
        num_queued: int = super().produce_batch(topic, routed)
        is_gone = False
        for message, sent in zip(messages, routed, strict=True):
            if "_error" not in sent:
                continue
            message["_error"] = sent["_error"]
            if sent["partition"] != message.get("partition", partition):
                size_bytes = _size(message.get("value")) + _size(message.get("key"))
                is_gone |= self._take_back(routing, sent["partition"], size_bytes, sent["_error"])
        if is_gone:
            self._routing.recount(routing)
        return num_queued

    def expect(self, topic: str, size_bytes: int) -> None:
        """Say how much payload is still to come for a topic: shares are then decided for all of it."""
        self._routing.expect(topic, size_bytes)

    @property
    def num_fallbacks(self) -> int:
        """How often shares were even because nothing fresh was known about the brokers."""
        return self._routing.num_fallbacks

    @property
    def num_lost(self) -> int:
        """Records that were acknowledged without an offset; each was reported as an error."""
        return self._num_lost

    def close(self) -> bool:
        """Send what is queued, and end the collector."""
        is_closed: bool = super().close()
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
        before = self._transmitted
        self._transmitted = (statistics["tx_bytes"], statistics["txmsg_bytes"])
        sent, payload = (now - then for now, then in zip(self._transmitted, before, strict=True))
        if payload >= _MEASURABLE_BYTES:
            self._routing.stored_ratio = min(2.0, max(0.01, sent / payload))

    def _choose(self, routing: TopicRouting, partition: int, *, has_key: bool, size_bytes: int) -> int:
        if partition != _UNASSIGNED or (has_key and not self._config.spread_keys):
            return partition
        return self._routing.partition_for(routing, size_bytes)

    def _take_back(
        self, routing: TopicRouting, partition: int, size_bytes: int, error: BaseException | KafkaError
    ) -> bool:
        """The client did not take a record. Returns whether that is because it knows no such partition.

        Then the turn is not given back: the next record, and all after it, would go there in vain.
        """
        fault = error.args[0] if isinstance(error, KafkaException) else error
        is_gone = isinstance(fault, KafkaError) and fault.code() == KafkaError._UNKNOWN_PARTITION
        if is_gone:
            routing.own_bytes.add_lost(partition, size_bytes)
        else:
            routing.give_back(partition, size_bytes)
        return is_gone

    def _reporter(
        self, routing: TopicRouting, callback: DeliveryCallback | None, *, is_counted: bool
    ) -> Callable[[KafkaError | None, Message], None]:
        return partial(self._report, routing, callback or self._default_callback, is_counted)

    def _report(
        self,
        routing: TopicRouting,
        callback: DeliveryCallback | None,
        is_counted: bool,
        error: KafkaError | None,
        message: Message,
    ) -> None:
        partition, offset = message.partition(), message.offset()
        if error is None and self._has_offsets and (offset is None or offset < 0):
            self._num_lost += 1
            reason = (
                f"acknowledged without an offset, so partition {partition} may not have it; send it again"
            )
            error = KafkaError(KafkaError._FAIL, reason)
        if is_counted and partition is not None:
            size_bytes = len(message) + _size(message.key())
            if error is None:
                routing.own_bytes.add_acknowledged(partition, size_bytes)
            else:
                routing.own_bytes.add_lost(partition, size_bytes)
        if callback is not None:
            callback(error, message)
        elif error is not None:
            _log.error("a record for topic %s was not stored: %s", message.topic(), error.str())

    def _open(self, topic: str) -> TopicRouting:
        """Wait until a topic can be written: once, before its first record."""
        with self._opening:
            routing = self._routing.find(topic)
            if routing is not None:
                return routing
            timeout_s = self._config.new_topic_timeout_s
            num_partitions = self._find_partitions(topic, timeout_s)
            try:
                wait_for_leaders(self._connection, topic, num_partitions, timeout_s=timeout_s)
            except (TopicError, KafkaConnectionError) as error:
                # A topic that is not new may have a dead leader for long; its records wait in the client.
                _log.warning("writing to topic %s all the same: %s", topic, error)
            return self._routing.add(topic, num_partitions)

    def _find_partitions(self, topic: str, timeout_s: float) -> int:
        deadline_s = time.monotonic() + timeout_s
        while True:  # asking makes the topic, where brokers are set to do so
            found = self.list_topics(topic, timeout=timeout_s).topics[topic]
            if found.error is None and found.partitions:
                return len(found.partitions)
            if time.monotonic() > deadline_s:
                raise KafkaException(found.error)
            time.sleep(0.05)

    def _count_partitions(self, topic: str, num_measured: int) -> int | None:  # noqa: ARG002 (brokers say it)
        """How many partitions the client knows; asking brokers teaches it those that are new."""
        try:
            found = self.list_topics(topic, timeout=self._config.new_topic_timeout_s).topics[topic]
        except KafkaException as error:
            _log.warning("brokers don't say which partitions topic %s has by now: %s", topic, error)
            return None
        return len(found.partitions) or None


def needs_latency(config: ProducerConfig, router_config: RouterConfig) -> bool:
    """Whether the client's statistics are wanted for what they say of brokers' latencies."""
    if config.is_latency_measured is not None:
        return config.is_latency_measured
    return router_config.score_functions.get("latency", 0) > 0


def connection_of(settings: Mapping[str, Any]) -> Connection:
    """The cluster that settings of confluent-kafka describe, in any spelling that librdkafka takes.

    Raises:
        PluginConfigError: They say it in a way that the collector's client does not know.
    """
    fields = {field: settings[word] for word, field in _FIELDS.items() if word in settings}
    known = {*_FIELDS, "ssl.endpoint.identification.algorithm"}
    unknown = [word for word in settings if word.startswith(("ssl.", "sasl.")) and word not in known]
    if unknown or "bootstrap_servers" not in fields:
        reason = f"{', '.join(unknown)} can't be translated" if unknown else "bootstrap.servers is missing"
        raise PluginConfigError(f"{reason}; {_WAY_OUT}")
    addresses = fields["bootstrap_servers"].split(",")
    fields["bootstrap_servers"] = ",".join(map(_address, filter(str.strip, addresses)))
    for word in ("security_protocol", "sasl_mechanism"):
        if word in fields:
            fields[word] = fields[word].upper()
    try:
        return Connection.model_validate(fields)
    except ValidationError as error:
        raise PluginConfigError(f"{first_reason(error)}; {_WAY_OUT}") from error


def _address(address: str) -> str:
    """`PROTOCOL://host:port/path` as `host:port`; librdkafka holds the protocol to `security.protocol`."""
    host = address.strip().rpartition("://")[2].partition("/")[0]
    return host if re.search(r":\d+$", host) else f"{host}:{_DEFAULT_PORT}"


_WAY_OUT = "pass connection= as well, which the collector then uses."


_FIELDS = {
    "bootstrap.servers": "bootstrap_servers",
    "metadata.broker.list": "bootstrap_servers",
    "security.protocol": "security_protocol",
    "ssl.ca.location": "ssl_ca_path",
    "ssl.certificate.location": "ssl_certificate_path",
    "ssl.key.location": "ssl_key_path",
    "ssl.key.password": "ssl_key_password",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_username",
    "sasl.password": "sasl_password",
}


def _size(content: str | bytes | None) -> int:
    return len(content) if content is not None else 0
