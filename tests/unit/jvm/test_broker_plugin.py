"""What brokers are told to load the plugin, among whatever else they are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from evenload.jvm.broker_plugin import is_in, plugin_properties, without_plugin

JMX = "org.apache.kafka.common.metrics.JmxReporter"
OURS = "io.evenload.kafka.telemetry.TelemetryPlugin"
NEWER = "io.evenload.kafka.telemetry.TelemetryExporterPlugin"
URL = "http://collector:9405"


@pytest.mark.parametrize(
    ("version", "plugin"),
    [
        ("3.7.2", OURS),
        ("3.9.1", OURS),
        ("4.1.0", OURS),
        ("4.2.0", NEWER),
        ("4.3.1", NEWER),
        ("10.0.0", NEWER),
    ],
)
def test_the_class_is_one_that_the_broker_can_load(version: str, plugin: str) -> None:
    assert plugin_properties(version, URL) == {
        "metric.reporters": f"{JMX},{plugin}",
        "evenload.telemetry.url": URL,
    }


def test_other_lines_and_reporters_stay_and_another_version_or_url_takes_the_others_place() -> None:
    among = {"metric.reporters": "their.Reporter", "broker.rack": "r"}
    first = plugin_properties("3.9.1", URL, Path("/token"), among=among)
    assert first == {
        "metric.reporters": f"their.Reporter,{OURS}",
        "broker.rack": "r",
        "evenload.telemetry.url": URL,
        "evenload.telemetry.token.file": "/token",
    }
    again = plugin_properties("4.3.1", "https://other:1", among=first)
    assert again["metric.reporters"] == f"their.Reporter,{NEWER}"
    assert "evenload.telemetry.token.file" not in again
    assert is_in(first)
    assert is_in(again)
    assert without_plugin(again) == among


def test_without_it_brokers_are_told_nothing_of_reporters() -> None:
    assert without_plugin(plugin_properties("4.3.1", URL)) == {}
    assert not is_in({})
    assert not is_in({"metric.reporters": JMX})
