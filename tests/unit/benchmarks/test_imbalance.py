"""The imbalance benchmark's arithmetic: the least that has to be written, goals, what is shown of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from scipy.optimize import linprog

from benchmarks.imbalance.moving import THROTTLED, UNTHROTTLED, Moved
from benchmarks.imbalance.report import document, draw, least_sentence, misses, tables
from benchmarks.imbalance.steady_writer import Latencies
from benchmarks.imbalance.writing import LEVEL, UNBOUNDED, Standing, Written, least_bytes_to_write
from benchmarks.layouts import MIB
from benchmarks.results import to_text, write_svg


def test_all_others_have_to_come_within_a_point_of_the_fullest() -> None:
    held = {1: 700, 2: 200, 3: 100, 4: 0}
    assert least_bytes_to_write(held, dict.fromkeys(held, 1000)) == 490 + 590 + 690
    assert least_bytes_to_write({1: 700, 2: 695}, {1: 1000, 2: 1000}) == 0


@given(
    st.lists(
        st.tuples(st.integers(0, 10**6), st.integers(10**5, 10**7)).map(lambda pair: (min(pair), max(pair))),
        min_size=2,
        max_size=6,
    )
)
def test_no_linear_program_gets_there_with_less(brokers: list[tuple[int, int]]) -> None:
    held, capacity = (dict(enumerate(each)) for each in zip(*brokers, strict=True))
    used, size = (np.array(list(each.values()), dtype=float) for each in (held, capacity))
    num = len(brokers)
    # Variables: bytes for each broker, and the lowest level.
    level = -np.ones((num, 1))
    found = linprog(
        [*([1.0] * num), 0.0],
        A_ub=np.vstack([np.hstack([np.diag(1 / size), level]), np.hstack([-np.diag(1 / size), -level])]),
        b_ub=np.concatenate([LEVEL - used / size, used / size]),
        bounds=[(0, None)] * num + [(None, None)],
    )
    assert least_bytes_to_write(held, capacity) == pytest.approx(found.fun, rel=1e-6, abs=2)


def _written(contender: str, *standings: tuple[int, float], added_part: float = 0.5) -> Written:
    """Of what is written, so much is on the added broker, and the rest on the first."""

    def on(mib: int) -> dict[int, int]:
        return {1: round((1 - added_part) * mib * MIB), 4: round(added_part * mib * MIB)}

    return Written(
        contender=contender,
        least_bytes=354 * MIB,
        added_bytes=100 * MIB,
        standings=[Standing({1: 0.7, 2: 0.7 - spread}, on(mib)) for mib, spread in standings],
        found_s=4.0,
        num_partitions={1: 2, 2: 2, 3: 2, 4: 2},
    )


def _moved(kind: str, moved_mib: int = 180) -> Moved:
    return Moved(
        kind=kind,
        held_bytes=400 * MIB,
        moved_bytes=moved_mib * MIB,
        least_bytes=180 * MIB,
        spread_before=0.7,
        spread_after=0.01,
        took_s=15.0,
        quiet_s=np.full(100, 0.005),
        staying_s=np.full(100, 0.006),
        moving_s=np.full(100, 1.5) if kind == THROTTLED else np.array([]),
    )


def test_level_counts_from_when_the_broker_was_added() -> None:
    run = _written("evenload", (0, 0.7), (50, 0.005), (100, 0.005), (101, 0.7), (400, 0.02), (425, 0.009))
    assert run.level_bytes == 425 * MIB
    assert run.over_least == pytest.approx(425 / 354)
    assert _written("round robin", (0, 0.7), (425, 0.7)).over_least is None


def test_latencies_are_found_by_when_records_were_due_and_by_partition() -> None:
    latencies = Latencies(np.arange(6.0), np.arange(6.0) / 100, np.array([0, 1, 2, 0, 1, 2]))
    assert latencies.between(1.0, 5.0, {0, 1}).tolist() == [0.01, 0.03, 0.04]
    assert latencies.between(1.0, 5.0, set()).tolist() == []


@pytest.mark.parametrize(
    ("written", "moved", "missed"),
    [
        (_written("evenload", (0, 0.7), (425, 0.009)), _moved(THROTTLED), []),
        (_written("round robin", (0, 0.7), (425, 0.7)), _moved(THROTTLED, 198), []),
        (_written("evenload", (0, 0.7), (800, 0.009)), _moved(THROTTLED), ["evenload was level after 2.26"]),
        (_written("evenload", (0, 0.7), (700, 0.009)), _moved(THROTTLED), []),
        (
            _written(UNBOUNDED, (0, 0.7), (450, 0.009)),
            _moved(THROTTLED),
            ["evenload, no bounds was level after 1.27"],
        ),
        (
            _written("evenload", (1, 0.7), (425, 0.009), added_part=0.52),
            _moved(THROTTLED),
            ["a leader got 2.08 times its even share"],
        ),
        (
            _written("evenload", (0, 0.7), (885, 0.02)),
            _moved(THROTTLED),
            ["evenload was not level after 885"],
        ),
        (_written("evenload", (0, 0.7), (400, 0.0)), _moved(UNTHROTTLED, 200), ["moves (unthrottled) took"]),
    ],
)
def test_goals_are_missed_by_what_they_say(written: Written, moved: Moved, missed: list[str]) -> None:
    told = misses(document([written], [moved]))
    assert len(told) == len(missed)
    assert all(sentence.startswith(start) for sentence, start in zip(told, missed, strict=True))


def test_a_result_can_be_read_back_shown_and_drawn(tmp_path: Path) -> None:
    result: dict[str, Any] = document(
        [_written("evenload", (0, 0.7), (425, 0.009)), _written("round robin", (0, 0.7), (425, 0.7))],
        [_moved(THROTTLED), _moved(UNTHROTTLED)],
    )
    assert json.loads(to_text(result)) == json.loads(json.dumps(result))
    console = Console(width=150, record=True)
    for table in tables(result):
        console.print(table)
    shown = console.export_text()
    assert "1.20" in shown
    assert "not by then" in shown
    assert "5 / 6 / 1,500 ms" in shown
    assert "5 / 6 / - ms" in shown
    assert "354 MiB more data at least" in least_sentence(result)
    write_svg(tmp_path / "imbalance.svg", draw(result))
    assert (tmp_path / "imbalance.svg").read_text().startswith("<?xml")
