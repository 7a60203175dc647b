"""One list of instruments, and both exporters show exactly what it says."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from evenload.telemetry_collector import SnapshotCache
from evenload.telemetry_collector.export.instruments import (
    ATTRIBUTE_BY_LABEL,
    INSTRUMENTS,
    MAX_TOPICS,
    Instrument,
    Point,
    Reading,
)
from evenload.telemetry_collector.export.otlp import OtlpExport
from evenload.telemetry_collector.export.prometheus import PrometheusExport
from evenload.telemetry_collector.snapshot import LogDirSnapshot
from evenload.telemetry_collector.statistics import CollectorStatistics, StatisticsCounter
from evenload.telemetry_collector.testing import make_snapshot

TAKEN_AT_S = 1000.0


class _Measured:
    """A cache and counts, as a collector has them; measured four seconds ago."""

    def __init__(self) -> None:
        self.cache = SnapshotCache(30.0, wall_clock=lambda: TAKEN_AT_S + 4.0, monotonic_clock=lambda: 0.0)
        self.counter = StatisticsCounter(["log_dirs"])

    @property
    def statistics(self) -> CollectorStatistics:
        return self.counter.read()


@pytest.fixture
def measured() -> _Measured:
    measured = _Measured()
    snapshot = make_snapshot(
        [250, 500, 0],
        [1000, 1000, None],
        topics={"clicks": [(1, 2), (2, 1)]},
        stored_bytes={("clicks", 0): 100, ("clicks", 1): 30},
        unreachable=[2],
        latency_s={1: 0.012},
        request_latency_s={1: 0.003},
        ingest_bytes_per_s={1: 7.5, 3: 0.0},
        cordoned=[3],
        taken_at_s=TAKEN_AT_S,
    )
    log_dirs = {
        "/a": LogDirSnapshot(capacity_bytes=600, used_bytes=200),
        "/b": LogDirSnapshot(capacity_bytes=400, used_bytes=50),
    }
    first = replace(snapshot.brokers[1], log_dirs=log_dirs)
    measured.cache.put(replace(snapshot, brokers={**snapshot.brokers, 1: first}))
    measured.counter.count_answer("log_dirs", "log_dirs of broker 1")
    measured.counter.count_failure("log_dirs", "log_dirs of broker 2", "no answer", is_fault=False)
    measured.counter.count_snapshot()
    return measured


def _points(measured: _Measured, name: str) -> dict[tuple[str, ...], float]:
    (instrument,) = (i for i in INSTRUMENTS if i.name == name)
    return {point.labels: point.value for point in instrument.read(Reading.of(measured))}


@pytest.mark.parametrize("instrument", INSTRUMENTS, ids=lambda instrument: instrument.name)
def test_a_name_follows_the_rule_and_fits_the_unit(instrument: Instrument) -> None:
    ending = {"By": "bytes", "By/s": "bytes_per_second", "s": "seconds", "1": "ratio"}[instrument.unit]
    if instrument.kind == "counter":
        ending = "total"
    assert re.fullmatch(rf"evenload_[a-z]+(_[a-z]+)*_{ending}", instrument.name)
    assert instrument.description.endswith(".")
    assert set(instrument.labels) <= set(ATTRIBUTE_BY_LABEL)


def test_names_are_unique() -> None:
    assert len({instrument.name for instrument in INSTRUMENTS}) == len(INSTRUMENTS)


@pytest.mark.parametrize(
    ("name", "points"),
    [
        ("evenload_broker_capacity_bytes", {("1",): 1000, ("2",): 1000}),
        ("evenload_broker_used_bytes", {("1",): 250, ("2",): 500, ("3",): 0}),
        ("evenload_broker_usable_bytes", {}),
        ("evenload_broker_utilisation_ratio", {("1",): 0.25, ("2",): 0.5}),
        ("evenload_broker_unreachable_seconds", {("1",): 0, ("2",): 4.0, ("3",): 0}),
        ("evenload_broker_latency_seconds", {("1",): 0.012}),
        ("evenload_broker_request_latency_seconds", {("1",): 0.003}),
        ("evenload_broker_ingest_bytes_per_second", {("1",): 7.5, ("3",): 0.0}),
        ("evenload_broker_cordoned_ratio", {("1",): 0, ("2",): 0, ("3",): 1}),
        ("evenload_log_dir_capacity_bytes", {("1", "/a"): 600, ("1", "/b"): 400}),
        ("evenload_log_dir_used_bytes", {("1", "/a"): 200, ("1", "/b"): 50}),
        ("evenload_utilisation_spread_ratio", {(): 0.25}),
        ("evenload_snapshot_age_seconds", {(): 4.0}),
        ("evenload_topic_stored_bytes", {("clicks", "1"): 130, ("clicks", "2"): 130}),
        ("evenload_topic_leader_bytes", {("clicks", "1"): 100, ("clicks", "2"): 30, ("clicks", "3"): 0}),
        ("evenload_snapshots_total", {(): 1}),
        ("evenload_source_answers_total", {("log_dirs",): 1}),
        ("evenload_source_failures_total", {("log_dirs",): 1}),
        ("evenload_source_faults_total", {("log_dirs",): 0}),
    ],
)
def test_an_instrument_reads_what_it_says(
    measured: _Measured, name: str, points: dict[tuple[str, ...], float]
) -> None:
    assert _points(measured, name) == points


def test_every_instrument_is_checked_above() -> None:
    (mark,) = test_an_instrument_reads_what_it_says.pytestmark  # type: ignore[attr-defined]
    assert [name for name, _ in mark.args[1]] == [instrument.name for instrument in INSTRUMENTS]


def test_the_topics_that_hold_most_are_shown_and_no_more_than_the_bound() -> None:
    measured = _Measured()
    names = [f"t{n:03}" for n in range(MAX_TOPICS + 50)]
    measured.cache.put(
        make_snapshot(
            [0],
            topics={name: [(1,)] for name in names},
            stored_bytes={(name, 0): size for size, name in enumerate(names)},
        )
    )
    for instrument in ("evenload_topic_stored_bytes", "evenload_topic_leader_bytes"):
        assert {topic for topic, _ in _points(measured, instrument)} == set(names[-MAX_TOPICS:])


def _expected(measured: _Measured) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    reading = Reading.of(measured)
    return {
        (instrument.name, tuple(sorted(zip(instrument.labels, point.labels, strict=True)))): point.value
        for instrument in INSTRUMENTS
        for point in instrument.read(reading)
    }


def test_prometheus_shows_the_list_and_nothing_else(measured: _Measured) -> None:
    registry = CollectorRegistry(auto_describe=True)
    registry.register(PrometheusExport(measured))
    page = generate_latest(registry).decode()
    shown = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
    assert shown == _expected(measured)
    assert "# HELP evenload_broker_used_bytes What a broker's log dirs hold" in page
    assert "# TYPE evenload_source_failures_total counter" in page


def _otlp_points(reader: InMemoryMetricReader) -> Iterator[tuple[str, str, NumberDataPoint]]:
    data = reader.get_metrics_data()
    assert data is not None
    for resource in data.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                points: Sequence[NumberDataPoint] = metric.data.data_points  # type: ignore[assignment]
                for point in points:
                    yield metric.name, metric.unit, point


def test_opentelemetry_shows_the_list_and_nothing_else(measured: _Measured) -> None:
    label_by_attribute = {attribute: label for label, attribute in ATTRIBUTE_BY_LABEL.items()}
    units = {instrument.name: instrument.unit for instrument in INSTRUMENTS}
    reader = InMemoryMetricReader()
    with OtlpExport(measured, reader):
        shown = {}
        for name, unit, point in _otlp_points(reader):
            assert unit == units[name]
            labels = {label_by_attribute[key]: str(value) for key, value in (point.attributes or {}).items()}
            shown[name, tuple(sorted(labels.items()))] = point.value
    assert shown == _expected(measured)


def test_before_the_first_snapshot_only_counts_are_shown() -> None:
    measured = _Measured()
    reading = Reading.of(measured)
    shown = {i.name: list(i.read(reading)) for i in INSTRUMENTS}
    assert {name for name, points in shown.items() if points} == {
        i.name for i in INSTRUMENTS if i.kind == "counter"
    }
    assert shown["evenload_snapshots_total"] == [Point((), 0)]


def test_closing_an_export_twice_is_fine(measured: _Measured) -> None:
    export = OtlpExport(measured, InMemoryMetricReader())
    export.close()
    export.close()
