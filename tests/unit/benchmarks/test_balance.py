"""What `benchmarks balance` found can be read back, looked at, and says who passes."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console

from benchmarks.balance.report import cost_sentence, document, draw, layout_report, summary_table
from benchmarks.balance.route_cost import RouteCost, measure_route_cost
from benchmarks.balance.runs import Case, Run
from benchmarks.layouts import LAYOUTS, MIB
from benchmarks.outcome import Outcome
from benchmarks.results import write_json, write_svg

COST = RouteCost(empty_ns=20.0, route_ns={100: 50.0, 1024: 60.0}, producer_ns=300.0)


def _runs() -> list[Run]:
    def run(layout: int, strategy: str, first: float) -> Run:
        outcome = Outcome(
            utilisation={1: first, 2: 0.3, 3: 0.3},
            best={1: 0.3, 2: 0.3, 3: 0.3},
            leader_bytes={1: 40 * MIB, 2: 30 * MIB, 3: 30 * MIB},
            topic_bytes=100 * MIB,
        )
        case = Case(layout=LAYOUTS[layout], fraction=0.27, record_bytes=65536, seed=1)
        return Run(case=case, strategy=strategy, outcome=outcome)

    return [
        run(0, "round robin", 0.4),
        run(0, "evenload", 0.305),
        run(1, "round robin", 0.35),
        run(1, "evenload", 0.32),
    ]


def _printed(renderable: object) -> str:
    console = Console(width=120, color_system=None)
    with console.capture() as captured:
        console.print(renderable)
    return captured.get()


def test_a_result_reads_back_and_has_an_entry_a_line(tmp_path: Path) -> None:
    write_json(tmp_path / "balance.json", document(_runs(), COST))
    text = (tmp_path / "balance.json").read_text()
    read = json.loads(text)
    assert [run["highest_over_best_points"] for run in read["runs"]] == [10.0, 0.5, 5.0, 2.0]
    assert sum('"strategy"' in line for line in text.splitlines()) == 4
    assert {"benchmark", "machine", "criterion", "partition_for", "layouts"} < set(read)


def test_a_picture_is_the_same_every_time(tmp_path: Path) -> None:
    write_svg(tmp_path / "a.svg", draw(_runs()))
    write_svg(tmp_path / "b.svg", draw(_runs()))
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert "capacities 2:2:1" in (tmp_path / "a.svg").read_text()


def test_tables_say_whether_evenload_passes_beside_every_baseline() -> None:
    runs = _runs()
    assert "evenload passes" in _printed(layout_report(runs[:2]))
    assert "evenload FAILS" in _printed(layout_report(runs[2:]))
    summary = _printed(summary_table(runs)).splitlines()
    assert any("10.0" in line and "0.5" in line and "passes" in line for line in summary)
    assert any("5.0" in line and "2.0" in line and "FAILS" in line for line in summary)


def test_the_cost_is_measured_beside_an_empty_method() -> None:
    cost = measure_route_cost(rounds=20)
    assert 0 < cost.empty_ns < cost.route_ns[1024] < cost.producer_ns
    assert "3.0 times" in cost_sentence(COST)
    assert COST.is_cheap
