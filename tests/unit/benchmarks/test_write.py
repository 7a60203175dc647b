"""The write benchmark's arithmetic: ratios of pairs, goals, and what is shown of them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks.paired_ratio import paired_ratio
from benchmarks.results import to_text, write_svg
from benchmarks.write.report import OURS, PLAIN, LatencyRow, ThroughputRow, document, draw, misses, tables

NUM_PAIRS = 20


def test_a_ratio_is_the_median_of_pairs_and_its_interval_holds_it() -> None:
    chance = random.Random(0)
    noise = [chance.uniform(0.5, 20) for _ in range(NUM_PAIRS)]
    ratio = paired_ratio([1.1 * each * chance.uniform(0.99, 1.01) for each in noise], noise)
    assert ratio.low <= ratio.median <= ratio.high
    assert ratio.median == pytest.approx(1.1, rel=0.01)
    assert ratio.high - ratio.low < 0.02  # noise that hits both of a pair alike does not count


def test_a_ratio_that_is_always_the_same_has_an_interval_of_nothing() -> None:
    assert paired_ratio([2.0, 4.0], [1.0, 2.0]) == (2.0, 2.0, 2.0)


def _latency(condition: str, p50_ratio: float, p99_ratio: float) -> LatencyRow:
    return LatencyRow(
        condition=condition,
        load=0.5,
        records_per_s=1000.0,
        first_s={"plain": [0.1] * NUM_PAIRS, "evenload": [0.2] * NUM_PAIRS},
        p50_ms={"plain": [5.0] * NUM_PAIRS, "evenload": [5.0 * p50_ratio] * NUM_PAIRS},
        p99_ms={"plain": [9.0] * NUM_PAIRS, "evenload": [9.0 * p99_ratio] * NUM_PAIRS},
    )


def _throughput(record_bytes: int, ratio: float) -> ThroughputRow:
    return ThroughputRow(
        record_bytes=record_bytes,
        method="produce",
        has_reports=False,
        rate={"plain": [100.0] * NUM_PAIRS, "evenload": [100.0 * ratio] * NUM_PAIRS},
    )


def _result(latency: LatencyRow, throughput: ThroughputRow) -> dict[str, Any]:
    batches = {PLAIN: [1000.0, 1000.0], OURS: [900.0, 900.0]}
    return document(2000.0, 4096, [latency], [throughput], batches)


@pytest.mark.parametrize(
    ("latency", "throughput", "missed"),
    [
        (_latency("well", 1.02, 1.0), _throughput(65536, 0.98), []),
        (_latency("well", 0.5, 0.5), _throughput(4096, 0.5), []),
        (_latency("well", 1.03, 1.0), _throughput(65536, 1.0), ["p50 with the collector well, at 50%"]),
        (_latency("dead", 1.0, 1.1), _throughput(65536, 1.0), ["p99 with the collector dead, at 50%"]),
        (_latency("lying", 9.0, 9.0), _throughput(262144, 0.97), ["262,144 bytes, produce, without reports"]),
    ],
)
def test_goals_are_missed_by_what_they_say(
    latency: LatencyRow, throughput: ThroughputRow, missed: list[str]
) -> None:
    told = misses(_result(latency, throughput))
    assert len(told) == len(missed)
    assert all(sentence.startswith(start) for sentence, start in zip(told, missed, strict=True))


def test_a_result_can_be_read_back_shown_and_drawn(tmp_path: Path) -> None:
    result = _result(_latency("slow", 1.01, 0.9), _throughput(65536, 0.99))
    assert json.loads(to_text(result)) == result
    console = Console(width=150, record=True)
    for table in tables(result):
        console.print(table)
    shown = console.export_text()
    assert "1.010 (1.010 to 1.010)" in shown
    assert "0.10, 0.20 s" in shown
    write_svg(tmp_path / "write.svg", draw(result))
    assert (tmp_path / "write.svg").read_text().startswith("<?xml")
