"""The telemetry benchmark's arithmetic: ratios to one producer, its goal, and what is shown of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks.results import to_text, write_svg
from benchmarks.telemetry.broker_counts import BrokerCounts
from benchmarks.telemetry.report import (
    IDLE,
    JUDGED,
    ONE,
    OWN,
    ROUTED,
    Case,
    Window,
    document,
    draw,
    misses,
    tables,
)

ALL = (IDLE, ONE, Case(OWN, 100), JUDGED, *ROUTED)


def _window(case: Case, requests: float, cpu_ms: float) -> Window:
    return Window(
        case=case,
        requests={"Metadata": requests / 4, "DescribeLogDirs": requests * 3 / 4} if requests else {},
        wire_bytes=1500.0,
        broker_cpu_ms=cpu_ms,
        client_cpu_ms=0.5,
        service_cpu_ms=0.0,
        service_requests=0.0,
        opening_requests=8.0,
    )


def _result(judged: list[tuple[float, float]]) -> dict[str, Any]:
    """One producer has 0.8 requests and 50 ms a second; so the judged windows have."""
    windows = []
    for requests, cpu_ms in judged:
        windows += [_window(IDLE, 0.0, 49.0), _window(ONE, 0.8, 50.0), _window(ALL[2], 80.0, 120.0)]
        windows += [_window(JUDGED, requests, cpu_ms), *(_window(case, 0.8, 50.0) for case in ROUTED)]
    return document(windows, num_partitions=300, window_s=10.0)


@pytest.mark.parametrize(
    ("judged", "missed"),
    [
        ([(0.8, 50.0)] * 4, []),
        ([(0.4, 45.0), (0.8, 50.0), (0.8, 52.0), (1.2, 51.0)], []),
        ([(1.2, 50.0)] * 4, ["requests: 100 producers (service) cost 1.50 to 1.50"]),
        ([(0.8, 40.0), (2.4, 50.0), (2.4, 51.0)], ["requests"]),
        ([(0.8, 60.0)] * 4, ["broker_cpu: 100 producers (service) cost 1.20 to 1.20"]),
        ([(0.8, 40.0), (0.8, 80.0), (0.8, 81.0)], ["broker_cpu"]),
        ([(80.0, 120.0)] * 4, ["requests", "broker_cpu"]),
    ],
)
def test_a_hundred_producers_may_cost_what_one_costs(
    judged: list[tuple[float, float]], missed: list[str]
) -> None:
    told = misses(_result(judged))
    assert len(told) == len(missed)
    assert all(sentence.startswith(start) for sentence, start in zip(told, missed, strict=True))


def test_a_result_can_be_read_back_shown_and_drawn(tmp_path: Path) -> None:
    result = _result([(0.8, 50.0), (0.8, 50.0)])
    assert json.loads(to_text(result)) == result
    console = Console(width=150, record=True)
    for table in tables(result):
        console.print(table)
    shown = console.export_text()
    assert "100.00 (100.00 to 100.00)" in shown  # a hundred producers with a collector each
    assert "1.02 (1.02 to 1.02)" in shown  # the processor time of one, times that of none
    write_svg(tmp_path / "telemetry.svg", draw(result))
    assert (tmp_path / "telemetry.svg").read_text().startswith("<?xml")


def test_counts_less_earlier_ones_are_what_happened_between() -> None:
    earlier = BrokerCounts(at_s=1.0, requests={"Metadata": 5.0}, received_bytes=10.0, sent_bytes=20.0)
    later = BrokerCounts(
        at_s=3.0, requests={"Metadata": 9.0, "Fetch": 2.0}, received_bytes=11.0, sent_bytes=25.0
    )
    assert later - earlier == BrokerCounts(
        at_s=2.0, requests={"Metadata": 4.0, "Fetch": 2.0}, received_bytes=1.0, sent_bytes=5.0
    )
