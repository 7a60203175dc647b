"""What a client's statistics say about brokers: microseconds, means, and silence."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from evenload.telemetry_collector.sources.broker_metrics import BrokerMetrics
from evenload.telemetry_collector.sources.client_statistics import ClientStatisticsSource
from evenload.telemetry_collector.sources.source import Question

MS = 1000  # microseconds


class _Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def _window(avg_us: int, count: int) -> dict[str, int]:
    """As librdkafka fills it: what is beyond its histogram's range is missing from the quantiles."""
    return {"avg": avg_us, "cnt": count, "p50": min(avg_us, 500 * MS), "p99": min(avg_us, 500 * MS)}


def _broker(broker_id: int, **changed: Any) -> dict[str, Any]:
    idle = {"nodeid": broker_id, "state": "UP", "outbuf_cnt": 0, "waitresp_cnt": 0, "txidle": 7_000_000}
    return {**idle, "rtt": _window(0, 0), "outbuf_latency": _window(0, 0), **changed}


def _document(*brokers: dict[str, Any]) -> str:
    return json.dumps({"type": "producer", "brokers": {str(n): broker for n, broker in enumerate(brokers)}})


def _latency_s(source: ClientStatisticsSource, broker_id: int) -> float | None:
    question = Question(broker_id=broker_id, topics=None, is_full=False, layout=None, timeout_s=1.0)
    metrics = asyncio.run(source.answer(question))
    assert metrics == BrokerMetrics(request_latency_s=metrics.request_latency_s)
    return metrics.request_latency_s


@pytest.mark.parametrize(
    ("broker", "latency_s"),
    [
        (_broker(1, rtt=_window(20 * MS, 9)), 0.02),
        (_broker(1, rtt=_window(20 * MS, 9), outbuf_latency=_window(5 * MS, 9)), 0.025),
        (_broker(1, rtt=_window(3000 * MS, 2)), 3.0),  # beyond the histogram's range
        (_broker(1), None),
        (_broker(1, waitresp_cnt=5, txidle=4_000_000), 4.0),  # it doesn't answer any more
        (_broker(1, waitresp_cnt=5, txidle=1000, rtt=_window(20 * MS, 9)), 0.02),
        (_broker(1, state="DOWN", txidle=-1), None),
        ({"nodeid": 1}, None),
    ],
)
def test_a_latency_is_the_wait_in_the_queue_and_the_round_trip_in_seconds(
    broker: dict[str, Any], latency_s: float | None
) -> None:
    source = ClientStatisticsSource(age_max_s=30.0)
    source.feed(_document(broker, _broker(-1, rtt=_window(MS, 1))))
    assert _latency_s(source, 1) == (None if latency_s is None else pytest.approx(latency_s))
    assert _latency_s(source, -1) is None


def test_a_figure_stays_until_a_newer_one_or_until_it_is_too_old() -> None:
    clock = _Clock()
    source = ClientStatisticsSource(age_max_s=30.0, clock=clock)
    source.feed(_document(_broker(1, rtt=_window(20 * MS, 9)), _broker(2, rtt=_window(30 * MS, 9))))
    clock.now_s += 20
    source.feed(_document(_broker(1, rtt=_window(40 * MS, 9)), _broker(2)))
    assert (_latency_s(source, 1), _latency_s(source, 2)) == (pytest.approx(0.04), pytest.approx(0.03))
    clock.now_s += 20
    assert (_latency_s(source, 1), _latency_s(source, 2)) == (pytest.approx(0.04), None)
    clock.now_s += 20
    assert _latency_s(source, 1) is None


def test_before_the_first_statistics_nothing_is_known() -> None:
    assert _latency_s(ClientStatisticsSource(age_max_s=30.0), 1) is None


def test_feeding_after_closing_does_no_harm() -> None:
    source = ClientStatisticsSource(age_max_s=30.0)
    asyncio.run(source.close())
    source.feed(_document(_broker(1, rtt=_window(MS, 1))))
