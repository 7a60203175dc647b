"""Whose word counts, for any course of what sources tell."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.telemetry_collector.sources.broker_metrics import BrokerMetrics, MetricsBook

SOURCES = ("first", "second", "third")
MAX_AGE_S = 10.0


class _Told(NamedTuple):
    source: str
    broker_id: int
    after_s: float
    latency_s: float | None


courses = st.lists(
    st.builds(
        _Told,
        st.sampled_from(SOURCES),
        st.integers(1, 4),
        st.floats(0, 8),
        st.none() | st.floats(0, 100, allow_nan=False),
    ),
    min_size=1,
    max_size=30,
)


def _book() -> MetricsBook:
    return MetricsBook(SOURCES, max_age_s=MAX_AGE_S)


@given(courses)
def test_all_latencies_come_from_the_one_source_that_lately_told_most(course: list[_Told]) -> None:
    book, now_s = _book(), 0.0
    latest: dict[tuple[str, int], tuple[float, float | None]] = {}
    for told in course:
        now_s += told.after_s
        metrics = BrokerMetrics(request_latency_s=told.latency_s)
        book.hear(told.source, told.broker_id, metrics, asked_at_s=now_s)
        latest[told.source, told.broker_id] = (now_s, told.latency_s)
        expected = {
            name: {
                broker_id: latency_s
                for (source, broker_id), (at_s, latency_s) in latest.items()
                if source == name and latency_s is not None and now_s - at_s <= MAX_AGE_S
            }
            for name in SOURCES
        }
        found = book.request_latencies_s(now_s=now_s)
        most = max(len(by_broker) for by_broker in expected.values())
        assert found == next(by_broker for by_broker in expected.values() if len(by_broker) == most)


@given(st.lists(st.integers(0, 1 << 40), min_size=2, max_size=20), st.sampled_from(SOURCES))
def test_bytes_received_are_told_by_the_first_source_that_knows(totals: list[int], source: str) -> None:
    book = _book()
    for at_s, total_bytes in enumerate(sorted(totals)):
        book.hear(source, 1, BrokerMetrics(received_bytes=total_bytes), asked_at_s=at_s)
        book.hear("third", 2, BrokerMetrics(received_bytes=at_s * 7), asked_at_s=at_s)
    now_s = len(totals) - 1.0
    rate = (max(totals) - min(totals)) / now_s
    assert book.ingest_bytes_per_s(1, now_s=now_s) == pytest.approx(rate)
    assert book.ingest_bytes_per_s(2, now_s=now_s) == pytest.approx(7)
    assert book.ingest_bytes_per_s(3, now_s=now_s) is None
    assert book.ingest_bytes_per_s(1, now_s=now_s + MAX_AGE_S + 1) is None
    earlier = SOURCES[0]
    for at_s in (now_s + 1, now_s + 2):
        book.hear(earlier, 2, BrokerMetrics(received_bytes=at_s * 1000), asked_at_s=at_s)
    assert book.ingest_bytes_per_s(2, now_s=now_s + 2) == pytest.approx(1000)


def test_a_broker_that_is_forgotten_has_no_figures() -> None:
    book = _book()
    book.hear("first", 1, BrokerMetrics(request_latency_s=0.1), asked_at_s=0.0)
    book.forget(1)
    assert book.request_latencies_s(now_s=0.0) == {}


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_figures_that_cannot_be_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="received_bytes is"):
        BrokerMetrics(received_bytes=value)
    with pytest.raises(ValueError, match="request_latency_s is"):
        BrokerMetrics(request_latency_s=value)


@given(courses)
def test_what_anybody_may_have_made_up_counts_only_while_nobody_measures(course: list[_Told]) -> None:
    book = MetricsBook(SOURCES, max_age_s=MAX_AGE_S, claims=["first", "third"])
    measured, now_s = MetricsBook(["second"], max_age_s=MAX_AGE_S), 0.0
    for told in course:
        now_s += told.after_s
        metrics = BrokerMetrics(request_latency_s=told.latency_s)
        book.hear(told.source, told.broker_id, metrics, asked_at_s=now_s)
        if told.source == "second":
            measured.hear(told.source, told.broker_id, metrics, asked_at_s=now_s)
        if known := measured.request_latencies_s(now_s=now_s):
            assert book.request_latencies_s(now_s=now_s) == known


def test_what_producers_say_that_they_send_is_the_most_that_any_source_says() -> None:
    book = _book()
    book.hear("first", 1, BrokerMetrics(sent_bytes_per_s=5.0), asked_at_s=0.0)
    book.hear("second", 1, BrokerMetrics(sent_bytes_per_s=9.0), asked_at_s=0.0)
    book.hear("third", 1, BrokerMetrics(), asked_at_s=0.0)
    assert book.sent_bytes_per_s(1, now_s=1.0) == 9.0
    assert book.sent_bytes_per_s(2, now_s=1.0) == 0.0
    assert book.sent_bytes_per_s(1, now_s=MAX_AGE_S + 1) == 0.0
