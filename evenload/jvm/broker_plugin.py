"""What brokers are told so that they hand on what clients push (KIP-714), by the plugin in evenload's jar."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

__all__ = ["OLDEST_KAFKA", "TOKEN_FILE", "URL", "is_in", "plugin_properties", "without_plugin"]

URL = "evenload.telemetry.url"
TOKEN_FILE = "evenload.telemetry.token.file"
OLDEST_KAFKA = "3.7.0"
"""The first whose clients push."""

_REPORTERS = "metric.reporters"
_PLUGIN = "io.evenload.kafka.telemetry.TelemetryPlugin"
_EXPORTER_PLUGIN = "io.evenload.kafka.telemetry.TelemetryExporterPlugin"
_EXPORTER_SINCE = (4, 2)
_JMX = "org.apache.kafka.common.metrics.JmxReporter"  # which is there by itself while nobody names others


def plugin_properties(
    kafka_version: str, url: str, token_path: Path | None = None, *, among: Mapping[str, str] | None = None
) -> Mapping[str, str]:
    """Lines of server.properties.

    Args:
        kafka_version: of the broker, from 3.7 on.
        url: of the collector service.
        token_path: a file with its token to ingest; None: it takes none.
        among: other lines, which stay, other reporters among them.
    """
    major, minor = (int(number) for number in kafka_version.split(".")[:2])
    plugin = _EXPORTER_PLUGIN if (major, minor) >= _EXPORTER_SINCE else _PLUGIN
    others = without_plugin(among or {})
    reporters = [*_reporters(others), *([] if _REPORTERS in others else [_JMX]), plugin]
    told = {**others, _REPORTERS: ",".join(reporters), URL: url}
    if token_path is not None:
        told[TOKEN_FILE] = str(token_path)
    return told


def without_plugin(properties: Mapping[str, str]) -> Mapping[str, str]:
    """The same lines without what the plugin needs."""
    told = {name: value for name, value in properties.items() if name not in (URL, TOKEN_FILE)}
    if _REPORTERS in told:
        others = [each for each in _reporters(told) if each not in (_PLUGIN, _EXPORTER_PLUGIN)]
        told[_REPORTERS] = ",".join(others)
        if others == [_JMX]:
            del told[_REPORTERS]
    return told


def is_in(properties: Mapping[str, str]) -> bool:
    """Whether these make a broker load the plugin."""
    return not {_PLUGIN, _EXPORTER_PLUGIN}.isdisjoint(_reporters(properties))


def _reporters(properties: Mapping[str, str]) -> list[str]:
    return [each.strip() for each in properties.get(_REPORTERS, "").split(",") if each.strip()]
