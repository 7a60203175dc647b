"""Results can be read back and compared, and tell nothing about whose machine it was."""

from __future__ import annotations

import getpass
import json
import socket
from contextlib import nullcontext
from pathlib import Path

import pytest
from click.exceptions import Exit
from rich.console import Console

from benchmarks import results
from benchmarks.balance_report import cost_sentence, document, draw, layout_report, summary_table
from benchmarks.balance_runs import Case, Run
from benchmarks.layouts import LAYOUTS, MIB
from benchmarks.outcome import Outcome
from benchmarks.results import keep, machine, tell_misses, to_text, write_json, write_svg
from benchmarks.route_cost import RouteCost, measure_route_cost

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


def test_what_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_text({"runs": [{"spread": float("nan")}]})


def test_machine_says_what_but_not_whose() -> None:
    told = machine("confluent-kafka")
    assert {"cores", "memory_gib", "python", "kafka", "confluent-kafka", "date"} <= set(told)
    text = json.dumps(told)
    assert socket.gethostname() not in text
    assert "/" not in text
    assert getpass.getuser() not in text


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


@pytest.mark.parametrize(
    ("is_asked", "is_whole"), [(True, True), (True, False), (False, True), (False, False)]
)
def test_results_go_where_it_was_asked_and_those_of_a_whole_run_always_somewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_asked: bool, is_whole: bool
) -> None:
    monkeypatch.setattr(results, "RESULTS_FOLDER", tmp_path / "default")
    runs = _runs()
    asked = tmp_path / "asked" if is_asked else None
    keep(document(runs, COST), lambda: draw(runs), asked, is_whole=is_whole)
    folder = "asked" if is_asked else "default"
    expected = [f"{folder}/balance.json", f"{folder}/balance.svg"] if is_asked or is_whole else []
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/*")) == expected


@pytest.mark.parametrize("is_judged", [True, False])
def test_a_missed_goal_is_said_and_fails_the_command_where_it_is_judged(is_judged: bool) -> None:
    console = Console(width=120, color_system=None)
    with console.capture() as captured, nullcontext() if not is_judged else pytest.raises(Exit) as ended:
        tell_misses(console, ["it took too long"], is_judged=is_judged)
    assert captured.get() == "missed: it took too long\n"
    assert ended is None or ended.value.exit_code == 1
    tell_misses(console, [], is_judged=True)
