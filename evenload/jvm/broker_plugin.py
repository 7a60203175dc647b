"""What brokers are told so that they hand on what clients push (KIP-714), by the plugin in evenload's jar."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

__all__ = ["OLDEST_KAFKA", "URL", "is_in", "plugin_properties"]

URL = "evenload.telemetry.url"
OLDEST_KAFKA = "3.7.0"
"""The first whose clients push."""

_REPORTERS = "metric.reporters"
_PLUGIN = "io.evenload.kafka.telemetry.TelemetryPlugin"
_EXPORTER_PLUGIN = "io.evenload.kafka.telemetry.TelemetryExporterPlugin"
_EXPORTER_SINCE = (4, 2)
_JMX = "org.apache.kafka.common.metrics.JmxReporter"  # which is there by itself while nobody names others


def plugin_properties(kafka_version: str, url: str, token_path: Path | None = None) -> Mapping[str, str]:
    """Lines of server.properties.

    Args:
        kafka_version: of the broker, from 3.7 on.
        url: of the collector service.
        token_path: a file with its token to ingest; None: it takes none.
    """
    major, minor = (int(number) for number in kafka_version.split(".")[:2])
    plugin = _EXPORTER_PLUGIN if (major, minor) >= _EXPORTER_SINCE else _PLUGIN
    told = {_REPORTERS: f"{_JMX},{plugin}", URL: url}
    if token_path is not None:
        told["evenload.telemetry.token.file"] = str(token_path)
    return told


def is_in(properties: Mapping[str, str]) -> bool:
    """Whether these make a broker load the plugin."""
    return _PLUGIN in properties.get(_REPORTERS, "") or _EXPORTER_PLUGIN in properties.get(_REPORTERS, "")
