"""What the settings of a confluent-kafka producer say to those who measure beside it. Pure.

Read next: producer.py, which takes them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from evenload.kafka_connection import Connection
from evenload.kafka_connection.connection import first_reason
from evenload.kafka_plugin.config import ProducerConfig
from evenload.kafka_plugin.errors import PluginConfigError
from evenload.router.config import RouterConfig

_DEFAULT_PORT = 9092  # RD_KAFKA_PORT
# librdkafka's defaults
_LINGER_MS, _BATCH_BYTES = 5, 1_000_000
_QUEUE_RECORDS, _QUEUE_KIB, _RECORD_MAX_BYTES = 100_000, 1 << 20, 1_000_000
_TIMEOUT_MS, _TRANSACTION_MS = 300_000, 60_000
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
_OAUTH_FIELDS = {
    "sasl.oauthbearer.token.endpoint.url": "token_url",
    "sasl.oauthbearer.client.id": "client_id",
    "sasl.oauthbearer.client.secret": "client_secret",
    "sasl.oauthbearer.scope": "scope",
    "https.ca.location": "ca_path",
}


def needs_latency(config: ProducerConfig, router_config: RouterConfig) -> bool:
    """Whether the client's statistics are wanted for what they say of brokers' latencies."""
    if config.is_latency_measured is not None:
        return config.is_latency_measured
    return router_config.score_functions.get("latency", 0) > 0


def turn_s(settings: Mapping[str, Any]) -> float:
    """How long the client's own partitioner would stay on a partition, in seconds.

    That is `sticky.partitioning.linger.ms`, or twice `linger.ms`. Where nothing lingers, the client would
    take another partition for each record, which makes none of them faster: then it is as long as by default.
    """
    if (sticky_ms := settings.get("sticky.partitioning.linger.ms")) is not None:
        return float(sticky_ms) / 1000
    linger_ms = float(settings.get("linger.ms", settings.get("queue.buffering.max.ms", _LINGER_MS)))
    return 2 * (linger_ms or _LINGER_MS) / 1000


def full_batch_bytes(settings: Mapping[str, Any]) -> int:
    """Of how many bytes on a batch leaves at once."""
    return max(1, int(settings.get("batch.size", _BATCH_BYTES)))


class QueueLimits(NamedTuple):
    """What a client takes, and for how long.

    Attributes:
        max_records: In its queue.
        max_bytes: In its queue.
        max_record_bytes: Of one record.
        lifetime_s: After which a record that isn't sent has failed, in seconds.
    """

    max_records: float
    max_bytes: int
    max_record_bytes: int
    lifetime_s: float


def queue_limits(settings: Mapping[str, Any]) -> QueueLimits:
    """What the client's own queue would take, for records that wait before it does."""
    usual_ms = _TIMEOUT_MS
    if settings.get("transactional.id"):
        usual_ms = int(settings.get("transaction.timeout.ms", _TRANSACTION_MS))
    timeout_ms = float(settings.get("message.timeout.ms", settings.get("delivery.timeout.ms", usual_ms)))
    return QueueLimits(
        max_records=int(settings.get("queue.buffering.max.messages", _QUEUE_RECORDS)) or math.inf,
        max_bytes=int(settings.get("queue.buffering.max.kbytes", _QUEUE_KIB)) << 10,
        max_record_bytes=int(settings.get("message.max.bytes", _RECORD_MAX_BYTES)),
        lifetime_s=timeout_ms / 1000 or math.inf,
    )


def connection_of(settings: Mapping[str, Any]) -> Connection:
    """The cluster that settings of confluent-kafka describe, in any spelling that librdkafka takes.

    Raises:
        PluginConfigError: They say it in a way that the collector's client does not know.
    """
    fields = {field: settings[word] for word, field in _FIELDS.items() if word in settings}
    known = {*_FIELDS, "ssl.endpoint.identification.algorithm"}
    if settings.get("sasl.oauthbearer.method", "default").lower() == "oidc":
        known |= {*_OAUTH_FIELDS, "sasl.oauthbearer.method"}
        fields["sasl_oauth"] = {f: settings[word] for word, f in _OAUTH_FIELDS.items() if word in settings}
    unknown = [word for word in settings if word.startswith(("ssl.", "sasl.")) and word not in known]
    if unknown or "bootstrap_servers" not in fields:
        reason = f"{', '.join(unknown)} can't be translated" if unknown else "bootstrap.servers is missing"
        raise PluginConfigError(f"{reason}; {_WAY_OUT}")
    fields["bootstrap_servers"] = addresses_of(settings)
    for word in ("security_protocol", "sasl_mechanism"):
        if word in fields:
            fields[word] = fields[word].upper()
    try:
        return Connection.model_validate(fields)
    except ValidationError as error:
        raise PluginConfigError(f"{first_reason(error)}; {_WAY_OUT}") from error


def addresses_of(settings: Mapping[str, Any]) -> str:
    """Of the brokers, as host:port,host:port.

    Raises:
        PluginConfigError: There are none.
    """
    said = settings.get("bootstrap.servers", settings.get("metadata.broker.list"))
    if said is None:
        raise PluginConfigError(f"bootstrap.servers is missing; {_WAY_OUT}")
    return ",".join(map(_address, filter(str.strip, said.split(","))))


def _address(address: str) -> str:
    """`PROTOCOL://host:port/path` as `host:port`; librdkafka holds the protocol to `security.protocol`."""
    host = address.strip().rpartition("://")[2].partition("/")[0]
    return host if re.search(r":\d+$", host) else f"{host}:{_DEFAULT_PORT}"
