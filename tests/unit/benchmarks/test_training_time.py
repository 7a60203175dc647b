"""The training-time benchmark's arithmetic: situations, goals, what is shown of them."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from rich.console import Console

from benchmarks.layouts import MIB
from benchmarks.results import to_text, write_svg
from benchmarks.training_time import links
from benchmarks.training_time.placing import BEST, DATASET_OF_CAPACITY, DEFAULTS, EMPTY, SKEWED, situation
from benchmarks.training_time.report import Run, document, draw, misses, tables


def make_runs(defaults_take: float, *, num_rounds: int = 2) -> list[Run]:
    """The best layout takes 10 s or a little more, and what evenload lays so many times as long."""
    return [
        Run(
            workload=workload,
            start=start,
            placing=placing,
            ratio=ratio,
            unlimited_s=9.0,
            dataset_parts={1: 0.0, 2: 0.5, 3: 0.5} if times > 1 else dict.fromkeys((1, 2, 3), 1 / 3),
            utilisation={1: 0.6, 2: 0.35, 3: 0.35},
            seconds=(10 + number) * (times if ratio >= 1 else 1),
        )
        for number in range(num_rounds)
        for workload in ("texts", "images")
        for start in (EMPTY, SKEWED)
        for placing, times in ((BEST, 1.0), (DEFAULTS, defaults_take if start == SKEWED else 1.0))
        for ratio in (0.5, 1.0, 2.0)
    ]


def test_what_defaults_cost_is_judged_by_start_and_rate() -> None:
    assert misses(document(make_runs(1.02))) == []
    assert misses(document(make_runs(1.4))) == [
        f"{workload}, brokers {SKEWED}, reading {ratio} times as long: evenload's defaults cost 1.400 "
        "(1.400 to 1.400) of the best layout's time (allowed 1.02)"
        for workload in ("texts", "images")
        for ratio in (1, 2)
    ]


def test_a_result_shows_disks_beside_time_and_is_told_of_a_single_round_too(tmp_path: Path) -> None:
    for num_rounds in (1, 3):
        result = json.loads(to_text(document(make_runs(1.5, num_rounds=num_rounds))))
        (row,) = (
            each
            for each in result["layouts"]
            if (each["workload"], each["start"], each["placing"]) == ("texts", SKEWED, DEFAULTS)
        )
        assert row["disk_spread"] == 0.25
        assert row["dataset_parts"] == {"1": 0, "2": 0.5, "3": 0.5}
        assert [epoch["times_best"] for epoch in row["epochs"]] == [[1] * 3, [1.5] * 3, [1.5] * 3]
    console = Console(width=120)
    with console.capture() as told:
        for table in tables(result, "texts"):
            console.print(table)
    assert "texts (9.0 s on unlimited links); brokers 60/20/20 % full" in told.get()
    assert "0/50/50" in told.get()
    write_svg(tmp_path / "drawn.svg", draw(result))
    assert "images" in (tmp_path / "drawn.svg").read_text()


@pytest.mark.parametrize("dataset_bytes", [1, 3_000_000, 40_000_000])
def test_a_situation_leaves_room_for_the_dataset(dataset_bytes: int) -> None:
    assert not situation(EMPTY, dataset_bytes).held_mib
    layout = situation(SKEWED, dataset_bytes)
    capacity = layout.capacity_mib[0]
    assert {b: mib / capacity for b, mib in layout.held_mib.items()} == {1: 0.6, 2: 0.2, 3: 0.2}
    assert dataset_bytes <= DATASET_OF_CAPACITY * capacity * MIB
    if dataset_bytes > 10 * MIB:
        assert dataset_bytes > 0.9 * DATASET_OF_CAPACITY * capacity * MIB


def test_where_links_cant_be_limited_a_sentence_says_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(links._OUTSIDE, raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None if name == "tc" else f"/bin/{name}")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    with pytest.raises(click.ClickException, match=r"takes root, unshare, ip, tc \(not found: tc\)"):
        links.run_inside(["training_time"])
