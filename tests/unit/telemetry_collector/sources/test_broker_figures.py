"""How exporters spell the figures of a broker, and what is no figure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.telemetry_collector.sources.broker_figures import BrokerFigures, FigureLines

# As the JMX exporter's example kafka-2_0_0.yml has them, and Strimzi.
EXAMPLE = """
# HELP kafka_server_brokertopicmetrics_bytesin_total Attribute exposed for management
# TYPE kafka_server_brokertopicmetrics_bytesin_total counter
kafka_server_brokertopicmetrics_bytesin_total 1.5E3
kafka_server_brokertopicmetrics_bytesin_total{topic="clicks",} 1400.0
kafka_server_brokertopicmetrics_bytesout_total 7.0
kafka_server_brokertopicmetrics_replicationbytesin_total 500.0
kafka_server_brokertopicmetrics_replicationbytesout_total 5.0
kafka_network_requestmetrics_totaltimems_count_total{request="Produce",} 12.0
kafka_network_requestmetrics_totaltimems{request="Produce",quantile="0.99",} 40.0
kafka_network_requestmetrics_totaltimems{request="Produce",quantile="0.50",} 4.0
kafka_network_requestmetrics_totaltimems{request="Fetch",quantile="0.50",} 500.0
"""
WITHOUT_RULES = """
kafka_server_BrokerTopicMetrics_Count{name="BytesInPerSec"} 1500
kafka_server_BrokerTopicMetrics_Count{name="BytesInPerSec",topic="clicks"} 1400
kafka_server_BrokerTopicMetrics_OneMinuteRate{name="BytesInPerSec"} 3
kafka_server_BrokerTopicMetrics_Count{name="ReplicationBytesInPerSec"} 500
kafka_network_RequestMetrics_Count{name="TotalTimeMs",request="Produce"} 12
kafka_network_RequestMetrics_Mean{name="TotalTimeMs",request="Produce"} 9
kafka_network_RequestMetrics_50thPercentile{name="TotalTimeMs",request="Produce"} 4
kafka_network_RequestMetrics_50thPercentile{name="LocalTimeMs",request="Produce"} 1
"""
OWN_NAMES = """
kafka_server_brokertopicmetrics_bytesinpersec{topic="",env="test"} 1500
kafka_server_brokertopicmetrics_bytesinpersec{env="test",topic="clicks"} 1400
kafka_server_brokertopicmetrics_replicationbytesinpersec{env="test"} 500
kafka_network_requestmetrics_totaltimems_count{env="test",request="Produce"} 12
kafka_network_requestmetrics_totaltimems{env="test",request="Produce",quantile="0.5"} 4
"""
COUNTS = """
kafka_server_brokertopicmetrics_bytesinpersec_count 1500
kafka_server_brokertopicmetrics_replicationbytesinpersec_count 500
kafka_network_requestmetrics_totaltimems_count{request="Produce"} 12
kafka_network_requestmetrics_totaltimems_mean{request="Produce"} 4
"""
FOUND = BrokerFigures(received_bytes=2000, num_produce_requests=12, produce_latency_s=0.004)


def _figures(text: str, *, cut_at: int = 0) -> BrokerFigures:
    lines = FigureLines()
    lines.add(text[:cut_at].encode())
    lines.add(text[cut_at:].encode())
    return lines.figures()


@pytest.mark.parametrize("text", [EXAMPLE, WITHOUT_RULES, OWN_NAMES, COUNTS])
def test_every_usual_spelling_is_understood(text: str) -> None:
    assert _figures(text) == FOUND


@given(st.integers(0, len(EXAMPLE)))
def test_a_text_may_be_cut_anywhere(cut_at: int) -> None:
    assert _figures(EXAMPLE, cut_at=cut_at) == FOUND


def test_a_figure_that_only_one_topic_has_is_none_of_the_broker() -> None:
    assert _figures('kafka_server_brokertopicmetrics_bytesin_total{topic="clicks"} 1400') == BrokerFigures()


def test_bytes_of_producers_without_those_of_replicas_are_not_what_came() -> None:
    assert _figures("kafka_server_brokertopicmetrics_bytesin_total 1400").received_bytes is None


@pytest.mark.parametrize("value", ["NaN", "-1", "+Inf"])
def test_a_value_that_cannot_be_is_no_figure(value: str) -> None:
    assert _figures(EXAMPLE.replace("1.5E3", value).replace("4.0\n", f"{value}\n")) == BrokerFigures(
        num_produce_requests=12
    )


@pytest.mark.parametrize(
    ("piece", "reason"),
    [
        (b"x" * 20_000, "a line of it is longer than 65536 bytes"),
        (EXAMPLE.encode() * 20, "a broker's own figures take more than 262144 bytes of it"),
    ],
)
def test_a_text_that_would_take_long_to_look_through_is_refused(piece: bytes, reason: str) -> None:
    lines = FigureLines()

    def add_many() -> None:
        for _ in range(100):
            lines.add(piece)

    with pytest.raises(ValueError, match=reason):
        add_many()


@given(st.binary(max_size=300), st.sampled_from(["bytesin_total", "bytesin_total{"]))
def test_whatever_is_served_is_a_figure_or_a_value_error(garbage: bytes, beginning: str) -> None:
    lines = FigureLines()
    lines.add(f"kafka_server_brokertopicmetrics_{beginning}".encode() + garbage)
    try:
        figures = lines.figures()
    except ValueError:
        return
    assert figures.received_bytes is None
